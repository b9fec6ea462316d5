"""Links, clocks, pipeline bubbles and overlap: what ranks send each other, by times known by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opscope
from fakes import TraceBuilder
from opscope.analysis.communication import (
    CommunicationOverlap,
    LinkEvidence,
    LinkKind,
    RankClock,
    RankLink,
    align,
    communication_overlap,
    link_of,
)
from opscope.analysis.summary import Summary
from opscope.errors import InputError
from opscope.hardware.devices import match_device
from opscope.model.session import Session
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
def test_by_the_data_sheet_of_one_host_else_the_best_seen(
    spec: object, devices: list[int], link: RankLink
) -> None:
    assert link_of(spec, devices, [10 * GB, None, 40 * GB]) == link  # type: ignore[arg-type]


def test_nothing_known() -> None:
    assert link_of(None, [0, 1], [None]) is None


MINUTE = 60_000_000_000
TODAY = 1_790_000_000_000_000_000  # ns since 1970: more than a float64 holds exactly


@pytest.mark.parametrize("start", [0, TODAY])
def test_clocks_minutes_apart_agree_to_the_nanosecond(start: int) -> None:
    offsets = {0: 0, 1: 7 * MINUTE, 2: -3}
    ends = [{rank: start + 1000 * one + ns for rank, ns in offsets.items()} for one in range(5)]
    assert align(ends) == {rank: RankClock(ns, 0, 5) for rank, ns in offsets.items()}


def test_the_error_is_how_far_an_aligned_end_is_off() -> None:
    ends = [{0: 1000 * one, 1: 1000 * one + 50 + extra} for one, extra in enumerate((0, 0, 0, 8, -2))]
    found = align(ends)
    assert (found[1].offset_ns, found[1].error_ns) == (50, 4)
    assert found[0].error_ns == 4


def test_groups_that_share_a_rank_are_chained() -> None:
    """Two pairs of tensor parallel ranks, and one group of their first ranks."""
    offsets = {0: 0, 1: 100, 2: MINUTE, 3: MINUTE - 7}
    groups = ((0, 1), (2, 3), (0, 2))
    ends = [{rank: 10_000 * one + offsets[rank] for rank in group} for one in range(4) for group in groups]
    assert {rank: clock.offset_ns for rank, clock in align(ends).items()} == offsets


def test_errors_of_a_chain_add_up() -> None:
    tied = [{0: 0, 1: 0}, {0: 1000, 1: 1010}, {0: 2000, 1: 2010}]
    beyond = [{1: 0, 2: 0}, {1: 1000, 2: 1004}, {1: 2000, 2: 2004}]
    found = align([*tied, *beyond])
    assert found[2].error_ns == found[1].error_ns + 2


def test_ranks_that_share_nothing_with_the_reference_are_left_out() -> None:
    assert set(align([{0: 1, 1: 1}, {0: 2, 1: 2}, {5: 9, 6: 9}])) == {0, 1}
    assert align([{0: 5}]) == {}


Load = Callable[..., Session]
P2P = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GROUP = {
    "Process Group Name": "1", "Process Group Ranks": "[0, 1]", "Group size": 2,
    "Process Group Description": "mesh_pp", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8,
}  # fmt: skip


def stage(rank: int, *work: tuple[str, float, float]) -> TraceBuilder:
    """One step of 1000 µs; `work` is kind (`compute`, `send`, `recv`, `bare`), start and duration in µs."""
    trace = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2}).step(1, 0, 1000)
    for place, (kind, start, lasts) in enumerate(work):
        trace.launch(place + 1)
        if kind == "compute":
            trace.kernel("gemm", start, lasts, stream=7)
        else:
            args: dict[str, Any] = {} if kind == "bare" else {**GROUP, "Collective name": kind}
            trace.kernel(P2P, start, lasts, stream=9, **args)
    return trace


FIRST = stage(0, ("compute", 20, 100), ("send", 120, 10), ("compute", 130, 100), ("send", 230, 10),
              ("recv", 240, 160), ("compute", 400, 50), ("recv", 440, 70))  # fmt: skip
# It waits from 20 to 120 for the first microbatch, and computes while it receives the second.
LAST = stage(1, ("recv", 20, 110), ("compute", 130, 100), ("recv", 200, 40), ("compute", 240, 100),
             ("send", 380, 20), ("send", 500, 10))  # fmt: skip


def test_waiting_in_sends_and_receives_beside_which_nothing_is_computed(load: Load) -> None:
    first, last = Summary(load([FIRST, LAST])).collectives.stages
    # 150 of the first receive; of the second's 60, ten beside a kernel.
    assert (first.rank, first.transfers, first.bubble_ns) == (0, 4, 200_000)
    # 100 of the first receive; the second's 30 are all beside a kernel; 10 of a send.
    assert (last.rank, last.transfers, last.bubble_ns) == (1, 4, 110_000)
    assert first.bubble_fraction == 0.2
    # Two stages, two microbatches.
    assert first.ideal_fraction == last.ideal_fraction == pytest.approx(1 / 3)


def test_kernels_that_nothing_names_may_be_an_all_to_all(load: Load) -> None:
    session = load([stage(0, ("bare", 20, 90)), stage(1, ("bare", 20, 10))])
    assert Summary(session).collectives.stages == ()


def test_in_the_report_and_in_json(load: Load) -> None:
    summary = summarize(load([FIRST, LAST]))
    assert [one["bubble_ns_per_step"] for one in analysis_json(summary)["pipeline"]] == [200_000, 110_000]
    assert "Pipeline bubbles" in render_markdown(recording_document(summary))


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def trace(rank: int = 0, **properties: object) -> TraceBuilder:
    """A step that computes for 100 µs and communicates for 60, of which 20 beside it; and work before it."""
    built = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2}, **properties)
    built.launch(0).kernel("early", 2, 30).step(1, 50, 400)
    built.operator("aten::mm", 60, 20).launch(65).kernel("gemm", 100, 100)
    built.operator("c10d::allreduce_", 90, 10).launch(95).kernel(NCCL, 180, 60, stream=9)
    built.launch(120).kernel("Memcpy DtoD (Device -> Device)", 300, 50, category="gpu_memcpy")
    return built


def test_what_steps_launched_counts(tmp_path: Path) -> None:
    path = trace().write(tmp_path / "trace.json")
    (found,) = communication_overlap([str(path)])
    assert found == CommunicationOverlap(str(path), 0, 0, 100_000, 60_000, 20_000)
    assert found.exposed_ns == 40_000
    assert found.overlapped_fraction == pytest.approx(1 / 3)


def test_without_steps_all_that_was_recorded_counts(tmp_path: Path) -> None:
    built = TraceBuilder().launch(0).kernel("gemm", 2, 30).launch(5).kernel(NCCL, 20, 20, stream=9)
    (found,) = communication_overlap([str(built.write(tmp_path / "trace.json"))])
    assert (found.rank, found.computation_ns, found.overlapped_ns) == (None, 30_000, 12_000)


def test_ranks_come_in_order_whatever_their_files_are_called(tmp_path: Path) -> None:
    trace(1).write(tmp_path / "a.json")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(trace(0).text().encode()))
    assert [one.rank for one in opscope.overlap(tmp_path)] == [0, 1]


def test_a_trace_without_device_work_has_no_row(tmp_path: Path) -> None:
    assert opscope.overlap(TraceBuilder().operator("aten::mm", 0, 5).write(tmp_path / "t.json")) == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda event: event.update(ts=event["ts"] + 1.7e15 + 0.123),
        lambda event: event.update(ts=str(event["ts"])),
        lambda event: event["args"].update(correlation=str(event["args"].get("correlation", 0))),
        lambda event: event.update(cat={"kernel": "Kernel", "cuda_runtime": "Runtime",
                                         "user_annotation": "Operator"}.get(event["cat"], event["cat"])),
    ],
)  # fmt: skip
def test_what_is_unusual_is_read_too(tmp_path: Path, change) -> None:
    built = trace()
    for event in built.events:
        if event.get("ph") == "X":
            change(event)
    path = built.write(tmp_path / "trace.json")
    (found,) = communication_overlap([str(path)])
    assert found.computation_ns == pytest.approx(100_000, abs=1000)
    assert found.overlapped_ns == pytest.approx(20_000, abs=1000)


def test_of_an_activity_whose_call_is_missing_the_operator_tells_the_step(tmp_path: Path) -> None:
    built = trace().operator("aten::mm", 200, 20, external_id=77)
    built.kernel("gemm", 400, 10, correlation=9_999, **{"External id": 77})
    path = built.write(tmp_path / "trace.json")
    assert [one.computation_ns for one in communication_overlap([str(path)])] == [110_000]


def test_a_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    text = trace().text()
    path = tmp_path / "cut.json"
    path.write_text(text[: text.rindex('"Memcpy')], encoding="utf-8")
    (found,) = communication_overlap([str(path)])
    assert found.overlapped_ns == 20_000


@pytest.mark.parametrize("text", ["", "[]", "{}", "not json"])
def test_what_is_no_trace_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"trace\.json"):
        communication_overlap([str(path)])


def test_the_verb_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from opscope.cli.app import main

    path = trace().write(tmp_path / "trace.json")
    assert main(["analyze", str(path), "--overlap"]) == 0
    assert "33.3 % of communication runs beside computation" in capsys.readouterr().out
    assert main(["analyze", str(path), "--overlap", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["overlap"]
    assert (row["rank"], row["communication_ns"], row["exposed_ns"]) == (0, 60_000, 40_000)
