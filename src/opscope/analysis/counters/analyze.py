"""A report read, joined and judged: what `opscope ncu` shows."""

from __future__ import annotations

from opscope.analysis.counters.findings import counter_findings
from opscope.analysis.counters.join import join_counters
from opscope.analysis.counters.values import CounterAnalysis
from opscope.model.session import Session
from opscope.toolchain.ncu.report import NcuReport

__all__ = ["analyze_counters"]


def analyze_counters(report: NcuReport, session: Session | None = None) -> CounterAnalysis:
    """The kernels of a report with findings, and with the operators of a recording if one is given."""
    kernels = join_counters(report, session)
    sources = () if session is None else tuple(row[0] for row in session.query(_SOURCES))
    return CounterAnalysis(report, kernels, counter_findings(kernels), sources)


_SOURCES = "SELECT source FROM traces ORDER BY trace_id"
