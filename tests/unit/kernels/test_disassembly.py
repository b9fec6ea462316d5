"""Machine code of libraries and cubins that nvcc makes here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from opscope.errors import DependencyError, MeasurementError
from opscope.hardware.driver import find_cuda_tool
from opscope.kernels import code
from opscope.kernels.code import file_sass

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


def test_machine_code_of_a_library_is_that_of_each_kernel(library):
    found = file_sass(library, "sm_90")
    assert len(found) == 3
    for text in found.values():
        assert "EXIT" in text
        assert "/* 0x" not in text  # The encoding says nothing to people.


@pytest.mark.exhaustive(few=False)
def test_machine_code_of_a_cubin(library, tmp_path):
    nvcc("-cubin", "-arch=sm_90", "-o", str(tmp_path / "a.cubin"), str(library.parent / "triple.cu"))
    assert sum(text.count("EXIT") for text in file_sass(tmp_path / "a.cubin", "sm_90").values()) >= 3


def test_what_is_no_cubin_is_an_error(library, tmp_path):
    file = tmp_path / "none.cubin"
    file.write_bytes(b"no cubin")
    with pytest.raises(MeasurementError, match="cuobjdump failed"):
        file_sass(file, "sm_90")


def test_without_cuobjdump_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(code, "find_cuda_tool", lambda name: None)
    with pytest.raises(DependencyError, match="pip install triton"):
        file_sass(tmp_path / "any.cubin", "sm_90")


def test_instructions_are_counted_by_what_they_are() -> None:
    lines = [
        "LDC R1, c[0x0][0x28]", "@!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", "LDG.E R4, [R2.64]",
        "LDG.E.U16 R4, [R2.64]", "STG.E.64 [R2.64], R4", "LDGSTS.E.BYPASS.128 [R1], [R2.64]", "LDL R1, [R2]",
        "STL.64 [R2], R4", "HMMA.16816.F32.BF16 R4, R8, R12, R4", "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8]",
        "MUFU.EX2 R4, R5", "BAR.SYNC.DEFER_BLOCKING 0x0", "FFMA.FTZ R1, R2, R3, R4", "NOP", "@P0 BRA 0x10",
    ]  # fmt: skip
    text = "\n".join(f"        /*{16 * place:04x}*/    {line} ;" for place, line in enumerate(lines))
    assert code.instruction_mix(text) == {
        "tensor cores": 2,
        "other": 2,
        **dict.fromkeys(
            (
                "global loads of 16 bytes", "global loads of 4 bytes", "global loads of 2 bytes",
                "global stores of 8 bytes", "copies to shared memory", "local loads", "local stores",
                "special functions", "barriers", "fp32",
            ),
            1,
        ),
    }  # fmt: skip
