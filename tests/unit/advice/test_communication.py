"""Communication that nothing hides, and the rank that is late."""

import pytest

from fakes import H200, TraceBuilder
from opscope.advice import assess
from opscope.analysis.timeline.values import RankSkew, SkewEvidence

from .conftest import MS, codes, host, partition, told


def ranks(count, world_size=None):
    """The trace of each rank."""
    builders = []
    for rank in range(count):
        facts = {"rank": rank, "world_size": world_size or count, "backend": "nccl"}
        builder = TraceBuilder(deviceProperties=[H200], distributedInfo=facts).step(1, 0, 20_000)
        builders.append(builder.operator("aten::mm", 10, 20).launch(15).kernel("gemm", 50, 19_000))
    return builders


def skew(rank, waiting, awaited, last):
    """Of 10 collectives; times in ms."""
    return RankSkew(rank, rank, 10, last, int(waiting * MS), int(awaited * MS), SkewEvidence.ORDER)


def late_one(waiting=5):
    """Rank 2 of 4 comes last in 9 of 10."""
    others = [skew(rank, waiting + rank / 10, 0.1, 0) for rank in (0, 1, 3)]
    return [*others, skew(2, 0.2, 3 * waiting, 9)]


def hosts(late_ms=18):
    busy_ms = (17, 17, 12, 17)
    return [
        host(ms * MS, (late_ms if rank == 2 else 11) * MS, step_ns=20 * MS, trace_id=rank)
        for rank, ms in enumerate(busy_ms)
    ]


def exposed(ranks, milliseconds=6):
    return [
        partition(20 * MS, trace_id=rank, exposed_communication_ns=int(milliseconds * MS)) for rank in ranks
    ]


def test_the_late_rank_is_named(advise_on):
    found = advise_on(*ranks(4), skews=tuple(late_one(1.9)), hosts=hosts(), partitions=exposed(range(4)))
    alike = "No operator takes longer on it than on the others."
    words = ("Rank 2 comes last in 9 of 10 collectives", "opscope compare", "_2.json", alike)
    finding = told(found, "straggler_rank", *words, has_gain=False)
    assert finding.is_to_try
    assert (finding.trace_id, finding.evidence["rank"]) == (2, 2)


def test_what_the_late_rank_does_more_is_named_by_operator(advise_on):
    """Twenty products more than the others, one of them slow on the host, and what launches nothing."""
    builders = ranks(4)
    for place in range(20):
        at = 2000 + 100 * place if place else 40
        builders[2].operator("aten::mm", at, 90 if place else 1900)
        builders[2].launch(at + 5).kernel("gemm", 20_000 + 50 * place, 40)
    builders[2].operator("aten::t", 5000, 300).operator("aten::view", 6000, 30)
    builders[0].operator("aten::add", 4000, 3000)
    found = advise_on(*builders, skews=tuple(late_one(1.9)), hosts=hosts(), partitions=exposed(range(4)))
    product = "aten::mm (3.61 ms on the host, 800 µs on the device, 20 calls more)"
    words = f"than the median rank in {product} and aten::t (300 µs on the host, 1 call more)."
    finding = told(found, "straggler_rank", words, has_gain=False)
    assert len(finding.evidence["takes_longer_for"]) == 2


def test_of_a_job_half_recorded_no_rank_is_blamed(advise_on):
    found = advise_on(*ranks(4, 128), skews=tuple(late_one()), hosts=hosts(), partitions=exposed(range(4)))
    assert "straggler_rank" not in codes(found)


def test_exposed_communication_counts_without_the_waiting(advise_on):
    even = [skew(rank, 1, 1, 2) for rank in range(2)]
    sides = [host(19 * MS, 5 * MS, trace_id=rank) for rank in range(2)]
    found = advise_on(*ranks(2), skews=tuple(even), hosts=sides, partitions=exposed(range(2), 5))
    words = ("waiting for other ranks not counted", "not estimated: what computation could run beside it")
    told(found, "exposed_communication", *words, has_gain=False)


def test_one_rank_alone_tells_waiting_by_collectives_of_one_size(load):
    builder = TraceBuilder(deviceProperties=[H200]).step(1, 0, 20_000)
    for number, duration in enumerate([300] * 9 + [9000]):
        builder.operator("record_param_comms", 1900 * number, 1500, **{"Input Dims": [[1024, 1024]]})
        builder.launch(1900 * number + 5)
        builder.kernel("ncclDevKernel_AllReduce(Comm*)", 100 + 2000 * number, duration)
    words = (
        "may be waiting",
        "ncclDevKernel_AllReduce of one size takes 300 µs in the median, 9.00 ms at most",
    )
    finding = told(assess(load(builder)).advice or (), "exposed_communication", *words, has_gain=False)
    assert not finding.change  # no gradients


EVEN = tuple(skew(rank, 0.2, 0.2, 2 + rank % 2) for rank in range(4))
BY_TURNS = tuple(skew(rank, 2, 2, 2 + rank % 2) for rank in range(4))
OF_FOUR = {"hosts": hosts(11), "partitions": exposed(range(4), 1)}
SHORT = {"skews": tuple(late_one(0.4)), "hosts": hosts(11), "partitions": exposed(range(4), 0.4)}
LEFT_ALONE = {
    "equal ranks": (ranks(4), {"skews": EVEN, **OF_FOUR}),
    "ranks that are late by turns": (ranks(4), {"skews": BY_TURNS, **OF_FOUR}),
    "short waits": (ranks(4), SHORT),
    "hidden communication": (ranks(1, 8), {"hosts": [host(19 * MS, 5 * MS)], "partitions": exposed([0], 1)}),
}


@pytest.mark.parametrize(("content", "values"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_left_alone(advise_on, content, values):
    assert codes(advise_on(*content, **values)) == []
