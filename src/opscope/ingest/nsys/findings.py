"""What an export leaves out or says differently, as findings with stable codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opscope.ingest.nsys.columns import Missing
from opscope.ingest.nsys.facts import ExportFacts
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session

__all__ = ["export_findings", "process_findings"]

_NEWEST_SCHEMA = 3
_SHOWN_PROBLEMS = 3
_EMIT = (
    "Run the program under torch.autograd.profiler.emit_nvtx(record_shapes=True) while nsys records; or "
    "record it with `opscope run`."
)


def export_findings(
    trace_id: int, facts: ExportFacts, missing: Missing, others: Sequence[int]
) -> Iterator[Finding]:
    """What concerns a whole export.

    Args:
        trace_id: Its first trace.
        facts: What it says of itself.
        missing: What it lacks.
        others: Processes with NVTX ranges that called no CUDA, and so are no traces.
    """
    if missing.tables or missing.columns:
        names = ", ".join((*missing.tables, *missing.columns))
        yield Finding(
            "nsys.missing",
            Severity.INFO,
            f"The export (schema {facts.schema_version or 'unknown'}) has no {names}; what rests on that is "
            "unknown.",
            "Record with `nsys profile --trace=cuda,nvtx`, and export with a recent nsys."
            if missing.tables
            else None,
            trace_id,
            {"tables": list(missing.tables), "columns": list(missing.columns)},
        )
    if missing.row_count:
        yield Finding(
            "nsys.without_process",
            Severity.WARNING,
            f"{missing.row_count} rows of the export name no process, so they are in no trace.",
            None,
            trace_id,
            {"row_count": missing.row_count},
        )
    major = (facts.schema_version or "").partition(".")[0]
    if major.isdecimal() and int(major) > _NEWEST_SCHEMA:
        yield Finding(
            "nsys.newer_schema",
            Severity.WARNING,
            f"The export has schema {facts.schema_version}, newer than the {_NEWEST_SCHEMA}.x that this "
            "opscope knows.",
            "Check figures against `nsys stats`.",
            trace_id,
        )
    if facts.problems:
        shown = " ".join(facts.problems[:_SHOWN_PROBLEMS])
        rest = len(facts.problems) - _SHOWN_PROBLEMS
        yield Finding(
            "nsys.diagnostics",
            Severity.INFO,
            f"nsys warned while it recorded: {shown}{f' And {rest} more.' if rest > 0 else ''}",
            None,
            trace_id,
            {"messages": list(facts.problems)},
        )
    if others:
        names = ", ".join(f"{process} ({facts.process_names.get(process, '?')})" for process in others)
        yield Finding(
            "nsys.other_processes",
            Severity.INFO,
            f"Processes that pushed NVTX ranges but called no CUDA are left out: {names}.",
            None,
            trace_id,
            {"processes": list(others)},
        )


def process_findings(
    session: Session, trace_id: int, owner_count: int, operator_count: int
) -> Iterator[Finding]:
    """What concerns the trace of one process.

    Args:
        session: The Session, with the trace's rows.
        trace_id: The trace.
        owner_count: NVTX ranges that stand among the operators.
        operator_count: Operators that PyTorch itself named.
    """
    if owner_count:
        yield Finding(
            "nsys.ranges_own",
            Severity.INFO,
            f"{owner_count} NVTX ranges stand among the operators: what was launched in them, outside of "
            "every operator, is theirs.",
            None,
            trace_id,
            {"range_count": owner_count},
        )
    has_work = bool(session.scalar("SELECT count(*) FROM device_activities WHERE trace_id = ?", [trace_id]))
    if has_work and not operator_count:
        yield Finding(
            "nsys.no_operators",
            Severity.INFO,
            "No PyTorch operators were recorded: nsys sees them only as NVTX ranges.",
            _EMIT,
            trace_id,
        )
    graphs, duration_ns = session.query(
        """SELECT count(*), coalesce(sum(duration_ns), 0)::BIGINT FROM device_activities
        JOIN kernel_names n USING (name_id) WHERE trace_id = ? AND n.name LIKE 'CUDA graph % (whole)'""",
        [trace_id],
    )[0]
    if graphs:
        yield Finding(
            "nsys.graphs_whole",
            Severity.WARNING,
            f"{graphs} launches of CUDA graphs were recorded as a whole: each counts as one kernel, and "
            "which kernels ran in it is unknown.",
            "Record with `nsys profile --cuda-graph-trace=node` (slower), or with `opscope run`.",
            trace_id,
            {"launch_count": graphs, "duration_ns": duration_ns},
        )
