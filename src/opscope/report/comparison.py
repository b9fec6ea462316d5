"""A SessionComparison as a Document: what got slower or faster, by how much, and because of which kernels.

Ranked by difference; what is cut is counted with its time. Imports no renderer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import inf, log
from typing import Any

from opscope.analysis.comparison_rules import no_verdict
from opscope.model import comparison as model
from opscope.model.benchmark import Interval, Status, Verdict, reciprocal
from opscope.model.finding import Finding
from opscope.model.schema import Attribution
from opscope.report import document as doc
from opscope.report.benchmark import median_text, problem_title, ratio_text
from opscope.report.json_encoding import Keys, encode, parsed, versions
from opscope.units import UNKNOWN, counted, format_duration, format_mean_count

_LARGEST = 3
_KERNELS_EACH = 4


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
    return median_text(time_ns, interval_ns, is_exact=interval_ns is not None)


def ratio_words(time: model.TimeChange) -> str:
    """`1.12× slower`, `same 1.003×`; the bare ratio where there is no interval to judge it by."""
    if not time.ratio:
        return UNKNOWN
    is_judged = time.ratio_interval is not None or time.verdict is Verdict.SAME
    return ratio_text(time.ratio, time.verdict if is_judged else None)


def ratio_cell(time: model.TimeChange, presence: model.Presence) -> doc.Text:
    """The ratio with its verdict; the presence of what only one side has."""
    if presence in {model.Presence.ADDED, model.Presence.REMOVED}:
        return str(presence)
    words = ratio_words(time)
    return doc.Strong(words) if time.verdict in {Verdict.FASTER, Verdict.SLOWER} else words


def change_table(title: str, rows: Iterable[Sequence[doc.Text]], *more: doc.Column) -> doc.Table:
    """The one table of changes: a thing's name, its time on both sides, what differs and more."""
    sides = map(doc.numeric, ("Reference", "Candidate", "Difference"))
    columns = (doc.Column(title), *sides, doc.numeric("Ratio", spare=1), *more)
    return doc.Table(columns, tuple(map(tuple, rows)))


def change_row(
    name: doc.Text, time: model.TimeChange, presence: model.Presence, *more: doc.Text
) -> tuple[doc.Text, ...]:
    return (
        name,
        measured_text(time.reference_ns, time.reference_interval_ns),
        measured_text(time.candidate_ns, time.candidate_interval_ns),
        difference_text(time.difference_ns),
        ratio_cell(time, presence),
        *more,
    )


def count_text(reference: Fraction | None, candidate: Fraction | None) -> str:
    """`36`, or `36 → 48` where the sides differ; `–` for none."""

    def said(count: Fraction | None) -> str:
        if count is None:
            return UNKNOWN
        return f"{count.numerator:,}" if count.denominator == 1 else f"{float(count):,.1f}"

    return said(reference) if reference == candidate else f"{said(reference)} → {said(candidate)}"


def comparison_document(
    comparison: model.SessionComparison | model.BenchmarkComparison, *, top: int | None = 20
) -> doc.Document:
    if isinstance(comparison, model.SessionComparison):
        changed = [row for row in comparison.operators if row.time.difference_ns]
        # Whose kernels say more than their own names.
        told = [
            row
            for row in changed
            if any({one.reference_name, one.candidate_name} - {row.name, None} for one in row.kernels)
            or len(_changed_variants(row)) > 1
        ]
        limit = None if top is None else min(top, 6)
        reasons = tuple(doc.Section(row.name, _reason_blocks(comparison, row, top)) for row in told[:limit])
        return doc.Document(
            "Comparison of two recordings",
            (_opening(comparison, changed),),
            doc.sections(
                doc.Section("Caveats", (doc.FindingList(comparison.findings),)),
                doc.Section("Overview", _overview(comparison)),
                doc.Section("Operators by difference", _operator_blocks(comparison, changed, top)),
                doc.Section("Which kernels", (), reasons),
                _unattributed(comparison),
            ),
        )
    sides = {"reference": comparison.only_in_reference, "candidate": comparison.only_in_candidate}
    only = tuple(
        f"{point_title(point)}: only in the {side}" for side, points in sides.items() for point in points
    )
    return doc.Document(
        "Comparison of benchmarks",
        (_benchmark_facts(comparison),),
        doc.sections(
            doc.Section("Caveats", (doc.FindingList(comparison.findings),)),
            *(_point_section(change, comparison, top) for change in comparison.points),
            doc.Section("Only on one side", (doc.BulletList(only),)),
        ),
    )


