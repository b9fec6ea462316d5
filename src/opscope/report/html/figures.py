"""Pictures as plotly figures in plain dicts: the few shapes that every page is made of.

What plotly would read as markup is escaped; colors are told apart by the color-blind, in light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import msgspec

from opscope.units import format_duration
from opscope.visible_text import visible

# Okabe and Ito's palette, its black left out, and grays: https://jfly.uni-koeln.de/color/
BLUE, ORANGE, GREEN, RED, GRAY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#a5a9b5"
LINE_COLORS = (BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", RED, "#8c6d31", "#8a8fa0")
LABEL = 90  # characters of a name in a picture; the tables have it whole
_LINE = 64  # characters of a line beside the pointer
_READ_CELLS = 12  # side by side, that their text is read


class Chart(msgspec.Struct, frozen=True):
    """One picture.

    Attributes:
        key: Its id in the page.
        section: Beginning of the title of the section that it opens; empty for the top of the page.
        title: What is seen.
        note: How to read it, and what is left out.
        figure: `data` and `layout` as plotly takes them, without colors of the theme. A trace may have
            `names` (positions in the figure's `names`), which become the first line of its hover texts.
        height_px: Its height.
        kind: What the page adds: `zoom` buttons, the `chain` of what is clicked.
        before: The same of what came before, in order; the page shows it when asked, as it does `after`.
    """

    key: str
    section: str
    title: str
    note: str
    figure: dict[str, Any]
    height_px: int
    kind: str = ""
    before: tuple[Chart, ...] = ()
    after: tuple[Chart, ...] = ()

    @property
    def has_arrows(self) -> bool:
        """Something in it is shown only when asked."""
        return any(one.get("visible") is False for one in self.figure["data"])


def as_text(name: str) -> str:
    """A name as plotly's text: no markup, no line breaks."""
    return escape(visible(name, LABEL).replace("\n", " "), quote=False)


def as_lines(name: str) -> str:
    """A longer part of it, beside the pointer."""
    whole = visible(name, 3 * _LINE).replace("\n", " ")
    parts = (whole[start : start + _LINE] for start in range(0, len(whole), _LINE))
    return "<br>".join(escape(part, quote=False) for part in parts)


class TimeUnit(NamedTuple):
    ns: float
    name: str


def unit_of(ns: float) -> TimeUnit:
    """The unit that durations up to this one read best in."""
    name = format_duration(max(ns, 1)).split()[-1]
    return TimeUnit({"s": 1e9, "ms": 1e6, "µs": 1e3}.get(name, 1.0), name)


def scaled(ns: Iterable[float], unit: TimeUnit, exact_ns: float = 1.0) -> list[float]:
    """Durations in a unit, with the digits that `exact_ns` takes."""
    digits = max(0, math.ceil(math.log10(unit.ns / exact_ns)))
    return [round(one / unit.ns, digits) for one in ns]


Drawing = tuple[dict[str, Any], int]  # a figure and its height in pixels


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def stroke(index: int, **more: Any) -> dict[str, Any]:
    return {"color": LINE_COLORS[index % len(LINE_COLORS)], **more}


def curve(name: str, xs: Iterable[Any], ys: Iterable[Any], **more: Any) -> dict[str, Any]:
    """A curve through points, without marks unless `mode` asks for them."""
    return {"type": "scatter", "mode": "lines", "name": name, "x": [*xs], "y": [*ys], **more}


def boxes(xs: Iterable[Any], ys: Iterable[Any], **more: Any) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "x": [*xs], "y": [*ys], **more}


def cells(
    values: Mapping[tuple[str, str], float],
    rows: Sequence[str],
    columns: Sequence[str],
    form: Callable[[float], str] = format_duration,
) -> Drawing:
    """A map of values by row and column, from 0 to the largest."""
    most = max(values.values(), default=0) or 1
    places = {column: at for at, column in enumerate(columns)}
    shown = [(row, column, value) for (row, column), value in values.items()]
    shades = [value / most for *_, value in shown]
    # From blue to yellow, lightness growing with the share: read without color too.
    ends = tuple(zip((0, 34, 78), (254, 232, 56), strict=True))
    mixed = [[round(low + (high - low) * shade) for low, high in ends] for shade in shades]
    colors = ["#" + "".join(f"{one:02x}" for one in color) for color in mixed]
    # Bars as cells: plotly's own heat maps need inline styles, which the page forbids.
    data = boxes(
        [0.96] * len(shown),
        (row for row, *_ in shown),
        base=[places[column] - 0.48 for _, column, _ in shown],
        width=0.94,
        text=[form(value) for *_, value in shown] if len(columns) <= _READ_CELLS else [],
        textposition="inside",
        insidetextanchor="middle",
        insidetextfont={"color": ["#000000" if shade > 0.5 else "#ffffff" for shade in shades]},
        textangle=0,
        hovertext=[f"{row}, {column}<br>{form(value)}" for row, column, value in shown],
        hoverinfo="text",
        marker={"color": colors},
    )
    every = max(1, len(columns) // _READ_CELLS)
    layout = {
        "barmode": "overlay",
        "margin": {"l": 60, "r": 24, "t": 12, "b": 28},
        "xaxis": {
            "tickvals": list(range(0, len(columns), every)),
            "ticktext": list(columns[::every]),
            "range": [-0.5, len(columns) - 0.5],
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {**NAMED_ROWS, "type": "category", "categoryorder": "array", "categoryarray": list(rows)},
    }
    return {"data": [data], "layout": layout}, 60 + 40 * len(rows)


NAMED_ROWS: dict[str, Any] = {"autorange": "reversed", "automargin": True, "showgrid": False}


def log_axis(title: str, low: float, high: float, form: Callable[[float], str]) -> dict[str, Any]:
    """An axis with a tick at each power of ten, or at 1, 2 and 5; plotly's own would be raised exponents."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    # Few powers of ten need more ticks.
    steps = (1, 2, 5) if len(powers) < 4 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return {
        "type": "log",
        "title": {"text": title, "standoff": 10},
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [form(tick) for tick in ticks],
        "automargin": True,
    }
