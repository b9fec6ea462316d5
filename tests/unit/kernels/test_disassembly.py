"""PTX and machine code from libraries and cubins that nvcc makes here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from opscope.errors import DependencyError, MeasurementError
from opscope.hardware.toolkit import find_cuda_tool
from opscope.kernels import code
from opscope.kernels.code import (
    cubin_sass,
    kernel_libraries,
    library_ptx,
    library_sass,
    library_symbols,
)

from ..provenance.binaries.conftest import Part, elf_bytes

SOURCE = """namespace {
template <typename T>
__global__ void triple(const T* x, T* y) { y[threadIdx.x] = 3 * x[threadIdx.x]; }
__global__ void other(float* y) { y[0] = 1; }
}
void launch(const float* x, float* y, double* z) {
  triple<float><<<1, 32>>>(x, y);
  triple<double><<<1, 32>>>(z, z);
  other<<<1, 1>>>(y);
}
"""
TRIPLE = "void (anonymous namespace)::triple<float>(float const*, float*)"
OTHER = "(anonymous namespace)::other(float*)"


def nvcc(*arguments: str) -> None:
    program = find_cuda_tool("nvcc")
    if program is None or find_cuda_tool("cuobjdump") is None:
        pytest.skip("no nvcc or no cuobjdump")
    subprocess.run([program, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "triple.cu").write_text(SOURCE)
    targets = [f"-gencode=arch=compute_90,code={kind}_90" for kind in ("sm", "compute")]
    nvcc("-shared", "-Xcompiler", "-fPIC", *targets, "-o", str(folder / "lib.so"), str(folder / "triple.cu"))
    return folder / "lib.so"


@pytest.mark.exhaustive(few=False)
def test_kernels_are_known_by_the_names_of_a_profile(library):
    symbols = library_symbols(library)
    assert {TRIPLE, OTHER} <= set(symbols)
    assert len(symbols) == 3


def test_machine_code_is_that_of_the_kernels_asked_for(library):
    symbol = library_symbols(library)[TRIPLE]
    code = library_sass(library, [symbol])
    assert set(code) == {symbol}
    assert "LDG.E" in code[symbol]
    assert "EXIT" in code[symbol]
    assert "/* 0x" not in code[symbol]  # The encoding says nothing to people.


def test_ptx_is_that_of_the_kernels_asked_for_and_assembles_again(library, tmp_path):
    symbol = library_symbols(library)[TRIPLE]
    code = library_ptx(library, [symbol])
    assert set(code) == {symbol}
    assert ".target sm_90" in code[symbol]
    assert "ld.global" in code[symbol]
    assert code[symbol].count(".entry") == 1
    (tmp_path / "triple.ptx").write_text(code[symbol])
    nvcc("-cubin", "-arch=sm_90", "-o", str(tmp_path / "triple.cubin"), str(tmp_path / "triple.ptx"))


@pytest.mark.exhaustive(few=False)
def test_machine_code_of_a_cubin(library, tmp_path):
    nvcc("-cubin", "-arch=sm_90", "-o", str(tmp_path / "a.cubin"), str(library.parent / "triple.cu"))
    code = cubin_sass((tmp_path / "a.cubin").read_bytes())
    assert code.count("EXIT") >= 3


def test_what_is_no_cubin_is_an_error(library):
    with pytest.raises(MeasurementError, match="cuobjdump failed"):
        cubin_sass(b"no cubin")


def test_without_cuobjdump_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(code, "find_cuda_tool", lambda name: None)
    with pytest.raises(DependencyError, match="pip install triton"):
        cubin_sass(b"")


def test_libraries_of_torch_and_without_device_code_are_not_searched(tmp_path):
    own = tmp_path / "torch_extensions" / "own.so"
    plain = tmp_path / "plain.so"
    torchs = tmp_path / "site-packages" / "torch" / "lib" / "libtorch_cuda.so"
    drivers = tmp_path / "nvidia" / "lib64" / "libnvidia-ptxjitcompiler.so.580.159.04"
    device_code = elf_bytes([Part(".nv_fatbin", b"code")])
    for path in (own, torchs, drivers, plain):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(elf_bytes([]) if path is plain else device_code)
    maps = tmp_path / "maps"
    paths = [own, own, plain, torchs, drivers, tmp_path / "gone.so", Path("/usr/lib/libcuda.so.1")]
    maps.write_text(
        "".join(f"7f00-7f10 r-xp 00000000 08:01 42   {path}\n" for path in paths) + "7f20-7f30 rw-p\n"
    )
    assert kernel_libraries(maps) == [own]
    assert kernel_libraries(tmp_path / "nothing") == []
