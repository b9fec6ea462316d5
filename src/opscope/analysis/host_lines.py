"""Which lines of the program the host's time goes to, by what two watched steps showed of its calls.

An operator's time on the host begins where the one before it on its thread ended, and belongs to the line
that called it; in the backward pass, to the line of the operator that it differentiates. A thread that waits
for those of the backward pass has no time of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from opscope.analysis.arrays import NONE, columns, merge, overlap
from opscope.analysis.watched_steps import Dataflow
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Int64
from opscope.model.queries import grouped
from opscope.model.session import Session

_LEAST, _MOSTLY = 0.1, 0.5  # of the host's time, to be named; of a line's time is that of some below it
_NEARLY_ALL = 0.9  # is that of one


class HostLine(msgspec.Struct, frozen=True):
    """A line of the program with all that it calls, in a step."""

    line: str  # `file:line function`
    caller: int  # position of the line that leads to it; -1 for none
    times: int  # that loops around it come to it
    operators: int  # called there, without those of the backward pass
    fraction: float  # of the host's time as recorded, the backward pass of these operators included


def host_lines(session: Session, watched: Dataflow) -> tuple[HostLine, ...]:
    """Every line from which operators are called, each after the one that leads to it."""
    lines = watched.recorded.lines
    own_ns = _own_times(session, watched)
    whole_ns = max(int(own_ns.sum()), 1)
    counts = [sum(end - begin for begin, end in one.operators) for one in lines]
    for place in range(len(lines) - 1, -1, -1):
        if (caller := lines[place].caller) >= 0:
            own_ns[caller] += own_ns[place]
            counts[caller] += counts[place]
    return tuple(
        HostLine(one.line, one.caller, one.times, count, ns / whole_ns)
        for one, count, ns in zip(lines, counts, own_ns.tolist(), strict=False)
    )


def busiest_lines(lines: Sequence[HostLine]) -> list[HostLine]:
    """The lines that hold most of the host's time, each as far down as most of its time goes.

    A line to which several lead is one.
    """
    below = grouped((one.caller, place) for place, one in enumerate(lines) if one.fraction >= _LEAST)
    found: dict[str, HostLine] = {}
    pending = below[-1]
    while pending:
        one = lines[place := pending.pop()]
        if sum(lines[other].fraction for other in below[place]) >= _MOSTLY * one.fraction:
            pending += below[place]
            continue
        if known := found.get(one.line):
            sums = {
                name: getattr(known, name) + getattr(one, name) for name in ("times", "operators", "fraction")
            }
            one = replace(known, **sums)
        found[one.line] = one
    return sorted(found.values(), key=lambda one: -one.fraction)


def as_tree(lines: Sequence[HostLine], most: int | None) -> list[tuple[int, HostLine]]:
    """The longest lines with how many of these lead to each, each before those below it.

    A line that does little but lead to another one is left out.
    """
    below = grouped((one.caller, place) for place, one in enumerate(lines))
    leading = {
        place
        for place, one in enumerate(lines)
        if any(lines[other].fraction >= _NEARLY_ALL * one.fraction for other in below[place])
    }
    longest = sorted(set(range(len(lines))) - leading, key=lambda place: -lines[place].fraction)[:most]
    found, pending = [], [(0, place) for place in below[-1]]
    pending.sort(key=lambda one: lines[one[1]].fraction)
    while pending:
        depth, place = pending.pop()
        if place in longest:
            found.append((depth, lines[place]))
            depth += 1
        pending += sorted(((depth, one) for one in below[place]), key=lambda one: lines[one[1]].fraction)
    return found


def _own_times(session: Session, watched: Dataflow) -> Int64:
    """Host time of each line in all steps, without the lines below it; last, of what has no line."""
    lines = watched.recorded.lines
    line_of = {
        number: place
        for place, one in enumerate(lines)
        for begin, end in one.operators
        for number in range(begin, end)
    }
    rows = sorted(
        (row["thread_id"], row["start_ns"], row["end_ns"], row["step"], row["operator_id"],
         row["last_descendant_id"], line_of.get(number, NONE))
        for step in watched.steps
        for number, row in enumerate(step)
        if row
    )  # fmt: skip
    thread, start_ns, end_ns, step, first_id, last_id, line = np.array(rows, dtype=np.int64).reshape(-1, 7).T
    threads, counts = np.unique(thread[line >= 0], return_counts=True)
    if not len(threads):
        return np.zeros(len(lines) + 1, dtype=np.int64)
    is_main = thread == threads[np.argmax(counts)]
    begin_ns = start_ns.copy()
    follows = (thread[1:] == thread[:-1]) & (step[1:] - step[:-1] <= 1)
    # Another thread waits for its next work while this one runs operators.
    main_ns = start_ns[is_main]
    is_idle = np.searchsorted(main_ns, start_ns[1:]) > np.searchsorted(main_ns, end_ns[:-1])
    follows &= is_main[1:] | ~is_idle
    begin_ns[1:][follows] = np.minimum(end_ns[:-1], start_ns[1:])[follows]
    elsewhere = merge((begin_ns[~is_main], end_ns[~is_main]))
    own_ns = end_ns - begin_ns - np.where(is_main, overlap(elsewhere, begin_ns, end_ns), 0)
    differentiated = _differentiated(session, first_id, last_id, line)
    line = np.where(line >= 0, line, differentiated)
    return np.bincount(np.where(line >= 0, line, len(lines)), own_ns, len(lines) + 1).astype(np.int64)


def _differentiated(session: Session, first_id: Int64, last_id: Int64, line: Int64) -> Int64:
    """The lines of the operators that these differentiate; -1 where they do not, or it is not known."""
    links = columns(session, _LINKS_SQL, order_by="first_id")
    at = np.searchsorted(links["first_id"], first_id, side="right") - 1
    at = np.where((at >= 0) & (gather(links["last_id"], at) >= first_id), at, NONE)
    forward_id, forward_last_id = (gather(links[name], at) for name in ("forward_id", "forward_last_id"))
    placed = np.flatnonzero(line >= 0)
    placed = placed[np.argsort(first_id[placed])]
    # The operator that holds it, or the first one of those that it calls.
    after = np.searchsorted(first_id[placed], forward_id, side="right")
    holder, called = gather(placed, after - 1), gather(placed, np.where(after < len(placed), after, NONE))
    is_held = gather(last_id, holder) >= forward_id
    is_called = (called >= 0) & (gather(first_id, called) <= forward_last_id)
    found = np.where(is_held, gather(line, holder), np.where(is_called, gather(line, called), NONE))
    return np.where(at >= 0, found, NONE)


_LINKS_SQL = """
SELECT b.operator_id AS first_id, b.last_descendant_id AS last_id, f.operator_id AS forward_id,
    f.last_descendant_id AS forward_last_id
FROM autograd_links JOIN operators b ON b.operator_id = backward_operator_id
JOIN operators f ON f.operator_id = forward_operator_id"""
