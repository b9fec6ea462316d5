"""A SessionComparison as a Document: what got slower or faster, by how much, and because of which kernels.

Ranked by difference; what is cut is counted with its time. Imports no renderer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from math import inf, log
from typing import Any

from opscope.analysis.comparison_rules import no_verdict
from opscope.model.benchmark import BenchmarkRow, Interval, Status, Verdict
from opscope.model.comparison import (
    Basis,
    BenchmarkComparison,
    BenchmarkPoint,
    BenchmarkRowChange,
    CategoryChange,
    FailOn,
    KernelChange,
    Metric,
    OperatorChange,
    PointChange,
    Presence,
    SessionComparison,
    SessionSide,
    TimeChange,
    UnattributedChange,
    Use,
    VariantChange,
)
from opscope.model.finding import Finding
from opscope.model.schema import Attribution
from opscope.provenance.categories import category_title
from opscope.report.benchmark import interval_beside, median_cell, problem_title, ratio_text
from opscope.report.document import (
    Block,
    BulletList,
    Code,
    Column,
    Document,
    FactList,
    FindingList,
    Meaning,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    facts,
    identifier,
    joined,
    number,
    numeric,
    plain,
    sections,
    table,
    words,
)
from opscope.report.json_encoding import Keys, encode, parsed, versions
from opscope.units import UNKNOWN, counted, format_duration, format_fraction, format_mean_count, format_ratio


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


def _interval_text(time: TimeChange) -> str:
    """` [0.98, 1.02]` of the ratio that `ratio_words` shows; empty without an interval."""
    if time.ratio_interval is None:
        return ""
    low, high = interval_beside(time.ratio_interval, time.verdict)
    return f" [{low:.3f}, {high:.3f}]"


def count_text(reference: Fraction | None, candidate: Fraction | None) -> str:
    """`36`, or `36 → 48` where the sides differ; `–` for none."""
    if reference == candidate:
        return _count(reference)
    return f"{_count(reference)} → {_count(candidate)}"


def _count(count: Fraction | None) -> str:
    if count is None:
        return UNKNOWN
    return f"{count.numerator:,}" if count.denominator == 1 else f"{float(count):,.1f}"


_Used = OperatorChange | VariantChange | KernelChange | UnattributedChange

_LARGEST = 3
_EXPLAINED_OPERATORS = 6
_KERNELS_EACH = 4
_VARIANTS_EACH = 2
# Kernels of an operator that hold less of its change are summed up.
_RELEVANT_FRACTION = 0.02


def session_comparison_document(comparison: SessionComparison, *, top: int | None = 20) -> Document:
    """The report; of its `top` operators (every one for None)."""
    return Document(
        "Comparison of two recordings",
        (_facts(comparison),),
        sections(
            Section("Caveats", (FindingList(comparison.findings),)),
            Section("Overview", (_overview(comparison), *_overview_meaning(comparison))),
            Section("Operators by difference", _operator_blocks(comparison, top)),
            Section("Which kernels", _kernels_meaning(comparison), _reasons(comparison, top)),
            _categories(comparison),
            _unattributed(comparison),
            Section("Accounting", _accounting(comparison)),
        ),
    )


def _facts(comparison: SessionComparison) -> FactList:
    per = " per step" if comparison.basis is Basis.STEP else ""
    is_device = comparison.metric is Metric.DEVICE
    what = "Device time" if is_device else "CPU time in operators"
    step = comparison.unrecorded
    recorded = None if comparison.wall is None or step is not None else _headline(comparison.wall)
    return facts(
        ("Verdict", _verdict(comparison)),
        ("Step without the profiler", None if step is None else (_headline(step), f"; {_judged(step)}")),
        ("Recorded step", recorded),
        (f"{what}{per}", _headline(comparison.total)),
        *_largest_operators(comparison),
        ("Reference", _source(comparison.reference)),
        ("Candidate", _source(comparison.candidate)),
        ("Based on", _recorded(comparison)),
    )


def _largest_operators(comparison: SessionComparison) -> Iterator[tuple[str, Text]]:
    """The operators whose time changed most."""
    changed = [row for row in comparison.operators if row.time.difference_ns]
    for rank, row in enumerate(changed[:_LARGEST], 1):
        ratio = ratio_cell(row.time, row.presence)
        yield (
            f"Difference {rank}",
            (Strong(difference_text(row.time.difference_ns)), " ", Code(row.name), f" ({plain(ratio)})"),
        )


def _overview(comparison: SessionComparison) -> FactList:
    per = " per step" if comparison.basis is Basis.STEP else ""
    is_device, wall = comparison.metric is Metric.DEVICE, comparison.wall
    return facts(
        (f"Kernel launches{per}", _all_launches(comparison) if is_device else None),
        ("Kernel set", _kernel_set(comparison) if is_device else None),
        ("Recorded step", None if wall is None or comparison.unrecorded is None else _headline(wall)),
    )


def _overview_meaning(comparison: SessionComparison) -> tuple[Meaning, ...]:
    """Whether it is other work, or the same work at another speed."""
    if comparison.metric is not Metric.DEVICE:
        return ()
    before, after = (side.per_step(side.launches) for side in (comparison.reference, comparison.candidate))
    kernels = [kernel for kernel in comparison.kernels if kernel.kind == "kernel"]
    is_same = {one.reference_name for one in kernels} == {one.candidate_name for one in kernels}
    if is_same and before == after and not comparison.total.difference_ns:
        text = "The same kernels, equally often, in the same time."
    elif is_same and before == after:
        text = "The same kernels, equally often: what differs is how long they take."
    elif is_same:
        text = "The same kernels, at other counts."
    else:
        text = "The sides run different kernels: the work itself differs."
    return (Meaning(text),)


def _kernels_meaning(comparison: SessionComparison) -> tuple[Meaning, ...]:
    """In how many of the operators that changed it is other kernels that run."""
    changed = [row for row in comparison.operators if row.time.difference_ns and _is_telling(row)]
    if not changed:
        return ()
    others = sum(any(one.presence is not Presence.BOTH for one in row.kernels) for row in changed)
    whole = counted(len(changed), "operator")
    if not others:
        return (Meaning(f"The same kernels run in all {whole} that changed: at other speeds or counts."),)
    return (Meaning(f"Other kernels run in {others} of {whole} that changed."),)


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
                counted(side.steps, "step") if side.steps else "no steps compared",
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
        f"({difference_text(time.difference_ns)}, {ratio_words(time)}{_interval_text(time)})"
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
    missing = no_verdict(comparison)
    words = f"no verdict: {missing}" if missing else _judged(comparison.total)
    verdict, colon, reason = words.partition(":")
    what = "device time" if comparison.metric is Metric.DEVICE else "CPU time in operators"
    of = "" if verdict == "no verdict" else f" {what},"  # the recorded step may say the opposite
    return (Strong(verdict), f"{colon}{of}{reason}")


def _judged(time: TimeChange) -> str:
    """The verdict and what it rests on."""
    if time.verdict is None:
        return f"no verdict: {time.reason}"
    if time.ratio_interval is None and time.reason and "equal" not in time.reason:
        return f"no verdict: {time.reason}"
    return f"{time.verdict}: {time.reason}"


def _operator_blocks(comparison: SessionComparison, top: int | None) -> tuple[Block, ...]:
    rows = comparison.operators
    changed = [row for row in rows if row.time.difference_ns or row.presence is not Presence.BOTH]
    if not changed:
        return (Paragraph("Every operator takes the same time to the nanosecond on both sides."),)
    if top is not None:
        changed = [row for row in changed if row.time.difference_ns or row.time.reference_ns]
    shown = changed[:top]
    return (_operator_table(comparison, shown), _rest(comparison, shown), _operators_meaning(comparison))


def _operators_meaning(comparison: SessionComparison) -> Meaning:
    """Which operators make the difference, for better and for worse."""
    changed = [row for row in comparison.operators if row.time.difference_ns]
    more_ns = sum(row.time.difference_ns for row in changed if row.time.difference_ns > 0)
    less_ns = sum(row.time.difference_ns for row in changed if row.time.difference_ns < 0)
    most = changed[0]
    return Meaning(
        (
            f"Operators take {difference_text(more_ns)} and {difference_text(less_ns)}, "
            f"{difference_text(more_ns + less_ns)} in all; ",
            Code(most.name),
            " changed most.",
        )
    )


def _operator_table(comparison: SessionComparison, rows: Sequence[OperatorChange]) -> Table:
    is_device = comparison.metric is Metric.DEVICE
    count = partial(_uses, comparison, what="launches" if is_device else "calls")
    return table(
        rows,
        identifier("Operator", "name"),
        *_TIME_FIELDS,
        number("Ratio", lambda row: ratio_cell(row.time, row.presence), spare=1),
        number("Launches" if is_device else "Calls", count, spare=2),
    )


def _uses(comparison: SessionComparison, row: _Used, *, what: str) -> str:
    """Calls or launches of both sides, per step where steps are compared."""
    return count_text(
        *(
            None if use is None else side.per_step(getattr(use, what))
            for side, use in ((comparison.reference, row.reference), (comparison.candidate, row.candidate))
        )
    )


_TIME_FIELDS = (
    number("Reference", "time.reference_ns"),
    number("Candidate", "time.candidate_ns"),
    number("Difference", lambda row: difference_text(row.time.difference_ns)),
)


def _rest(comparison: SessionComparison, shown: Sequence[OperatorChange]) -> Paragraph:
    """What the table leaves out, and which operators only one side has."""
    rest = [row for row in comparison.operators if row not in shown]
    parts = []
    changed = [row for row in rest if row.time.difference_ns]
    if changed:
        total_ns = sum(row.time.difference_ns for row in changed)
        parts.append(f"Further {counted(len(changed), 'operator')}: {difference_text(total_ns)} in all.")
    if len(rest) > len(changed):
        parts.append(f"Without a difference in time: {counted(len(rest) - len(changed), 'operator')}.")
    for presence, side in ((Presence.REMOVED, "reference"), (Presence.ADDED, "candidate")):
        count = sum(row.presence is presence for row in comparison.operators)
        if count:
            parts.append(f"Only in the {side}: {counted(count, 'operator')}.")
    return Paragraph(" ".join(parts))


def _reasons(comparison: SessionComparison, top: int | None) -> tuple[Section, ...]:
    """Per operator that changed, the kernels that made it so."""
    limit = None if top is None else min(top, _EXPLAINED_OPERATORS)
    explained = [row for row in comparison.operators if row.time.difference_ns and _is_telling(row)]
    return tuple(Section(row.name, _reason_blocks(comparison, row, top)) for row in explained[:limit])


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
    return f"{category_title(row.category)}, {_uses(comparison, row, what='calls')} calls: {times}"


def _shown_kernels(row: OperatorChange, top: int | None) -> list[KernelChange]:
    changed = [kernel for kernel in row.kernels if kernel.time.difference_ns]
    if top is None:
        return changed
    least_ns = _RELEVANT_FRACTION * abs(row.time.difference_ns)
    return [kernel for kernel in changed if abs(kernel.time.difference_ns) >= least_ns][:_KERNELS_EACH]


def kernel_change_table(comparison: SessionComparison, kernels: Iterable[KernelChange]) -> Table:
    """One row per kernel; two for one that was replaced, old above new."""
    titles = ("Reference", "Candidate", "Difference", "Ratio", "Launches")
    rows = (cells for kernel in kernels for cells in _kernel_rows(comparison, kernel))
    return Table((Column("Kernel"), *map(numeric, titles)), tuple(rows))


def _kernel_rows(comparison: SessionComparison, kernel: KernelChange) -> Iterator[tuple[Text, ...]]:
    times = format_duration(kernel.time.reference_ns), format_duration(kernel.time.candidate_ns)
    difference = difference_text(kernel.time.difference_ns)
    ratio, launches = ratio_cell(kernel.time, kernel.presence), _uses(comparison, kernel, what="calls")
    if kernel.presence is not Presence.REPLACED:
        title = kernel.candidate_title or kernel.reference_title or ""
        yield Code(title), *times, difference, ratio, launches
        return
    yield Code(kernel.reference_title or ""), times[0], "", "", "replaced", ""
    yield ("→ ", Code(kernel.candidate_title or "")), "", times[1], difference, ratio, launches


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
            f", {_uses(comparison, variant, what='calls')} calls",
        )
        for variant in _changed_variants(row)[: None if top is None else _VARIANTS_EACH]
    ]


def _categories(comparison: SessionComparison) -> Section | None:
    rows = [row for row in comparison.categories if row.difference_ns]
    changes = table(
        rows,
        words("Category", "category", category_title),
        number("Reference", "reference_ns"),
        number("Candidate", "candidate_ns"),
        number("Difference", "difference_ns", difference_text),
    )
    if not rows:
        return None
    most = max(rows, key=lambda row: abs(row.difference_ns))
    meaning = f"{category_title(most.category)} changed most: {difference_text(most.difference_ns)}."
    return Section("Categories", (changes, Meaning(meaning)))


def _unattributed(comparison: SessionComparison) -> Section | None:
    rows = [row for row in comparison.unattributed if row.time.reference_ns or row.time.candidate_ns]
    if not rows:
        return None
    blocks = [
        table(
            rows,
            identifier("Reason", "reason"),
            *_TIME_FIELDS,
            number("Launches", partial(_uses, comparison, what="launches")),
            words("Meaning", lambda row: Attribution(row.reason).meaning),
        )
    ]
    kernels = _largest(kernel for row in rows for kernel in row.kernels)
    if kernels:
        blocks.append(kernel_change_table(comparison, kernels))
    return Section("Unattributed time", tuple(blocks))


def _largest(kernels: Iterable[KernelChange]) -> list[KernelChange]:
    changed = [kernel for kernel in kernels if kernel.time.difference_ns]
    return sorted(changed, key=lambda kernel: -abs(kernel.time.difference_ns))[:_KERNELS_EACH]


def _accounting(comparison: SessionComparison) -> tuple[Block, ...]:
    sides = ("reference", "candidate")
    adds_up = all(comparison.accounted_ns(one) == getattr(comparison, one).whole_ns for one in sides)
    text = "Every nanosecond of both sides is in the figures above."
    if not adds_up:
        text = "Time is missing from the figures above, or counted twice: do not rely on them."
    return BulletList(tuple(_account(comparison, one) for one in sides)), Meaning(text)


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


def benchmark_comparison_document(comparison: BenchmarkComparison, *, top: int | None = 20) -> Document:
    """The report; `top` rows of each problem (every one for None)."""
    return Document(
        "Comparison of benchmarks",
        (_benchmark_facts(comparison),),
        sections(
            Section("Caveats", (FindingList(comparison.findings),)),
            *(_point_section(change, comparison, top) for change in comparison.points),
            Section("Only on one side", (_unmatched(comparison),)),
        ),
    )


def _benchmark_facts(comparison: BenchmarkComparison) -> FactList:
    environments = (comparison.reference_environment, comparison.candidate_environment)
    told = [
        ", ".join(f"{label} {value}" for label, value in one.items()) or "unknown" for one in environments
    ]
    measured = [("Measured on", told[0])] if told[0] == told[1] else [
        ("Reference on", told[0]), ("Candidate on", told[1])
    ]  # fmt: skip
    verdict: Text = (Strong("no verdict"), f": {comparison.verdict_reason}")
    if comparison.verdict is not None:
        verdict = (Strong(str(comparison.verdict)), f": {comparison.verdict_reason}")
    facts: list[tuple[str, Text]] = [
        ("Verdict", verdict),
        *_largest_rows(comparison),
        ("Reference", Code(comparison.reference_source)),
        ("Candidate", Code(comparison.candidate_source)),
        *measured,
    ]
    return FactList(tuple(facts))


def _largest_rows(comparison: BenchmarkComparison) -> Iterator[tuple[str, Text]]:
    """The rows whose time changed most."""
    rows = [
        (point, row)
        for point, row in comparison.rows
        if row.time.ratio and row.time.verdict in (Verdict.FASTER, Verdict.SLOWER)
    ]
    for rank, (point, row) in enumerate(sorted(rows, key=lambda pair: _rank(pair[1]))[:_LARGEST], 1):
        times = f"{format_duration(row.time.reference_ns)} → {format_duration(row.time.candidate_ns)}"
        ratio = plain(ratio_cell(row.time, row.presence))
        yield f"Difference {rank}", (Strong(ratio), ": ", Code(f"{point.suite}, {row.name}"), f", {times}")


def point_title(point: BenchmarkPoint) -> str:
    """Which problem, e.g. `gelu 8192 × 8192, float32, cuda`."""
    parameters = dict(point.parameters)
    return problem_title(point.suite, point.shape, point.dtype, point.device_kind, parameters=parameters)


def _point_section(change: PointChange, comparison: BenchmarkComparison, top: int | None) -> Section:
    rows = sorted(change.rows, key=_rank)[:top]
    blocks: list[Block] = [_table(rows)]
    left = len(change.rows) - len(rows)
    points = [point for row in rows for point in _row_points(row, comparison)]
    points += [f"{left} more rows changed less."] if left else []
    if points:
        blocks.append(BulletList(tuple(points)))
    return Section(point_title(change.point), tuple(blocks))


def _rank(row: BenchmarkRowChange) -> tuple[float, str]:
    if row.time.ratio is None or not row.time.ratio:
        return (-inf if row.presence is not Presence.BOTH or row.is_broken else inf), row.name
    return -abs(log(row.time.ratio)), row.name


def _table(rows: list[BenchmarkRowChange]) -> Table:
    return table(
        rows,
        identifier("Implementation", "name"),
        number("Reference", partial(_side, side="reference")),
        number("Candidate", partial(_side, side="candidate")),
        number(
            "Difference",
            lambda row: UNKNOWN if row.time.ratio is None else difference_text(row.time.difference_ns),
        ),
        number("Ratio", lambda row: ratio_cell(row.time, row.presence)),
        number("Kernels", _kernels),
    )


def _side(row: BenchmarkRowChange, *, side: str) -> Text:
    time_ns, status = getattr(row.time, f"{side}_ns"), getattr(row, f"{side}_status")
    if time_ns is not None:
        return measured_text(time_ns, getattr(row.time, f"{side}_interval_ns"))
    if status is None or status is Status.OK:
        return UNKNOWN
    words = str(status).replace("_", " ")
    return Strong(words) if row.is_broken else words


def _kernels(row: BenchmarkRowChange) -> str:
    before, after = row.reference_launches, row.candidate_launches
    text = format_mean_count(after)
    return text if before == after else f"{format_mean_count(before)} → {text}"


def _row_points(row: BenchmarkRowChange, comparison: BenchmarkComparison) -> list[Text]:
    """What the table has no room for: why there is no verdict, other statuses, other kernels."""
    name = Code(row.name)
    points: list[Text] = []
    if row.time.verdict in {Verdict.FASTER, Verdict.SLOWER, Verdict.AMBIGUOUS}:
        points.append((name, f": {row.time.reason}{_relative(row, comparison)}"))
    if row.status_note:
        points.append((name, f": {row.status_note}"))
    for change, titles in (("also launches", row.kernels_added), ("no longer launches", row.kernels_removed)):
        if titles:
            points.append((name, f" {change} ", *joined(map(Code, titles))))
    return points


def _relative(row: BenchmarkRowChange, comparison: BenchmarkComparison) -> str:
    """Its time over the reference implementation's, where the machines differ: the machine cancels in it."""
    is_elsewhere = any(finding.code == "compare.environment_differs" for finding in comparison.findings)
    before, after = row.reference_relative, row.candidate_relative
    if not is_elsewhere or before is None or after is None:
        return ""
    return f"; relative to the reference of its own run {format_ratio(before)} → {format_ratio(after)}"