def _opening(comparison: model.SessionComparison, changed: Sequence[model.OperatorChange]) -> doc.FactList:
    what = "device time" if comparison.metric is model.Metric.DEVICE else "CPU time in operators"
    step, missing = comparison.unrecorded, no_verdict(comparison)
    judged = f"no verdict: {missing}" if missing else _judged(comparison.total)
    verdict, colon, reason = judged.partition(":")
    of = "" if verdict == "no verdict" else f" {what},"  # the recorded step may say the opposite
    largest: list[tuple[str, doc.Text]] = []
    for rank, row in enumerate(changed[:_LARGEST], 1):
        ratio = doc.plain(ratio_cell(row.time, row.presence))
        difference = doc.Strong(difference_text(row.time.difference_ns))
        largest.append((f"Difference {rank}", (difference, " ", doc.Code(row.name), f" ({ratio})")))
    sources: list[doc.Text] = []
    basis = []
    for side in (comparison.reference, comparison.candidate):
        more = f" and {len(side.sources) - 1} more" if len(side.sources) > 1 else ""
        sources.append((doc.Code(side.sources[0]), more) if side.sources else "no trace")
        known = [counted(side.steps, "step") if side.steps else "no steps compared"]
        known += [f"{side.ranks} traces"] if side.ranks > 1 else []
        basis.append(", ".join([*known, *(f"{label} {value}" for label, value in side.environment.items())]))
    return doc.facts(
        ("Verdict", (doc.Strong(verdict), f"{colon}{of}{reason}")),
        ("Step without the profiler", None if step is None else (_headline(step), f"; {_judged(step)}")),
        ("Recorded step", None if comparison.wall is None or step else _headline(comparison.wall)),
        (f"{what[0].upper()}{what[1:]}{_per_step(comparison)}", _headline(comparison.total)),
        *largest,
        ("Reference", sources[0]),
        ("Candidate", sources[1]),
        ("Based on", basis[0] if basis[0] == basis[1] else " → ".join(basis)),
    )


def _per_step(comparison: model.SessionComparison) -> str:
    return " per step" if comparison.basis is model.Basis.STEP else ""


def _judged(time: model.TimeChange) -> str:
    is_open = time.ratio_interval is None and time.reason and "equal" not in time.reason
    return f"{'no verdict' if time.verdict is None or is_open else time.verdict}: {time.reason}"


def _headline(time: model.TimeChange) -> str:
    interval = ""
    if time.ratio_interval is not None:
        # Said the other way round, its ends change places.
        is_turned = time.verdict is Verdict.FASTER
        low, high = reciprocal(time.ratio_interval) if is_turned else time.ratio_interval
        interval = f" [{low:.3f}, {high:.3f}]"
    return (
        f"{format_duration(time.reference_ns)} → {format_duration(time.candidate_ns)} "
        f"({difference_text(time.difference_ns)}, {ratio_words(time)}{interval})"
    )


def _overview(comparison: model.SessionComparison) -> tuple[doc.Block, ...]:
    wall = None if comparison.wall is None or comparison.unrecorded is None else _headline(comparison.wall)
    if comparison.metric is not model.Metric.DEVICE:
        return (doc.facts(("Recorded step", wall)),)
    before, after = (side.per_step(side.launches) for side in (comparison.reference, comparison.candidate))
    launches = count_text(before, after)
    if more := after - before:
        launches += f" ({'+' if more > 0 else '−'}{count_text(abs(more), abs(more))})"
    kernels = [kernel for kernel in comparison.kernels if kernel.kind == "kernel"]
    old = {one.reference_name for one in kernels} - {None}
    new = {one.candidate_name for one in kernels} - {None}
    shared = f"the same {len(old)}"
    if old != new:
        shared = (
            f"{len(old & new)} in both, {len(old - new)} only in the reference, "
            f"{len(new - old)} only in the candidate"
        )
    counts = (f"Kernel launches{_per_step(comparison)}", launches)
    return (doc.facts(counts, ("Kernel set", shared), ("Recorded step", wall)),)


