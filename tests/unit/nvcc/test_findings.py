"""What a compilation tells as findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opscope.hardware.architectures import Target
from opscope.kernels.ptx import FunctionUse
from opscope.model.finding import Finding, Severity
from opscope.nvcc.command import BuildProduct, Nvcc
from opscope.nvcc.compile import Compilation, CompiledKernel, DoubleUse, Request
from opscope.nvcc.findings import WrittenLaunch, findings_of, small_launches
from opscope.nvcc.messages import parse_messages

HOPPER = Target(9, 0)


def compilation(**facts: Any) -> Compilation:
    request = Request(Path("folder/add.cu"), Path("add"), BuildProduct.PROGRAM, (HOPPER,))
    return Compilation(request, Nvcc("nvcc", "13.0", None, (HOPPER,)), **{"kernels": (), **facts})


def kernel(*, stack: int = 0, stores: int = 0, loads: int = 0) -> CompiledKernel:
    use = FunctionUse("_Z3addPf", "sm_90", True, stack, stores, loads, registers=32)
    return CompiledKernel("add(float*)", HOPPER, use, 536, None, None)


def said(text: str) -> Finding:
    (finding,) = findings_of(compilation(messages=parse_messages(text)))
    return finding


def test_a_kernel_that_keeps_to_its_registers_has_none():
    assert findings_of(compilation(kernels=(kernel(),))) == ()


@pytest.mark.parametrize(
    ("registers", "max_threads", "min_blocks", "remedy"),
    [
        (255, None, None, "A thread has no more than 255"),
        (64, None, None, "raise -maxrregcount"),
        (32, 512, None, "__launch_bounds__(512, 1) lets it take more"),
        (32, 1024, 2, "__launch_bounds__(1024, 2) leaves no more"),
    ],
)
def test_the_remedy_of_spills_is_what_limits_registers(registers, max_threads, min_blocks, remedy):
    use = FunctionUse("_Z3addPf", "sm_90", True, 8, 4, 4, registers=registers)
    spilling = CompiledKernel("add(float*)", HOPPER, use, 536, max_threads, min_blocks)
    (finding,) = findings_of(compilation(kernels=(spilling,)))
    assert remedy in (finding.suggestion or "")


def test_spills_are_told_with_their_bytes():
    (finding,) = findings_of(compilation(kernels=(kernel(stack=88, stores=84, loads=92),)))
    assert (finding.code, finding.severity) == ("nvcc.spills", Severity.WARNING)
    assert "writes 84 bytes to local memory and reads 92 back" in finding.message
    assert finding.evidence["spill_store_bytes"] == 84


def test_a_stack_without_spills_is_local_memory():
    (finding,) = findings_of(compilation(kernels=(kernel(stack=128),)))
    assert (finding.code, finding.evidence["stack_bytes"]) == ("nvcc.local_memory", 128)


def test_functions_that_kernels_call_are_told_apart():
    use = FunctionUse("_Z3reci", "sm_90", False, 24, 20, 20)
    (finding,) = findings_of(compilation(functions=(use,)))
    assert (finding.code, finding.severity) == ("nvcc.function_spills", Severity.INFO)
    assert finding.message.startswith("rec(int), which kernels call, keeps 20 bytes")


def test_double_precision_is_told_with_its_lines():
    known = DoubleUse("promoted(float*)", 2, (("/src/a.cu", 2), ("/src/b.cuh", 8)))
    first, second = findings_of(compilation(doubles=(known, DoubleUse("other(float*)", 1, ()))))
    assert first.message.endswith("rounds to float, at a.cu:2, b.cuh:8.")
    assert second.message.endswith("rounds to float.")


def test_a_launch_of_one_thread_is_a_warning_and_of_one_block_is_not():
    source = "add<<<1, 1>>>(x);\nadd<<<1, 256>>>(x);\nadd<<<n, 8>>>(x);"
    single, block, lanes = findings_of(compilation(), small_launches(source))
    assert single.severity is Severity.WARNING
    assert single.message == "add.cu:1: add<<<1, 1>>> runs on one thread of one multiprocessor."
    assert "grid-stride" in (single.suggestion or "")
    assert (block.severity, block.message) == (
        Severity.INFO, "add.cu:2: add<<<1, 256>>> runs on one multiprocessor.",
    )  # fmt: skip
    assert "fills 8 of the 32 lanes" in lanes.message


@pytest.mark.parametrize(
    ("text", "code", "severity"),
    [
        ('add.cu(4): warning #177-D: variable "x" was declared but never referenced', "nvcc.unused", "info"),
        ("add.cu:4:2: warning: unused variable \u2018u\u2019 [-Wunused-variable]", "nvcc.unused", "info"),
        ("add.cu(4): warning #69-D: integer conversion resulted in truncation", "nvcc.source_warning",
         "warning"),
        ('add.cu(4): remark #20200-D: #pragma message: "hello"', "nvcc.source_warning", "info"),
        # nvcc 12.9, nvcc 11.4
        ("nvcc warning : Support for offline compilation for architectures prior to '<compute/sm/lto>_75' "
         "will be removed in a future release (Use -Wno-deprecated-gpu-targets to suppress warning).",
         "nvcc.deprecated_target", "warning"),
        ("nvcc warning : The 'compute_35', 'compute_37', 'sm_35' and 'sm_37' architectures are deprecated, "
         "and may be removed in a future release (Use -Wno-deprecated-gpu-targets to suppress warning).",
         "nvcc.deprecated_target", "warning"),
        ("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized "
         "due to insufficient register resources for the wgmma pipeline in the function 'gemm'",
         "nvcc.serialized_wgmma", "info"),
        ("ptxas info    : (C7519) Potential Performance Loss: other", "nvcc.performance_loss", "info"),
        ("ptxas warning : For profile sm_90 adjusting per thread register count of 8 to lower bound of 24",
         "nvcc.register_limit", "warning"),
        ("ptxas warning : Too big maxrregcount value specified 300, will be ignored", "nvcc.register_limit",
         "warning"),
        ("ptxas warning : Value of threads per SM for entry _Z2lbPf is out of range. .minnctapersm will be "
         "ignored", "nvcc.ignored_launch_bounds", "warning"),
        ("ptxas warning : Stack size for entry function '_Z9recursivePi' cannot be statically determined",
         "nvcc.unknown_stack", "warning"),
        # nvcc 5.5, targets before sm_13
        ("ptxas /tmp/a.ptx, line 76; warning : Double is not supported. Demoting to float",
         "nvcc.double_demoted", "warning"),
        ("nvlink warning : Skipping incompatible 'libx.a'", "nvcc.tool_warning", "warning"),
    ],
)  # fmt: skip
def test_messages_become_findings_of_their_kind(text, code, severity):
    finding = said(text)
    assert (finding.code, finding.severity) == (code, severity)


def test_a_finding_names_file_line_and_the_compilers_code_and_demangles_kernels():
    finding = said("add.cu(4): warning #69-D: integer conversion resulted in truncation")
    assert finding.message == "add.cu:4: integer conversion resulted in truncation [#69-D]."
    assert (finding.evidence["file"], finding.evidence["line"]) == ("add.cu", 4)
    symbol = said(
        "ptxas warning : Stack size for entry function '_Z9recursivePi' cannot be statically determined"
    )
    assert "'recursive(int*)'" in symbol.message


@pytest.mark.parametrize(
    ("source", "blocks", "threads", "text"),
    [
        ("add<<<1, 1>>>(n, x, y);", 1, 1, "add<<<1, 1>>>"),
        ("add<float, 4><<<1,256>>>(n);", 1, 256, "add<<<1, 256>>>"),
        ("add <<< grid(n, 2), 16, 0, stream >>> (n);", None, 16, "add<<<…, 16>>>"),
        ("add<<<dim3(1), dim3{8}>>>(n);", 1, 8, "add<<<1, 8>>>"),
        ("add<<<1u,\n  threads>>>(n);", 1, None, "add<<<1, …>>>"),
    ],
)
def test_small_launches_are_found(source, blocks, threads, text):
    (launch,) = small_launches(source)
    assert launch == WrittenLaunch("add", 1, blocks, threads)
    assert launch.text == text


@pytest.mark.parametrize(
    "source",
    [
        "add<<<blocks, threads>>>(n);",
        "add<<<(n + 255) / 256, 256>>>(n);",
        "add<<<dim3(1, n), 256>>>(n);",
        "// add<<<1, 1>>>(n);",
        "/* add<<<1, 1>>>\n(n); */",
        'puts("add<<<1, 1>>>");',
        "int x = 1 << 20;",
        "add<<<1>>>(n);",
        "",
    ],
)
def test_others_are_not(source):
    assert small_launches(source) == ()


def test_lines_are_those_of_the_file_and_the_same_launch_is_told_once():
    source = "/* one\n two */\n// three\nadd<<<1, 1>>>(n); add<<<1, 1>>>(n);\nscale<<<1, 1>>>(n);\n"
    assert [(one.kernel, one.line) for one in small_launches(source)] == [("add", 4), ("scale", 5)]
