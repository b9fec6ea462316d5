"""Launches that leave much of the device empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from opscope.analysis.efficiency import Bound, Roofline, TensorCoreUse
from opscope.hardware.devices import DataType
from opscope.model.finding import Finding
from opscope.testing import TraceBuilder

from .conftest import codes, host, only, product, trace

Program = Callable[..., tuple[Finding, ...]]
MS = 1_000_000
GEMM = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT"
SOFTMAX = "void my::streaming_kernel<float>(float const*, float*, int)"


def running(kernel: str, **launch: Any) -> TraceBuilder:
    builder = trace().step(1, 0, 2_100).operator("aten::mm", 10, 20)
    return builder.launch(15).kernel(kernel, 50, 2_000, **launch)


def small(fraction: float, bound: Bound = Bound.LATENCY) -> dict[str, Any]:
    one = product(
        64,
        64,
        256,
        1 * MS,
        calls=200,
        type_name="c10::BFloat16",
        data_type=DataType.BF16,
        tensor_cores=TensorCoreUse.USED,
        bound=bound,
        fraction=fraction,
    )
    return {"calls": [one], "hosts": [host(2 * MS, 1 * MS)]}


def test_small_products_are_told_without_a_gain(advise_on: Program) -> None:
    finding = only(advise_on(running(GEMM), **small(0.05)), "small_products")
    assert "64×256 by 256×64" in finding.message
    assert "5.0 % of what it could do" in finding.message
    assert finding.estimated_gain_ns_per_step is None


@pytest.mark.parametrize("values", [small(0.6), small(0.05, Bound.COMPUTE)], ids=["fast", "large"])
def test_products_that_do_well_are_left_alone(advise_on: Program, values: dict[str, Any]) -> None:
    assert codes(advise_on(running(GEMM), **values)) == []


def test_a_tail_is_counted_in_rounds_of_multiprocessors(advise_on: Program) -> None:
    """140 blocks on 132 SMs: of the 264 places of two rounds 124 stay empty."""
    content = running(GEMM, grid=[140, 1, 1], block=[384, 1, 1])
    finding = only(advise_on(content, hosts=[host(2 * MS, 1 * MS)]), "tail_wave")
    assert "140 blocks to 132 multiprocessors in 1.06 rounds" in finding.message
    assert finding.estimated_gain_ns_per_step == pytest.approx(2 * MS * 124 / 264)


@pytest.mark.parametrize(
    ("kernel", "blocks"),
    [(GEMM, 132), (GEMM, 264), (GEMM, 250), (GEMM, 96), (GEMM, 700), (SOFTMAX, 140)],
    ids=["one round", "two", "nearly two", "less than one", "five and more", "no tiles"],
)
def test_grids_without_a_tail(advise_on: Program, kernel: str, blocks: int) -> None:
    content = running(kernel, grid=[blocks, 1, 1], block=[384, 1, 1])
    assert codes(advise_on(content, hosts=[host(2 * MS, 1 * MS)])) == []


def starved(**facts: Any) -> Mapping[tuple[str | None, str], Roofline]:
    roofline = {"attainable_ns": 0.3 * 2 * MS, "bound": Bound.MEMORY, **facts}
    return {("aten::mm", SOFTMAX): Roofline(2 * MS, 2 * MS, **roofline)}


LAUNCH = {"grid": [4000, 1, 1], "block": [256, 1, 1], "registers per thread": 168, "shared memory": 0}


def test_few_warps_of_a_slow_streaming_kernel_are_told_with_their_limiter(advise_on: Program) -> None:
    content = running(SOFTMAX, **LAUNCH)
    finding = only(advise_on(content, kernels=starved(), hosts=[host(2 * MS, MS)]), "low_occupancy")
    assert finding.evidence["limiters"] == ["registers"]
    assert finding.evidence["occupancy_fraction"] == pytest.approx(8 / 64)
    assert finding.estimated_gain_ns_per_step is None


@pytest.mark.parametrize(
    ("launch", "facts"),
    [
        ({**LAUNCH, "registers per thread": 32}, {}),
        (LAUNCH, {"attainable_ns": 0.9 * 2 * MS}),
        (LAUNCH, {"bound": Bound.COMPUTE}),
        ({"grid": [4000, 1, 1], "block": [256, 1, 1]}, {}),
    ],
    ids=["many warps", "near the rate", "bound by arithmetic", "registers unknown"],
)
def test_kernels_with_warps_enough(advise_on: Program, launch: dict[str, Any], facts: dict[str, Any]) -> None:
    found = advise_on(running(SOFTMAX, **launch), kernels=starved(**facts), hosts=[host(2 * MS, MS)])
    assert codes(found) == []
