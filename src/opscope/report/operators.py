"""What a report says of its top operators: the ranked table, and a section of details for each.

A fact no one has found is said to be unknown, never left out: the reader must see what is missing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import islice
from operator import itemgetter

from msgspec.structs import replace

from opscope.analysis.summary import Summary
from opscope.analysis.totals import OperatorTotal
from opscope.launches.facts import LaunchGeometry
from opscope.model.finding import Finding, Severity, most_severe_first
from opscope.provenance.categories import category_title
from opscope.report import document as doc
from opscope.report.efficiency import has_efficiency, limit_fields, operator_limit_facts
from opscope.report.kernel_section import improvement_blocks, launch_blocks
from opscope.report.provenance import operator_chain_facts
from opscope.units import format_bytes_exactly, format_count, format_duration, format_extent, format_fraction

_NO_DEVICE_CODE = "trace.no_device_activity"  # as ingest writes it


def ranked_operators(summary: Summary) -> tuple[OperatorTotal, ...]:
    """Operators with device time, by self device time; without a device all operators, by self CPU time."""
    if not summary.has_device:
        return summary.operators
    return tuple(operator for operator in summary.operators if operator.total_device_ns > 0)


def top_operators(summary: Summary, top: int | None) -> tuple[OperatorTotal, ...]:
    """The first `top` operators with time of their own (wrappers explain nothing); every one for None."""
    if top is None:
        return summary.operators
    own = (operator for operator in ranked_operators(summary) if rank_ns(summary, operator) > 0)
    return tuple(islice(own, top))


def rank_ns(summary: Summary, operator: OperatorTotal) -> int:
    return operator.self_device_ns if summary.has_device else operator.self_cpu_ns


def time_name(summary: Summary) -> str:
    return "device time" if summary.has_device else "CPU time"


def whole_ns(summary: Summary) -> int:
    """What shares are of: all device time, or without a device all operators' CPU time."""
    return summary.device_time_ns if summary.has_device else summary.cpu_time_ns


def rank_fraction(summary: Summary, operator: OperatorTotal) -> float | None:
    whole = whole_ns(summary)
    return rank_ns(summary, operator) / whole if whole else None


def _report_findings(summary: Summary) -> tuple[Finding, ...]:
    findings = list(summary.findings)
    if not summary.has_device and all(finding.code != _NO_DEVICE_CODE for finding in findings):
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
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in _report_findings(summary):
        groups[finding.code, _FIGURE.sub("#", finding.message)].append(finding)
    merged = []
    for group in groups.values():
        parts: dict[str, list[Finding]] = defaultdict(list)
        # Of one trace that says several, each message is one.
        is_apart = len({finding.trace_id for finding in group}) < len(group)
        for finding in group:
            parts[finding.message if is_apart else ""].append(finding)
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


_ACCOUNTS = 2
_GEOMETRY_ROWS = 8
_SHAPE_ROWS = 5


def operator_table(
    summary: Summary, operators: tuple[OperatorTotal, ...], *, per_step: bool = False
) -> doc.Table:
    """The given operators, one a row, numbered from 1; their device time of all of it, or of a step."""
    rank = {id(operator): f"{index}" for index, operator in enumerate(operators, 1)}
    named = doc.number("#", lambda operator: rank[id(operator)]), doc.identifier("Operator", "name")
    calls = doc.number("Calls", "calls")
    own = doc.number("Self CPU", "self_cpu_ns", spare=3 if summary.has_device else 0)
    total = doc.number("Total CPU", "total_cpu_ns")
    share = doc.number("Share", lambda operator: format_fraction(rank_fraction(summary, operator)))
    if not summary.has_device:
        return doc.table(operators, *named, calls, own, share, total)
    if per_step:
        each = {one.name: summary.operators_per_step.get(one.name, (0, 0)) for one in operators}
        return doc.table(
            operators,
            *named,
            doc.number("Calls per step", lambda one: f"{each[one.name][0]:,.5g}"),
            doc.number("Device per step", lambda one: format_duration(each[one.name][1])),
            share,
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
    shown = [*doc.blocks(known, called, _geometry_table(operator) if operator.kernels else None)]
    for kernel in operator.kernels[:_ACCOUNTS]:
        shown += launch_blocks(summary, operator.name, kernel.name, names_kernel=True)
    improvement = summary.improvements.get(operator.name)
    if improvement is not None:
        shown += [doc.Paragraph(doc.Strong("Research points")), *improvement_blocks(improvement)]
    return doc.Section(operator.name, tuple(shown))


def _geometry_table(operator: OperatorTotal) -> doc.Table:
    launches: list[tuple[doc.Text, LaunchGeometry]] = [
        (doc.Code(kernel.name), geometry)
        for kernel in operator.kernels
        for geometry in (
            kernel.geometries
            or (LaunchGeometry(None, None, None, None, None, kernel.calls, kernel.total_ns),)
        )
    ]
    launches.sort(key=lambda launch: -launch[1].total_ns)
    known = doc.table(
        launches[:_GEOMETRY_ROWS],
        doc.words("CUDA kernel", itemgetter(0)),
        doc.number("Calls", lambda row: format_count(row[1].calls)),
        doc.number("Time", lambda row: format_duration(row[1].total_ns)),
        doc.number("Grid", lambda row: format_extent(row[1].grid)),
        doc.number("Block", lambda row: format_extent(row[1].block)),
        doc.number("Registers/thread", lambda row: format_count(row[1].registers_per_thread)),
        doc.number("Shared memory", lambda row: format_bytes_exactly(row[1].shared_memory_bytes)),
        doc.number("Occupancy estimate", lambda row: format_fraction(row[1].occupancy_estimate)),
    )
    rest = [geometry for _, geometry in launches[_GEOMETRY_ROWS:]]
    if not rest:
        return known
    calls, total_ns = sum(one.calls for one in rest), sum(one.total_ns for one in rest)
    more = f"{len(rest)} more launch configurations"
    last = (more, format_count(calls), format_duration(total_ns), "", "", "", "", "")
    return doc.Table(known.columns, (*known.rows, last))
