"""What a report says of operators: the ranked table, details of each, how far they are from the limit.

A fact no one has found is said to be unknown, never left out: the reader must see what is missing. A fraction
always says which limit it refers to, measured or of the datasheet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby, islice
from operator import itemgetter

from msgspec.structs import replace

from opscope.analysis.launch_quality import TensorCoreUse
from opscope.analysis.roofline import Bound, CallEfficiency, Roofline
from opscope.analysis.summary import Summary
from opscope.analysis.totals import OperatorTotal
from opscope.hardware.devices import DataType
from opscope.hardware.limits import Limit
from opscope.launches.facts import LaunchGeometry
from opscope.model.finding import Finding, Severity, most_severe_first
from opscope.model.queries import grouped, summed
from opscope.model.schema import Attribution
from opscope.provenance.categories import category_title
from opscope.report import document as doc
from opscope.report.json_encoding import from_json_text
from opscope.report.provenance import improvement_blocks, launch_blocks, operator_chain_facts
from opscope.units import (
    UNKNOWN,
    counted,
    format_byte_rate,
    format_bytes,
    format_bytes_exactly,
    format_count,
    format_duration,
    format_extent,
    format_flop_count,
    format_flop_rate,
    format_fraction,
    format_share,
    listed,
)


def ranked_operators(summary: Summary) -> tuple[OperatorTotal, ...]:
    """Operators with device time, by self device time; without a device all operators, by self CPU time."""
    return tuple(one for one in summary.operators if one.total_device_ns > 0 or not summary.has_device)


def top_operators(summary: Summary, top: int | None) -> tuple[OperatorTotal, ...]:
    """The first `top` operators with time of their own (wrappers explain nothing); every one for None."""
    if top is None:
        return summary.operators
    own = (operator for operator in ranked_operators(summary) if rank_ns(summary, operator) > 0)
    return tuple(islice(own, top))


def rank_ns(summary: Summary, operator: OperatorTotal) -> int:
    return operator.self_device_ns if summary.has_device else operator.self_cpu_ns


def whole_ns(summary: Summary) -> int:
    """What shares are of: all device time, or without a device all operators' CPU time."""
    return summary.device_time_ns if summary.has_device else summary.cpu_time_ns


def rank_fraction(summary: Summary, operator: OperatorTotal) -> float | None:
    whole = whole_ns(summary)
    return rank_ns(summary, operator) / whole if whole else None


def _report_findings(summary: Summary) -> tuple[Finding, ...]:
    findings = list(summary.findings)
    if not summary.has_device and all(finding.code != "trace.no_device_activity" for finding in findings):
        findings.append(
            Finding(
                "report.cpu_time",
                Severity.INFO,
                "No device activity was recorded: device times are zero and operators are ranked by self CPU "
                "time.",
            )
        )
    return most_severe_first(findings)


def ranked_findings(summary: Summary) -> tuple[Finding, ...]:
    """All there is to say: what to change, the largest gain first, then what qualifies the data."""
    return (*(summary.advice or ()), *_report_findings(summary))


def merged_findings(summary: Summary) -> tuple[Finding, ...]:
    """The same for reading: what traces have in common is said once, else whose it is.

    Messages that differ in their figures alone become one with ranges of them.
    """
    groups = grouped(
        ((finding.code, _FIGURE.sub("#", finding.message)), finding) for finding in _report_findings(summary)
    )
    merged = []
    for group in groups.values():
        # Of one trace that says several, each message is one.
        is_apart = len({finding.trace_id for finding in group}) < len(group)
        parts = grouped((finding.message if is_apart else "", finding) for finding in group)
        for first, *others in parts.values():
            if others:
                merged.append(_joint(first, others))
            elif first.trace_id is None or len(summary.traces) < 2:
                merged.append(first)
            else:
                rank = summary.ranks[first.trace_id]
                whose = f"Trace {first.trace_id}" if rank is None else f"Rank {rank}"
                merged.append(replace(first, message=f"{whose}: {first.message}"))
    return tuple(merged)


_FIGURE = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")  # no digits within names


