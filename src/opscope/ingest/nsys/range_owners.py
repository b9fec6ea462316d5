"""Which NVTX ranges own device work: those in which something was launched outside of every operator.

A launch belongs to the innermost operator open on its thread, and only where there is none to the innermost
range. So that totals of ranges are whole, the ranges around such a range count too, and every other range of
the same name that no operator holds. All others stay annotations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opscope.attribution.nesting import Int64, enclosing, nest, subtree_sums

__all__ = ["Intervals", "owning_ranges"]


@dataclass(frozen=True)
class Intervals:
    """Ranges of one process, as columns.

    Args:
        thread: Thread, by any number that tells threads apart.
        start_ns: Start.
        duration_ns: Duration, ≥ 0.
        range_id: Id; the outer of two equal ranges has the smaller one.
    """

    thread: Int64
    start_ns: Int64
    duration_ns: Int64
    range_id: Int64

    def __len__(self) -> int:
        return len(self.thread)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Intervals:
        """Some of them."""
        columns = (self.thread, self.start_ns, self.duration_ns, self.range_id)
        return Intervals(*(column[chosen] for column in columns))


def owning_ranges(
    operators: Intervals,
    ranges: Intervals,
    names: npt.NDArray[np.uint64],
    launch_thread: Int64,
    launch_ns: Int64,
) -> Int64:
    """Ids of the ranges that own device work, ascending.

    Args:
        operators: Operators.
        ranges: Pushed and popped ranges that are no operators.
        names: Hash of each range's name.
        launch_thread: Thread of each launch.
        launch_ns: Its start.
    """
    if not len(ranges) or not len(launch_ns):
        return np.empty(0, dtype=np.int64)
    calls = nest(operators.thread, operators.start_ns, operators.duration_ns, operators.range_id)
    is_free = enclosing(calls, ranges.thread, ranges.start_ns) < 0
    free, names = ranges.where(is_free), names[is_free]
    is_outside = enclosing(calls, launch_thread, launch_ns) < 0
    forest = nest(free.thread, free.start_ns, free.duration_ns, free.range_id)
    owner = enclosing(forest, launch_thread[is_outside], launch_ns[is_outside])
    launches = np.bincount(owner[owner >= 0], minlength=len(forest)).astype(np.int64)
    holds_launch = np.zeros(len(forest), dtype=np.bool_)
    holds_launch[forest.order] = subtree_sums(forest, launches) > 0
    chosen = np.isin(names, names[holds_launch])
    return np.sort(free.range_id[chosen])
