"""From a device activity to the operator that caused it, with the evidence for every link.

An activity belongs to the call with its correlation id; that call to the operator whose external id it
carries, else to the innermost operator open on its thread. What cannot be linked keeps a reason.

External ids are checked against time, because some recorders write ids of another numbering: a call cannot
belong to an operator that was not open. Where that happens more than seldom, the trace's ids are not used.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.nesting import Forest, Int64, enclosing
from opscope.model.schema import Attribution

ATTRIBUTIONS: tuple[Attribution, ...] = tuple(Attribution)
# What an activity of an opened CUDA graph is known by.
REPLAYS = (Attribution.GRAPH_NODE, Attribution.GRAPH_SEQUENCE, Attribution.GRAPH)
MISSING = np.int64(-1)
# Host and CUPTI clocks are converted apart; operators and calls of one thread agree to a few microseconds.
CLOCK_SLACK_NS = 100_000
# Above this share of impossible ids, the possible ones are coincidences too.
_MOST_IMPOSSIBLE = 0.01


class CallKind(IntEnum):
    """What a call gives the device to do; `GRAPH` is a launch of many."""

    OTHER, KERNEL, MEMCPY, MEMSET, GRAPH, BEGIN_CAPTURE, END_CAPTURE = range(7)


OWN_LAUNCHES = (CallKind.KERNEL, CallKind.MEMCPY, CallKind.MEMSET)  # of one each
_OWN_LAUNCH = re.compile(r"(?:cuda|hip|cu)(?:Ext|Hcc)?(?:Module)?(?:Launch|Memcpy|Memset)")
_OTHERS = (
    ("GraphLaunch", CallKind.GRAPH), ("BeginCapture", CallKind.BEGIN_CAPTURE),
    ("EndCapture", CallKind.END_CAPTURE), ("HostFunc", CallKind.OTHER),
)  # fmt: skip
_COPIES = (("Memcpy", CallKind.MEMCPY), ("Memset", CallKind.MEMSET))


@lru_cache(maxsize=4096)
def kind_of_call(name: str | None) -> CallKind:
    name = name or ""
    is_own = _OWN_LAUNCH.match(name) is not None
    words = (*_OTHERS, *(_COPIES if is_own else ()))
    default = CallKind.KERNEL if is_own else CallKind.OTHER
    return next((kind for word, kind in words if word in name), default)


class Calls(msgspec.Struct, frozen=True):
    """Runtime calls of one trace, as columns. `MISSING` (-1) stands for an absent id."""

    thread: Int64
    start_ns: Int64
    correlation_id: Int64
    external_id: Int64
    is_graph_launch: npt.NDArray[np.bool_]


class Activities(msgspec.Struct, frozen=True):
    """Device activities of one trace, as columns. `MISSING` (-1) stands for an absent id."""

    start_ns: Int64
    correlation_id: Int64
    external_id: Int64
    replay: Int64  # Of an opened CUDA graph: position in `REPLAYS`, from 1; else 0


class Links(msgspec.Struct, frozen=True):
    call_operator: Int64  # Id of each call's operator; -1 for none
    activity_call: Int64  # Index of each activity's call; -1 for none
    activity_operator: Int64  # Id of each activity's operator; -1 for none
    own_start_ns: Int64  # Start of the operator that an activity's own external id names; -1 for none
    attribution: npt.NDArray[np.int8]  # Index into `ATTRIBUTIONS` for each activity
    impossible_ids: int  # Calls and activities whose external id names an operator that was not open
    ids_used: bool  # Whether external ids were used at all


def link(forest: Forest, operator_external_id: Int64, calls: Calls, activities: Activities) -> Links:
    """Links of one trace whose operators are one forest; an operator's id is its preorder index.

    `operator_external_id` is in preorder, -1 if absent.
    """
    candidates = Candidates(calls, activities)
    candidates.add(forest, np.arange(len(forest)), operator_external_id)
    return candidates.links()


class Candidates:
    """Operators that calls and activities may belong to, from one forest after the other.

    Of all operators only those are kept that some external id names, or that enclose a call: an array of all
    of a long trace is larger than all else that is known of it.
    """

    def __init__(self, calls: Calls, activities: Activities) -> None:
        self._calls, self._activities = calls, activities
        ids = np.sort(np.concatenate((calls.external_id, activities.external_id)))
        self._ids = ids[np.diff(ids, prepend=-1) > 0]
        self._named: Int64 = np.zeros(len(self._ids), dtype=np.int64)
        self._operator, self._start_ns, self._end_ns = np.full((3, len(self._ids)), MISSING)
        self._around = np.full(len(calls.thread), MISSING)

    def add(
        self, forest: Forest, operator_id: Int64, external_id: Int64, extent: tuple[int, int] | None = None
    ) -> None:
        """Take in operators; ids of each in preorder, external ones -1 if absent.

        Calls that began within `extent` lie in these or in none; all if None.
        """
        ids, first, counts = np.unique(external_id, return_index=True, return_counts=True)
        slot = look_up(self._ids, np.arange(len(self._ids)), ids)
        found = np.flatnonzero(slot >= 0)
        slot, first = slot[found], first[found]
        self._named[slot] += counts[found]
        self._operator[slot] = operator_id[first]
        self._start_ns[slot], self._end_ns[slot] = forest.start_ns[first], forest.end_ns[first]
        start_ns = self._calls.start_ns
        here = within(start_ns, extent)
        self._around[here] = gather(operator_id, enclosing(forest, self._calls.thread[here], start_ns[here]))

    def links(self) -> Links:
        """Links of the trace, once all its operators were taken in."""
        calls, activities = self._calls, self._activities
        by_id, impossible_calls = self._by_id(calls.external_id, calls.start_ns, is_host=True)
        own, impossible_own = self._by_id(activities.external_id, activities.start_ns, is_host=False)
        impossible = impossible_calls + impossible_own
        possible = np.count_nonzero(by_id >= 0) + np.count_nonzero(own >= 0)
        ids_used = impossible <= _MOST_IMPOSSIBLE * (impossible + possible)
        opened = (activities.replay > 0) & (own >= 0)
        replayed_by, call_by_id = gather(self._operator, own), gather(self._operator, by_id)
        own_operator = replayed_by
        if not ids_used:
            own_operator, call_by_id = np.full_like(own, MISSING), np.full_like(by_id, MISSING)
        call_operator = np.where(call_by_id >= 0, call_by_id, self._around)

        correlations, launchers = earliest_of_each(calls.correlation_id, calls.start_ns)
        activity_call = look_up(correlations, launchers, activities.correlation_id)
        launched = activity_call >= 0
        by_call = gather(call_operator, activity_call)
        call_had_id = gather(call_by_id, activity_call) >= 0
        operator = np.where((own_operator >= 0) & ~call_had_id, own_operator, by_call)
        operator = np.where(opened, replayed_by, operator)
        in_graph = gather(calls.is_graph_launch, activity_call) > 0
        # Correlation ids only grow, so one below the first recorded call was given out before the window
        # opened.
        early = activities.correlation_id < (correlations[0] if len(correlations) else MISSING)
        reasons = (
            *(((activities.replay == at) & opened, attribution) for at, attribution in enumerate(REPLAYS, 1)),
            ((operator >= 0) & in_graph, Attribution.GRAPH),
            ((own_operator >= 0) | ((operator >= 0) & call_had_id), Attribution.EXTERNAL_ID),
            (operator >= 0, Attribution.CORRELATION),
            (launched, Attribution.OUTSIDE_OPERATOR),
            (activities.correlation_id < 0, Attribution.NO_CORRELATION),
            (early, Attribution.BEFORE_WINDOW),
        )
        codes = [ATTRIBUTIONS.index(attribution) for _, attribution in reasons]
        other = ATTRIBUTIONS.index(Attribution.NO_LAUNCH_RECORD)
        attribution = np.select([is_so for is_so, _ in reasons], codes, other).astype(np.int8)
        return Links(
            call_operator,
            activity_call,
            operator,
            gather(self._start_ns, own),
            attribution,
            impossible,
            ids_used,
        )

    def _by_id(self, wanted: Int64, time_ns: Int64, *, is_host: bool) -> tuple[Int64, int]:
        """Slot of the operator each external id names, -1 where none can be meant, and how many could not.

        An id that several operators share identifies none.
        """
        known = np.flatnonzero(self._named == 1)
        found = look_up(self._ids[known], known, wanted)
        named = np.flatnonzero(found >= 0)
        slot = found[named]
        possible = time_ns[named] >= self._start_ns[slot] - CLOCK_SLACK_NS
        if is_host:
            possible &= time_ns[named] <= self._end_ns[slot] + CLOCK_SLACK_NS
        found[named[~possible]] = MISSING
        return found, int(np.count_nonzero(~possible))


def within(time_ns: Int64, extent: tuple[int, int] | None) -> slice | Int64:
    """Which moments lie in an extent, its ends included; all if None."""
    if extent is None:
        return slice(None)
    return np.flatnonzero((time_ns >= extent[0]) & (time_ns <= extent[1]))


def gather(values: npt.NDArray[Any], index: Int64) -> Int64:
    """`values[index]`, and -1 where the index is -1."""
    found = np.full(len(index), MISSING)
    known = index >= 0
    found[known] = values[index[known]]
    return found


def earliest_of_each(ids: Int64, time_ns: Int64) -> tuple[Int64, Int64]:
    """Every id, sorted, and its earliest position, so that the order of input says nothing."""
    values, first, counts = np.unique(ids, return_index=True, return_counts=True)
    if counts[values >= 0].max(initial=0) > 1:
        order = np.lexsort((time_ns, ids))
        first = order[np.searchsorted(ids[order], values)]
    good = values >= 0
    return values[good], first[good].astype(np.int64)


def look_up(keys: Int64, positions: Int64, wanted: Int64) -> Int64:
    """Position of each wanted id among sorted keys; -1 where it is absent."""
    slot = np.searchsorted(keys, wanted)
    is_there = np.append(keys, MISSING)[slot] == wanted
    return np.where(is_there, np.append(positions, MISSING)[slot], MISSING)
