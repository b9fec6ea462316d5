"""From a device activity to the operator that caused it, with the evidence for every link.

An activity belongs to the call with its correlation id; that call to the operator whose external id it
carries, else to the innermost operator open on its thread. What cannot be linked keeps a reason.

External ids are checked against time, because some recorders write ids of another numbering: a call cannot
belong to an operator that was not open. Where that happens more than seldom, the trace's ids are not used.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.nesting import Forest, Int64, enclosing
from opscope.model.schema import Attribution

__all__ = [
    "ATTRIBUTIONS",
    "REPLAYS",
    "Activities",
    "Calls",
    "Links",
    "earliest_of_each",
    "gather",
    "link",
    "look_up",
]

ATTRIBUTIONS: tuple[Attribution, ...] = tuple(Attribution)
# What an activity of an opened CUDA graph is known by.
REPLAYS = (Attribution.GRAPH_NODE, Attribution.GRAPH_SEQUENCE, Attribution.GRAPH)
_CODE = {attribution: code for code, attribution in enumerate(ATTRIBUTIONS)}
MISSING = np.int64(-1)
# Host and CUPTI clocks are converted apart; operators and calls of one thread agree to a few microseconds.
CLOCK_SLACK_NS = 100_000
# Above this share of impossible ids, the possible ones are coincidences too.
_MOST_IMPOSSIBLE = 0.01


class Calls(msgspec.Struct, frozen=True):
    """Runtime calls of one trace, as columns. `MISSING` (-1) stands for an absent id."""

    thread: Int64
    start_ns: Int64
    correlation_id: Int64
    external_id: Int64
    is_graph_launch: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.thread)


class Activities(msgspec.Struct, frozen=True):
    """Device activities of one trace, as columns. `MISSING` (-1) stands for an absent id."""

    start_ns: Int64
    correlation_id: Int64
    external_id: Int64
    replay: Int64 | None = None  # Of an opened CUDA graph: position in `REPLAYS`, from 1; else 0

    def __len__(self) -> int:
        return len(self.correlation_id)


class Links(msgspec.Struct, frozen=True):
    """Where calls and activities belong.

    Args:
        call_operator: Preorder index of each call's operator; -1 for none.
        activity_call: Index of each activity's call; -1 for none.
        activity_operator: Preorder index of each activity's operator; -1 for none.
        attribution: Index into `ATTRIBUTIONS` for each activity.
        impossible_ids: Calls and activities whose external id names an operator that was not open.
        ids_used: Whether external ids were used at all.
    """

    call_operator: Int64
    activity_call: Int64
    activity_operator: Int64
    attribution: npt.NDArray[np.int8]
    impossible_ids: int
    ids_used: bool


def link(forest: Forest, operator_external_id: Int64, calls: Calls, activities: Activities) -> Links:
    """Links of one trace.

    Args:
        forest: Its operators.
        operator_external_id: External id of each operator in preorder, -1 if absent.
        calls: Its runtime calls.
        activities: Its device activities.
    """
    ids, owners = _unique(operator_external_id)
    call_by_id, impossible_calls = _by_id(
        forest, ids, owners, calls.external_id, calls.start_ns, is_host=True
    )
    own, impossible_own = _by_id(
        forest, ids, owners, activities.external_id, activities.start_ns, is_host=False
    )
    impossible = impossible_calls + impossible_own
    possible = np.count_nonzero(call_by_id >= 0) + np.count_nonzero(own >= 0)
    ids_used = impossible <= _MOST_IMPOSSIBLE * (impossible + possible)
    replay = activities.replay if activities.replay is not None else np.zeros(len(activities), dtype=np.int64)
    opened = (replay > 0) & (own >= 0)
    replayed_by = np.where(opened, own, MISSING)
    if not ids_used:
        call_by_id[:], own[:] = MISSING, MISSING
    call_operator = np.where(call_by_id >= 0, call_by_id, enclosing(forest, calls.thread, calls.start_ns))

    correlations, launchers = earliest_of_each(calls.correlation_id, calls.start_ns)
    activity_call = look_up(correlations, launchers, activities.correlation_id)
    launched = activity_call >= 0
    by_call = gather(call_operator, activity_call)
    call_had_id = gather(call_by_id, activity_call) >= 0
    operator = np.where((own >= 0) & ~call_had_id, own, by_call)
    operator = np.where(opened, replayed_by, operator)
    in_graph = gather(calls.is_graph_launch, activity_call) > 0
    # Correlation ids only grow, so one below the first recorded call was given out before the window opened.
    early = activities.correlation_id < (correlations[0] if len(correlations) else MISSING)
    attribution = np.select(
        [
            *((replay == code) & opened for code in range(1, len(REPLAYS) + 1)),
            (operator >= 0) & in_graph,
            (own >= 0) | ((operator >= 0) & call_had_id),
            operator >= 0,
            launched,
            activities.correlation_id < 0,
            early,
        ],
        [
            *(_CODE[attribution] for attribution in REPLAYS),
            _CODE[Attribution.GRAPH],
            _CODE[Attribution.EXTERNAL_ID],
            _CODE[Attribution.CORRELATION],
            _CODE[Attribution.OUTSIDE_OPERATOR],
            _CODE[Attribution.NO_CORRELATION],
            _CODE[Attribution.BEFORE_WINDOW],
        ],
        _CODE[Attribution.NO_LAUNCH_RECORD],
    ).astype(np.int8)
    return Links(call_operator, activity_call, operator, attribution, impossible, ids_used)


def _by_id(
    forest: Forest, ids: Int64, owners: Int64, wanted: Int64, time_ns: Int64, *, is_host: bool
) -> tuple[Int64, int]:
    """Operator each external id names, -1 where it names none that can be meant, and how many could not."""
    found = look_up(ids, owners, wanted)
    named = np.flatnonzero(found >= 0)
    operator = found[named]
    possible = time_ns[named] >= forest.start_ns[operator] - CLOCK_SLACK_NS
    if is_host:
        possible &= time_ns[named] <= forest.end_ns[operator] + CLOCK_SLACK_NS
    found[named[~possible]] = MISSING
    return found, int(np.count_nonzero(~possible))


def gather(values: npt.NDArray[Any], index: Int64) -> Int64:
    """`values[index]`, and -1 where the index is -1."""
    found = np.full(len(index), MISSING)
    known = index >= 0
    found[known] = values[index[known]]
    return found


def _unique(ids: Int64) -> tuple[Int64, Int64]:
    """Ids that occur exactly once, sorted, and where; an id several operators share identifies none."""
    values, first, counts = np.unique(ids, return_index=True, return_counts=True)
    good = (counts == 1) & (values >= 0)
    return values[good], first[good].astype(np.int64)


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
    found = np.full(len(wanted), MISSING)
    if not len(keys):
        return found
    slot = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = keys[slot] == wanted
    found[hit] = positions[slot[hit]]
    return found