def _unmatched(comparison: BenchmarkComparison) -> BulletList:
    sides = {"reference": comparison.only_in_reference, "candidate": comparison.only_in_candidate}
    return BulletList(
        tuple(
            f"{point_title(point)}: only in the {side}" for side, points in sides.items() for point in points
        )
    )


COMPARISON_SCHEMA_VERSION = 2


def comparison_document(
    comparison: BenchmarkComparison | SessionComparison,
    *,
    fail_on: FailOn | None = None,
    failures: Sequence[str] = (),
    inconclusive: str | None = None,
) -> dict[str, Any]:
    """The comparison as JSON values.

    Args:
        comparison: Of either kind; the document's `kind` says which.
        fail_on: The gate that was asked for.
        failures: Why it fails.
        inconclusive: Why it could not judge.
    """
    kind = "session" if isinstance(comparison, SessionComparison) else "benchmark"
    return {
        **versions(COMPARISON_SCHEMA_VERSION),
        "kind": kind,
        **encode(comparison, _KEYS),
        "options": encode(comparison.options),
        "gate": {
            "fail_on": None if fail_on is None else str(fail_on),
            "failures": list(failures),
            "inconclusive": inconclusive,
        },
        "findings": encode(comparison.findings, _KEYS),
    }


def _side_record(comparison: SessionComparison, name: str) -> dict[str, Any]:
    keys = Keys(
        "sources environment steps ranks_per_step has_device whole_ns outside_steps_ns "
        "outside_steps_launches accounted_ns kernel_launches=launches",
        accounted_ns=lambda _: comparison.accounted_ns(name),
    )
    return keys.record(getattr(comparison, name), _KEYS)


