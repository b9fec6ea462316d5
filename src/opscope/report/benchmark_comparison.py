"""A BenchmarkComparison as a Document: per problem, each implementation on both sides, and what changed.

Rows are ranked by how far the ratio is from 1; what has no counterpart is listed. Imports no renderer.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log

from opscope.model.benchmark import Status, Verdict
from opscope.model.comparison import (
    BenchmarkComparison,
    BenchmarkPoint,
    BenchmarkRowChange,
    PointChange,
    Presence,
)
from opscope.report.benchmark_cells import UNKNOWN, count_cell, times
from opscope.report.comparison_cells import difference_text, measured_text, ratio_cell
from opscope.report.document import (
    Block,
    BulletList,
    Code,
    Column,
    Document,
    FactList,
    FindingList,
    Inline,
    Section,
    Strong,
    Table,
    Text,
    numeric,
)

__all__ = ["benchmark_comparison_document"]


def benchmark_comparison_document(comparison: BenchmarkComparison, *, top: int | None = 20) -> Document:
    """The report; `top` rows of each problem (every one for None)."""
    sections = [
        Section("Before reading on", (FindingList(comparison.findings),)) if comparison.findings else None,
        *(_point_section(change, comparison, top) for change in comparison.points),
        _unmatched(comparison),
    ]
    shown = tuple(section for section in sections if section is not None)
    return Document("Comparison of benchmarks", (_facts(comparison),), shown)


def _facts(comparison: BenchmarkComparison) -> FactList:
    environments = (comparison.reference_environment, comparison.candidate_environment)
    told = [_environment(environment) for environment in environments]
    measured = [("Measured on", told[0])] if told[0] == told[1] else [
        ("Reference on", told[0]), ("Candidate on", told[1])
    ]  # fmt: skip
    verdict: Text = f"none: {comparison.verdict_reason}"
    if comparison.verdict is not None:
        verdict = (Strong(str(comparison.verdict)), f": {comparison.verdict_reason}")
    facts: list[tuple[str, Text]] = [
        ("Reference", Code(comparison.reference_source)),
        ("Candidate", Code(comparison.candidate_source)),
        *measured,
        ("Verdict", verdict),
    ]
    return FactList(tuple(facts))


def _environment(environment: Mapping[str, str]) -> str:
    return ", ".join(f"{label} {value}" for label, value in environment.items()) or "unknown"


def _point_title(point: BenchmarkPoint) -> str:
    shape = "" if point.shape is None else " " + " × ".join(map(str, point.shape))
    named = [f"{name}={value}" for name, value in point.parameters if name != "dtype"]
    dtype = [point.dtype] if point.dtype else []
    return ", ".join([f"{point.suite}{shape}", *dtype, point.device_kind, *named])


def _point_section(change: PointChange, comparison: BenchmarkComparison, top: int | None) -> Section:
    rows = sorted(change.rows, key=_rank)[:top]
    blocks: list[Block] = [_table(rows)]
    left = len(change.rows) - len(rows)
    points = [point for row in rows for point in _row_points(row, comparison)]
    points += [f"{left} more rows changed less."] if left else []
    if points:
        blocks.append(BulletList(tuple(points)))
    return Section(_point_title(change.point), tuple(blocks))


def _rank(row: BenchmarkRowChange) -> tuple[float, str]:
    if row.time.ratio is None or not row.time.ratio:
        return (-inf if row.presence is not Presence.BOTH or row.is_broken else inf), row.name
    return -abs(log(row.time.ratio)), row.name


def _table(rows: list[BenchmarkRowChange]) -> Table:
    titles = ("Reference", "Candidate", "Difference", "Ratio", "Kernels")
    cells = tuple(
        (
            Code(row.name),
            _side(row, row.time.reference_ns, row.time.reference_interval_ns, row.reference_status),
            _side(row, row.time.candidate_ns, row.time.candidate_interval_ns, row.candidate_status),
            UNKNOWN if row.time.ratio is None else difference_text(row.time.difference_ns),
            ratio_cell(row.time, row.presence),
            _kernels(row),
        )
        for row in rows
    )
    return Table((Column("Implementation"), *map(numeric, titles)), cells)


def _side(
    row: BenchmarkRowChange,
    time_ns: float | None,
    interval_ns: tuple[float, float] | None,
    status: Status | None,
) -> Text:
    if time_ns is not None:
        return measured_text(time_ns, interval_ns)
    if status is None or status is Status.OK:
        return UNKNOWN
    words = str(status).replace("_", " ")
    return Strong(words) if row.is_broken else words


def _kernels(row: BenchmarkRowChange) -> str:
    before, after = row.reference_launches, row.candidate_launches
    text = count_cell(after)
    return text if before == after else f"{count_cell(before)} → {text}"


def _row_points(row: BenchmarkRowChange, comparison: BenchmarkComparison) -> list[Text]:
    """What the table has no room for: why there is no verdict, other statuses, other kernels."""
    name = Code(row.name)
    points: list[Text] = []
    if row.time.verdict in {Verdict.FASTER, Verdict.SLOWER, Verdict.AMBIGUOUS}:
        points.append((name, f": {row.time.reason}{_relative(row, comparison)}"))
    if row.status_note:
        points.append((name, f": {row.status_note}"))
    for words, titles in (("also launches", row.kernels_added), ("no longer launches", row.kernels_removed)):
        if titles:
            listed: list[Inline] = [part for title in titles for part in (Code(title), ", ")]
            points.append((name, f" {words} ", *listed[:-1]))
    return points


def _relative(row: BenchmarkRowChange, comparison: BenchmarkComparison) -> str:
    """Its time over the reference implementation's, where the machines differ: the machine cancels in it."""
    is_elsewhere = any(finding.code == "compare.environment_differs" for finding in comparison.findings)
    before, after = row.reference_relative, row.candidate_relative
    if not is_elsewhere or before is None or after is None:
        return ""
    return f"; beside the reference implementation of its own run {times(before)} → {times(after)}"


def _unmatched(comparison: BenchmarkComparison) -> Section | None:
    points = [
        f"{_point_title(point)}: only in the {side}"
        for side, listed in (
            ("reference", comparison.only_in_reference),
            ("candidate", comparison.only_in_candidate),
        )
        for point in listed
    ]
    return Section("Without a counterpart", (BulletList(tuple(points)),)) if points else None
