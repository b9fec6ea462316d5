"""What a report shows of a Summary: the ranked operators, and the findings with those the report adds.

One place decides by which clock operators are ranked, so that text, Markdown and JSON never disagree.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

from opscope.analysis.summary import Summary
from opscope.analysis.totals import OperatorTotal
from opscope.model.finding import Finding, Severity

__all__ = [
    "merged_findings",
    "rank_fraction",
    "rank_ns",
    "ranked_findings",
    "ranked_operators",
    "report_findings",
    "top_operators",
]

_NO_DEVICE_CODE = "trace.no_device_activity"  # as ingest writes it
_SEVERITY_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


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
    """The time an operator is ranked by."""
    return operator.self_device_ns if summary.has_device else operator.self_cpu_ns


def rank_fraction(summary: Summary, operator: OperatorTotal) -> float | None:
    """That time as a share of all device time (of all operators' CPU time without a device)."""
    whole_ns = summary.device_time_ns if summary.has_device else summary.cpu_time_ns
    return rank_ns(summary, operator) / whole_ns if whole_ns else None


def report_findings(summary: Summary) -> tuple[Finding, ...]:
    """The Session's findings, gravest first, one of which says so when figures are CPU time."""
    findings = list(summary.findings)
    if not summary.has_device and all(finding.code != _NO_DEVICE_CODE for finding in findings):
        findings.append(_cpu_ranking())
    return tuple(sorted(findings, key=lambda finding: _SEVERITY_ORDER.index(finding.severity)))


def ranked_findings(summary: Summary) -> tuple[Finding, ...]:
    """All there is to say: what to change, the largest gain first, then what qualifies the data."""
    return (*(summary.advice or ()), *report_findings(summary))


def merged_findings(summary: Summary) -> tuple[Finding, ...]:
    """The same for reading: what traces have in common is said once, else whose it is.

    Messages that differ in their figures alone become one with ranges of them.
    """
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in report_findings(summary):
        groups.setdefault((finding.code, _FIGURE.sub("#", finding.message)), []).append(finding)
    return tuple(_merged(part, summary) for group in groups.values() for part in _parts(group))


def _parts(group: list[Finding]) -> list[list[Finding]]:
    """The whole group if each is of another trace; else one for each message, for one trace says several."""
    traces = {finding.trace_id for finding in group}
    if len(traces) == len(group):
        return [group]
    messages: dict[str, list[Finding]] = {}
    for finding in group:
        messages.setdefault(finding.message, []).append(finding)
    return list(messages.values())


_FIGURE = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")  # no digits within names


def _merged(findings: list[Finding], summary: Summary) -> Finding:
    first = findings[0]
    if len(findings) > 1:
        traces = len({finding.trace_id for finding in findings if finding.trace_id is not None})
        where = f"In {traces} traces: " if traces > 1 else ""
        return replace(first, message=f"{where}{_ranges([one.message for one in findings])}", trace_id=None)
    if first.trace_id is None or len(summary.traces) < 2:
        return first
    rank = summary.ranks[first.trace_id]
    whose = f"Trace {first.trace_id}" if rank is None else f"Rank {rank}"
    return replace(first, message=f"{whose}: {first.message}")


def _ranges(messages: list[str]) -> str:
    """The message that all share, each figure with its least and greatest value: `0.9–9.3 %`."""
    figures = zip(*(_FIGURE.findall(message) for message in messages), strict=True)
    shown = iter([_range(column) for column in figures])
    return _FIGURE.sub(lambda _: next(shown), messages[0])


def _range(figures: tuple[str, ...]) -> str:
    ordered = sorted(set(figures), key=lambda figure: float(figure.replace(",", "")))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]}–{ordered[-1]}"


def _cpu_ranking() -> Finding:
    return Finding(
        "report.cpu_time",
        Severity.INFO,
        "No device activity was recorded: device times are zero and operators are ranked by self CPU time.",
    )