def _operator_blocks(
    comparison: model.SessionComparison, changed: Sequence[model.OperatorChange], top: int | None
) -> tuple[doc.Block, ...]:
    rows = [
        row
        for row in comparison.operators
        if row.time.difference_ns or row.presence is not model.Presence.BOTH
    ]
    if not rows:
        return (doc.Paragraph("Every operator takes the same time to the nanosecond on both sides."),)
    if top is not None:
        rows = [row for row in rows if row.time.difference_ns or row.time.reference_ns]
    shown = rows[:top]
    what = "launches" if comparison.metric is model.Metric.DEVICE else "calls"
    cells = (
        change_row(doc.Code(row.name), row.time, row.presence, _uses(comparison, row, what=what))
        for row in shown
    )
    # What the table leaves out, and which operators only one side has.
    rest = [row for row in comparison.operators if row not in shown]
    differ, parts = [row.time.difference_ns for row in rest if row.time.difference_ns], []
    if differ:
        parts.append(f"Further {counted(len(differ), 'operator')}: {difference_text(sum(differ))} in all.")
    if len(rest) > len(differ):
        parts.append(f"Without a difference in time: {counted(len(rest) - len(differ), 'operator')}.")
    for presence, side in ((model.Presence.REMOVED, "reference"), (model.Presence.ADDED, "candidate")):
        if count := sum(row.presence is presence for row in comparison.operators):
            parts.append(f"Only in the {side}: {counted(count, 'operator')}.")
    operators = change_table("Operator", cells, doc.numeric(what.capitalize(), spare=2))
    return operators, doc.Paragraph(" ".join(parts))


def _uses(
    comparison: model.SessionComparison,
    row: model.OperatorChange | model.VariantChange | model.KernelChange | model.UnattributedChange,
    *,
    what: str,
) -> str:
    sides = ((comparison.reference, row.reference), (comparison.candidate, row.candidate))
    return count_text(*(None if use is None else side.per_step(getattr(use, what)) for side, use in sides))


def _changed_variants(row: model.OperatorChange) -> list[model.VariantChange]:
    """The ways a common operator was called that changed, if it was called in several known ways."""
    if row.presence is not model.Presence.BOTH or len(row.variants) < 2:
        return []
    return [variant for variant in row.variants if variant.time.difference_ns and variant.input_shapes]


def _reason_blocks(
    comparison: model.SessionComparison, row: model.OperatorChange, top: int | None
) -> tuple[doc.Block, ...]:
    changed = kernels = [kernel for kernel in row.kernels if kernel.time.difference_ns]
    variants = _changed_variants(row)
    if top is not None:
        # Kernels of an operator that hold less of its change are summed up.
        least_ns = 0.02 * abs(row.time.difference_ns)
        kernels = [one for one in changed if abs(one.time.difference_ns) >= least_ns][:_KERNELS_EACH]
        variants = variants[:2]
    points: list[doc.Text] = [
        (doc.Code(kernel.candidate_title or ""), f": {kernel.change}") for kernel in kernels if kernel.change
    ]
    if rest := [kernel.time.difference_ns for kernel in changed if kernel not in kernels]:
        points.append(f"{len(rest)} more kernels: {difference_text(sum(rest))}")
    for variant in variants:
        difference = difference_text(variant.time.difference_ns)
        shapes, calls = doc.Code(variant.input_shapes or ""), _uses(comparison, variant, what="calls")
        points.append((f"{difference} with inputs ", shapes, f", {calls} calls"))
    return doc.blocks(_kernel_table(comparison, kernels), doc.BulletList(tuple(points)))


