"""Chains of pointwise kernels, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.model.finding import Finding
from opscope.testing import TraceBuilder

from .conftest import codes, host, only, trace

Program = Callable[..., tuple[Finding, ...]]
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array"
    "<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
GEMM = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
    "_execute_kernel"
)
N = 4_194_304
SIZE = [2048, 2048]


def chain_of(
    operators: list[tuple[str, list[Any]]], *, times: int = 4, kernel: str = ELEMENTWISE, device_us: int = 20
) -> TraceBuilder:
    """One step of so many rounds of the operators, a product between them; 10 µs apart on the host."""
    builder = trace()
    at, busy = 10.0, 20.0
    builder.step(1, 0, 10 + 10.0 * times * (len(operators) + 1))
    for _ in range(times):
        for name, shapes in [*operators, ("aten::mm", [[64, 64], [64, 64]])]:
            types = ["float" if shape else "Scalar" for shape in shapes]
            builder.operator(name, at, 8, **{"Input Dims": shapes, "Input type": types})
            is_product = name == "aten::mm"
            builder.launch(at + 4).kernel(GEMM if is_product else kernel, max(busy, at + 6), device_us)
            at += 10
            busy = max(busy, at) + device_us
    return builder


GELU_BY_HAND: list[tuple[str, list[Any]]] = [
    ("aten::pow", [SIZE, []]),
    ("aten::mul", [SIZE, []]),
    ("aten::add", [SIZE, SIZE, []]),
    ("aten::tanh", [SIZE]),
]


def test_a_chain_keeps_its_passes_at_both_ends(advise_on: Program) -> None:
    """Four operators read 1 + 1 + 2 + 1 tensors and write 4; fused, 9 − 6 = 3 are left."""
    found = advise_on(chain_of(GELU_BY_HAND), hosts=[host(400_000, 50_000, launches=20)])
    finding = only(found, "unfused_pointwise")
    assert "aten::pow, aten::mul, aten::add and aten::tanh" in finding.message
    assert f"{N:,} elements" in finding.message
    assert finding.evidence["calls"] == 4
    assert finding.evidence["device_ns"] == 4 * 80_000
    gaps_ns = 4 * 3 * 1000
    assert finding.estimated_gain_ns_per_step == pytest.approx(4 * 80_000 * (1 - 3 / 9) + gaps_ns)
    assert finding.change == "model = torch.compile(model)"


def test_a_host_bound_chain_gains_its_operators_on_the_host(advise_on: Program) -> None:
    found = advise_on(chain_of(GELU_BY_HAND), hosts=[host(400_000, 900_000, launches=20)])
    assert only(found, "unfused_pointwise").estimated_gain_ns_per_step == pytest.approx(4 * 30_000)


def test_no_chain_gets_shorter_than_the_shortest_kernel(advise_on: Program) -> None:
    small = [(name, [[64, 64] if shape else [] for shape in shapes]) for name, shapes in GELU_BY_HAND]
    found = advise_on(chain_of(small, device_us=2), hosts=[host(40_000, 1_000, launches=20, step_ns=60_000)])
    gain_ns = only(found, "unfused_pointwise").estimated_gain_ns_per_step
    assert gain_ns == pytest.approx(4 * (8_000 - 2_667) + 12_000, abs=10)


@pytest.mark.parametrize(
    "operators",
    [
        [("aten::add", [SIZE, SIZE, []])],
        [("aten::add_", [SIZE, SIZE, []]), ("aten::add_", [SIZE, SIZE, []])],
        [("aten::add", [SIZE, SIZE, []]), ("aten::mul", [[7, 7], []])],
        [("aten::add", [[], []]), ("aten::mul", [[], []])],
    ],
    ids=["one", "one name", "other sizes", "sizes unknown"],
)
def test_what_is_no_chain(advise_on: Program, operators: list[tuple[str, list[Any]]]) -> None:
    found = advise_on(chain_of(operators), hosts=[host(400_000, 50_000, launches=20)])
    assert codes(found) == []


def test_reductions_and_products_are_not_pointwise(advise_on: Program) -> None:
    builder = chain_of(GELU_BY_HAND, kernel=GEMM)
    assert codes(advise_on(builder, hosts=[host(400_000, 50_000, launches=20)])) == []


def test_an_optimizers_operators_are_no_chain(advise_on: Program) -> None:
    builder = chain_of(GELU_BY_HAND)
    builder.event("user_annotation", "Optimizer.step#SGD.step", 1, 2000, 1, {})
    assert "unfused_pointwise" not in codes(advise_on(builder, hosts=[host(400_000, 50_000, launches=20)]))
