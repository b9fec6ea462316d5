"""A kernel's machine code: where it is found, and what its registers cost."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.hardware.driver import find_cuda_tool
from opscope.model.location import Grade
from opscope.provenance.binaries.library import LocalLibraries
from opscope.toolchain import kernel_code as looked_up
from opscope.toolchain.kernel_code import kernel_code, kernel_codes

NVCC = shutil.which("nvcc")
pytestmark = pytest.mark.skipif(
    NVCC is None or find_cuda_tool("cuobjdump") is None, reason="nvcc or cuobjdump is not installed"
)
# 64 sums that all live at once: more registers than let a multiprocessor hold all its threads.
SOURCE = Path(__file__).with_name("many.cu").read_text(encoding="utf-8")
NAME = "void ours::many<float>(float const*, float*)"


def built(folder, *options):
    (folder / "many.cu").write_text(SOURCE)
    target = folder / "many.out"
    subprocess.run([str(NVCC), "-arch=sm_90", *options, "-o", target, folder / "many.cu"], check=True)
    return target


def test_code_of_a_library_is_found_by_the_name_that_a_trace_shows(tmp_path, monkeypatch):
    library = built(tmp_path, "--shared", "-Xcompiler=-fPIC")
    monkeypatch.setattr(looked_up, "installed_libraries", lambda: LocalLibraries([library]))
    found = kernel_code(NAME)
    assert (found.file, found.grade, found.target) == (str(library), Grade.EXACT, "sm_90")
    assert found.registers > 64
    assert found.threads is found.active is None  # nothing says how large its blocks are
    assert found.instructions["global loads of 4 bytes"] == 64
    assert found.instructions["global stores of 4 bytes"] == 64
    assert found.instructions["special functions"] >= 64
    (other,) = kernel_codes([NAME], None, "1.0")
    assert other.grade is Grade.NEIGHBOR_VERSION
    with pytest.raises(InputError, match="no machine code of void ours::few"):
        kernel_codes(["void ours::few<float>(float const*, float*)"])
    with pytest.raises(InputError, match="it has no kernel"):
        kernel_codes([])


def test_code_of_tritons_cache_says_what_its_registers_cost(tmp_path, monkeypatch):
    text = (tmp_path / "many.cu").write_text(SOURCE.replace("many(", "many_kernel("))
    assert text
    entry = tmp_path / "cache" / "HASH"
    entry.mkdir(parents=True)
    simple = SOURCE.replace("namespace ours {", 'extern "C" {').replace("template <class T> ", "")
    simple = simple.partition("template __global__")[0].replace("T* ", "float* ").replace("T(1)", "1.f")
    (tmp_path / "simple.cu").write_text(simple.replace("T sums", "float sums") + "}\n")
    cubin = entry / "many.cubin"
    subprocess.run([str(NVCC), "-arch=sm_90", "-cubin", "-o", cubin, tmp_path / "simple.cu"], check=True)
    stated = {"target": {"backend": "cuda", "arch": 90}, "num_warps": 4, "shared": 1024}
    cubin.with_suffix(".json").write_text(json.dumps(stated))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    found = kernel_code("many")
    assert (found.file, found.grade, found.threads, found.shared_bytes) == (
        str(cubin), Grade.INFERRED, 128, 1024,
    )  # fmt: skip
    assert found.active.limiters == ("registers",)
    # Registers come in units of 8 for each thread, and a multiprocessor has 65,536.
    held = found.active.blocks_per_sm
    assert held == 65_536 // (128 * (-(-found.registers // 8) * 8))
    assert found.more_blocks_at == 65_536 // (128 * (held + 1)) // 8 * 8
    assert found.fewer_blocks_at == 65_536 // (128 * held) // 8 * 8 + 1