_KEYS: dict[type, Keys] = {
    BenchmarkComparison: Keys(
        "reference candidate verdict verdict_reason counts points only_in_reference only_in_candidate",
        reference=lambda comparison: {
            "source": comparison.reference_source,
            "environment": comparison.reference_environment,
        },
        candidate=lambda comparison: {
            "source": comparison.candidate_source,
            "environment": comparison.candidate_environment,
        },
    ),
    BenchmarkPoint: Keys(parameters=lambda point: dict(point.parameters)),
    BenchmarkRowChange: Keys(
        "name presence reference_status candidate_status status_note *time "
        "reference_kernels_launched=reference_launches candidate_kernels_launched=candidate_launches ..."
    ),
    CategoryChange: Keys("... difference_ns"),
    Finding: Keys("... -trace_id"),
    KernelChange: Keys("kind presence ... -operator change reference candidate *time"),
    OperatorChange: Keys("name category ... *time variants kernels"),
    PointChange: Keys(
        "*point reference_clock candidate_clock rows",
        reference_clock=lambda change: change.clocks[0],
        candidate_clock=lambda change: change.clocks[1],
    ),
    SessionComparison: Keys(
        "reference candidate metric basis verdict verdict_reason=total.reason total wall_time=wall "
        "unrecorded_step=unrecorded operators "
        "unattributed categories",
        reference=lambda comparison: _side_record(comparison, "reference"),
        candidate=lambda comparison: _side_record(comparison, "candidate"),
    ),
    TimeChange: Keys("reference_ns candidate_ns difference_ns ... verdict verdict_reason=reason"),
    UnattributedChange: Keys("reason ... *time kernels"),
    Use: Keys("calls kernel_launches=launches ..."),
    VariantChange: Keys("overload input_shapes ... *time", input_shapes=parsed("input_shapes")),
}
