"""Why implementations of a benchmark take the time they take, in sentences that carry this run's figures.

Each rule speaks only where rows hold its evidence: kernels by the profiler, shares of a measured ceiling,
bytes and memory. Nothing is said of an operator by its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from opscope.model.benchmark import BenchmarkResult, BenchmarkRow, Status, Verdict
from opscope.report.document import Code, Inline, Text, joined
from opscope.units import (
    format_bytes,
    format_duration,
    format_extent,
    format_mean_count,
    format_percent,
    format_ratio,
)

# From this share of a ceiling on, the ceiling decides the time.
_AT_CEILING = 0.85
# Beyond this share the data cannot have come from the memory the ceiling was measured in.
_ABOVE_CEILING = 1.05
# Rows whose time differs by less are not worth a sentence about their number of kernels.
_MANY_KERNELS = 2


def explanations(result: BenchmarkResult) -> tuple[Text, ...]:
    """What the figures of one result say about each other."""
    rows = [row for row in result.rows if row.median_ns is not None]
    reference = next((row for row in rows if row.name == result.reference), None)
    said: list[Text] = []
    if reference is not None:
        said += _same(reference, [row for row in rows if row.verdict is Verdict.SAME])
        said += _kernel_counts(reference, rows)
    said += _teaching(rows)
    said += _at_ceiling(rows)
    said += _above_ceiling(rows)
    said += _undecided(rows)
    return tuple(said)


def _same(reference: BenchmarkRow, rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    """Why rows take as long as the reference."""
    alike = [row for row in rows if _kernels(row) and _kernels(row) == _kernels(reference)]
    if alike:
        yield (
            *_listed([reference, *alike]),
            f" launch the same {'kernel' if reference.kernels_launched == 1 else 'kernels'}: ",
            *_titles(reference),
            ".",
        )
    for row in rows:
        if row not in alike:
            yield _same_time(reference, row)


def _same_time(reference: BenchmarkRow, row: BenchmarkRow) -> Text:
    pair = [reference, row]
    other: tuple[Inline, ...] = ()
    if _kernels(row) and _kernels(reference):
        other = (" launches another kernel (", *_titles(row), "), but")
    if _is_at_one_ceiling(pair):
        return (
            Code(row.name), *other, " takes the same time as ", Code(reference.name),
            f": both are at {_shares(pair)} of the {row.ceiling} ceiling, {_what_binds(row)}",
        )  # fmt: skip
    if row.min_bytes is not None and row.min_bytes == reference.min_bytes and row.bytes_per_s is not None:
        return (
            Code(row.name), *other, " takes the same time as ", Code(reference.name),
            f": both move {format_bytes(row.min_bytes)} a call, at {format_bytes(row.bytes_per_s)}/s.",
        )  # fmt: skip
    return (
        Code(row.name),
        *other,
        " takes the same time as ",
        Code(reference.name),
        f": {row.verdict_reason}.",
    )


def _is_at_one_ceiling(rows: Sequence[BenchmarkRow]) -> bool:
    is_one = len({row.ceiling for row in rows}) == 1 and rows[0].ceiling is not None
    return is_one and all(_AT_CEILING <= (row.ceiling_fraction or 0) <= _ABOVE_CEILING for row in rows)


def _what_binds(row: BenchmarkRow) -> str:
    if row.ceiling == "copy":
        return f"so moving {format_bytes(row.min_bytes)} sets the time, not the arithmetic."
    return "so the matrix products set the time."


def _kernel_counts(reference: BenchmarkRow, rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    """Many kernels against few, where that goes with the time."""
    for row in rows:
        many, few = _by_kernels(reference, row)
        if many is None or few is None:
            continue
        slower = row.verdict is Verdict.SLOWER and many is row
        faster = row.verdict is Verdict.FASTER and few is row
        if not (slower or faster):
            continue
        yield (
            Code(many.name),
            f" launches {format_mean_count(many.kernels_launched)} kernels where ",
            Code(few.name),
            f" launches {format_mean_count(few.kernels_launched)}{_mean_time(many)}: "
            f"intermediate results pass through memory{_memory_beside(many, few)}.",
        )


def _by_kernels(one: BenchmarkRow, other: BenchmarkRow) -> tuple[BenchmarkRow | None, BenchmarkRow | None]:
    """The row with many kernels and the one with few; nothing where the numbers are close."""
    if not one.kernels_launched or not other.kernels_launched:
        return None, None
    few, many = sorted((one, other), key=lambda row: row.kernels_launched or 0)
    if (many.kernels_launched or 0) < _MANY_KERNELS * (few.kernels_launched or 0):
        return None, None
    return many, few


def _mean_time(row: BenchmarkRow) -> str:
    if row.device_ns is None or not row.kernels_launched:
        return ""
    return f", of {format_duration(row.device_ns / row.kernels_launched)} each on average"


def _memory_beside(many: BenchmarkRow, few: BenchmarkRow) -> str:
    if many.peak_memory_bytes is None or few.peak_memory_bytes is None:
        return ""
    if many.peak_memory_bytes <= few.peak_memory_bytes:
        return ""
    return (
        f", {format_bytes(many.peak_memory_bytes)} at the peak against {format_bytes(few.peak_memory_bytes)}"
    )


def _teaching(rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    """The simple version beside the good one of the same kind."""
    for row in rows:
        good = _good_version(row, rows) if row.teaching and row.median_ns else None
        if good is None or not good.median_ns or not row.median_ns:
            continue
        facts = _teaching_facts(row, good)
        note = f" ({row.note})" if row.note else ""
        ratio = row.median_ns / good.median_ns
        word = f"{format_ratio(ratio)} the time of " if ratio >= 1 else f"{ratio:.2f}× the time of "
        yield (Code(row.name), f"{note} takes {word}", Code(good.name), f"{facts}.")


def _good_version(teaching: BenchmarkRow, rows: Sequence[BenchmarkRow]) -> BenchmarkRow | None:
    of_kind = [row for row in rows if row.engine is teaching.engine and not row.teaching]
    by_name = [row for row in of_kind if teaching.name.startswith(row.name)]
    candidates = by_name or of_kind
    return min(candidates, key=lambda row: row.median_ns or 0.0, default=None)


def _teaching_facts(row: BenchmarkRow, good: BenchmarkRow) -> str:
    facts = []
    if row.ceiling_fraction is not None and good.ceiling_fraction is not None:
        shares = f"{format_percent(row.ceiling_fraction)} of the {row.ceiling} ceiling against "
        facts.append(shares + format_percent(good.ceiling_fraction))
    launches = [_launch(each) for each in (row, good)]
    if all(launches) and launches[0] != launches[1]:
        facts.append(f"{launches[0]} against {launches[1]}")
    return f": {'; '.join(facts)}" if facts else ""


def _launch(row: BenchmarkRow) -> str | None:
    longest = row.profile.kernels[0] if row.profile is not None and row.profile.kernels else None
    if longest is None or longest.grid is None or longest.block is None:
        return None
    return f"{format_extent(longest.grid)} blocks of {format_extent(longest.block)} threads"


def _at_ceiling(rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    """Rows with nothing left to gain but from other bytes or fewer operations."""
    by_ceiling: dict[str, list[BenchmarkRow]] = {}
    for row in rows:
        is_near = row.ceiling_fraction is not None and _AT_CEILING <= row.ceiling_fraction <= _ABOVE_CEILING
        if row.ceiling is not None and is_near and row.status is Status.OK:
            by_ceiling.setdefault(row.ceiling, []).append(row)
    for ceiling, near in by_ceiling.items():
        verb = "runs" if len(near) == 1 else "run"
        yield (
            *_listed(near),
            f" {verb} at {_shares(near)} of the {ceiling} ceiling measured in this run: "
            + (
                "as fast as a copy in this memory."
                if ceiling == "copy"
                else "as fast as torch's own matrix products."
            ),
        )


def _above_ceiling(rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    above = [row for row in rows if (row.ceiling_fraction or 0) > _ABOVE_CEILING]
    cached = [row for row in above if row.ceiling == "copy"]
    if cached:
        verb = "exceeds" if len(cached) == 1 else "exceed"
        yield (
            *_listed(cached),
            f" {verb} the copy ceiling ({_shares(cached)}): part of the data stays in a cache, "
            "which is faster than the memory that was measured.",
        )


def _undecided(rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    for row in rows:
        if row.verdict is Verdict.AMBIGUOUS and row.verdict_reason:
            yield (Code(row.name), f" is ambiguous: {row.verdict_reason}.")


def _kernels(row: BenchmarkRow) -> Counter[str]:
    """Launches per call by kernel name; empty where nothing was recorded."""
    if row.profile is None:
        return Counter()
    launches: Counter[str] = Counter()
    for use in row.profile.kernels:
        launches[use.name] += round(use.launches * row.profile.calls)
    return launches


def _listed(rows: Sequence[BenchmarkRow]) -> tuple[Inline, ...]:
    return joined((Code(row.name) for row in rows), last=" and ")


def _titles(row: BenchmarkRow) -> tuple[Inline, ...]:
    uses = row.profile.kernels if row.profile is not None else ()
    return joined([Code(use.title) for use in uses[:3]]) + ((", …",) if len(uses) > 3 else ())


def _shares(rows: Sequence[BenchmarkRow]) -> str:
    fractions = sorted(row.ceiling_fraction for row in rows if row.ceiling_fraction is not None)
    low, high = format_percent(fractions[0]), format_percent(fractions[-1])
    return low if low == high else f"{low.removesuffix(' %')}–{high}"
