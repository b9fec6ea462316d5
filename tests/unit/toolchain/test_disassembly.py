"""Machine code of cubins that nvcc makes here."""

import subprocess
from pathlib import Path

import pytest

from opscope.errors import DependencyError, MeasurementError
from opscope.hardware.driver import find_cuda_tool
from opscope.toolchain import kernel_code as code

SOURCE = Path(__file__).with_name("two_kernels.cu").read_text(encoding="utf-8")


def nvcc(*arguments):
    program = find_cuda_tool("nvcc")
    if program is None or find_cuda_tool("cuobjdump") is None:
        pytest.skip("no nvcc or no cuobjdump")
    subprocess.run([program, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def cubin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cubin")
    (folder / "triple.cu").write_text(SOURCE)
    nvcc("-cubin", "-arch=sm_90", "-o", str(folder / "a.cubin"), str(folder / "triple.cu"))
    return folder / "a.cubin"


@pytest.mark.parametrize(("kernel", "has_loads"), [("triple", True), ("other", False)])
def test_a_kernel_of_a_cubin_has_its_code_and_what_it_takes(cubin, kernel, has_loads):
    used, text = code.cubin_use(cubin, kernel)
    assert used["REG"] > 0
    assert "EXIT" in text and ("LDG" in text) == has_loads
    assert "/* 0x" not in text  # The encoding says nothing to people.


def test_what_is_no_cubin_or_not_in_it_is_an_error(cubin, tmp_path):
    file = tmp_path / "none.cubin"
    file.write_bytes(b"no cubin")
    with pytest.raises(MeasurementError, match="cuobjdump failed"):
        code.cubin_use(file, "triple")
    with pytest.raises(MeasurementError, match="no code of absent"):
        code.cubin_use(cubin, "absent")


def test_without_cuobjdump_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(code, "find_cuda_tool", lambda name: None)
    with pytest.raises(DependencyError, match="pip install triton"):
        code.cubin_use(tmp_path / "any.cubin", "triple")


def test_instructions_are_counted_by_what_they_are():
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
