"""Bubbles of a pipeline of two stages whose times are known by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.summary import Summary
from opscope.model.session import Session
from opscope.report.analysis import recording_document
from opscope.report.markdown import render_markdown
from opscope.report.summary_json import analysis_document
from opscope.results import summarize
from opscope.testing import TraceBuilder

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
    assert [one["bubble_ns_per_step"] for one in analysis_document(summary)["pipeline"]] == [200_000, 110_000]
    assert "Pipeline bubbles" in render_markdown(recording_document(summary))
