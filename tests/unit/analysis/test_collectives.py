"""Collectives of several ranks: who waits for whom, how fast data moves, what differs between ranks."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import RankSkew, SkewEvidence
from opscope.report.summary_json import analysis_json
from opscope.results import summarize

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
P2P = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def rank(number, durations, *, kernel=NCCL, **args):
    """One rank whose all-reduces of one step take this long; `args` may hold a list per collective."""
    info = {} if number is None else {"distributedInfo": {"rank": number, "world_size": 2}}
    trace = TraceBuilder(**info).step(5, 0, 10_000)
    for index, duration in enumerate(durations):
        start = 1000 * index
        own = {name: value[index] if isinstance(value, list) else value for name, value in args.items()}
        trace.launch(start + 1).kernel(kernel, start + 10, duration, **own)
    return trace


@pytest.fixture
def skews(job):
    return lambda *ranks: job(*ranks).timeline.skews


def test_the_last_to_arrive_has_the_shortest_kernel_by_more_than_a_few_percent(skews):
    waiting, late, of_another_clock = rank(0, [100, 120]), rank(1, [20, 30]), rank(1, [20, 30])
    for event in of_another_clock.events:
        event["ts"] += 137_000_000
    for other in (late, of_another_clock):
        assert skews(waiting, other) == (
            RankSkew(0, 0, 2, 0, 170_000, 0, SkewEvidence.ORDER),
            RankSkew(1, 1, 2, 2, 0, 170_000, SkewEvidence.ORDER),
        )
    assert [one.last_count for one in skews(rank(0, [100, 105]), rank(1, [103, 100]))] == [0, 0]


def test_sequence_numbers_match_whatever_is_missing(skews):
    common = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    first = rank(0, [100, 50, 40], **common, Seq=[7, 8, 9])
    second = rank(1, [10, 40], **common, Seq=[8, 9])
    assert skews(first, second) == (
        RankSkew(0, 0, 2, 0, 40_000, 0, SkewEvidence.SEQUENCE),
        RankSkew(1, 1, 2, 1, 0, 40_000, SkewEvidence.SEQUENCE),
    )


ALLREDUCE = {"Collective name": "allreduce", "Seq": 3}
UNTOLD = {
    "groups have counts of their own": [
        rank(number, [100 - number], **ALLREDUCE, **{"Process Group Name": group})
        for number, group in enumerate(("tp", "dp"))
    ],
    "by order only where all launched the same": [rank(0, [100, 100]), rank(1, [10])],
    "point to point is no collective": [rank(0, [100], kernel=P2P), rank(1, [10], kernel=P2P)],
    "unknown ranks": [rank(None, [100]), rank(None, [10])],
    "the same rank": [rank(1, [100]), rank(1, [10])],
    "one rank": [rank(0, [100])],
}


def test_where_no_skew_is_told(skews):
    assert {name: skews(*ranks) for name, ranks in UNTOLD.items()} == dict.fromkeys(UNTOLD, ())


def test_the_straggler_of_a_recorded_job_is_rank_1(shared, load):
    found = Summary(load(shared / "traces/h200/ddp_straggler_w4")).timeline
    assert [(one.rank, one.collectives) for one in found.skews] == [(rank, 12) for rank in range(4)]
    assert [one.last_count for one in found.skews] == [0, 12, 0, 0]
    assert sum(one.waiting_ns for one in found.skews) == sum(one.awaited_ns for one in found.skews)
    exposed = {one.rank: one.exposed_communication_ns for one in found.partitions}
    assert all(exposed[other] > 20 * exposed[1] for other in (0, 2, 3))
    late = {one.trace_id: one.launch_path_ns for one in found.host}
    assert all(late[1] > 1.5 * late[other] for other in (0, 2, 3))


RECORD = {
    "Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    "Group size": 2, "dtype": "Float", "In msg nelems": 1000, "Out msg nelems": 1000,
}  # fmt: skip


def test_a_group_waits_moves_data_and_is_exposed(job):
    """Rank 1 comes 80 µs and 30 µs late; in the first it computes for 50 of them, and 10 more beside it."""
    first = rank(0, [100, 60], **RECORD, Seq=[1, 2])
    late = rank(1, [20, 30], **RECORD, Seq=[1, 2])
    # Its kernel runs from 10 to 30: rank 0 arrived 80 earlier, at -70.
    late.operator("aten::mm", 1, 5).launch(2).kernel("gemm", -60, 50, stream=8)
    late.launch(3).kernel("gemm", 20, 10, stream=8)
    (total,) = job(first, late).collectives.totals
    assert (total.process_group, total.name, total.calls, total.ranks) == ("0", "allreduce", 2, 2)
    assert (total.wait_ns, total.transfer_ns, total.exposed_ns) == (110_000, 50_000, 200_000)
    assert (total.size_bytes, total.last_rank, total.last_count) == (8000, 1, 2)
    # An all-reduce of 4,000 B on two ranks moves 4,000 B over each link: in 20 and in 30 µs.
    assert total.bus_bytes_per_s == pytest.approx(8000 / 50e-6)
    assert {one.name: one.ns for one in total.meanwhile} == {"aten::mm": 50_000, None: 60_000}


def test_the_last_to_arrive_may_be_a_rank_that_was_not_recorded(job):
    ranks = [rank(number, [100 - number], **{**RECORD, "Group size": 8}, Seq=1) for number in range(2)]
    (total,) = job(*ranks).collectives.totals
    assert (total.wait_ns, total.transfer_ns, total.bus_bytes_per_s, total.last_rank) == (None,) * 4
    assert total.exposed_ns == 199_000


@pytest.mark.parametrize("how", ["by sequence", "by order"])
@pytest.mark.exhaustive(few=False)
def test_sizes_that_differ_are_found(job, how):
    def one(number, elements):
        own = {**RECORD, "Group size": 3, "In msg nelems": elements}
        return rank(number, [50, 50], **own, **({"Seq": [1, 2]} if how == "by sequence" else {}))

    found = job(one(0, [8, 9]), one(1, [8, 9]), one(2, [8, 7])).collectives
    (finding,) = found.findings
    assert (finding.code, finding.evidence["ranks"]) == ("collectives.mismatch", [2])
    assert "rank 2 of 3 ranks launched allreduce of 7 elements" in finding.message
    assert "others launched allreduce of 9 elements" in finding.message
    assert not job(one(0, [8, 9]), one(1, [8, 9]), one(2, [8, 9])).collectives.findings


@cases("third", "words")
def test_a_rank_that_leaves_a_collective_out_is_found(job, third, words):
    whole = [rank(number, [50] * 3, **RECORD, Seq=[1, 2, 3]) for number in range(2)]
    found = job(*whole, rank(2, [50] * len(third), **RECORD, Seq=third)).collectives.findings
    assert [one.code for one in found] == ["collectives.missing"]
    assert words in found[0].message
    assert found[0].evidence["ranks"] == [2]


def test_fewer_collectives_in_a_step_are_found_without_numbers(job):
    (finding,) = job(rank(0, [50, 50], **RECORD), rank(1, [50], **RECORD)).collectives.findings
    assert (finding.code, finding.evidence["ranks"]) == ("collectives.missing", [1])
    assert "collective 2 of step 5" in finding.message


@cases("description", "name", "kind")
def test_what_a_group_is_for(job, description, name, kind):
    own = {**RECORD, "Process Group Description": description, "Collective name": name}
    (total,) = job(*(rank(number, [50], **own, Seq=1) for number in range(2))).collectives.totals
    assert (None if total.parallelism is None else total.parallelism.kind) == kind


def test_tensors_with_parts_on_every_rank_sum_their_products(job):
    """As `parallelize_module` of torch does on two H100s, whose only group has the default description."""
    own = {**RECORD, "Process Group Description": "default_pg", "Collective name": "allreduce"}
    ranks = [rank(number, [50], **own, Seq=1) for number in range(2)]
    for one in ranks:
        one.operator("Redistribute", 5_000, 100).operator("_c10d_functional::all_reduce", 5_010, 50)
    (total,) = job(*ranks).collectives.totals
    assert (total.parallelism.kind, total.parallelism.evidence) == ("tensor", "inferred")


@pytest.mark.exhaustive(few=False)
def test_a_recorded_job_in_json_and_words(shared, load):
    summary = summarize(load(shared / "traces/h200/ddp_straggler_w4"))
    document = analysis_json(summary)
    (total,) = document["collectives"]
    assert (total["last_rank"], total["ranks"], total["bytes"]) == (1, 4, 302_309_376)
    assert total["wait_ns"] == sum(one.waiting_ns for one in summary.timeline.skews)
    assert total["transfer_ns"] < 0.02 * total["wait_ns"]
    assert document["straggler"]["rank"] == 1
    assert document["straggler"]["operators"][0]["name"] == "aten::mm"
    assert document["straggler"]["operators"][0]["extra_calls_per_step"] == 400
    every = analysis_json(summary, top=None)["collectives"]
    assert len(every) == total["calls"]
    for key in ("bytes", "wait_ns", "transfer_ns", "exposed_ns"):
        assert sum(one[key] for one in every) == total[key]
    assert total["algorithm_bytes_per_s"] == pytest.approx(302_309_376 / total["transfer_ns"] * 1e9)
    assert total["bus_bytes_per_s"] == pytest.approx(1.5 * total["algorithm_bytes_per_s"])
    assert total["link"] == {"kind": "nvlink", "bytes_per_s": 450e9, "evidence": "data_sheet"}
    assert (total["parallelism"], total["parallelism_evidence"]) == ("data", "inferred")
    assert (document["straggler"]["late_steps"], document["straggler"]["steps"]) == (2, 2)
    of_late = [one for one in document["rank_steps"] if one["rank"] == 1]
    assert [one["step"] for one in of_late] == [2, 3]
    assert sum(one["awaited_ns"] for one in of_late) == total["wait_ns"]
    # What a rank would do without waiting is not known, nor then what is held up by it.
    assert (document["simulation"], document["critical_path"]) == (None, [])


@pytest.mark.exhaustive(few=False)
def test_a_rank_that_is_late_once_is_no_straggler(job):
    def one(number, *durations):
        info = {"distributedInfo": {"rank": number, "world_size": 2}}
        trace = TraceBuilder(**info)
        for step, lasts in enumerate(durations):
            trace.step(step + 1, 10_000 * step, 9_000)
            for place, duration in enumerate(lasts):
                start = 10_000 * step + 2000 * place
                trace.launch(start + 1)
                trace.kernel(NCCL, start + 10, duration, **RECORD, Seq=10 * step + place)
        return trace

    once = job(one(0, (50, 1900), (50, 50), (50, 50)), one(1, (50, 50), (50, 50), (50, 50)))
    assert once.straggler is None
    steady = job(one(0, (50, 1900), (50, 1900), (50, 50)), one(1, (50, 50), (50, 50), (50, 50))).straggler
    assert (steady.rank, steady.late_steps, steady.steps) == (1, 2, 3)