def _joint(first: Finding, others: list[Finding]) -> Finding:
    """The message that all share, each figure with its least and greatest value: `0.9–9.3 %`."""
    findings, ranges = [first, *others], []
    for column in zip(*(_FIGURE.findall(one.message) for one in findings), strict=True):
        ordered = sorted(set(column), key=lambda figure: float(figure.replace(",", "")))
        ranges.append(ordered[0] if len(ordered) == 1 else f"{ordered[0]}–{ordered[-1]}")
    shown = iter(ranges)
    message = _FIGURE.sub(lambda _: next(shown), first.message)
    traces = len({finding.trace_id for finding in findings if finding.trace_id is not None})
    where = f"In {traces} traces: " if traces > 1 else ""
    return replace(first, message=f"{where}{message}", trace_id=None)


_GEOMETRY_ROWS = 8
_SHAPE_ROWS = 5


def operator_table(
    summary: Summary, operators: tuple[OperatorTotal, ...], *, per_step: bool = False
) -> doc.Table:
    """The given operators, one a row, numbered from 1; their device time of all of it, or of a step."""
    each = {one.name: summary.operators_per_step.get(one.name, (0, 0)) for one in operators if per_step}
    operators = tuple(sorted(operators, key=lambda one: -each.get(one.name, (0, 0))[1]))  # as shown
    rank = {id(operator): f"{index}" for index, operator in enumerate(operators, 1)}
    named = doc.number("#", lambda operator: rank[id(operator)]), doc.identifier("Operator", "name")
    calls = doc.number("Calls", "calls")
    own = doc.number("Self CPU", "self_cpu_ns", spare=3 if summary.has_device else 0)
    share = doc.number("Share", lambda operator: format_fraction(rank_fraction(summary, operator)))
    if not summary.has_device:
        return doc.table(operators, *named, calls, own, share, doc.number("Total CPU", "total_cpu_ns"))
    if per_step:
        step_ns = sum(one.device_ns for one in summary.counted_steps) / len(summary.counted_steps)
        return doc.table(
            operators,
            *named,
            doc.number("Calls per step", lambda one: f"{each[one.name][0]:,.5g}"),
            doc.number("Device per step", lambda one: format_duration(each[one.name][1])),
            doc.number("Share", lambda one: format_share(each[one.name][1], step_ns)),
            *limit_fields(summary),
        )
    return doc.table(
        operators,
        *named,
        calls,
        doc.number("Self device", "self_device_ns"),
        share,
        doc.number("Total device", "total_device_ns", spare=2),
        own,
        doc.number("Launches", "kernel_launches", spare=4),
        *limit_fields(summary),
    )


def operator_section(summary: Summary, operator: OperatorTotal) -> doc.Section:
    device: list[tuple[str, doc.Text]] = []
    if summary.has_device:
        own, each = operator.self_device_ns, format_duration(operator.self_device_ns / operator.calls)
        part, whole = map(format_fraction, (operator.self_device_fraction, operator.total_device_fraction))
        device = [
            ("Self device time", f"{format_duration(own)} ({part} of all device time), {each} per call"),
            ("Total device time", f"{format_duration(operator.total_device_ns)} ({whole})"),
            ("Kernel launches", format_count(operator.kernel_launches)),
        ]
    is_limited = has_efficiency(summary) and operator.self_device_ns
    total, own_cpu = format_duration(operator.total_cpu_ns), format_duration(operator.self_cpu_ns)
    known = doc.facts(
        ("Calls", format_count(operator.calls)),
        ("Category", category_title(operator.category)),
        *device,
        *(operator_limit_facts(summary, operator.name) if is_limited else ()),
        ("CPU time", f"{own_cpu} self, {total} total"),
        *operator_chain_facts(operator, has_device=summary.has_device),
    )
    shapes: list[tuple[doc.Text, int]] = [
        (doc.Code(one), calls) for one, calls in operator.input_shapes[:_SHAPE_ROWS]
    ]
    if rest := operator.input_shapes[_SHAPE_ROWS:]:
        shapes.append((f"{len(rest)} more", sum(calls for _, calls in rest)))
    called = doc.table(
        shapes,
        doc.words("Input shapes", itemgetter(0)),
        doc.number("Calls", lambda row: format_count(row[1])),
    )
    shown = [*doc.blocks(known, called, _geometries_of(operator) if operator.kernels else None)]
    for kernel in operator.kernels[:2]:
        shown += launch_blocks(summary, operator.name, kernel.name, names_kernel=True)
    if (improvement := summary.improvements.get(operator.name)) is not None:
        shown += [doc.Paragraph(doc.Strong("Research points")), *improvement_blocks(improvement)]
    return doc.Section(operator.name, tuple(shown))


