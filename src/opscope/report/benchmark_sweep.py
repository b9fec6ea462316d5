"""A sweep as a Document: medians and ratios over its points, and how times grow with each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from opscope.analysis.benchmark_scaling import growth_exponent
from opscope.benchmarking.plan import BenchmarkSweep
from opscope.model.benchmark import BenchmarkResult, BenchmarkRow, Status, Verdict
from opscope.model.finding import Finding
from opscope.report.benchmark_cells import UNKNOWN, median_cell, times, verdict_cell
from opscope.report.benchmark_report import (
    benchmark_sections,
    benchmark_title,
    condition_facts,
    further_findings,
    not_measured,
    samples_facts,
)
from opscope.report.document import (
    Block,
    BulletList,
    Code,
    Column,
    Document,
    FactList,
    FindingList,
    Section,
    Strong,
    Table,
    Text,
    numeric,
    plain,
)

__all__ = ["sweep_benchmark_document"]

# Conditions that hold for every point; the others are each point's own.
_COMMON_FACTS = ("Device", "Clock", "Reference", "Check")


def sweep_benchmark_document(sweep: BenchmarkSweep, *, extra: Sequence[Sequence[Section]] = ()) -> Document:
    """The report on a sweep.

    Args:
        sweep: What was measured.
        extra: Further sections of each point: kernels, generated code.
    """
    sections: list[Section] = []
    for name in dict.fromkeys(point.suite for point in sweep.points):
        points = [point for point in sweep.points if point.suite == name]
        sections += _suite_sections(sweep, points)
    for point, further in zip(sweep.points, extra, strict=False):
        sections += [replace(each, title=f"{each.title}: {point_label(sweep, point)}") for each in further]
    if sweep.failures:
        sections.append(Section("Points without a result", (BulletList(sweep.failures),)))
    return Document(sweep.suite, (FactList(_facts(sweep)),), tuple(sections))


def point_label(sweep: BenchmarkSweep, point: BenchmarkResult) -> str:
    """`n=1024`: the swept parameters of a point; its suite where nothing was swept."""
    values = [f"{name}={point.parameters[name]}" for name in sweep.parameters if name in point.parameters]
    return ", ".join(values) or point.suite


def _facts(sweep: BenchmarkSweep) -> tuple[tuple[str, Text], ...]:
    swept = [f"{name}: {', '.join(map(str, values))}" for name, values in sweep.parameters.items()]
    facts: list[tuple[str, Text]] = [("Swept", "; ".join(swept))] if swept else []
    if sweep.points:
        facts += [fact for fact in condition_facts(sweep.points[0]) if fact[0] in _COMMON_FACTS]
        facts += samples_facts(sweep.points)
    if not sweep.complete:
        facts.append(("Complete", Strong("no: interrupted; what was finished is shown")))
    return tuple(facts)


def _suite_sections(sweep: BenchmarkSweep, points: Sequence[BenchmarkResult]) -> Iterator[Section]:
    if len(points) == 1:
        first, *others = benchmark_sections(points[0])
        assert first is not None
        yield replace(first, title=benchmark_title(points[0]))
        yield from (section for section in others if section is not None)
        return
    swept = [name for name in sweep.parameters if name in points[0].parameters]
    yield Section(f"Scaling of {points[0].suite}", tuple(_tables(points, swept)))
    reasons = _reasons(sweep, points)
    if reasons:
        yield Section("Not measured", (BulletList(reasons),))
    findings = _findings(sweep, points)
    if findings:
        yield Section("Findings", (FindingList(findings),))


def _tables(points: Sequence[BenchmarkResult], swept: Sequence[str]) -> Iterator[Block]:
    names = [name for name in _names(points) if any(_row(point, name).median_ns for point in points)]
    yield _table(points, swept, names, lambda point, row: median_cell(row), caption="Median")
    others = [name for name in names if any(name != point.reference for point in points)]
    if others:
        caption: Text = (
            "Time over that of ",
            Code(points[0].reference),
            " (≈ the same, ? ambiguous)",
        )
        yield _table(points, swept, others, _ratio_cell, caption=caption)
    growth = _growth_table(points, swept, names)
    if growth is not None:
        yield growth


def _table(
    points: Sequence[BenchmarkResult],
    swept: Sequence[str],
    names: Sequence[str],
    cell: Callable[[BenchmarkResult, BenchmarkRow], Text],
    *,
    caption: Text,
) -> Table:
    columns = (*map(numeric, swept), *map(numeric, names))
    rows: list[tuple[Text, ...]] = []
    for point in points:
        cells: list[Text] = [str(point.parameters.get(name, UNKNOWN)) for name in swept]
        cells += [cell(point, _row(point, name)) for name in names]
        rows.append(tuple(cells))
    return Table(columns, tuple(rows), caption)


def _ratio_cell(point: BenchmarkResult, row: BenchmarkRow) -> Text:
    if row.ratio is None:
        return plain(verdict_cell(row, point.reference)) if row.status is not Status.OK else UNKNOWN
    if row.verdict is Verdict.SAME:
        return f"≈ {row.ratio:.2f}×"
    if row.verdict is Verdict.AMBIGUOUS:
        return f"? {row.ratio:.2f}×"
    return times(row.ratio)


def _growth_table(
    points: Sequence[BenchmarkResult], swept: Sequence[str], names: Sequence[str]
) -> Table | None:
    exponents = {name: [growth_exponent(points, name, parameter) for parameter in swept] for name in names}
    told = [
        index
        for index in range(len(swept))
        if any(values[index] is not None for values in exponents.values())
    ]
    if not told:
        return None
    columns = (Column("Time grows as"), *(numeric(swept[index]) for index in told))
    rows: list[tuple[Text, ...]] = []
    for name, values in exponents.items():
        powers: list[Text] = [_power(swept[index], values[index]) for index in told]
        rows.append((Code(name), *powers))
    return Table(columns, tuple(rows))


def _power(parameter: str, exponent: float | None) -> str:
    return UNKNOWN if exponent is None else f"{parameter}^{exponent:.2f}"


def _names(points: Sequence[BenchmarkResult]) -> list[str]:
    return list(dict.fromkeys(row.name for point in points for row in point.rows))


def _row(point: BenchmarkResult, name: str) -> BenchmarkRow:
    absent = BenchmarkRow(name=name, status=Status.UNAVAILABLE)
    return next((row for row in point.rows if row.name == name), absent)


def _reasons(sweep: BenchmarkSweep, points: Sequence[BenchmarkResult]) -> tuple[Text, ...]:
    """What was not measured and why; what holds for every point is said once."""
    at: dict[str, tuple[Text, list[str]]] = {}
    for point in points:
        for text in not_measured(point):
            at.setdefault(plain(text), (text, []))[1].append(point_label(sweep, point))
    return tuple(_at_points(text, labels, len(points)) for text, labels in at.values())


def _at_points(text: Text, labels: Sequence[str], count: int) -> Text:
    if len(labels) == count:
        return text
    parts: tuple[Any, ...] = text if isinstance(text, tuple) else (text,)
    return (f"{'; '.join(labels)}: ", *parts)


def _findings(sweep: BenchmarkSweep, points: Sequence[BenchmarkResult]) -> tuple[Finding, ...]:
    """Each kind of finding once for each implementation, where it came first, and where it came again."""
    found: dict[tuple[str, str | None], tuple[Finding, list[str]]] = {}
    for point in points:
        for finding in further_findings(point):
            key = (finding.code, finding.evidence.get("implementation"))
            found.setdefault(key, (finding, []))[1].append(point_label(sweep, point))
    return tuple(_at_labels(finding, labels) for finding, labels in found.values())


def _at_labels(finding: Finding, labels: Sequence[str]) -> Finding:
    again = f" Likewise at {'; '.join(labels[1:])}." if len(labels) > 1 else ""
    return replace(finding, message=f"{labels[0]}: {finding.message}{again}")
