"""Call trees from intervals: who encloses whom on a thread, and sums over subtrees.

Operators of one thread are recorded by scopes, so they nest; clocks that tick in microseconds and ranges that
end on another thread break that. Threads that nest are done with sorted arrays; threads that do not, one
interval at a time with a stack.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Extent = tuple[int, int]  # of time, its ends included, in nanoseconds
_LARGEST_KEY = 1 << 62
# Looked up at once: what that takes of memory is some 40 bytes of each.
_MOST_MOMENTS = 1 << 20


class Forest(msgspec.Struct, frozen=True):
    """Call trees in preorder: index i is the i-th interval by (thread, start, longest first)."""

    order: Int64  # Input index of every preorder position
    thread: Int64  # Thread, ascending
    start_ns: Int64  # Start
    end_ns: Int64  # End
    parent: Int64  # Preorder index of the parent; -1 for a root
    depth: Int64  # 0 for a root
    last_descendant: Int64  # Largest preorder index in the subtree
    irregular_count: int = 0  # Roots that began while another interval of their thread was open
    has_overruns: bool = False  # Some interval ends after one it began in, so siblings may overlap

    def __len__(self) -> int:
        return len(self.order)


def nest(
    thread: Int64, start_ns: Int64, duration_ns: Int64, sequence: Int64, *, tolerance_ns: int = 0
) -> Forest:
    """Forest of intervals, durations ≥ 0.

    `sequence` is the order of opening among equal intervals (the outer one first), `tolerance_ns` how far a
    child may overrun its parent: the resolution of the clock.
    """
    end_ns = start_ns + duration_ns
    order = _preorder(thread, start_ns, end_ns, sequence)
    thread, start_ns, end_ns = thread[order], start_ns[order], end_ns[order]
    opening, closing = _keys(thread, start_ns, end_ns)
    positions = np.arange(len(order), dtype=np.int64)
    # Of the intervals before i, those that closed by its start are no ancestors; the others all are.
    # (Stable sorts are quick on input that is nearly in order, as this is.)
    depth = positions - np.searchsorted(np.sort(closing, kind="stable"), opening, side="right")
    parent = _parents(depth)
    last = np.searchsorted(opening, closing, side="left") - 1
    overrun = (parent >= 0) & (closing > closing[parent])
    irregular = 0
    for bad_thread in sorted(set(thread[overrun].tolist())):
        low, high = np.searchsorted(thread, [bad_thread, bad_thread + 1])
        part = slice(int(low), int(high))
        parent[part], depth[part], last[part], count = _nest_one_by_one(
            start_ns[part], end_ns[part], int(low), tolerance_ns
        )
        irregular += count
    return Forest(order, thread, start_ns, end_ns, parent, depth, last, irregular, bool(overrun.any()))


def _preorder(thread: Int64, start_ns: Int64, end_ns: Int64, sequence: Int64) -> Int64:
    """Order by thread, start, longest first, sequence: a stable sort, then the few equal starts alone.

    Recorders write events nearly in order, which a stable sort of one key uses; a lexicographic one cannot.
    """
    by_start = np.argsort(start_ns, kind="stable")
    order = by_start[np.argsort(thread[by_start], kind="stable")]
    thread, start_ns = thread[order], start_ns[order]
    equal = (thread[1:] == thread[:-1]) & (start_ns[1:] == start_ns[:-1])
    tied = np.flatnonzero(np.concatenate((equal, [False])) | np.concatenate(([False], equal)))
    if len(tied):
        ids = order[tied]
        order[tied] = ids[np.lexsort((sequence[ids], -end_ns[ids], start_ns[tied], thread[tied]))]
    return order


def _keys(thread: Int64, start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """Opening and closing moments as single integers that order threads one after the other.

    Times are doubled so that an empty interval can close half a nanosecond after it opens.
    """
    if not len(thread):
        return start_ns, end_ns
    rank, is_empty = _ranks(thread), start_ns == end_ns
    start_ns, end_ns = _small_times(int(rank[-1]) + 1, start_ns, end_ns)
    reach = 2 * int(end_ns.max()) + 2
    base = rank * reach
    return base + 2 * start_ns, base + 2 * end_ns + is_empty


def _ranks(values: Int64) -> Int64:
    """Position of each value among the distinct ones; `values` ascend."""
    ranks = np.zeros(len(values), dtype=np.int64)
    np.cumsum(values[1:] != values[:-1], out=ranks[1:])
    return ranks


def _small_times(thread_count: int, *times_ns: Int64) -> tuple[Int64, ...]:
    """The times from 0 on; where they lie so far apart that keys of several threads overflow, their ranks."""
    base = min(int(times.min()) for times in times_ns)
    span = max(int(times.max()) for times in times_ns) - base
    if (2 * span + 2) * thread_count < _LARGEST_KEY:
        return tuple(times - base for times in times_ns)
    ranks = np.unique(np.concatenate(times_ns), return_inverse=True)[1].astype(np.int64)
    return tuple(np.split(ranks, np.cumsum([len(times) for times in times_ns])[:-1]))


def _parents(depth: Int64) -> Int64:
    """For each position the last one before it that is one level up; -1 at level 0."""
    parent = np.full(len(depth), -1, dtype=np.int64)
    if not len(depth):
        return parent
    deepest = int(depth.max())
    # 16-bit integers are sorted by radix, in linear time.
    by_depth = np.argsort(depth.astype(np.int16) if deepest < 1 << 15 else depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(deepest + 2))
    above = by_depth[bounds[0] : bounds[1]]
    for level in range(1, len(bounds) - 1):
        here = by_depth[bounds[level] : bounds[level + 1]]
        parent[here] = above[np.searchsorted(above, here) - 1]
        above = here
    return parent


def _nest_one_by_one(
    start_ns: Int64, end_ns: Int64, offset: int, tolerance_ns: int
) -> tuple[Int64, Int64, Int64, int]:
    """Nesting with a stack: the parent is the innermost open interval that holds the whole new one."""
    count = len(start_ns)
    parent = np.full(count, -1, dtype=np.int64)
    depth = np.zeros(count, dtype=np.int64)
    last = np.arange(count, dtype=np.int64)
    starts, ends = start_ns.tolist(), end_ns.tolist()
    stack: list[int] = []
    irregular = 0
    for index in range(count):
        # An empty interval stays open for others that are empty at the same moment.
        while stack and ends[stack[-1]] <= starts[index] and starts[stack[-1]] < ends[index]:
            stack.pop()
        was_open = bool(stack)
        while stack and ends[stack[-1]] + tolerance_ns < ends[index]:
            stack.pop()
        irregular += was_open and not stack
        if stack:
            parent[index] = stack[-1] + offset
            depth[index] = depth[stack[-1]] + 1
        stack.append(index)
    for index in range(count - 1, -1, -1):
        above = parent[index] - offset
        if above >= 0:
            last[above] = max(last[above], last[index])
    return parent, depth, last + offset, irregular


def enclosing(forest: Forest, thread: Int64, time_ns: Int64) -> Int64:
    """Preorder index of the innermost interval open at each moment on its thread; -1 where none is."""
    if len(thread) > _MOST_MOMENTS:
        cuts = range(_MOST_MOMENTS, len(thread), _MOST_MOMENTS)
        parts = zip(np.split(thread, cuts), np.split(time_ns, cuts), strict=True)
        return np.concatenate([enclosing(forest, *part) for part in parts])
    if not len(forest) or not len(thread):
        return np.full(len(thread), -1)
    rank = _ranks(forest.thread)
    threads = forest.thread[np.flatnonzero(np.diff(rank, prepend=-1))]
    start, moment = _small_times(len(threads), forest.start_ns, time_ns)
    reach = max(int(start.max()), int(moment.max())) + 1
    dense = np.searchsorted(threads, thread)
    is_known = np.append(threads, -1)[dense] == thread
    place = np.searchsorted(rank * reach + start, dense * reach + moment, side="right") - 1
    found = np.where(is_known, place, -1)
    found[(found >= 0) & (forest.thread[found] != thread)] = -1
    while True:
        is_closed = (found >= 0) & (forest.end_ns[found] <= time_ns)
        if not is_closed.any():
            return found
        found[is_closed] = forest.parent[found[is_closed]]


def subtree_sums(last_descendant: Int64, value: Int64) -> Int64:
    """Sum of `value` (in preorder) over each subtree of a forest, exact."""
    prefix = np.zeros(len(value) + 1, dtype=np.int64)
    np.cumsum(value, out=prefix[1:])
    return prefix[last_descendant + 1] - prefix[:-1]


def children_time(forest: Forest) -> Int64:
    """Time of each interval in which one of its direct children was open, in nanoseconds."""
    child = np.flatnonzero(forest.parent >= 0)
    child = child[np.argsort(forest.parent[child], kind="stable")] if forest.has_overruns else child
    parent = forest.parent[child]
    start_ns, end_ns = forest.start_ns[child], np.minimum(forest.end_ns[child], forest.end_ns[parent])
    if forest.has_overruns:
        # Last end among the siblings before each; its own start for a first one. `parent` ascends.
        ends, rank = np.unique(end_ns, return_inverse=True)
        latest = ends[np.maximum.accumulate(parent * len(ends) + rank) % len(ends)]
        until: Int64 = start_ns.copy()
        is_sibling = parent[1:] == parent[:-1]
        until[1:][is_sibling] = latest[:-1][is_sibling]
        start_ns = np.maximum(start_ns, until)
    inside = np.maximum(end_ns - start_ns, 0)
    # Sums of integers below 2**53 are exact in the float64 that bincount adds in.
    return np.asarray(np.bincount(parent, weights=inside, minlength=len(forest)), dtype=np.int64)


def outermost_of_name(forest: Forest, name: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Whether no ancestor carries the same name. `name` is any integer per name, in preorder."""
    outermost = np.ones(len(forest), dtype=bool)
    if not len(forest):
        return outermost
    by_name = np.argsort(name, kind="stable")
    group = np.cumsum(np.concatenate(([False], name[by_name][1:] != name[by_name][:-1]))).astype(np.int64)
    # Within a name, some earlier subtree reaches over this position exactly if it is an ancestor.
    reach = np.maximum.accumulate(group * len(forest) + forest.last_descendant[by_name])
    covered = reach[:-1] >= group[1:] * len(forest) + by_name[1:]
    outermost[by_name[1:]] = ~covered
    return outermost


def last_pause(start_ns: Int64, duration_ns: Int64) -> int | None:
    """The last start of an interval at which none that began before is open; None if there is none.

    What begins from there on nests as if there were nothing before.
    """
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], (start_ns + duration_ns)[order]
    is_pause = (start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1]) & (start_ns[1:] > start_ns[:-1])
    found = np.flatnonzero(is_pause)
    return int(start_ns[found[-1] + 1]) if len(found) else None


class RecordedSteps(msgspec.Struct, frozen=True):
    """Steps of one trace by start; `step[i]` covers `[start_ns[i], start_ns[i] + duration_ns[i])`."""

    step: Int64
    start_ns: Int64
    duration_ns: Int64

    def at(self, time_ns: Int64) -> Int64:
        """Number of the step open at each moment; -1 outside steps."""
        slot = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        is_open = (slot >= 0) & (time_ns < np.append(self.start_ns + self.duration_ns, 0)[slot])
        return np.where(is_open, np.append(self.step, -1)[slot], -1)
