"""Why implementations of a benchmark take the time they take, in sentences that carry this run's figures.

Each rule speaks only where rows hold its evidence: kernels by the profiler, shares of a measured ceiling,
bytes and memory. Nothing is said of an operator by its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from opscope import units
from opscope.model.benchmark import BenchmarkResult, BenchmarkRow, Status, Verdict
from opscope.model.queries import grouped, summed
from opscope.report.document import Code, Inline, Text, joined

# From this share of a ceiling on, the ceiling decides the time.
_AT_CEILING = 0.85
# Beyond this share the data cannot have come from the memory the ceiling was measured in.
_ABOVE_CEILING = 1.05


def explanations(result: BenchmarkResult) -> tuple[Text, ...]:
    rows = [row for row in result.rows if row.median_ns is not None]
    reference = next((row for row in rows if row.name == result.reference), None)
    said: list[Text] = []
    if reference is not None:
        said += _same(reference, [row for row in rows if row.verdict is Verdict.SAME])
        said += _kernel_counts(reference, rows)
    said += _ceilings(rows)
    for row in rows:
        if row.verdict is Verdict.AMBIGUOUS and row.verdict_reason:
            said.append((Code(row.name), f" is ambiguous: {row.verdict_reason}."))
    return tuple(said)


def _same(reference: BenchmarkRow, rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    alike = [row for row in rows if _kernels(row) and _kernels(row) == _kernels(reference)]
    if alike:
        kernels = "kernel" if reference.kernels_launched == 1 else "kernels"
        yield (*_listed([reference, *alike]), f" launch the same {kernels}: ", *_titles(reference), ".")
    for row in rows:
        if row in alike:
            continue
        pair = [reference, row]
        other: tuple[Inline, ...] = ()
        if _kernels(row) and _kernels(reference):
            other = (" launches another kernel (", *_titles(row), "), but")
        why = f"{row.verdict_reason}."
        is_at_one = row.ceiling is not None and row.ceiling == reference.ceiling
        if is_at_one and all(_AT_CEILING <= (one.ceiling_fraction or 0) <= _ABOVE_CEILING for one in pair):
            moving = f"so moving {units.format_bytes(row.min_bytes)} sets the time, not the arithmetic."
            binds = moving if row.ceiling == "copy" else "so the matrix products set the time."
            why = f"both are at {_shares(pair)} of the {row.ceiling} ceiling, {binds}"
        elif (
            row.min_bytes is not None and row.min_bytes == reference.min_bytes and row.bytes_per_s is not None
        ):
            rate = units.format_bytes(row.bytes_per_s)
            why = f"both move {units.format_bytes(row.min_bytes)} a call, at {rate}/s."
        yield (Code(row.name), *other, " takes the same time as ", Code(reference.name), f": {why}")


def _kernel_counts(reference: BenchmarkRow, rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    """Many kernels against few, where that goes with the time."""
    for row in rows:
        few, many = sorted((reference, row), key=lambda one: one.kernels_launched or 0)
        if not few.kernels_launched or not many.kernels_launched:
            continue
        # Rows whose time differs by less are not worth a sentence about their number of kernels.
        is_more = many.kernels_launched >= 2 * few.kernels_launched
        if not is_more or row.verdict is not (Verdict.SLOWER if many is row else Verdict.FASTER):
            continue
        each = memory = ""
        if many.device_ns is not None:
            each = f", of {units.format_duration(many.device_ns / many.kernels_launched)} each on average"
        if (many.peak_memory_bytes or 0) > (few.peak_memory_bytes or inf):
            peaks = units.format_bytes(many.peak_memory_bytes), units.format_bytes(few.peak_memory_bytes)
            memory = f", {peaks[0]} at the peak against {peaks[1]}"
        yield (
            Code(many.name),
            f" launches {units.format_mean_count(many.kernels_launched)} kernels where ",
            Code(few.name),
            f" launches {units.format_mean_count(few.kernels_launched)}{each}: "
            f"intermediate results pass through memory{memory}.",
        )


def _ceilings(rows: Sequence[BenchmarkRow]) -> Iterator[Text]:
    """Rows with nothing left to gain but from other bytes or fewer operations; and those beyond that."""
    at_one = (
        (row.ceiling, row)
        for row in rows
        if row.status is Status.OK and _AT_CEILING <= (row.ceiling_fraction or 0) <= _ABOVE_CEILING
    )
    for ceiling, near in grouped(at_one).items():
        verb = "runs" if len(near) == 1 else "run"
        of_products = "as fast as torch's own matrix products."
        meaning = "as fast as a copy in this memory." if ceiling == "copy" else of_products
        yield (
            *_listed(near),
            f" {verb} at {_shares(near)} of the {ceiling} ceiling measured in this run: {meaning}",
        )
    cached = [row for row in rows if (row.ceiling_fraction or 0) > _ABOVE_CEILING and row.ceiling == "copy"]
    if cached:
        verb = "exceeds" if len(cached) == 1 else "exceed"
        yield (
            *_listed(cached),
            f" {verb} the copy ceiling ({_shares(cached)}): part of the data stays in a cache, "
            "which is faster than the memory that was measured.",
        )


def _kernels(row: BenchmarkRow) -> Counter[str]:
    if row.profile is None:
        return Counter()
    calls = row.profile.calls
    return summed((use.name, round(use.launches * calls)) for use in row.profile.kernels)


def _listed(rows: Sequence[BenchmarkRow]) -> tuple[Inline, ...]:
    return joined((Code(row.name) for row in rows), last=" and ")


def _titles(row: BenchmarkRow) -> tuple[Inline, ...]:
    uses = row.profile.kernels if row.profile is not None else ()
    return joined([Code(use.title) for use in uses[:3]]) + ((", …",) if len(uses) > 3 else ())


def _shares(rows: Sequence[BenchmarkRow]) -> str:
    fractions = sorted(row.ceiling_fraction for row in rows if row.ceiling_fraction is not None)
    low, high = units.format_percent(fractions[0]), units.format_percent(fractions[-1])
    return low if low == high else f"{low.removesuffix(' %')}–{high}"
