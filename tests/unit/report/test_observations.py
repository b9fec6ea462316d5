from __future__ import annotations

import pytest

from opscope.analysis.totals import KernelTotal, LaunchGeometry, OperatorTotal
from opscope.report.document import plain
from opscope.report.observations import launch_observations


def kernel(
    *,
    calls: int = 1,
    total_ns: int = 1_000_000,
    grid: tuple[int, int, int] | None = (1_000, 1, 1),
    block: tuple[int, int, int] | None = (128, 1, 1),
    occupancy: float | None = 0.8,
    name: str = "k",
) -> KernelTotal:
    geometry = LaunchGeometry(grid, block, 64, 1_024, occupancy, calls, total_ns)
    return KernelTotal(name, "kernel", calls, total_ns, 1, 1, 1.0, None, (geometry,))


def operator(*kernels: KernelTotal, calls: int = 1) -> OperatorTotal:
    total_ns = sum(one.total_ns for one in kernels)
    launches = sum(one.calls for one in kernels)
    return OperatorTotal(
        "aten::x", None, "other", calls, total_ns, total_ns, 0, 0, launches, 1.0, 1.0, (), kernels
    )


def observed(*kernels: KernelTotal, calls: int = 1, sm_count: int | None = 132) -> list[str]:
    return [plain(text) for text in launch_observations(operator(*kernels, calls=calls), sm_count)]


def test_a_healthy_operator_gets_none() -> None:
    assert observed(kernel()) == []


def test_an_operator_without_kernels_gets_none() -> None:
    assert observed() == []


@pytest.mark.parametrize(
    ("kernels", "sentence"),
    [
        ((kernel(name="a"), kernel(name="b")), "2.0 kernels per call, of 2 names"),
        ((kernel(calls=1_000),), "1,000 launches run 1.00 µs on average"),
        ((kernel(grid=(96, 1, 1)),), "grids of at most 96 blocks, fewer than the device's 132"),
        ((kernel(block=(100, 1, 1)),), "blocks of 100 threads, no multiple of 32"),
        ((kernel(occupancy=0.125),), "below 25.0 %; the longest is k at 12.5 % with 64 registers per thread"),
    ],
)
def test_evidence_is_told_with_its_numbers(kernels: tuple[KernelTotal, ...], sentence: str) -> None:
    calls = sum(one.calls for one in kernels) if len(kernels) == 1 else 1
    texts = observed(*kernels, calls=calls)
    assert len(texts) == 1
    assert sentence in texts[0]


def test_an_effect_on_little_time_is_not_worth_a_sentence() -> None:
    assert observed(kernel(), kernel(total_ns=100_000, grid=(1, 1, 1)), calls=2) == []


def test_unknown_facts_say_nothing() -> None:
    assert observed(kernel(grid=None, block=None, occupancy=None)) == []
    assert observed(kernel(grid=(1, 1, 1)), sm_count=None) == []
