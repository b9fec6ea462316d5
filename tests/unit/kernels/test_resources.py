"""What nvcc reports of the CUDA kernels; and that they compile for three architectures without spilling."""

from __future__ import annotations

import pytest

from opscope.errors import DependencyError, MeasurementError
from opscope.kernels import toolkit
from opscope.kernels.build import cuda_sources
from opscope.kernels.resources import (
    ARCHITECTURES,
    KernelResources,
    compile_report,
    parse_report,
    report_rows,
)
from opscope.kernels.toolkit import find_cuda_tool

# nvcc 13.0, and below as nvcc 11 wrote it.
TEXT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4spilPf' for 'sm_90'
ptxas info    : Function properties for _Z4spilPf
    88 bytes stack frame, 84 bytes spill stores, 92 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 88 bytes cumulative stack size, 512 bytes smem
ptxas info    : Compile time = 13.142 ms
ptxas info    : Compiling entry function 'plain' for 'sm_90'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 380 bytes cmem[0]
"""
needs_nvcc = pytest.mark.skipif(find_cuda_tool("nvcc") is None, reason="no nvcc")


def test_the_report_of_ptxas_is_read():
    assert parse_report(TEXT, "a.cu", "sm_90") == [
        KernelResources("a.cu", "sm_90", "spil", 64, 512, 88, 84, 92),
        KernelResources("a.cu", "sm_90", "plain", 8, 0, 0, 0, 0),
    ]


def test_a_table_has_a_row_per_kernel_and_names_the_architectures_that_spill():
    report = [
        KernelResources("a.cu", "sm_80", "one", 40, 0, 0, 0, 0),
        KernelResources("a.cu", "sm_90", "one", 64, 512, 88, 84, 92),
        KernelResources("a.cu", "sm_90", "two", 8, 0, 0, 0, 0),
    ]
    header, rows = report_rows(report)
    assert header == ("source", "kernel", "registers, sm_80", "registers, sm_90", "shared bytes", "spills")
    assert rows == [
        ("a.cu", "one", "40", "64", "512", "sm_90"),
        ("a.cu", "two", "", "8", "0", "none"),
    ]


def test_without_nvcc_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(toolkit, "find_cuda_tool", lambda name: None)
    with pytest.raises(DependencyError, match="or install the CUDA toolkit"):
        compile_report()


@needs_nvcc
def test_a_source_that_does_not_compile_shows_the_compilers_message(tmp_path):
    source = tmp_path / "broken.cu"
    source.write_text("__global__ void kernel(float* y) { y[0] = wrong; }\n")
    with pytest.raises(
        MeasurementError, match=r'broken.cu does not compile for sm_90:\n.*"wrong" is undefined'
    ):
        compile_report(["sm_90"], [source])


@needs_nvcc
def test_every_kernel_compiles_for_three_architectures_without_spilling(record_property):
    report = compile_report()
    header, rows = report_rows(report)
    record_property("terminal_report", "\n".join(" | ".join(row) for row in (header, *rows)))
    compiled = {(kernel.source, kernel.architecture) for kernel in report}
    assert compiled == {(source.name, one) for source in cuda_sources() for one in ARCHITECTURES}
    assert [kernel for kernel in report if kernel.spill_store_bytes or kernel.spill_load_bytes] == []
    # One more register per thread, and a block of 1,024 threads could not start.
    assert [kernel for kernel in report if ", 1024, " in kernel.name and kernel.registers > 64] == []
