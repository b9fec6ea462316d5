"""`opscope nvcc`: what it prints, writes and refuses; compilations where there is an nvcc."""

import os
import subprocess
from pathlib import Path

import pytest

from case_tables import cases
from opscope.cli import nvcc as verb
from opscope.hardware import driver as toolkit
from opscope.hardware.driver import CudaDevice, find_cuda_tool

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "add"
needs_nvcc = pytest.mark.skipif(find_cuda_tool("nvcc") is None, reason="no nvcc")
exhaustive = pytest.mark.exhaustive  # compilations, each of a second or more


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """The current folder, empty, on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "visible_gpus", tuple)
    return tmp_path


@pytest.fixture
def write(workplace):
    def make(text, name="a.cu"):
        path = workplace / name
        path.write_text(text)
        return path.relative_to(workplace)

    return make


def hopper(monkeypatch):
    monkeypatch.setattr(verb, "visible_gpus", lambda: (CudaDevice(0, "NVIDIA H200", "9.0"),))


def nvcc_images(command):
    """Kind and number of every image nvcc would put into the file."""
    done = subprocess.run([*command, "--dryrun"], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if "fatbinary" in line and "-link" not in line]
    words = [word.strip('"') for line in lines for word in line.split() if "--image3=" in word]
    facts = [dict(part.split("=", 1) for part in word.split("--image3=")[1].split(",")) for word in words]
    return sorted((one["kind"], one["sm"]) for one in facts)


@needs_nvcc
def test_the_guides_program_is_compiled_for_the_gpu_here(opscope, workplace, monkeypatch):
    hopper(monkeypatch)
    outcome = opscope("nvcc", EXAMPLES / "add.cu", "-o", "add").fine(
        "nvcc -gencode arch=compute_90,code=sm_90 -o add ", "add(int, float*, float*)"
    )
    assert outcome.out.endswith("Wrote add\n")
    assert os.access("add", os.X_OK)
    again = opscope("nvcc", EXAMPLES / "add.cu", "-o", "add")
    assert (again.code, again.err) == (1, "error: add: the file exists. Overwrite it with --force\n")


@needs_nvcc
@pytest.mark.parametrize(
    ("arguments", "equal"),
    [
        (["--arch", "sm_90,ptx"], ["-arch=sm_90"]),
        pytest.param(["--arch", "sm_90"], ["-gencode=arch=compute_90,code=sm_90"], marks=exhaustive),
        pytest.param(["--arch", "all-major"], ["-arch=all-major"], marks=exhaustive),
    ],
)
def test_the_images_are_those_of_nvccs_own_options(opscope, write, arguments, equal):
    source = write("int main() {}\n")
    outcome = opscope("nvcc", source, *arguments, "-o", "a", "--json").fine()
    images = nvcc_images(outcome.json["command"])
    assert images == nvcc_images([find_cuda_tool("nvcc") or "", *equal, str(source)])
    assert ("ptx" in {kind for kind, _ in images}) is (outcome.json["ptx"] is not None)


@needs_nvcc
def test_a_compile_error_is_nvccs_message_without_a_file_or_a_traceback(opscope, write, workplace):
    opscope("nvcc", write("int main() { return wrong; }\n"), "--arch", "sm_90").fails(
        "error: a.cu does not compile for sm_90:\na.cu(1): error: identifier"
    )
    assert [file.name for file in workplace.iterdir()] == ["a.cu"]


@needs_nvcc
@cases("arguments", "words")
def test_targets_that_cannot_be_are_explained(opscope, write, arguments, words):
    opscope("nvcc", write("int main() {}\n"), *arguments).fails(words)


@needs_nvcc
def test_without_a_gpu_a_target_is_taken_and_said(opscope, write):
    told = opscope("nvcc", write("__global__ void one(int* x) { *x = 1; }\n")).fine("sm_90 (Hopper)")
    assert told.err == "note: no GPU is here: compiling for sm_90. Choose another with --arch, such as h200\n"


@cases("arguments", "words")
def test_what_makes_no_sense_is_refused_before_anything_runs(opscope, write, monkeypatch, arguments, words):
    write("int main() {}\n")
    write("", "a.py")
    Path("folder.cu").mkdir()
    monkeypatch.setattr(verb, "require_nvcc", lambda: pytest.fail("nvcc was looked for"))
    opscope("nvcc", *arguments).fails(words)


def test_without_nvcc_it_says_what_to_install(opscope, write, monkeypatch):
    monkeypatch.setattr(toolkit, "find_cuda_tool", lambda name: None)
    opscope("nvcc", write("int main() {}\n"), "--arch", "sm_90").fails("pip install nvidia-cuda-nvcc")


@needs_nvcc
def test_occupancy_is_for_the_shared_memory_asked_for(opscope, write):
    source = write("__global__ void one(int* x) { *x = 1; }\n")
    outcome = opscope("nvcc", source, "--arch", "sm_90", "--json", "--dynamic-shared", "102400")
    (kernel,) = outcome.json["kernels"]
    blocks = kernel["occupancy"]
    assert [(one["threads"], one["blocks_per_sm"], one["limited_by"]) for one in blocks] == [
        (threads, 2, ["shared_memory"]) for threads in (128, 256, 512)
    ]
    assert outcome.json["dynamic_shared_bytes"] == 102_400
