"""Whether what a step launches can be captured in a CUDA graph: asked by every rule that suggests one.

A graph holds launches alone, always the same. What makes the host wait, copies from or to pageable memory or
takes memory from the driver within it cannot be captured; with other kernels or shapes in another step it
would be another graph. Copies of inputs at the start of a step and questions at its end stand outside of it.
"""

from __future__ import annotations

from collections import Counter

from opscope.advice.profiled_run import ProfiledRun, listed
from opscope.model.finding import Applicability, ApplicabilityStatus, Blocker
from opscope.model.queries import sql
from opscope.units import counted

# Of a step's launches, at each end: what prepares inputs, and what follows the model (loss, sampling).
_EDGE = 0.05
# Of the steps: what happens in fewer is a log, or memory taken once.
_USUAL = 0.5


def capture_of(run: ProfiledRun) -> Applicability:
    """Whether a step can be captured; unknown without two steps to compare and nothing in the way."""
    if run.summary.engine is not None:
        return Applicability()  # an engine captures what it knows to be the same
    places: dict[int, tuple[str | None, str | None]] = {}
    for row in run.allocations:
        places |= dict.fromkeys(row["call_ids"], (row["name"], None))
    for wait in run.summary.timeline.waits:
        places |= dict.fromkeys(wait.call_ids, (wait.operator or wait.name, wait.line))
    inside = run.session.query(sql(__package__, "capture:inside"), [list(places), run.left_out, _EDGE])
    blockers = [
        Blocker(operator, line, count / run.step_count)
        for (operator, line), count in Counter(places[call_id] for (call_id,) in inside).most_common()
        if count >= _USUAL * run.step_count
    ]
    if found := tuple(blockers) or differing(run):
        return Applicability(ApplicabilityStatus.BLOCKED, found)
    # One step of each trace is compared with nothing.
    is_known = len(run.summary.steps) > len({one.trace_id for one in run.summary.steps})
    return Applicability(ApplicabilityStatus.APPLICABLE if is_known else ApplicabilityStatus.UNKNOWN)


def differing(run: ProfiledRun) -> tuple[Blocker, ...]:
    """Operators that launch other kernels, or for other shapes, in one step than in another.

    A loop that generates has other shapes for each token, also within one step.
    """
    rows = run.records("capture:differing") or run.records("capture:growing")
    return tuple(Blocker(one["operator"], None, one["per_step"]) for one in rows)


def in_the_way(run: ProfiledRun, found: Applicability) -> str:
    """Each blocker with how often and where; of steps that differ, the operators that do."""
    if found.blocked_by and run.has_steps and found.blocked_by == differing(run):
        return f"steps differ in {listed([one.operator or 'launches' for one in found.blocked_by], 3)}"

    def told(one: Blocker) -> str:
        # Without steps those at the edges, outside of a graph, are calls too.
        times = f" {counted(one.per_step, 'time')} {run.period}" if run.has_steps else ""
        return f"{one.operator or 'launches'}{times}{f' at {one.line}' if one.line else ''}"

    return listed([told(one) for one in found.blocked_by], 3)
