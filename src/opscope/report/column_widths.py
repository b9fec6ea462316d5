"""How wide the columns of a terminal table are: numbers whole, headings wrapped, names shortened last.

Pure arithmetic on cell lengths; imports nothing of rich.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opscope.report.document import Align, Code, Column, Link, Text, inlines, plain

__all__ = ["GAP", "ColumnNeed", "column_need", "fit_widths"]

GAP = 2  # blanks between columns
_SHORTEST_NAME = 16
_NARROWEST = 4


@dataclass(frozen=True)
class ColumnNeed:
    """Characters a column takes.

    Args:
        least: Before its cells suffer; its heading may be wrapped.
        full: Without any compromise.
        floor: Where even shortening stops.
        is_text: It may be widened and wrapped.
        is_name: It may be shortened.
    """

    least: int
    full: int
    floor: int
    is_text: bool = False
    is_name: bool = False


def column_need(column: Column, cells: Sequence[Text]) -> ColumnNeed:
    """What one column of a table needs."""
    texts = [plain(cell) for cell in cells]
    longest = max(map(len, texts), default=0)
    heading = _longest_word(column.title)
    full = max(longest, len(column.title))
    floor = max(_NARROWEST, heading)
    if column.align is Align.RIGHT:
        return ColumnNeed(max(longest, heading), full, floor)
    if any(isinstance(part, Code | Link) for cell in cells for part in inlines(cell)):
        return ColumnNeed(max(min(longest, _SHORTEST_NAME), heading), full, floor, is_text=True, is_name=True)
    return ColumnNeed(max([heading, *map(_longest_word, texts)]), full, floor, is_text=True)


def fit_widths(needs: Sequence[ColumnNeed], available: int) -> list[int]:
    """Widths of the columns, together at most `available` where that is possible.

    Columns get their `full` width, else at least their `least`. Below that names go first, then texts;
    numbers never do.
    """
    if sum(need.full for need in needs) <= available:
        return [need.full for need in needs]
    widths = [need.least for need in needs]
    spare = available - sum(widths)
    if spare >= 0:
        return _widened(needs, widths, spare)
    for is_name in (True, False):
        while spare < 0:
            shrinkable = [
                i
                for i, need in enumerate(needs)
                if need.is_text and need.is_name is is_name and widths[i] > need.floor
            ]
            if not shrinkable:
                break
            widths[max(shrinkable, key=lambda i: widths[i])] -= 1
            spare += 1
    return widths


def _widened(needs: Sequence[ColumnNeed], widths: list[int], spare: int) -> list[int]:
    while spare > 0:
        growing = [i for i, need in enumerate(needs) if need.is_text and widths[i] < need.full]
        growing = growing or [i for i, need in enumerate(needs) if widths[i] < need.full]
        if not growing:
            break
        widths[min(growing, key=lambda i: widths[i])] += 1
        spare -= 1
    return widths


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)
