"""What an execution graph does not know, and when that is too much to simulate a change by it.

A recording may lack correlation ids, the host's side, events, clocks that agree. It still simulates as
itself, each activity coming when it was recorded; but what a change would bring rests on edges that are not
there. So a gain is withheld where too many activities have no edge that explains when they began, where too
much of the step, as recorded or changed, is time that no edge explains, or where the recording says that
events are lost. A launch explains an activity that begins until its call returns: the first call of a kernel
loads its module.
"""

from __future__ import annotations

import numpy as np

from opscope.analysis.execution_graph import TOLERANCE_NS, ExecutionGraph
from opscope.analysis.timeline.records import TraceRecords
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.units import format_fraction

# Of 36 recordings that lack nothing, the worst has 0.5 % of its activities untied; two of which only a sample
# of the events was kept, 46 %.
MOST_UNTIED = 0.1
# The same recordings are short of 4.4 % at most; gains below 2 % of a step are not told.
MOST_UNEXPLAINED = 0.05


def missing_edges(session: Session, trace: TraceRecords, graph: ExecutionGraph, origin_ns: int) -> str | None:
    """Why no change of a trace's steps can be simulated, in words; None if nothing much is missing."""
    reasons = [
        f"events are lost ({code})"
        for (code,) in session.query(sql(__package__, "missing_edges:lost"), [trace.trace_id])
    ]
    reasons += [
        f"steps {one} and {other} overlap"
        for one, other in session.query(
            sql(__package__, "missing_edges:overlapping"), [trace.trace_id, TOLERANCE_NS]
        )
    ]
    # Activities that begin at a moment that no edge explains, by what is wrong with them.
    mine = np.flatnonzero(graph.activity >= 0)
    call = graph.call[mine]
    begins_ns = graph.time_ns[mine] - graph.duration_ns[mine] + origin_ns
    has_launch = call >= 0
    is_early, is_later = np.zeros((2, len(mine)), dtype=np.bool_)
    is_early[has_launch] = begins_ns[has_launch] < trace.calls.start_ns[call[has_launch]]
    is_later[has_launch] = begins_ns[has_launch] > trace.calls.end_ns[call[has_launch]] + TOLERANCE_NS
    is_late = is_later & (graph.excess_ns[mine] > TOLERANCE_NS)
    untied = {
        "have no recorded launch": int((~has_launch).sum()),
        "start before their launch, so that clocks disagree": int(is_early.sum()),
        "start later than their known dependencies allow": int(is_late.sum()),
    }
    if sum(untied.values()) >= MOST_UNTIED * len(mine):
        reasons += [
            f"{count:,} of {len(mine):,} activities {what}" for what, count in untied.items() if count
        ]
    waits, contradicted = graph.event_waits, graph.contradicted_waits
    if contradicted and contradicted >= MOST_UNTIED * waits:
        reasons.append(
            f"{contradicted:,} of {waits:,} waits of streams for each other contradict the times recorded"
        )
    return "; ".join(reasons) or None


def unexplained(share: float, what: str) -> str | None:
    """The same of a simulated step, by the share of it that no known edge explains."""
    if share < MOST_UNEXPLAINED:
        return None
    return f"no known dependency explains {format_fraction(share)} of {what}"


def awaited(share: float) -> str | None:
    """The same of a rank, by the share of its step that it waits for others, which may change with it."""
    if share < MOST_UNEXPLAINED:
        return None
    return f"the rank waits for others for {format_fraction(share)} of the recorded step"
