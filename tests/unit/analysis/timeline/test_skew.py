"""Which rank the others wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import RankSkew, SkewEvidence
from opscope.model.session import Session
from opscope.testing import TraceBuilder

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
P2P = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def rank(number: int | None, durations: Sequence[float], *, kernel: str = NCCL, **args: Any) -> TraceBuilder:
    """One rank whose all-reduces of one step take this long; `args` may hold a list per collective."""
    info = {} if number is None else {"distributedInfo": {"rank": number, "world_size": 2}}
    trace = TraceBuilder(**info).step(5, 0, 10_000)
    for index, duration in enumerate(durations):
        start = 1000 * index
        own = {name: value[index] if isinstance(value, list) else value for name, value in args.items()}
        trace.launch(start + 1).kernel(kernel, start + 10, duration, **own)
    return trace


@pytest.fixture
def skews(tmp_path: Path, load: Callable[..., Session]) -> Callable[..., tuple[RankSkew, ...]]:
    def measure(*ranks: TraceBuilder) -> tuple[RankSkew, ...]:
        paths = [trace.write(tmp_path / f"rank{number}.json") for number, trace in enumerate(ranks)]
        return Summary(load(paths)).timeline.skews

    return measure


Skews = Callable[..., tuple[RankSkew, ...]]


def test_the_last_to_arrive_has_the_shortest_kernel(skews: Skews) -> None:
    assert skews(rank(0, [100, 120]), rank(1, [20, 30])) == (
        RankSkew(0, 0, 2, 0, 170_000, 0, SkewEvidence.ORDER),
        RankSkew(1, 1, 2, 2, 0, 170_000, SkewEvidence.ORDER),
    )


def test_a_few_percent_are_no_lateness(skews: Skews) -> None:
    assert [one.last_count for one in skews(rank(0, [100, 105]), rank(1, [103, 100]))] == [0, 0]


def test_sequence_numbers_match_whatever_is_missing(skews: Skews) -> None:
    common: dict[str, Any] = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    first = rank(0, [100, 50, 40], **common, Seq=[7, 8, 9])
    second = rank(1, [10, 40], **common, Seq=[8, 9])
    assert skews(first, second) == (
        RankSkew(0, 0, 2, 0, 40_000, 0, SkewEvidence.SEQUENCE),
        RankSkew(1, 1, 2, 1, 0, 40_000, SkewEvidence.SEQUENCE),
    )


def test_groups_have_counts_of_their_own(skews: Skews) -> None:
    common: dict[str, Any] = {"Collective name": "allreduce", "Seq": 3}
    first = rank(0, [100], **{**common, "Process Group Name": "tp"})
    second = rank(1, [10], **{**common, "Process Group Name": "dp"})
    assert skews(first, second) == ()


def test_by_order_only_where_all_launched_the_same(skews: Skews) -> None:
    assert skews(rank(0, [100, 100]), rank(1, [10])) == ()


def test_point_to_point_is_no_collective(skews: Skews) -> None:
    assert skews(rank(0, [100], kernel=P2P), rank(1, [10], kernel=P2P)) == ()


def test_ranks_must_be_known_and_different(skews: Skews) -> None:
    assert skews(rank(None, [100]), rank(None, [10])) == ()
    assert skews(rank(1, [100]), rank(1, [10])) == ()
    assert skews(rank(0, [100])) == ()


def test_the_straggler_of_a_recorded_job_is_rank_1(shared: Path, load: Callable[..., Session]) -> None:
    session = load(shared / "traces/h200/ddp_straggler_w4")
    found = Summary(session).timeline
    assert [(one.rank, one.last_count, one.collectives) for one in found.skews] == [
        (0, 0, 12),
        (1, 12, 12),
        (2, 0, 12),
        (3, 0, 12),
    ]
    assert sum(one.waiting_ns for one in found.skews) == sum(one.awaited_ns for one in found.skews)
    exposed = {one.rank: one.exposed_communication_ns for one in found.partitions}
    assert all(exposed[other] > 20 * exposed[1] for other in (0, 2, 3))
    late = {one.trace_id: one.launch_path_ns for one in found.host}
    assert all(late[1] > 1.5 * late[other] for other in (0, 2, 3))


def test_without_a_straggler_no_rank_is_last_each_time(shared: Path, load: Callable[..., Session]) -> None:
    session = load(shared / "traces/h200/ddp_w4")
    found = Summary(session).timeline.skews
    assert {one.collectives for one in found} == {12}
    assert max(one.last_count for one in found) < 12
