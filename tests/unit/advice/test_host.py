"""What a step should not be doing at all: dropout in evaluation, compiling."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.model.finding import Finding
from opscope.testing import TraceBuilder

from .conftest import codes, host, only, trace

Program = Callable[..., tuple[Finding, ...]]
MS = 1_000_000
DROPOUT = (
    "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned "
    "int, 1, 8, bool>(at::cuda::detail::TensorInfo<c10::BFloat16 const, unsigned int>, at::cuda::deta"
    "il::TensorInfo<c10::BFloat16, unsigned int>, at::cuda::detail::TensorInfo<bool, unsigned int>, u"
    "nsigned int, float, at::PhiloxCudaState)"
)


def dropping(*, backward: str | None = None, steps: bool = True) -> TraceBuilder:
    builder = trace()
    if steps:
        builder.step(1, 0, 2_500)
    builder.operator("aten::mm", 10, 20).launch(15).kernel("gemm", 50, 1_800)
    builder.operator("aten::native_dropout", 40, 20).launch(45).kernel(DROPOUT, 1_900, 200)
    if backward:
        builder.operator(backward, 70, 20)
    return builder


def test_dropout_without_a_backward_pass_is_told(advise_on: Program) -> None:
    finding = only(advise_on(dropping(), hosts=[host(2 * MS, MS)]), "dropout_in_eval")
    assert "aten::native_dropout run 1 time per step" in finding.message
    assert finding.estimated_gain_ns_per_step == pytest.approx(201_000)
    assert "model.eval()" in (finding.change or "")


@pytest.mark.parametrize(
    "backward",
    [
        "autograd::engine::evaluate_function: MulBackward0",
        "aten::native_dropout_backward",
        "CompiledFunctionBackward",
    ],
)
def test_dropout_in_training_is_left_alone(advise_on: Program, backward: str) -> None:
    assert codes(advise_on(dropping(backward=backward), hosts=[host(2 * MS, MS)])) == []


def test_without_steps_the_backward_pass_may_be_elsewhere(advise_on: Program) -> None:
    assert codes(advise_on(dropping(steps=False), hosts=[host(2 * MS, MS)])) == []


def compiling(*names: str, compile_id: str = "0/1") -> TraceBuilder:
    builder = trace()
    for number in range(2):
        at = 100_000 * number
        builder.step(number, at, 90_000).operator("aten::mm", at + 10, 20)
        builder.launch(at + 15).kernel("gemm", at + 50, 1_800)
        for depth, name in enumerate(names):
            builder.operator(name, at + 1_000 + depth, 50_000 - 2 * depth)
        builder.event(
            "user_annotation",
            f"entire_frame_compile_data: fn_name=f, compile_id={compile_id}",
            at + 1_000,
            50_000,
            1,
            {},
        )
    return builder


def test_recompiling_is_told_with_what_was_compiled_again(advise_on: Program) -> None:
    content = compiling("entire_frame_compile (dynamo_timed)", "entire_frame_compile", "backend_compile")
    finding = only(advise_on(content, hosts=[host(2 * MS, 90 * MS, steps=2)]), "recompilation")
    assert "compiles 2 times within 2 steps, 0/1 again: 50.0 ms per step" in finding.message
    assert finding.estimated_gain_ns_per_step == pytest.approx(50 * MS)


@pytest.mark.parametrize("name", ["_compile.compile_inner (dynamo_timed)", "_compile.<locals>.compile_inner"])
def test_older_names_of_a_compilation_are_known(advise_on: Program, name: str) -> None:
    found = advise_on(compiling(name), hosts=[host(2 * MS, 90 * MS, steps=2)])
    assert "recompilation" in codes(found)


def test_a_compiled_function_that_runs_is_no_compilation(advise_on: Program) -> None:
    content = compiling("Torch-Compiled Region: 0/1", "TorchDynamo Cache Lookup")
    assert "recompilation" not in codes(advise_on(content, hosts=[host(2 * MS, 90 * MS, steps=2)]))