def geometry_table(launches: Sequence[LaunchGeometry], *named: doc.Field) -> doc.Table:
    """Launch configurations, one a row, after what they are of."""
    return doc.table(
        launches,
        *named,
        doc.number("Calls", "calls"),
        doc.number("Time", "total_ns"),
        doc.number("Grid", "grid", format_extent),
        doc.number("Block", "block", format_extent),
        doc.number("Registers/thread", "registers_per_thread"),
        doc.number("Shared memory", "shared_memory_bytes", format_bytes_exactly),
        doc.number("Occupancy estimate", "occupancy_estimate", format_fraction),
    )


def _geometries_of(operator: OperatorTotal) -> doc.Table:
    launches = [(one, kernel.name) for kernel in operator.kernels for one in kernel.configurations]
    launches.sort(key=lambda launch: -launch[0].total_ns)
    shown, rest = launches[:_GEOMETRY_ROWS], [one for one, _ in launches[_GEOMETRY_ROWS:]]
    names = {id(one): name for one, name in shown}
    known = geometry_table(
        [one for one, _ in shown], doc.identifier("CUDA kernel", lambda one: names[id(one)])
    )
    if not rest:
        return known
    calls, total_ns = sum(one.calls for one in rest), sum(one.total_ns for one in rest)
    last = (f"{len(rest)} more launch configurations", format_count(calls), format_duration(total_ns))
    return doc.Table(known.columns, (*known.rows, (*last, "", "", "", "", "")))


def shape_texts(recorded: str | None) -> list[str] | None:
    """`8×128×768` for each tensor among recorded arguments; None where they are not recorded as a list."""
    shapes = None if recorded is None else from_json_text(recorded)
    if not isinstance(shapes, list):
        return None
    texts = []
    for one in shapes:
        if isinstance(one, list) and one and isinstance(one[0], list):
            texts.append(counted(len(one), _TENSOR))
        elif one not in ([], ""):
            texts.append("×".join(map(str, one)) if isinstance(one, list) else str(one))
    return texts


def limit_fields(summary: Summary) -> tuple[doc.Field, ...]:
    """Share of the limit that an operator reached and what binds; none where no limit is known."""
    if not has_efficiency(summary) or summary.efficiency.limits is None:
        return ()
    rooflines = summary.efficiency.operators

    def held(operator: OperatorTotal) -> Roofline:  # nothing is said of what came faster than from memory
        found = rooflines.get(operator.name, Roofline(0, 0))
        return found if (found.fraction or 0.0) <= 1.05 else Roofline(0, 0)

    def bound(operator: OperatorTotal) -> str | None:
        limits = held(operator)
        most_ns = 0 if limits.bound is None else limits.bound_ns.get(limits.bound, limits.device_ns)
        # Less of its time with one limit, and the next may be as much.
        return str(limits.bound) if most_ns >= 0.6 * limits.device_ns > 0 else limits.bound and "mixed"

    return (
        doc.number("Of limit", lambda operator: format_fraction(held(operator).fraction)),
        doc.number("Bound", bound, str, spare=1),
    )


_SHOWN_SHAPES = 4
_TENSOR = "tensor"


def has_efficiency(summary: Summary) -> bool:
    return summary.has_device and summary.efficiency.coverage.bytes_fraction is not None


