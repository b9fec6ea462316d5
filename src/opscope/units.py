"""Numbers for people: nanoseconds, bytes and fractions as short text.

Storage is always int64 nanoseconds and bytes; only renderers call this module. It imports errors alone.
"""

from __future__ import annotations

import re

from opscope.errors import InputError

__all__ = [
    "format_byte_rate",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_extent",
    "format_flop_count",
    "format_flop_rate",
    "format_fraction",
    "ns_to_ms",
    "parse_bytes",
]

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def ns_to_ms(duration_ns: float) -> float:
    """Milliseconds of a nanosecond count, exact to the last nanosecond for counts below 2**53."""
    return duration_ns / NS_PER_MS


def format_duration(duration_ns: float | None) -> str:
    """Shortest of ns, µs, ms and s that keeps three significant digits; "–" for unknown."""
    if duration_ns is None:
        return "–"
    for factor, unit in ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs")):
        # What rounds up to 1000 of a unit is 1 of the next.
        if abs(duration_ns) >= 0.9995 * factor:
            return f"{_significant(duration_ns / factor)} {unit}"
    return f"{duration_ns:.0f} ns"


def format_extent(extent: tuple[int, int, int] | None) -> str:
    """Grid or block as x×y×z; "–" for unknown."""
    return "–" if extent is None else "×".join(map(str, extent))


def format_bytes(size_bytes: float | None) -> str:
    """Decimal units (1 kB = 1000 B), as memory bandwidths are quoted; "–" for unknown."""
    if size_bytes is None:
        return "–"
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size_bytes) >= 0.9995 * factor:
            return f"{_significant(size_bytes / factor)} {unit}"
    return f"{size_bytes:.0f} B"


def format_byte_rate(bytes_per_s: float | None) -> str:
    """`4.28 TB/s`; "–" for unknown."""
    return "–" if bytes_per_s is None else f"{format_bytes(bytes_per_s)}/s"


def format_flop_count(flop_count: float | None) -> str:
    """`1.10 TFLOP`; "–" for unknown."""
    if flop_count is None:
        return "–"
    for factor, unit in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")):
        if abs(flop_count) >= 0.9995 * factor:
            return f"{_significant(flop_count / factor)} {unit}"
    return f"{flop_count:.0f} FLOP"


def format_flop_rate(flop_per_s: float | None) -> str:
    """`812 TFLOP/s`; "–" for unknown."""
    return "–" if flop_per_s is None else f"{format_flop_count(flop_per_s)}/s"


def format_fraction(fraction: float | None) -> str:
    """A fraction of 0–1 as percent; "–" for unknown. Small non-zero fractions never print as 0 %."""
    if fraction is None:
        return "–"
    if 0 < fraction < 0.0005:
        return "<0.1 %"
    return f"{100 * fraction:.1f} %"


def format_count(count: int | None) -> str:
    """An integer with thin grouping; "–" for unknown."""
    return "–" if count is None else f"{count:,}"


def parse_bytes(text: str) -> int:
    """Bytes of a size such as `"1GB"`, `"512 MiB"` or `"1.5e9"`; a bare number counts bytes.

    Raises:
        InputError: It is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if match is None:
        raise InputError(f"'{text}' is no size in bytes", hint="Write it like 1GB, 512MiB or 2000000000")
    base = 1024 if match.group(3) else 1000
    return int(float(match.group(1)) * base ** " kmgt".index(match.group(2).lower() or " "))


def _significant(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"
