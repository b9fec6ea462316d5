"""Columns of a Session that charging works on: operators, activities, links and launch points, as arrays.

Operators stand in the order of their ids, which is preorder, so that an operator is its position; every
reference to one is such a position, -1 for none. Threads and ids are unique over all traces of a Session.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opscope.analysis.arrays import NONE, Columns, Flags, columns
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Forest, Int64, enclosing, nest
from opscope.model.queries import sql
from opscope.model.session import Session

_AT_ONCE = 1 << 20  # operators


class Operators(Columns, frozen=True):
    """All operators of a Session in preorder."""

    first_id: int  # operator_id of position 0
    trace: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    parent: Int64
    depth: Int64  # 0 without a parent
    engine: Int64  # the innermost operator, itself included, that autograd's engine ran
    forward: Int64  # the forward operator it differentiates, if it is a backward one


class ProgramActivities(Columns, frozen=True):
    """All device activities of a Session in the order of their ids."""

    trace: Int64
    operator: Int64
    call_thread: Int64  # thread of the call that launched it
    call_start_ns: Int64
    duration_ns: Int64
    is_kernel: Flags


def read_operators(session: Session) -> Operators:
    rows = columns(session, sql(__package__, "program:operators"), order_by="operator_id")
    links = columns(session, sql(__package__, "program:links"), order_by="backward_id")
    first_id = int(rows["operator_id"][0]) if len(rows["operator_id"]) else 0
    del rows["operator_id"]
    rows["end_ns"] = rows.pop("duration_ns")
    rows["end_ns"] += rows["start_ns"]
    count = len(rows["start_ns"])
    # Of a long trace these are the largest arrays of all.
    place = np.int32 if count < 1 << 31 else np.int64
    parent = rows.pop("parent_id")
    parent[parent >= 0] -= first_id
    parent = parent.astype(place)
    forward: Any = np.full(count, NONE, dtype=place)
    forward[links["backward_id"] - first_id] = links["forward_id"] - first_id
    by_engine = np.where(rows.pop("is_backward") | (forward >= 0), np.arange(count, dtype=place), place(-1))
    engine = inherit(by_engine, parent, rows["depth"])
    return Operators(first_id=first_id, parent=parent, engine=engine, forward=forward, **rows)


def read_activities(session: Session, first_operator_id: int, *, of_host: bool = False) -> ProgramActivities:
    """The activities, with the point each was launched at; of the host each operator's own time is one."""
    name = "program:host_work" if of_host else "program:activities"
    rows = columns(session, sql(__package__, name), order_by="activity_id")
    del rows["activity_id"]
    rows["operator"] = np.where(rows["operator"] >= 0, rows["operator"] - first_operator_id, NONE)
    return ProgramActivities(**rows)


def call_forest(thread: Int64, start_ns: Int64, end_ns: Int64, sequence: Int64) -> Forest:
    """Call trees of intervals; `sequence` orders equal ones, the outer one first."""
    # Clocks that tick in microseconds let a child end up to one tick after its parent.
    ticks_us = not np.any(start_ns % 1000) and not np.any(end_ns % 1000)
    return nest(thread, start_ns, end_ns - start_ns, sequence, tolerance_ns=1000 if ticks_us else 0)


def inherit(own: Int64, parent: Int64, depth: Int64) -> Int64:
    """The value of the innermost of a forest around each, itself included, that has one; -1 for none."""
    found: Int64 = own.copy()
    if not len(found) or not np.any(own >= 0):
        return found
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    for level in range(1, len(bounds) - 1):
        here = by_depth[bounds[level] : bounds[level + 1]]
        lacking = here[found[here] < 0]
        found[lacking] = found[parent[lacking]]
    return found


# Backward of backward of …: each step goes to the forward operator or outwards, so a sound trace needs few.
_MOST_STEPS = 64


# Calls that run a backward pass, by start: their traces, starts, ends, and the places they were made from.
BackwardCalls = tuple[Int64, Int64, Int64, Int64]


def within(forest: Forest, operators: Operators) -> Int64:
    """Innermost interval open at each operator's start, as a position in the forest; -1 for none.

    For what the engine ran only intervals count that were opened inside of it.
    """
    place = np.full(len(operators), NONE)
    for low in range(0, len(operators), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        found = enclosing(forest, operators.thread[part], operators.start_ns[part])
        place[part] = _inside(forest, found, operators, operators.engine[part])
    return place


def charge(
    operators: Operators,
    activities: ProgramActivities,
    at_operator: Int64,
    forest: Forest | None,
    backward_calls: BackwardCalls | None = None,
) -> Int64:
    """The place of each activity; -1 for none.

    `at_operator` is where each operator was called from (-1: not known of itself). Places are positions
    in the forest, in which launch calls are looked up; without it they are not. `backward_calls` are for
    what the engine ran without a forward operator.
    """
    # By way of forward operators and callers; `last` is the operator that was asked last.
    asked = activities.operator
    place, last = gather(at_operator, asked), asked.copy()
    left = np.flatnonzero((place < 0) & (asked >= 0))
    for _ in range(_MOST_STEPS):
        engine = gather(operators.engine, last[left])
        onward = gather(operators.forward, engine)
        onward = np.where(onward < 0, gather(operators.parent, engine), onward)
        left, onward = left[onward >= 0], onward[onward >= 0]
        if not len(left):
            break
        last[left], place[left] = onward, at_operator[onward]
        left = left[place[left] < 0]
    if forest is not None:
        # A composite operator may call Python again, so the launch itself may lie deeper than its start.
        called = enclosing(forest, activities.call_thread, activities.call_start_ns)
        called = _inside(forest, called, operators, activities.operator)
        place = np.where(called >= 0, called, place)
    if backward_calls is not None:
        engine = gather(operators.engine, last)
        stray = np.flatnonzero((place < 0) & (engine >= 0) & (gather(operators.forward, engine) < 0))
        started_ns = operators.start_ns[activities.operator[stray]]
        place[stray] = _caller(backward_calls, activities.trace[stray], started_ns)
    return place


def _inside(forest: Forest, place: Int64, operators: Operators, around: Int64) -> Int64:
    """The places that were opened inside an operator each, -1 for the others; all stay where it is -1."""
    asked = np.flatnonzero((place >= 0) & (around >= 0))
    call, operator = place[asked], around[asked]
    is_inside = forest.thread[call] == operators.thread[operator]
    is_inside &= forest.start_ns[call] >= operators.start_ns[operator]
    kept: Int64 = place.copy()
    kept[asked[~is_inside]] = NONE
    return kept


def _caller(calls: BackwardCalls, trace: Int64, time_ns: Int64) -> Int64:
    """Place of the one backward call of the trace that was open; -1 where none or several were."""
    traces, start_ns, end_ns, place = calls
    found = np.full(len(trace), NONE)
    for one in np.unique(trace).tolist():
        own, here = np.flatnonzero(traces == one), np.flatnonzero(trace == one)
        started = np.searchsorted(start_ns[own], time_ns[here], side="right")
        ended = np.searchsorted(np.sort(end_ns[own]), time_ns[here], side="right")
        alone = started - ended == 1
        latest = own[started[alone] - 1]
        is_open = end_ns[latest] > time_ns[here[alone]]
        found[here[alone][is_open]] = place[latest[is_open]]
    return found
