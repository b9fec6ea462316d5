"""Tables as arrays, chosen and sorted together, and sets of moments as disjoint intervals.

`Spans` are half-open, ascending, neither empty nor touching; all functions keep that, work on sorted arrays
without a loop per interval, and measure in integer nanoseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.nesting import Int64
from opscope.model.session import Session

Table = TypeVar("Table", bound="Columns")
Arrays = dict[str, npt.NDArray[Any]]
Flags = npt.NDArray[np.bool_]
NONE = np.int64(-1)


class Columns(msgspec.Struct, frozen=True):
    """A table whose columns a subclass names; what is no array is of the table as a whole."""

    def __len__(self) -> int:
        return next(len(value) for value in self._values() if isinstance(value, np.ndarray))

    def _values(self) -> list[Any]:
        return [getattr(self, name) for name in self.__struct_fields__]

    def at(self: Table, chosen: Any) -> Table:
        return type(self)(*(one[chosen] if isinstance(one, np.ndarray) else one for one in self._values()))


def columns(session: Session, query: str, parameters: Any = None, *, order_by: str | None = None) -> Arrays:
    """What a query selects, as arrays, sorted by one of them if asked; none of them may hold NULL."""
    fetched = session.execute(query, parameters).fetchnumpy()
    found = {name: np.asarray(values) for name, values in fetched.items()}
    del fetched
    if order_by is not None and np.any(found[order_by][1:] < found[order_by][:-1]):
        order = np.argsort(found[order_by], kind="stable")
        # One after the other, so that no more than one column is there twice.
        found = {name: found.pop(name)[order] for name in tuple(found)}
    return found


def distinct(values: Int64) -> Int64:
    values = np.sort(values)  # numpy's own unique hashes first, and takes ten times as long
    is_new = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return values[is_new]


def sum_by(index: Int64, amount: Int64, count: int) -> Int64:
    """Sum of the amounts of each index below `count`; what has index -1 is left out."""
    if np.any(index < 0):
        index, amount = index[index >= 0], amount[index >= 0]
    # Sums of integers below 2**53 are exact in the float64 that bincount adds in.
    return np.asarray(np.bincount(index, weights=amount, minlength=count), dtype=np.int64)


def median(values: Int64) -> float:
    """As NumPy's own, which imports masked arrays first: that takes longer than most of a report."""
    return float(sum(np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]].tolist())) / 2


class Spans(NamedTuple):
    """Disjoint half-open intervals `[start_ns[i], end_ns[i])`, ascending, with room between neighbors."""

    start_ns: Int64
    end_ns: Int64


NOTHING = Spans(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def merge(*parts: tuple[Int64, Int64]) -> Spans:
    """Union of intervals given as (starts, ends), in any order and overlapping as they may."""
    start_ns, end_ns = map(np.concatenate, zip(NOTHING, *parts, strict=True))
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
    return np.asarray(before[slot] - np.where(slot > 0, beyond, 0))


def overlap(spans: Spans, start_ns: Int64, end_ns: Int64) -> Int64:
    """Measure of the set's part in each interval `[start_ns, end_ns)`, which may overlap each other."""
    return length(spans, end_ns) - length(spans, start_ns)


def between(spans: Spans) -> Spans:
    return Spans(spans.end_ns[:-1], spans.start_ns[1:])


def subtract(spans: Spans, taken: Spans) -> Spans:
    _, start_ns, end_ns = cut(spans.start_ns, spans.end_ns, np.concatenate(taken))
    free = covering(taken, start_ns) < 0
    return merge((start_ns[free], end_ns[free]))


def covering(spans: Spans, time_ns: Int64) -> Int64:
    """Index of the interval that holds each moment; -1 for none."""
    found = np.searchsorted(spans.start_ns, time_ns, side="right") - 1
    is_inside = (found >= 0) & (time_ns < np.append(spans.end_ns, 0)[found])
    return np.where(is_inside, found, -1)


def cut(start_ns: Int64, end_ns: Int64, at_ns: Int64) -> tuple[Int64, Int64, Int64]:
    """Ascending disjoint intervals cut at moments: index of the interval, start and end of every piece."""
    at_ns = distinct(at_ns)
    owner = covering(Spans(start_ns, end_ns), at_ns)
    inside = (owner >= 0) & (at_ns > np.append(start_ns, 0)[owner])
    index = np.concatenate((np.arange(len(start_ns)), owner[inside]))
    piece_start = np.concatenate((start_ns, at_ns[inside]))
    order = np.argsort(piece_start, kind="stable")
    index, piece_start = index[order], piece_start[order]
    piece_end = end_ns[index]
    goes_on = np.flatnonzero(index[1:] == index[:-1])
    piece_end[goes_on] = piece_start[goes_on + 1]
    return index, piece_start, piece_end