def _kernel_table(comparison: model.SessionComparison, kernels: Iterable[model.KernelChange]) -> doc.Table:
    """One row per kernel; two for one that was replaced, old above new."""
    rows: list[tuple[doc.Text, ...]] = []
    for kernel in kernels:
        old, new = doc.Code(kernel.reference_title or ""), doc.Code(kernel.candidate_title or "")
        is_replaced = kernel.presence is model.Presence.REPLACED
        name: doc.Text = ("→ ", new) if is_replaced else new if new.text else old
        cells = change_row(name, kernel.time, kernel.presence, _uses(comparison, kernel, what="calls"))
        if is_replaced:
            rows.append((old, cells[1], "", "", "replaced", ""))
            cells = (cells[0], "", *cells[2:])
        rows.append(cells)
    return change_table("Kernel", rows, doc.numeric("Launches"))


def _unattributed(comparison: model.SessionComparison) -> doc.Section:
    rows = [row for row in comparison.unattributed if row.time.reference_ns or row.time.candidate_ns]
    cells = (
        change_row(
            doc.Code(row.reason),
            row.time,
            row.presence,
            _uses(comparison, row, what="launches"),
            Attribution(row.reason).meaning,
        )
        for row in rows
    )
    kernels = [kernel for row in rows for kernel in row.kernels if kernel.time.difference_ns]
    kernels.sort(key=lambda kernel: -abs(kernel.time.difference_ns))
    reasons = change_table("Reason", cells, doc.numeric("Launches"), doc.Column("Meaning"))
    return doc.Section(
        "Unattributed time", doc.blocks(reasons, _kernel_table(comparison, kernels[:_KERNELS_EACH]))
    )


def _benchmark_facts(comparison: model.BenchmarkComparison) -> doc.FactList:
    reference, candidate = (
        ", ".join(f"{label} {value}" for label, value in one.items()) or "unknown"
        for one in (comparison.reference_environment, comparison.candidate_environment)
    )
    apart = [("Reference on", reference), ("Candidate on", candidate)]
    measured = [("Measured on", reference)] if reference == candidate else apart
    # The rows whose time changed most.
    rows = [
        (point, row)
        for point, row in comparison.rows
        if row.time.ratio and row.time.verdict in (Verdict.FASTER, Verdict.SLOWER)
    ]
    largest: list[tuple[str, doc.Text]] = []
    for rank, (point, row) in enumerate(sorted(rows, key=lambda pair: _rank(pair[1]))[:_LARGEST], 1):
        times = f"{format_duration(row.time.reference_ns)} → {format_duration(row.time.candidate_ns)}"
        ratio = doc.Strong(doc.plain(ratio_cell(row.time, row.presence)))
        name = doc.Code(f"{point.suite}, {row.name}")
        largest.append((f"Difference {rank}", (ratio, ": ", name, f", {times}")))
    verdict = doc.Strong("no verdict" if comparison.verdict is None else str(comparison.verdict))
    return doc.facts(
        ("Verdict", (verdict, f": {comparison.verdict_reason}")),
        *largest,
        ("Reference", doc.Code(comparison.reference_source)),
        ("Candidate", doc.Code(comparison.candidate_source)),
        *measured,
    )


def point_title(point: model.BenchmarkPoint) -> str:
    parameters = dict(point.parameters)
    return problem_title(point.suite, point.shape, point.dtype, point.device_kind, parameters=parameters)


def _point_section(
    change: model.PointChange, comparison: model.BenchmarkComparison, top: int | None
) -> doc.Section:
    rows = sorted(change.rows, key=_rank)[:top]
    points = [point for row in rows for point in _row_points(row)]
    if left := len(change.rows) - len(rows):
        points.append(f"{left} more rows changed less.")
    cells = []
    for row in rows:  # a side without a time says why there is none
        counts = dict.fromkeys(map(format_mean_count, (row.reference_launches, row.candidate_launches)))
        name, *sides, difference, ratio = change_row(doc.Code(row.name), row.time, row.presence)
        for index, status in enumerate((row.reference_status, row.candidate_status)):
            if sides[index] == UNKNOWN and status not in (None, Status.OK):
                words = str(status).replace("_", " ")
                sides[index] = doc.Strong(words) if row.is_broken else words
        difference = UNKNOWN if row.time.ratio is None else difference
        cells.append((name, *sides, difference, ratio, " → ".join(counts)))
    shown = change_table("Implementation", cells, doc.numeric("Kernels"))
    return doc.Section(point_title(change.point), doc.blocks(shown, doc.BulletList(tuple(points))))


