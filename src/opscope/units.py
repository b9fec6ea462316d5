"""Numbers for people: nanoseconds, bytes, rates and fractions as short text, unknown ones as "–".

Storage is always int64 nanoseconds and bytes; only renderers call this module. It imports errors alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from opscope.errors import InputError

UNKNOWN = "–"
NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def ns_to_ms(duration_ns: float) -> float:
    """Milliseconds of a nanosecond count, exact to the last nanosecond for counts below 2**53."""
    return duration_ns / NS_PER_MS


def format_duration(duration_ns: float | None) -> str:
    """Shortest of ns, µs, ms and s that keeps three significant digits."""
    return _scaled(duration_ns, ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs")), "ns")


def format_bytes(size_bytes: float | None) -> str:
    """Decimal units (1 kB = 1000 B), as memory bandwidths are quoted."""
    return _scaled(size_bytes, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")), "B")


def format_bytes_exactly(size_bytes: int | None) -> str:
    """`49,152 B`."""
    return UNKNOWN if size_bytes is None else f"{size_bytes:,} B"


def format_binary(size_bytes: int | None, *, unit: str | None = None) -> str:
    """Caches and shared memory in KiB and MiB, as their makers count them; in `unit` where it is given."""
    if size_bytes is None:
        return UNKNOWN
    unit = unit or ("KiB" if size_bytes < 1024**2 else "MiB")
    return f"{size_bytes / 1024 ** ('KiB', 'MiB', 'GiB').index(unit) / 1024:.4g} {unit}"


def format_byte_rate(bytes_per_s: float | None) -> str:
    """`4.28 TB/s`."""
    return UNKNOWN if bytes_per_s is None else f"{format_bytes(bytes_per_s)}/s"


def format_flop_count(flop_count: float | None) -> str:
    """`1.10 TFLOP`."""
    units = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))
    return _scaled(flop_count, units, "FLOP")


def format_flop_rate(flop_per_s: float | None) -> str:
    """`812 TFLOP/s`."""
    return UNKNOWN if flop_per_s is None else f"{format_flop_count(flop_per_s)}/s"


def format_fraction(fraction: float | None) -> str:
    """A fraction of 0–1 as percent. Small non-zero fractions never print as 0 %."""
    if fraction is None:
        return UNKNOWN
    return "<0.1 %" if 0 < fraction < 0.0005 else f"{100 * fraction:.1f} %"


def format_share(part: float, whole: float) -> str:
    """A part of a whole as percent; "–" of nothing."""
    return format_fraction(part / whole if whole else None)


def format_percent(fraction: float) -> str:
    """A fraction in percent, with a decimal only where it is small."""
    if fraction < 0.0005:
        return "<0.1 %" if fraction > 0 else "0 %"
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 else f"{100 * fraction:.1f} %"


def format_ratio(factor: float) -> str:
    """`10.6×`, `1.03×`, `0.954×`: three significant digits, and hundredths beside one."""
    return f"{significant(factor, below_one=3)}×"


def format_count(count: int | None) -> str:
    """An integer with its thousands grouped."""
    return UNKNOWN if count is None else f"{count:,}"


def format_mean_count(count: float | None) -> str:
    """A number of launches: `1`, `8`, `2.3` where calls differ."""
    return UNKNOWN if count is None else f"{count:.0f}" if count == int(count) else f"{count:.1f}"


def format_extent(extent: tuple[int, int, int] | None) -> str:
    """Grid or block as x×y×z."""
    return UNKNOWN if extent is None else "×".join(map(str, extent))


_BY_SUFFIX: tuple[tuple[str | tuple[str, ...], Callable[[Any], str]], ...] = (
    (("_ns", "_ns_per_step"), format_duration),
    ("_bytes", format_bytes),
    ("_bytes_per_s", format_byte_rate),
    ("_flop_per_s", format_flop_rate),
    ("fraction", format_fraction),
)


def format_quantity(name: str, value: float | None) -> str:
    """A number by the unit its name ends in: `device_ns`, `size_bytes`, `busy_fraction`; else a count."""
    for suffix, form in _BY_SUFFIX:
        if name.endswith(suffix):
            return form(value)
    if value is None:
        return UNKNOWN
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def plural_of(noun: str) -> str:
    """`launches`, `queries`, `rows`."""
    if re.search("[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def counted(count: float, noun: str, plural: str | None = None) -> str:
    """`1 launch`, `1.5 launches`, `1,200 launches`."""
    text = f"{count:,.0f}" if abs(count - round(count)) < 0.05 or count >= 10 else f"{count:.1f}"
    return f"{text} {noun if text == '1' else plural or plural_of(noun)}"


def listed(*parts: str | None, joint: str = ", ") -> str:
    """Those that say something, with commas between them; "–" for none."""
    return joint.join(part for part in parts if part) or UNKNOWN


def significant(value: float, *, below_one: int = 2) -> str:
    """Three significant digits at least; `below_one` decimals of what is less than one."""
    magnitude = abs(value)
    digits = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 1 else below_one
    return f"{value:.{digits}f}"


def _scaled(value: float | None, units: tuple[tuple[float, str], ...], least: str) -> str:
    if value is None:
        return UNKNOWN
    for factor, unit in units:
        # What rounds up to 1000 of a unit is 1 of the next.
        if abs(value) >= 0.9995 * factor:
            return f"{significant(value / factor)} {unit}"
    return f"{value:.0f} {least}"


def parse_bytes(text: str) -> int:
    """Bytes of a size such as `"1GB"`, `"512 MiB"` or `"1.5e9"`; a bare number counts bytes.

    Raises:
        InputError: It is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    base = 1024 if match is not None and match.group(3) else 1000
    size = 0.0 if match is None else float(match.group(1))
    if match is None or not math.isfinite(size):
        raise InputError(f"'{text}' is not a size in bytes", hint="Write it like 1GB, 512MiB or 2000000000")
    return int(size * base ** " kmgt".index(match.group(2).lower() or " "))
