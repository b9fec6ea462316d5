"""Which launches of a program are worth profiling: one of every kind that takes time, in as few as possible.

ncu profiles one window of the launches that its filter matches, so the window is chosen that covers most of
the chosen kernels' time. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from opscope.text_enum import TextEnum
from opscope.toolchain.ncu.report import Extent

__all__ = ["Launch", "Prefer", "Window", "best_window", "longest_kernels"]

Kind = tuple[str, Extent | None, Extent | None]


@dataclass(frozen=True)
class Launch:
    """One launch of a sequence: how it is named, its geometry, its time."""

    name: str
    grid: Extent | None
    block: Extent | None
    duration_ns: int

    @property
    def kind(self) -> Kind:
        """Launches alike in this do alike work."""
        return self.name, self.grid, self.block


class Prefer(TextEnum):
    """Which of several equally good windows: the first, or the last, when a program has warmed up."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class Window:
    """Launches `start` up to `end` of a sequence; `covered_ns` is the time of all launches of their kinds."""

    start: int
    end: int
    covered_ns: int


def longest_kernels(launches: Iterable[Launch], count: int) -> tuple[str, ...]:
    """Names of the kernels that take most time in all, the longest first."""
    by_name: Counter[str] = Counter()
    for launch in launches:
        by_name[launch.name] += launch.duration_ns
    return tuple(name for name, _ in by_name.most_common(count))


def best_window(
    launches: Sequence[Launch], names: Iterable[str], limit: int, prefer: Prefer = Prefer.LAST
) -> Window | None:
    """The window of at most `limit` launches that covers most time of the named kernels; None without any.

    Of windows that cover as much, the shortest, and of those the preferred.

    Args:
        launches: What the filter matches, in order; kernels not named may be among them.
        names: The kernels that matter.
        limit: Launches of a window, at least 1.
        prefer: Which of those equally good.
    """
    wanted = frozenset(names)
    worth: Counter[Kind] = Counter()
    for launch in launches:
        worth[launch.kind] += launch.duration_ns if launch.name in wanted else 0
    windows = _windows(launches, worth, limit)
    later = 1 if prefer is Prefer.LAST else -1
    return max(
        windows, key=lambda one: (one.covered_ns, one.start - one.end, later * one.start), default=None
    )


def _windows(launches: Sequence[Launch], worth: Counter[Kind], limit: int) -> Iterator[Window]:
    """For every end the window that starts as late as it can without covering less."""
    held: Counter[Kind] = Counter()
    start = covered_ns = 0
    for end, launch in enumerate(launches, 1):
        held[launch.kind] += 1
        if held[launch.kind] == 1:
            covered_ns += worth[launch.kind]
        while end - start > limit or _is_dispensable(launches[start], held, worth, end - start):
            dropped = launches[start].kind
            held[dropped] -= 1
            if held[dropped] == 0:
                covered_ns -= worth[dropped]
            start += 1
        yield Window(start, end, covered_ns)


def _is_dispensable(launch: Launch, held: Counter[Kind], worth: Counter[Kind], length: int) -> bool:
    return length > 1 and (held[launch.kind] > 1 or worth[launch.kind] == 0)
