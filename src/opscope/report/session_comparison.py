"""A SessionComparison as a Document: what got slower or faster, by how much, and because of which kernels.

Ranked by difference; what is cut is counted with its time. Imports no renderer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from opscope.model.comparison import (
    Basis,
    KernelChange,
    Metric,
    OperatorChange,
    Presence,
    SessionComparison,
    SessionSide,
    TimeChange,
    VariantChange,
)
from opscope.model.schema import Attribution
from opscope.provenance.categories import category_title
from opscope.report.comparison_cells import (
    count_text,
    difference_text,
    interval_text,
    launch_text,
    ratio_cell,
    ratio_words,
)
from opscope.report.document import (
    Block,
    BulletList,
    Code,
    Column,
    Document,
    FactList,
    FindingList,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    numeric,
)
from opscope.units import format_duration, format_fraction

__all__ = ["session_comparison_document"]

_EXPLAINED_OPERATORS = 6
_KERNELS_EACH = 4
_VARIANTS_EACH = 2
# Kernels of an operator that hold less of its change are summed up.
_RELEVANT_FRACTION = 0.02


def session_comparison_document(comparison: SessionComparison, *, top: int | None = 20) -> Document:
    """The report; of its `top` operators (every one for None)."""
    sections = [
        Section("Before reading on", (FindingList(comparison.findings),)) if comparison.findings else None,
        Section("Operators by difference", _operator_blocks(comparison, top)),
        _reasons(comparison, top),
        _categories(comparison),
        _unattributed(comparison),
        Section("Accounting", (_accounting(comparison),)),
    ]
    shown = tuple(section for section in sections if section is not None)
    return Document("Comparison of two recordings", (_facts(comparison),), shown)


def _facts(comparison: SessionComparison) -> FactList:
    per = " per step" if comparison.basis is Basis.STEP else ""
    what = "Device time" if comparison.metric is Metric.DEVICE else "CPU time in operators"
    facts: list[tuple[str, Text]] = [
        ("Reference", _source(comparison.reference)),
        ("Candidate", _source(comparison.candidate)),
        ("Recorded", _recorded(comparison)),
        (f"{what}{per}", _headline(comparison.total)),
    ]
    if comparison.metric is Metric.DEVICE:
        facts.append((f"Kernel launches{per}", _all_launches(comparison)))
        facts.append(("Kernel set", _kernel_set(comparison)))
    if comparison.wall is not None:
        facts.append(("Wall time per step", _headline(comparison.wall)))
    facts.append(("Verdict", _verdict(comparison)))
    return FactList(tuple(facts))


def _source(side: SessionSide) -> Text:
    if not side.sources:
        return "no trace"
    more = f" and {len(side.sources) - 1} more" if len(side.sources) > 1 else ""
    return (Code(side.sources[0]), more) if more else Code(side.sources[0])


def _recorded(comparison: SessionComparison) -> str:
    sides = (comparison.reference, comparison.candidate)
    told = [
        ", ".join(
            [
                f"{side.steps} step{'' if side.steps == 1 else 's'}" if side.steps else "no steps compared",
                *(f"{side.ranks} traces" for _ in range(side.ranks > 1)),
                *(f"{label} {value}" for label, value in side.environment.items()),
            ]
        )
        for side in sides
    ]
    return told[0] if told[0] == told[1] else f"{told[0]} → {told[1]}"


def _headline(time: TimeChange) -> str:
    return (
        f"{format_duration(time.reference_ns)} → {format_duration(time.candidate_ns)} "
        f"({difference_text(time.difference_ns)}, {ratio_words(time)}{interval_text(time)})"
    )


def _kernel_set(comparison: SessionComparison) -> str:
    """How many kernel names the sides share, whoever launched them."""
    kernels = [kernel for kernel in comparison.kernels if kernel.kind == "kernel"]
    before = {kernel.reference_name for kernel in kernels} - {None}
    after = {kernel.candidate_name for kernel in kernels} - {None}
    if before == after:
        return f"the same {len(before)}"
    parts = ((len(before & after), "in both"), (len(before - after), "only in the reference"))
    return ", ".join(f"{n} {where}" for n, where in (*parts, (len(after - before), "only in the candidate")))


def _all_launches(comparison: SessionComparison) -> str:
    reference, candidate = comparison.reference, comparison.candidate
    before, after = reference.per_step(reference.launches), candidate.per_step(candidate.launches)
    text = count_text(before, after)
    change = after - before
    return text if not change else f"{text} ({'+' if change > 0 else '−'}{count_text(*[abs(change)] * 2)})"


def _verdict(comparison: SessionComparison) -> Text:
    time = comparison.total
    if time.verdict is None:
        return f"none: {time.reason}"
    if time.ratio_interval is None and time.reason and "equal" not in time.reason:
        return f"none by statistics: {time.reason}"
    return (Strong(str(time.verdict)), f": {time.reason}")


def _operator_blocks(comparison: SessionComparison, top: int | None) -> tuple[Block, ...]:
    rows = comparison.operators
    changed = [row for row in rows if row.time.difference_ns or row.presence is not Presence.BOTH]
    if not changed:
        return (Paragraph("Every operator takes the same time to the nanosecond on both sides."),)
    if top is not None:
        changed = [row for row in changed if row.time.difference_ns or row.time.reference_ns]
    shown = changed[:top]
    blocks: list[Block] = [_operator_table(comparison, shown), _rest(comparison, shown)]
    return tuple(blocks)


def _operator_table(comparison: SessionComparison, rows: Sequence[OperatorChange]) -> Table:
    is_device = comparison.metric is Metric.DEVICE
    cells = tuple(
        (
            Code(row.name),
            format_duration(row.time.reference_ns),
            format_duration(row.time.candidate_ns),
            difference_text(row.time.difference_ns),
            ratio_cell(row.time, row.presence),
            launch_text(comparison, row.reference, row.candidate) if is_device else _calls(comparison, row),
        )
        for row in rows
    )
    titles = ("Reference", "Candidate", "Difference", "Ratio", "Launches" if is_device else "Calls")
    return Table((Column("Operator"), *map(numeric, titles)), cells)


def _calls(comparison: SessionComparison, row: OperatorChange | VariantChange) -> str:
    return count_text(
        None if row.reference is None else comparison.reference.per_step(row.reference.calls),
        None if row.candidate is None else comparison.candidate.per_step(row.candidate.calls),
    )


def _rest(comparison: SessionComparison, shown: Sequence[OperatorChange]) -> Paragraph:
    """What the table leaves out, and which operators only one side has."""
    rest = [row for row in comparison.operators if row not in shown]
    parts = []
    changed = [row for row in rest if row.time.difference_ns]
    if changed:
        total_ns = sum(row.time.difference_ns for row in changed)
        parts.append(f"Further {_operators(len(changed))}: {difference_text(total_ns)} in all.")
    if len(rest) > len(changed):
        parts.append(f"Without a difference in time: {_operators(len(rest) - len(changed))}.")
    for presence, side in ((Presence.REMOVED, "reference"), (Presence.ADDED, "candidate")):
        count = sum(row.presence is presence for row in comparison.operators)
        if count:
            parts.append(f"Only in the {side}: {_operators(count)}.")
    return Paragraph(" ".join(parts))


def _operators(count: int) -> str:
    return f"{count} operator{'' if count == 1 else 's'}"


def _reasons(comparison: SessionComparison, top: int | None) -> Section | None:
    """Per operator that changed, the kernels that made it so."""
    limit = None if top is None else min(top, _EXPLAINED_OPERATORS)
    explained = [row for row in comparison.operators if row.time.difference_ns and _is_telling(row)]
    sections = tuple(Section(row.name, _reason_blocks(comparison, row, top)) for row in explained[:limit])
    return Section("Which kernels", sections=sections) if sections else None


def _is_telling(row: OperatorChange) -> bool:
    """Whether its kernels say more than its own name."""
    names = {
        name for kernel in row.kernels for name in (kernel.reference_name, kernel.candidate_name) if name
    }
    return bool(names - {row.name}) or len(_changed_variants(row)) > 1


def _reason_blocks(comparison: SessionComparison, row: OperatorChange, top: int | None) -> tuple[Block, ...]:
    blocks: list[Block] = [Paragraph(_operator_line(comparison, row))]
    kernels = _shown_kernels(row, top)
    if kernels:
        blocks.append(kernel_change_table(comparison, kernels))
    rest = [kernel for kernel in row.kernels if kernel.time.difference_ns and kernel not in kernels]
    points: list[Text] = [
        (Code(kernel.candidate_title or ""), f": {kernel.change}") for kernel in kernels if kernel.change
    ]
    if rest:
        total_ns = sum(kernel.time.difference_ns for kernel in rest)
        points.append(f"{len(rest)} more kernels: {difference_text(total_ns)}")
    points += _variant_points(comparison, row, top)
    return (*blocks, *((BulletList(tuple(points)),) if points else ()))


def _operator_line(comparison: SessionComparison, row: OperatorChange) -> str:
    times = difference_text(row.time.difference_ns)
    if row.presence is Presence.BOTH:
        times = _headline(row.time)
    return f"{category_title(row.category)}, {_calls(comparison, row)} calls: {times}"


def _shown_kernels(row: OperatorChange, top: int | None) -> list[KernelChange]:
    changed = [kernel for kernel in row.kernels if kernel.time.difference_ns]
    if top is None:
        return changed
    least_ns = _RELEVANT_FRACTION * abs(row.time.difference_ns)
    return [kernel for kernel in changed if abs(kernel.time.difference_ns) >= least_ns][:_KERNELS_EACH]


def kernel_change_table(comparison: SessionComparison, kernels: Iterable[KernelChange]) -> Table:
    """One row per kernel; two for one that was replaced, old above new."""
    titles = ("Reference", "Candidate", "Difference", "Ratio", "Launches")
    rows = [cells for kernel in kernels for cells in _kernel_rows(comparison, kernel)]
    return Table((Column("Kernel"), *map(numeric, titles)), tuple(rows))


def _kernel_rows(comparison: SessionComparison, kernel: KernelChange) -> Iterator[tuple[Text, ...]]:
    times = format_duration(kernel.time.reference_ns), format_duration(kernel.time.candidate_ns)
    difference = difference_text(kernel.time.difference_ns)
    launches = _launches(comparison, kernel)
    if kernel.presence is not Presence.REPLACED:
        title = kernel.candidate_title or kernel.reference_title or ""
        yield Code(title), *times, difference, ratio_cell(kernel.time, kernel.presence), launches
        return
    yield Code(kernel.reference_title or ""), times[0], "", "", "replaced", ""
    new = ("→ ", Code(kernel.candidate_title or ""))
    yield new, "", times[1], difference, ratio_cell(kernel.time, kernel.presence), launches


def _launches(comparison: SessionComparison, kernel: KernelChange) -> str:
    return count_text(
        None if kernel.reference is None else comparison.reference.per_step(kernel.reference.calls),
        None if kernel.candidate is None else comparison.candidate.per_step(kernel.candidate.calls),
    )


def _changed_variants(row: OperatorChange) -> list[VariantChange]:
    """The ways a common operator was called that changed, if it was called in several known ways."""
    if row.presence is not Presence.BOTH or len(row.variants) < 2:
        return []
    return [variant for variant in row.variants if variant.time.difference_ns and variant.input_shapes]


def _variant_points(comparison: SessionComparison, row: OperatorChange, top: int | None) -> list[Text]:
    return [
        (
            f"{difference_text(variant.time.difference_ns)} with inputs ",
            Code(variant.input_shapes or ""),
            f", {_calls(comparison, variant)} calls",
        )
        for variant in _changed_variants(row)[: None if top is None else _VARIANTS_EACH]
    ]


def _categories(comparison: SessionComparison) -> Section | None:
    rows = [row for row in comparison.categories if row.difference_ns]
    if not rows:
        return None
    cells = tuple(
        (
            category_title(row.category),
            format_duration(row.reference_ns),
            format_duration(row.candidate_ns),
            difference_text(row.difference_ns),
        )
        for row in rows
    )
    return Section(
        "Categories",
        (Table((Column("Category"), *map(numeric, ("Reference", "Candidate", "Difference"))), cells),),
    )


def _unattributed(comparison: SessionComparison) -> Section | None:
    rows = [row for row in comparison.unattributed if row.time.reference_ns or row.time.candidate_ns]
    if not rows:
        return None
    cells = tuple(
        (
            Code(row.reason),
            format_duration(row.time.reference_ns),
            format_duration(row.time.candidate_ns),
            difference_text(row.time.difference_ns),
            launch_text(comparison, row.reference, row.candidate),
            Attribution(row.reason).meaning,
        )
        for row in rows
    )
    titles = ("Reference", "Candidate", "Difference", "Launches")
    columns = (Column("Reason"), *map(numeric, titles), Column("Meaning"))
    kernels = _largest(kernel for row in rows for kernel in row.kernels)
    blocks: list[Block] = [Table(columns, cells)]
    return Section(
        "Unattributed time", (*blocks, *([kernel_change_table(comparison, kernels)] if kernels else ()))
    )


def _largest(kernels: Iterable[KernelChange]) -> list[KernelChange]:
    changed = [kernel for kernel in kernels if kernel.time.difference_ns]
    return sorted(changed, key=lambda kernel: -abs(kernel.time.difference_ns))[:_KERNELS_EACH]


def _accounting(comparison: SessionComparison) -> BulletList:
    return BulletList(
        (
            _account(comparison, "reference"),
            _account(comparison, "candidate"),
        )
    )


def _account(comparison: SessionComparison, name: str) -> Text:
    side: SessionSide = getattr(comparison, name)
    operators_ns = _sum(getattr(row, name) for row in comparison.operators)
    unattributed_ns = _sum(getattr(row, name) for row in comparison.unattributed)
    whole = "device time" if comparison.metric is Metric.DEVICE else "CPU time"
    text = (
        f"{name.capitalize()}: operators {operators_ns:,} ns + unattributed {unattributed_ns:,} ns + outside "
        f"steps {side.outside_steps_ns:,} ns = {whole} {side.whole_ns:,} ns"
    )
    missing_ns = side.whole_ns - comparison.accounted_ns(name)
    if missing_ns:
        return (f"{text} ", Strong(f"fails by {missing_ns:,} ns"))
    share = format_fraction(side.outside_steps_ns / side.whole_ns) if side.whole_ns else "0 %"
    return f"{text}, to the nanosecond ({share} outside steps)"


def _sum(uses: Iterable[object]) -> int:
    return sum(getattr(use, "time_ns", 0) for use in uses)
