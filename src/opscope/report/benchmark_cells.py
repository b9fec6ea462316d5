"""Figures of a benchmark as short text: times with their uncertainty, ratios, rates, shares of a ceiling.

Pure formatting of rows; every function gives "–" where the figure is unknown.
"""

from __future__ import annotations

import math

from opscope.model.benchmark import BenchmarkRow, Ceiling, Interval, Status, Verdict
from opscope.report.document import Strong, Text
from opscope.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_byte_rate, format_flop_rate

__all__ = [
    "UNKNOWN",
    "ceiling_cell",
    "ceiling_text",
    "count_cell",
    "error_cell",
    "interval_text",
    "median_cell",
    "percent",
    "rate_cell",
    "ratio_text",
    "times",
    "verdict_cell",
]

UNKNOWN = "–"
_UNITS = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"), (1, "ns"))
_STATUS_WORDS = {
    Status.OK: "ok",
    Status.CHECKED: "right, not timed",
    Status.WRONG: "wrong",
    Status.UNAVAILABLE: "unavailable",
    Status.FAILED: "failed",
    Status.OUT_OF_MEMORY: "out of memory",
    Status.NO_RESULT: "returns nothing",
    Status.MUTATES_INPUTS: "changes its inputs",
    Status.INTERRUPTED: "interrupted",
}
_MOST_EXTRA_DIGITS = 2


def median_cell(row: BenchmarkRow) -> str:
    """`131.2 ± 0.1 µs`: the median and half the width of its interval, with digits that mean something."""
    if row.median_ns is None:
        return UNKNOWN
    factor, unit = next(
        ((factor, unit) for factor, unit in _UNITS if abs(row.median_ns) >= 0.9995 * factor), _UNITS[-1]
    )
    median = row.median_ns / factor
    digits = _digits(median) if unit != "ns" or row.inner_repeats > 1 else 0
    if row.interval_ns is None:
        return f"{median:.{digits}f} {unit}"
    low, high = row.interval_ns
    half = (high - low) / 2 / factor
    if 0 < half < 10.0**-digits:
        # A little less than the exponent, so that 0.0999999 counts as 0.1.
        digits = min(digits + _MOST_EXTRA_DIGITS, max(digits, math.ceil(-math.log10(half) - 1e-3)))
    if half > median:
        digits = min(digits, _digits(half))
    least = 10.0**-digits
    width = f"<{least:.{digits}f}" if 0 < half < least / 2 else f"{half:.{digits}f}"
    return f"{median:.{digits}f} ± {width} {unit}"


def _digits(value: float) -> int:
    """Decimals that keep three significant digits."""
    magnitude = abs(value)
    return 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2


def times(factor: float) -> str:
    """`10.6×`, `1.03×`, `0.954×`: three significant digits, and hundredths beside one."""
    digits = 0 if factor >= 100 else 1 if factor >= 10 else 2 if factor >= 1 else 3
    return f"{factor:.{digits}f}×"


def ratio_text(ratio: float, verdict: Verdict | None) -> str:
    """`9.8× slower`, `1.61× faster`, `same 1.003×`, `ambiguous 1.02×`; `1.02×` where there is no verdict."""
    if verdict is Verdict.SLOWER:
        return f"{times(ratio)} slower"
    if verdict is Verdict.FASTER:
        return f"{times(1 / ratio)} faster"
    near = f"{ratio:.3f}×" if 0.5 < ratio < 2 else times(ratio)
    return near if verdict is None else f"{verdict} {near}"


def verdict_cell(row: BenchmarkRow, reference: str) -> Text:
    """The verdict with its ratio; "reference" for the reference; the status of a row that has none."""
    if row.status is not Status.OK and row.verdict is None:
        words = _STATUS_WORDS[row.status]
        return words if row.status in {Status.CHECKED, Status.UNAVAILABLE} else Strong(words)
    if row.name == reference:
        return "reference"
    if row.ratio is None:
        return UNKNOWN
    words = ratio_text(row.ratio, row.verdict)
    return Strong(words) if row.verdict in {Verdict.FASTER, Verdict.SLOWER} else words


def count_cell(count: float | None) -> str:
    """A number of launches: `1`, `8`, `2.3` where calls differ."""
    return UNKNOWN if count is None else f"{count:.0f}" if count == int(count) else f"{count:.1f}"


def rate_cell(row: BenchmarkRow) -> str:
    """FLOP per second where the matrix ceiling binds, else bytes per second."""
    is_matrix = row.ceiling is not None and row.ceiling.startswith("matrix")
    if row.flop_per_s is not None and (is_matrix or row.bytes_per_s is None):
        return format_flop_rate(row.flop_per_s)
    return format_byte_rate(row.bytes_per_s)


def ceiling_cell(row: BenchmarkRow, *, is_named: bool) -> str:
    """`97 %`, with the ceiling's name where rows have different ones."""
    if row.ceiling_fraction is None:
        return UNKNOWN
    share = percent(row.ceiling_fraction)
    return f"{share} {row.ceiling}" if is_named else share


def percent(fraction: float) -> str:
    """A fraction in percent, with a decimal only where it is small."""
    if fraction < 0.0005:
        return "<0.1 %" if fraction > 0 else "0 %"
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 else f"{100 * fraction:.1f} %"


def error_cell(row: BenchmarkRow) -> str:
    """The largest relative error, two digits."""
    return UNKNOWN if row.max_relative_error is None else f"{row.max_relative_error:.1e}"


def ceiling_text(ceiling: Ceiling) -> str:
    """`copy 4.28 TB/s (…)`."""
    rate = format_flop_rate(ceiling.per_s) if ceiling.unit == "flop" else format_byte_rate(ceiling.per_s)
    return f"{ceiling.name} {rate}" + (f" ({ceiling.how})" if ceiling.how else "")


def interval_text(interval: Interval) -> str:
    """`1.60–1.62`."""
    low, high = interval
    return f"{low:.3g}–{high:.3g}"
