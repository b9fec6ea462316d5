"""Sets of moments as disjoint intervals, and their exact measures.

`Spans` are half-open, ascending, neither empty nor touching; all functions keep that, work on sorted arrays
without a loop per interval, and measure in integer nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opscope.analysis.columns import distinct
from opscope.ingest.nesting import Int64


class Spans(NamedTuple):
    """Disjoint half-open intervals `[start_ns[i], end_ns[i])`, ascending, with room between neighbors."""

    start_ns: Int64
    end_ns: Int64


NOTHING = Spans(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def merge(*parts: tuple[Int64, Int64]) -> Spans:
    """Union of intervals given as (starts, ends), in any order and overlapping as they may."""
    if len(parts) == 1:
        start_ns, end_ns = parts[0]
    else:
        start_ns = np.concatenate([part[0] for part in parts]) if parts else NOTHING.start_ns
        end_ns = np.concatenate([part[1] for part in parts]) if parts else NOTHING.end_ns
    keep = end_ns > start_ns
    start_ns, end_ns = start_ns[keep], end_ns[keep]
    if not len(start_ns):
        return NOTHING
    if np.any(start_ns[1:] < start_ns[:-1]):
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
    reach = np.maximum.accumulate(end_ns)
    opens = np.ones(len(start_ns), dtype=bool)
    opens[1:] = start_ns[1:] > reach[:-1]
    last = np.append(np.flatnonzero(opens[1:]), len(start_ns) - 1)
    return Spans(start_ns[opens], reach[last])


def total(spans: Spans) -> int:
    return int((spans.end_ns - spans.start_ns).sum())


def length(spans: Spans, until_ns: Int64) -> Int64:
    """Measure of the part before each moment."""
    if not len(spans.start_ns):
        return np.zeros(len(until_ns), dtype=np.int64)
    before = np.zeros(len(spans.start_ns) + 1, dtype=np.int64)
    np.cumsum(spans.end_ns - spans.start_ns, out=before[1:])
    slot = np.searchsorted(spans.start_ns, until_ns, side="right")
    beyond = np.maximum(spans.end_ns[np.maximum(slot, 1) - 1] - until_ns, 0)
    measured: Int64 = before[slot] - np.where(slot > 0, beyond, 0)
    return measured


def overlap(spans: Spans, start_ns: Int64, end_ns: Int64) -> Int64:
    """Measure of the set's part in each interval `[start_ns, end_ns)`, which may overlap each other."""
    return length(spans, end_ns) - length(spans, start_ns)


def between(spans: Spans) -> Spans:
    return Spans(spans.end_ns[:-1], spans.start_ns[1:])


def within(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    start, end = np.maximum(spans.start_ns, start_ns), np.minimum(spans.end_ns, end_ns)
    keep = start < end
    return Spans(start[keep], end[keep])


def subtract(spans: Spans, taken: Spans) -> Spans:
    if not len(spans.start_ns) or not len(taken.start_ns):
        return spans
    _, start_ns, end_ns = cut(spans.start_ns, spans.end_ns, np.concatenate(taken))
    free = covering(taken, start_ns) < 0
    return merge((start_ns[free], end_ns[free]))


def covering(spans: Spans, time_ns: Int64) -> Int64:
    """Index of the interval that holds each moment; -1 for none."""
    found: Int64 = np.searchsorted(spans.start_ns, time_ns, side="right") - 1
    inside = found >= 0
    inside[inside] = time_ns[inside] < spans.end_ns[found[inside]]
    found[~inside] = -1
    return found


def cut(start_ns: Int64, end_ns: Int64, at_ns: Int64) -> tuple[Int64, Int64, Int64]:
    """Ascending disjoint intervals cut at moments: index of the interval, start and end of every piece."""
    if not len(start_ns):
        empty = NOTHING.start_ns
        return empty, empty, empty
    at_ns = distinct(at_ns)
    owner = np.searchsorted(start_ns, at_ns, side="right") - 1
    inside = owner >= 0
    inside[inside] = (at_ns[inside] > start_ns[owner[inside]]) & (at_ns[inside] < end_ns[owner[inside]])
    index = np.concatenate((np.arange(len(start_ns)), owner[inside]))
    piece_start = np.concatenate((start_ns, at_ns[inside]))
    order = np.argsort(piece_start, kind="stable")
    index, piece_start = index[order], piece_start[order]
    piece_end = end_ns[index]
    goes_on = np.flatnonzero(index[1:] == index[:-1])
    piece_end[goes_on] = piece_start[goes_on + 1]
    return index, piece_start, piece_end
