"""What binds: the host first, then a near roof, then too little work, then the nearer roof."""

from __future__ import annotations

import pytest

from opscope.analysis.roofline import AttainableTime, Bound, Launches, bound_ns_of

from .conftest import cost, launches, work


def bound(*parts: Launches, memory_ns: float = 0.0, compute_ns: float = 0.0) -> Bound | None:
    found = bound_ns_of(work(cost(), *parts), AttainableTime(memory_ns, compute_ns))
    assert len(found) <= 1
    return next(iter(found), None)


def bound_of_unknown_cost(*parts: Launches) -> Bound | None:
    return next(iter(bound_ns_of(work(cost(None, None), *parts), None)), None)


def test_the_roof_that_accounts_for_most_of_the_time_binds() -> None:
    assert bound(launches(), memory_ns=90_000, compute_ns=10_000) is Bound.MEMORY
    assert bound(launches(), memory_ns=10_000, compute_ns=90_000) is Bound.COMPUTE


def test_a_filled_device_far_from_both_roofs_is_bound_by_the_nearer() -> None:
    assert bound(launches(), memory_ns=2_000, compute_ns=1_000) is Bound.MEMORY


def test_less_than_a_wave_far_from_the_roofs_is_latency() -> None:
    assert bound(launches(blocks=1_000), memory_ns=49_000) is Bound.LATENCY  # of 2,112 slots
    assert bound(launches(blocks=1_000), memory_ns=51_000) is Bound.MEMORY
    assert bound(launches(blocks=2_112), memory_ns=20_000) is Bound.MEMORY


def test_a_grid_smaller_than_the_device_has_the_peak_of_the_multiprocessors_it_uses() -> None:
    assert bound(launches(blocks=96), compute_ns=40_000) is Bound.COMPUTE  # 55 % of 96 of 132
    assert bound(launches(blocks=96), memory_ns=40_000) is Bound.LATENCY  # memory serves few as it serves all
    assert bound(launches(blocks=96), compute_ns=30_000) is Bound.LATENCY


def test_multiprocessors_used_are_those_of_the_work_not_of_its_helpers() -> None:
    helper = launches("memset", total_ns=10_000, blocks=1, is_helper=True)
    assert bound(launches(blocks=10_000, total_ns=90_000), helper, compute_ns=49_000) is Bound.COMPUTE
    assert bound(launches(blocks=96), helper, compute_ns=41_000) is Bound.COMPUTE


def test_kernels_shorter_than_one_that_does_nothing_are_latency() -> None:
    assert bound(launches(total_ns=19_000, count=10), memory_ns=9_000) is Bound.LATENCY
    assert bound(launches(total_ns=19_000, count=10), memory_ns=10_000) is Bound.MEMORY
    assert bound(launches(total_ns=21_000, count=10), memory_ns=9_000) is Bound.MEMORY


def test_the_shortest_kernel_is_the_device_s_own_where_measured() -> None:
    found = bound_ns_of(
        work(cost(), launches(total_ns=30_000, count=10)),
        AttainableTime(1_000, 0),
        shortest_kernel_ns=3_100.0,
    )
    assert found == {Bound.LATENCY: 30_000}


def test_time_in_which_the_device_waited_for_the_host_is_apart() -> None:
    part = launches(total_ns=100_000, launch_bound_ns=60_000)
    found = bound_ns_of(work(cost(), part), AttainableTime(90_000, 0))
    assert found == {Bound.LAUNCH: 60_000, Bound.MEMORY: 40_000}
    whole = launches(total_ns=100_000, launch_bound_ns=100_000)
    assert bound_ns_of(work(cost(None, None), whole), None) == {Bound.LAUNCH: 100_000}


@pytest.mark.parametrize(
    ("blocks", "expected"), [(8, Bound.LATENCY), (9, None), (10_000, None), (None, None)]
)
def test_of_unknown_cost_only_what_the_launch_alone_shows(blocks: int | None, expected: Bound | None) -> None:
    assert bound_of_unknown_cost(launches(blocks=blocks)) is expected


def test_short_kernels_of_unknown_cost_are_latency() -> None:
    assert bound_of_unknown_cost(launches(total_ns=1_000)) is Bound.LATENCY


def test_work_that_needs_nothing_is_bound_by_nothing_unless_too_little() -> None:
    assert bound(launches()) is None
    assert bound(launches(total_ns=1_000)) is Bound.LATENCY


def test_unknown_geometry_counts_as_filled() -> None:
    assert bound(launches(quality=None), memory_ns=1_000) is Bound.MEMORY