def efficiency_blocks(summary: Summary, top: int | None) -> tuple[doc.Block, ...]:
    """Limits, coverage, and the calls that lose most time to the limit; nothing where no cost is known."""
    if not has_efficiency(summary):
        return ()
    efficiency, device_time_ns = summary.efficiency, summary.device_time_ns
    coverage, calls = efficiency.coverage, () if efficiency.limits is None else efficiency.calls
    far = sorted((call for call in calls if call.gap_ns), key=lambda call: -(call.gap_ns or 0))
    # One row for each reason, most time first: it names the first operator, and how many more there are.
    reasons = grouped(
        (why.removeprefix(f"{name} is ").replace(name, "it"), (name, ns))  # the name stands beside it
        for name, ns, why in coverage.uncosted
    )
    uncosted = [
        (doc.joined([doc.Code(name) for name, _ in members], most=1), sum(ns for _, ns in members), why)
        for why, members in reasons.items()
    ]
    uncosted.sort(key=lambda row: -row[1])
    return doc.blocks(
        doc.Paragraph(_limits_text(summary)),
        doc.Paragraph(
            f"Minimum bytes are known for {format_fraction(coverage.bytes_fraction)} "
            f"of device time, FLOP counts (zero included) for {format_fraction(coverage.flop_fraction)}."
        ),
        _call_table(far[:top], device_time_ns),
        doc.table(
            uncosted[:5],
            doc.words("Cost unknown", lambda row: row[0]),
            doc.number("Device time", lambda row: format_duration(row[1])),
            doc.number("Share", lambda row: format_share(row[1], device_time_ns)),
            doc.words("Why", lambda row: row[2]),
        ),
        _lost(summary),
    )


def _lost(summary: Summary) -> doc.Meaning | None:
    lost = summed((one.operator, one.gap_ns or 0) for one in summary.efficiency.calls)
    if not lost.total():
        return None
    (name, most_ns), gap_ns = lost.most_common(1)[0], lost.total()
    return doc.Meaning(
        (
            f"At these limits the same calls would take {format_duration(gap_ns)} less, "
            f"{format_share(gap_ns, summary.device_time_ns)} of device time; ",
            doc.Code(name),
            f" accounts for {format_share(most_ns, gap_ns)} of that.",
        )
    )


