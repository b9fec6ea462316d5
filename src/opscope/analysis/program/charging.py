"""From a device activity to the place in the program it is charged to.

A place is the innermost of some calls (of modules, of the program's functions) that was open where the
activity was launched: where its runtime call was made, or where its operator began. What autograd's engine
launched is charged to the place of the forward operator it differentiates, unless the backward pass itself
opened such a call (recomputation). Each activity has one place or none, so times add up exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opscope.analysis.program.recorded import NONE, Activities, Bools, Operators
from opscope.attribution.linking import gather
from opscope.attribution.nesting import Forest, Int64, enclosing

__all__ = ["BackwardCalls", "Charge", "charge", "is_backward", "sum_by", "within"]

# Backward of backward of …: each step goes to the forward operator or outwards, so a sound trace needs few.
_MOST_STEPS = 64


@dataclass(frozen=True)
class Charge:
    """Where activities are charged.

    Attributes:
        place: Place of each activity; -1 for none.
        at_operator: Place that each operator is charged to; -1 for none.
    """

    place: Int64
    at_operator: Int64


@dataclass(frozen=True)
class BackwardCalls:
    """Calls that run a backward pass, `[start_ns, end_ns)` by start, each with the place it was made from."""

    trace: Int64
    start_ns: Int64
    end_ns: Int64
    place: Int64


def is_backward(operators: Operators, activities: Activities) -> Bools:
    """Whether each activity was launched by autograd's engine."""
    backward: Bools = gather(operators.engine, activities.operator) >= 0
    return backward


def within(forest: Forest, operators: Operators) -> Int64:
    """Innermost interval open at each operator's start, as a position in the forest; -1 for none.

    For what the engine ran only intervals count that were opened inside of it.
    """
    place = enclosing(forest, operators.thread, operators.start_ns)
    return _inside(forest, place, operators, operators.engine)


def charge(
    operators: Operators,
    activities: Activities,
    at_operator: Int64,
    forest: Forest | None,
    backward_calls: BackwardCalls | None = None,
) -> Charge:
    """The place of each activity.

    Args:
        operators: All operators.
        activities: All activities.
        at_operator: The place each operator was called from; -1 where none is known of itself.
        forest: The intervals that places are positions of, to look up launch calls in; None if they are not.
        backward_calls: For what the engine ran without a forward operator.
    """
    settled, last = _settle(operators, at_operator)
    place = gather(settled, activities.operator)
    if forest is not None:
        # A composite operator may call Python again, so the launch itself may lie deeper than its start.
        called = enclosing(forest, activities.call_thread, activities.call_start_ns)
        called = _inside(forest, called, operators, activities.operator)
        place = np.where(called >= 0, called, place)
    if backward_calls is not None:
        engine = gather(operators.engine, gather(last, activities.operator))
        stray = np.flatnonzero((place < 0) & (engine >= 0) & (gather(operators.forward, engine) < 0))
        place[stray] = _caller(
            backward_calls, activities.trace[stray], operators.start_ns[activities.operator[stray]]
        )
    return Charge(place, settled)


def _inside(forest: Forest, place: Int64, operators: Operators, around: Int64) -> Int64:
    """The places that were opened inside an operator each, -1 for the others; all stay where it is -1."""
    asked = np.flatnonzero((place >= 0) & (around >= 0))
    call, operator = place[asked], around[asked]
    is_inside = (forest.thread[call] == operators.thread[operator]) & (
        forest.start_ns[call] >= operators.start_ns[operator]
    )
    kept: Int64 = place.copy()
    kept[asked[~is_inside]] = NONE
    return kept


def _settle(operators: Operators, at_operator: Int64) -> tuple[Int64, Int64]:
    """Place of each operator by way of forward operators and callers, and the operator asked last."""
    engine = operators.engine
    onward = gather(operators.forward, engine)
    onward = np.where((engine >= 0) & (onward < 0), gather(operators.parent, engine), onward)
    place = at_operator.copy()
    last = np.arange(len(operators))
    open_ = np.flatnonzero((place < 0) & (onward >= 0))
    for _ in range(_MOST_STEPS):
        if not len(open_):
            break
        last[open_] = onward[last[open_]]
        place[open_] = at_operator[last[open_]]
        open_ = open_[(place[open_] < 0) & (onward[last[open_]] >= 0)]
    return place, last


def _caller(calls: BackwardCalls, trace: Int64, time_ns: Int64) -> Int64:
    """Place of the one backward call of the trace that was open; -1 where none or several were."""
    found = np.full(len(trace), NONE)
    for one in np.unique(trace).tolist():
        own = np.flatnonzero(calls.trace == one)
        here = np.flatnonzero(trace == one)
        started = np.searchsorted(calls.start_ns[own], time_ns[here], side="right")
        ended = np.searchsorted(np.sort(calls.end_ns[own]), time_ns[here], side="right")
        alone = started - ended == 1
        latest = own[started[alone] - 1]
        is_open = calls.end_ns[latest] > time_ns[here[alone]]
        found[here[alone][is_open]] = calls.place[latest[is_open]]
    return found


def sum_by(group: Int64, count: int, values: Int64) -> Int64:
    """Sum of the values of each group, exact; what is in group -1 is left out."""
    kept = group >= 0
    # Sums of integers below 2**53 are exact in the float64 that bincount adds in.
    sums: Int64 = np.bincount(group[kept], weights=values[kept], minlength=count).astype(np.int64)
    return sums
