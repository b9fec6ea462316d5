"""Compilations by the nvcc of this machine."""

import os
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.hardware.architectures import Target
from opscope.hardware.driver import find_cuda_tool
from opscope.nvcc.compile import Request, compile_error, compile_source, compilers_words, read_nvcc

pytestmark = pytest.mark.skipif(find_cuda_tool("nvcc") is None, reason="no nvcc")

AMPERE, HOPPER = Target(8, 0), Target(9, 0)
KERNELS = Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def compile_text(tmp_path_factory):
    """Compiles a text in a folder of its own."""
    compiler = read_nvcc(find_cuda_tool("nvcc") or "")

    def run(text, *, name="a.cu", **facts):
        folder = tmp_path_factory.mktemp("nvcc")
        source = folder / name
        source.write_text(text)
        wanted = {"targets": (HOPPER,), **facts}
        return compile_source(compiler, Request(source, folder / "made", False, **wanted), os.environ)

    return run


@pytest.fixture(scope="module")
def compiled(compile_text):
    return compile_text(KERNELS, name="a file é.cu", targets=(AMPERE, HOPPER), ptx=HOPPER)


def folder_of(compilation):
    return compilation.request.source.parent


def test_every_kernel_is_told_for_every_target(compiled):
    names = {(one.name.rpartition("::")[2], one.target.name) for one in compiled.kernels}
    wanted = ("scale<float>(float*, float)", "recursive(int*)", "promoted(float*)")
    assert names == {(name, target) for name in wanted for target in ("sm_80", "sm_90")}
    assert {one.request.output.name for one in [compiled]} == {"made"}
    assert sorted(file.name for file in folder_of(compiled).iterdir()) == ["a file é.cu", "made"]


def test_numbers_launch_bounds_and_constants_are_those_of_the_source(compiled):
    for one in compiled.kernels:
        assert one.use.registers > 0
        if "scale" in one.name:
            assert (one.use.shared_bytes, *one.bounds) == (512, 128, 4)
        else:
            assert (one.use.shared_bytes, one.bounds.max_threads) == (0, None)
    # Parameters start at byte 352 before Hopper, for which none is printed: a pointer.
    sizes = {(one.name, one.target.name): one.constant_bytes for one in compiled.kernels}
    assert sizes["recursive(int*)", "sm_80"] == 352 + 8
    assert sizes["recursive(int*)", "sm_90"] is None


def test_warnings_are_there_once_in_the_compilers_words(compiled):
    assert compiled.said.count('(13): warning #177-D: variable "unused" was declared but never') == 1
    assert "int unused;\n" in compiled.said
    assert "registers" not in compiled.said


def test_an_error_leaves_what_was_there(compile_text, tmp_path):
    source, output = tmp_path / "bad.cu", tmp_path / "bad"
    source.write_text("__global__ void k(float* y) { y[0] = wrong; }\n")
    output.write_text("before")
    compiler = read_nvcc(find_cuda_tool("nvcc") or "")
    with pytest.raises(InputError, match=r'bad.cu\(1\): error: identifier "wrong" is undefined'):
        compile_source(compiler, Request(source, output, False, (HOPPER,)), os.environ)
    assert output.read_text() == "before"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad", "bad.cu"]


def test_a_host_compiler_that_is_missing_is_told(compile_text):
    with pytest.raises(InputError, match=r"does not compile for sm_90:\n(.*\n)*.*No such file"):
        compile_text("int main() {}", options=("-ccbin=/nonexistent",))


# As the programs of CUDA 13.0 print them.
NO_MAIN = """\
Scrt1.o: in function `_start':
(.text+0x17): undefined reference to `main'
collect2: error: ld returned 1 exit status
"""
SHARED = "ptxas error   : Entry function '_Z1kPf' uses too much shared data (0x61a80 bytes, 0xc000 max)\n"
TWO_TARGETS = (Path(__file__).parent / "outputs/two_targets.txt").read_text(encoding="utf-8")


def error(output, *, is_program=True):
    request = Request(Path("folder/add.cu"), Path("add"), is_program, (Target(8, 0), Target(9, 0)))
    return compile_error(request, output)


def test_a_compile_error_says_what_was_said_and_how_to_go_on():
    assert str(error(SHARED)) == f"add.cu does not compile for sm_80, sm_90:\n{SHARED.strip()}"
    long = error("".join(f"error {number}\n" for number in range(100)))
    assert str(long).endswith("error 29\n… and 70 more lines")
    assert "has no main" in str(error(NO_MAIN))
    assert "undefined reference" in str(error(NO_MAIN, is_program=False))


def test_what_was_said_of_several_targets_is_there_once_without_the_numbers():
    warning = TWO_TARGETS.partition("\n\n")[0]
    loss = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    assert compilers_words(TWO_TARGETS) == f"{warning}\n\n{loss}\n{warning}"
    assert compilers_words(f"{warning}\n\n{warning}\n") == warning