def operator_limit_facts(summary: Summary, operator: str) -> tuple[tuple[str, doc.Text], ...]:
    """What one operator reached, and why it was not more; unknown is said."""
    roofline, limits = summary.efficiency.operators.get(operator), summary.efficiency.limits
    if roofline is None or not roofline.costed_ns:
        return (("Distance from the limit", "unknown: the cost of its calls is not known"),)
    flop_count, intensity = roofline.flop_count, roofline.arithmetic_intensity
    work = (
        None if roofline.min_bytes is None else f"{format_bytes(roofline.min_bytes)} at least",
        None if flop_count is None else format_flop_count(flop_count) if flop_count else "no FLOP",
        f"{intensity:,.3g} FLOP/byte" if intensity else None,
    )
    share = roofline.costed_ns / roofline.device_ns if roofline.device_ns else 1.0
    # Nearly all is "all of its time".
    known = "" if share >= 0.9995 else f" (known for {format_fraction(share)} of its time)"
    achieved = (
        format_byte_rate(roofline.achieved_bytes_per_s),
        format_flop_rate(roofline.achieved_flop_per_s) if flop_count else None,
    )
    held, reached, bound = "", None, None
    if roofline.fraction is not None:
        peak = limits and roofline.data_type and limits.peaks.get(roofline.data_type)
        if roofline.bound is Bound.COMPUTE and peak:
            held = f" ({roofline.data_type} {_limit_text(peak, format_flop_rate)})"
        elif limits is not None and limits.memory is not None:
            held = f" (memory {_limit_text(limits.memory, format_byte_rate)})"
        needed = format_duration(roofline.attainable_ns)
        reached = (
            doc.Strong(format_fraction(roofline.fraction)),
            f" of the attainable: the same work needs {needed} at the limits{held}",
        )
    if roofline.bound is not None:
        whole = sum(roofline.bound_ns.values())
        parts = sorted(roofline.bound_ns.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{bound} {format_share(ns, whole)}" for bound, ns in parts)
        of_time = f" ({shares} of its time)" if len(parts) > 1 and whole else ""
        bound = f"{roofline.bound}: {roofline.bound.meaning}{of_time}"
    cores = roofline.tensor_cores
    has_cores = cores is not None and cores is not TensorCoreUse.NOT_APPLICABLE
    return doc.facts(
        ("Work", listed(*work) + known),
        ("Achieved", listed(*achieved)),
        ("Distance from the limit", reached),
        ("Bound", bound),
        ("Tensor cores", f"{cores}: {cores.meaning}" if cores and has_cores else None),
    ).facts


def _limits_text(summary: Summary) -> doc.Text:
    limits, reason = summary.efficiency.limits, summary.limits_reason
    because = f" ({reason})" if reason else ""
    if limits is None:
        return f"The peaks of this GPU are not known{because}: no call is compared with them."
    shown: list[tuple[str, Limit, Callable[[float], str]]] = []
    if limits.memory is not None:
        shown.append(("memory", limits.memory, format_byte_rate))
    # Of common types, and of those that calls are held against.
    held = {call.roofline.data_type for call in summary.efficiency.calls}
    common = (DataType.FP32, DataType.TF32, DataType.BF16, DataType.FP16)
    for data_type in dict.fromkeys((*common, *(one for one in DataType if one in held))):
        if limit := limits.peaks.get(data_type):
            shown.append((str(data_type), limit, format_flop_rate))
    kinds = {limit.evidence for _, limit, _ in shown}
    if len(kinds) == 1:
        whose = f"the {kinds.pop()} peaks of {limits.name}"
        parts = [f"{name} {form(limit.per_s)}" for name, limit, form in shown]
    else:
        whose = str(limits.name)
        parts = [f"{name} {_limit_text(limit, form)}" for name, limit, form in shown]
    return f"Compared with {whose}: {', '.join(parts) or 'no known limit'}{because}."


def _limit_text(limit: Limit, form: Callable[[float], str]) -> str:
    return f"{form(limit.per_s)} ({limit.evidence})"


def _call_table(calls: list[CallEfficiency], device_time_ns: int) -> doc.Table:
    caption = "Largest avoidable time, by call and shapes."
    reasons = list(dict.fromkeys(call.attribution for call in calls if call.attribution is not None))
    if reasons:
        caption += f" *: {', or '.join(Attribution(reason).meaning for reason in reasons)}."
    return doc.table(
        calls,
        doc.identifier(
            "Operator",
            lambda call: call.operator if call.attribution is None else (doc.Code(call.operator), " *"),
        ),
        doc.words("Shapes", call_arguments),
        doc.number("Calls", "calls", spare=2),
        doc.number("Device time", "roofline.device_ns"),
        doc.number("Bound", "roofline.bound", str, spare=1),
        doc.number(
            "Achieved",
            lambda call: (
                format_flop_rate(call.roofline.achieved_flop_per_s)
                if call.roofline.bound is Bound.COMPUTE
                else format_byte_rate(call.roofline.achieved_bytes_per_s)
            ),
            spare=3,
        ),
        doc.number("Of limit", "roofline.fraction"),
        doc.number(
            "Avoidable",
            lambda call: (
                f"{format_duration(call.gap_ns)}, {format_fraction((call.gap_ns or 0) / device_time_ns)}"
            ),
        ),
        caption=caption,
    )


def call_arguments(call: CallEfficiency) -> str:
    """`8×128×768, 2 of 768×768`: its shapes; else what one call moves, which tells copies apart."""
    if call.shapes is None and call.cost.min_bytes is not None:
        return f"{format_bytes(call.cost.min_bytes)} moved"
    shapes = shape_texts(call.shapes)
    if shapes is None:
        return call.shapes or UNKNOWN
    runs = [(shape, sum(1 for _ in same)) for shape, same in groupby(shapes)]
    more = sum(count for _, count in runs[_SHOWN_SHAPES:])
    texts = [
        shape if count == 1 else f"{count} {'lists ' if _TENSOR in shape else ''}of {shape}"
        for shape, count in runs[:_SHOWN_SHAPES]
    ]
    return ", ".join([*texts, *([f"{more} more"] if more else [])]) or UNKNOWN
