"""Figures of a comparison as short text: signed differences, ratios with verdicts, counts of both sides."""

from __future__ import annotations

from fractions import Fraction

from opscope.model.benchmark import BenchmarkRow, Interval, Status, Verdict
from opscope.model.comparison import Presence, SessionComparison, TimeChange, Use
from opscope.report.benchmark_cells import UNKNOWN, median_cell, ratio_text
from opscope.report.document import Strong, Text
from opscope.units import format_duration

__all__ = [
    "count_text",
    "difference_text",
    "interval_text",
    "launch_text",
    "measured_text",
    "ratio_cell",
    "ratio_words",
]


def difference_text(difference_ns: float) -> str:
    """`+1.23 ms`, `−4.66 ms`, `0 ns`."""
    if not difference_ns:
        return "0 ns"
    sign = "+" if difference_ns > 0 else "−"
    if abs(difference_ns) < 1:  # a mean over steps
        return f"{sign}{abs(difference_ns):.1f} ns"
    return sign + format_duration(abs(difference_ns))


def measured_text(time_ns: float | None, interval_ns: Interval | None = None) -> str:
    """`131.2 ± 0.1 µs`; without an interval `131 µs`."""
    if time_ns is None or interval_ns is None:
        return format_duration(time_ns)
    row = BenchmarkRow(name="", status=Status.OK, median_ns=time_ns, interval_ns=interval_ns, inner_repeats=2)
    return median_cell(row)


def ratio_words(time: TimeChange) -> str:
    """`1.12× slower`, `same 1.003×`; the bare ratio where there is no interval to judge it by."""
    if time.ratio is None or not time.ratio:
        return UNKNOWN
    is_judged = time.ratio_interval is not None or time.verdict is Verdict.SAME
    return ratio_text(time.ratio, time.verdict if is_judged else None)


def ratio_cell(time: TimeChange, presence: Presence) -> Text:
    """The ratio with its verdict; the presence of what only one side has."""
    if presence in {Presence.ADDED, Presence.REMOVED}:
        return str(presence)
    words = ratio_words(time)
    return Strong(words) if time.verdict in {Verdict.FASTER, Verdict.SLOWER} else words


def interval_text(time: TimeChange) -> str:
    """` [0.98, 1.02]`; empty without an interval."""
    if time.ratio_interval is None:
        return ""
    low, high = time.ratio_interval
    return f" [{low:.3f}, {high:.3f}]"


def count_text(reference: Fraction | None, candidate: Fraction | None) -> str:
    """`36`, or `36 → 48` where the sides differ; `–` for none."""
    if reference == candidate:
        return _count(reference)
    return f"{_count(reference)} → {_count(candidate)}"


def launch_text(comparison: SessionComparison, reference: Use | None, candidate: Use | None) -> str:
    """Kernel launches of both sides, per step where steps are compared."""
    return count_text(
        None if reference is None else comparison.reference.per_step(reference.launches),
        None if candidate is None else comparison.candidate.per_step(candidate.launches),
    )


def _count(count: Fraction | None) -> str:
    if count is None:
        return UNKNOWN
    return f"{count.numerator:,}" if count.denominator == 1 else f"{float(count):,.1f}"