def _rank(row: model.BenchmarkRowChange) -> tuple[float, str]:
    if not row.time.ratio:
        return (-inf if row.presence is not model.Presence.BOTH or row.is_broken else inf), row.name
    return -abs(log(row.time.ratio)), row.name


def _row_points(row: model.BenchmarkRowChange) -> Iterator[doc.Text]:
    """What the table has no room for: why there is no verdict, other statuses, other kernels."""
    name = doc.Code(row.name)
    if row.time.verdict in {Verdict.FASTER, Verdict.SLOWER, Verdict.AMBIGUOUS}:
        yield (name, f": {row.time.reason}")
    if row.status_note:
        yield (name, f": {row.status_note}")
    for change, titles in (("also launches", row.kernels_added), ("no longer launches", row.kernels_removed)):
        if titles:
            yield (name, f" {change} ", *doc.joined(map(doc.Code, titles)))


COMPARISON_SCHEMA_VERSION = 4


def comparison_json(
    comparison: model.BenchmarkComparison | model.SessionComparison,
    *,
    fail_on: str | None = None,
    failures: Sequence[str] = (),
    inconclusive: str | None = None,
) -> dict[str, Any]:
    gate = {"fail_on": fail_on, "failures": failures, "inconclusive": inconclusive}
    return {
        **versions(COMPARISON_SCHEMA_VERSION),
        "kind": "session" if isinstance(comparison, model.SessionComparison) else "benchmark",
        **encode(comparison, _KEYS),
        **encode({"options": comparison.options, "gate": gate}),
        "findings": encode(comparison.findings, _KEYS),
    }


def _side_record(comparison: model.SessionComparison, name: str) -> dict[str, Any]:
    keys = Keys(
        "sources environment steps ranks_per_step has_device whole_ns outside_steps_ns "
        "outside_steps_launches accounted_ns kernel_launches=launches",
        accounted_ns=lambda _: comparison.accounted_ns(name),
    )
    return keys.record(getattr(comparison, name), _KEYS)


_KEYS: dict[type, Keys] = {
    model.BenchmarkComparison: Keys(
        "reference candidate verdict verdict_reason counts points only_in_reference only_in_candidate",
        reference=lambda it: {"source": it.reference_source, "environment": it.reference_environment},
        candidate=lambda it: {"source": it.candidate_source, "environment": it.candidate_environment},
    ),
    model.BenchmarkPoint: Keys(parameters=lambda point: dict(point.parameters)),
    model.BenchmarkRowChange: Keys(
        "name presence reference_status candidate_status status_note *time "
        "reference_kernels_launched=reference_launches candidate_kernels_launched=candidate_launches ..."
    ),
    Finding: Keys("... -trace_id"),
    model.KernelChange: Keys("kind presence ... -operator change reference candidate *time"),
    model.OperatorChange: Keys("name category ... *time variants kernels"),
    model.PointChange: Keys(
        "*point reference_clock candidate_clock rows",
        reference_clock=lambda change: change.clocks[0],
        candidate_clock=lambda change: change.clocks[1],
    ),
    model.SessionComparison: Keys(
        "reference candidate metric basis verdict verdict_reason=total.reason total wall_time=wall "
        "unrecorded_step=unrecorded operators unattributed",
        reference=lambda comparison: _side_record(comparison, "reference"),
        candidate=lambda comparison: _side_record(comparison, "candidate"),
    ),
    model.TimeChange: Keys("reference_ns candidate_ns difference_ns ... verdict verdict_reason=reason"),
    model.UnattributedChange: Keys("reason ... *time kernels"),
    model.Use: Keys("calls kernel_launches=launches ..."),
    model.VariantChange: Keys("overload input_shapes ... *time", input_shapes=parsed("input_shapes")),
}
