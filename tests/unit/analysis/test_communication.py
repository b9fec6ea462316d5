"""Links, clocks and pipeline bubbles: what ranks send each other, by times known by hand."""

import pytest

from fakes import TraceBuilder
from opscope.analysis.collectives import LinkEvidence, LinkKind, RankClock, RankLink, align, link_of
from opscope.analysis.summary import Summary
from opscope.hardware.devices import match_device
from opscope.report.analysis import recording_document
from opscope.report.markdown import render_markdown
from opscope.report.summary_json import analysis_json
from opscope.results import summarize

H200 = match_device("NVIDIA H200").spec
L4 = match_device("NVIDIA L4").spec
GB = 1e9


@pytest.mark.parametrize(
    ("spec", "devices", "link"),
    [
        (H200, [0, 1, 2, 3], RankLink(LinkKind.NVLINK, 450 * GB, LinkEvidence.DATA_SHEET)),
        (L4, [0, 1], RankLink(LinkKind.PCIE, 32 * GB, LinkEvidence.DATA_SHEET)),
        (H200, [0, 1, 0, 1], RankLink(LinkKind.UNKNOWN, 40 * GB, LinkEvidence.BEST_SEEN)),  # two hosts
        (None, [0, 1], RankLink(LinkKind.UNKNOWN, 40 * GB, LinkEvidence.BEST_SEEN)),
    ],
)
def test_by_the_data_sheet_of_one_host_else_the_best_seen(spec, devices, link):
    assert link_of(spec, devices, [10 * GB, None, 40 * GB]) == link


MINUTE = 60_000_000_000
TODAY = 1_790_000_000_000_000_000  # ns since 1970: more than a float64 holds exactly


@pytest.mark.parametrize("start", [0, TODAY])
def test_clocks_minutes_apart_agree_to_the_nanosecond(start):
    offsets = {0: 0, 1: 7 * MINUTE, 2: -3}
    ends = [{rank: start + 1000 * one + ns for rank, ns in offsets.items()} for one in range(5)]
    assert align(ends) == {rank: RankClock(ns, 0, 5) for rank, ns in offsets.items()}


def test_the_error_is_how_far_an_aligned_end_is_off_and_adds_up():
    ends = [{0: 1000 * one, 1: 1000 * one + 50 + extra} for one, extra in enumerate((0, 0, 0, 8, -2))]
    found = align(ends)
    assert (found[1].offset_ns, found[1].error_ns) == (50, 4)
    assert found[0].error_ns == 4
    tied = [{0: 0, 1: 0}, {0: 1000, 1: 1010}, {0: 2000, 1: 2010}]
    beyond = [{1: 0, 2: 0}, {1: 1000, 2: 1004}, {1: 2000, 2: 2004}]
    found = align([*tied, *beyond])
    assert found[2].error_ns == found[1].error_ns + 2


def test_groups_that_share_a_rank_are_chained():
    """Two pairs of tensor parallel ranks, and one group of their first ranks."""
    offsets = {0: 0, 1: 100, 2: MINUTE, 3: MINUTE - 7}
    groups = ((0, 1), (2, 3), (0, 2))
    ends = [{rank: 10_000 * one + offsets[rank] for rank in group} for one in range(4) for group in groups]
    assert {rank: clock.offset_ns for rank, clock in align(ends).items()} == offsets


def test_ranks_that_share_nothing_with_the_reference_are_left_out():
    assert set(align([{0: 1, 1: 1}, {0: 2, 1: 2}, {5: 9, 6: 9}])) == {0, 1}
    assert align([{0: 5}]) == {}


P2P = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GROUP = {
    "Process Group Name": "1", "Process Group Ranks": "[0, 1]", "Group size": 2,
    "Process Group Description": "mesh_pp", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8,
}  # fmt: skip


def stage(rank, *work):
    """One step of 1000 µs; `work` is kind (`compute`, `send`, `recv`, `bare`), start and duration in µs."""
    trace = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2}).step(1, 0, 1000)
    for place, (kind, start, lasts) in enumerate(work):
        trace.launch(place + 1)
        if kind == "compute":
            trace.kernel("gemm", start, lasts, stream=7)
        else:
            args = {} if kind == "bare" else {**GROUP, "Collective name": kind}
            trace.kernel(P2P, start, lasts, stream=9, **args)
    return trace


FIRST = stage(0, ("compute", 20, 100), ("send", 120, 10), ("compute", 130, 100), ("send", 230, 10),
              ("recv", 240, 160), ("compute", 400, 50), ("recv", 440, 70))  # fmt: skip
# It waits from 20 to 120 for the first microbatch, and computes while it receives the second.
LAST = stage(1, ("recv", 20, 110), ("compute", 130, 100), ("recv", 200, 40), ("compute", 240, 100),
             ("send", 380, 20), ("send", 500, 10))  # fmt: skip


def test_waiting_in_sends_and_receives_beside_which_nothing_is_computed(load):
    first, last = Summary(load([FIRST, LAST])).collectives.stages
    # 150 of the first receive; of the second's 60, ten beside a kernel.
    assert (first.rank, first.transfers, first.bubble_ns) == (0, 4, 200_000)
    # 100 of the first receive; the second's 30 are all beside a kernel; 10 of a send.
    assert (last.rank, last.transfers, last.bubble_ns) == (1, 4, 110_000)
    assert first.bubble_fraction == 0.2
    # Two stages, two microbatches.
    assert first.ideal_fraction == last.ideal_fraction == pytest.approx(1 / 3)


def test_in_the_report_and_in_json(load):
    summary = summarize(load([FIRST, LAST]))
    assert [one["bubble_ns_per_step"] for one in analysis_json(summary)["pipeline"]] == [200_000, 110_000]
    assert "Pipeline bubbles" in render_markdown(recording_document(summary))
