"""The document `opscope compare --json` prints: every row of a comparison, times in nanoseconds, full names.

Its keys are a contract (`schema_version` 1); keys may be added, none changes its meaning. Sums of recordings
are exact integers; figures per step are quotients of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opscope._version import __version__
from opscope.model.benchmark import Interval
from opscope.model.comparison import (
    BenchmarkComparison,
    BenchmarkPoint,
    BenchmarkRowChange,
    ComparisonOptions,
    FailOn,
    KernelChange,
    OperatorChange,
    SessionComparison,
    SessionSide,
    TimeChange,
    UnattributedChange,
    Use,
    VariantChange,
)
from opscope.model.finding import Finding
from opscope.report.analysis_json import finding_record
from opscope.report.json_export import from_json_text

__all__ = ["COMPARISON_SCHEMA_VERSION", "comparison_document"]

COMPARISON_SCHEMA_VERSION = 1


def comparison_document(
    comparison: BenchmarkComparison | SessionComparison,
    *,
    fail_on: FailOn | None = None,
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """The comparison as JSON values.

    Args:
        comparison: Of either kind; the document's `kind` says which.
        fail_on: The gate that was asked for.
        failures: Why it fails.
    """
    is_session = isinstance(comparison, SessionComparison)
    return {
        "schema_version": COMPARISON_SCHEMA_VERSION,
        "opscope_version": __version__,
        "kind": "session" if is_session else "benchmark",
        **(_session(comparison) if isinstance(comparison, SessionComparison) else _benchmark(comparison)),
        "options": _options(comparison.options),
        "gate": {"fail_on": None if fail_on is None else str(fail_on), "failures": list(failures)},
        "findings": [_finding(finding) for finding in comparison.findings],
    }


def _options(options: ComparisonOptions) -> dict[str, Any]:
    return {
        "threshold": options.threshold,
        "relevant_fraction": options.relevant_fraction,
        "seed": options.seed,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    record = finding_record(finding)
    del record["trace_id"]  # of no one session
    return record


def _session(comparison: SessionComparison) -> dict[str, Any]:
    return {
        "reference": _side(comparison, "reference"),
        "candidate": _side(comparison, "candidate"),
        "metric": str(comparison.metric),
        "basis": str(comparison.basis),
        "verdict": _word(comparison.verdict),
        "verdict_reason": comparison.total.reason,
        "total": _time(comparison.total),
        "wall_time": None if comparison.wall is None else _time(comparison.wall),
        "operators": [_operator(row) for row in comparison.operators],
        "unattributed": [_unattributed(row) for row in comparison.unattributed],
        "categories": [
            {
                "category": row.category,
                "reference_ns": row.reference_ns,
                "candidate_ns": row.candidate_ns,
                "difference_ns": row.difference_ns,
            }
            for row in comparison.categories
        ],
    }


def _side(comparison: SessionComparison, name: str) -> dict[str, Any]:
    side: SessionSide = getattr(comparison, name)
    return {
        "sources": list(side.sources),
        "environment": dict(side.environment),
        "steps": side.steps,
        "ranks_per_step": side.ranks_per_step,
        "has_device": side.has_device,
        "whole_ns": side.whole_ns,
        "outside_steps_ns": side.outside_steps_ns,
        "outside_steps_launches": side.outside_steps_launches,
        "accounted_ns": comparison.accounted_ns(name),
        "kernel_launches": side.launches,
    }


def _operator(row: OperatorChange) -> dict[str, Any]:
    return {
        "name": row.name,
        "category": row.category,
        "presence": str(row.presence),
        "reference": _use(row.reference),
        "candidate": _use(row.candidate),
        **_time(row.time),
        "variants": [_variant(variant) for variant in row.variants],
        "kernels": [_kernel(kernel) for kernel in row.kernels],
    }


def _unattributed(row: UnattributedChange) -> dict[str, Any]:
    return {
        "reason": row.reason,
        "presence": str(row.presence),
        "reference": _use(row.reference),
        "candidate": _use(row.candidate),
        **_time(row.time),
        "kernels": [_kernel(kernel) for kernel in row.kernels],
    }


def _variant(row: VariantChange) -> dict[str, Any]:
    return {
        "overload": row.overload,
        "input_shapes": None if row.input_shapes is None else from_json_text(row.input_shapes),
        "presence": str(row.presence),
        "reference": _use(row.reference),
        "candidate": _use(row.candidate),
        **_time(row.time),
    }


def _kernel(row: KernelChange) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "presence": str(row.presence),
        "category": row.category,
        "reference_name": row.reference_name,
        "candidate_name": row.candidate_name,
        "reference_title": row.reference_title,
        "candidate_title": row.candidate_title,
        "change": row.change,
        "reference": _use(row.reference),
        "candidate": _use(row.candidate),
        **_time(row.time),
    }


def _use(use: Use | None) -> dict[str, Any] | None:
    if use is None:
        return None
    return {
        "calls": use.calls,
        "kernel_launches": use.launches,
        "time_ns": use.time_ns,
        "step_ns": list(use.step_ns),
    }


def _time(time: TimeChange) -> dict[str, Any]:
    return {
        "reference_ns": time.reference_ns,
        "candidate_ns": time.candidate_ns,
        "difference_ns": time.difference_ns,
        "reference_interval_ns": _interval(time.reference_interval_ns),
        "candidate_interval_ns": _interval(time.candidate_interval_ns),
        "ratio": time.ratio,
        "ratio_interval": _interval(time.ratio_interval),
        "verdict": _word(time.verdict),
        "verdict_reason": time.reason,
    }


def _interval(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _word(value: object | None) -> str | None:
    return None if value is None else str(value)


def _benchmark(comparison: BenchmarkComparison) -> dict[str, Any]:
    return {
        "reference": {
            "source": comparison.reference_source,
            "environment": dict(comparison.reference_environment),
        },
        "candidate": {
            "source": comparison.candidate_source,
            "environment": dict(comparison.candidate_environment),
        },
        "verdict": _word(comparison.verdict),
        "verdict_reason": comparison.verdict_reason,
        "counts": dict(comparison.counts),
        "points": [
            {
                **_point(change.point),
                "reference_clock": change.clocks[0],
                "candidate_clock": change.clocks[1],
                "rows": [_benchmark_row(row) for row in change.rows],
            }
            for change in comparison.points
        ],
        "only_in_reference": [_point(point) for point in comparison.only_in_reference],
        "only_in_candidate": [_point(point) for point in comparison.only_in_candidate],
    }


def _point(point: BenchmarkPoint) -> dict[str, Any]:
    return {
        "suite": point.suite,
        "shape": None if point.shape is None else list(point.shape),
        "dtype": point.dtype,
        "device_kind": point.device_kind,
        "parameters": dict(point.parameters),
    }


def _benchmark_row(row: BenchmarkRowChange) -> dict[str, Any]:
    return {
        "name": row.name,
        "presence": str(row.presence),
        "reference_status": _word(row.reference_status),
        "candidate_status": _word(row.candidate_status),
        "status_note": row.status_note,
        **_time(row.time),
        "reference_kernels_launched": row.reference_launches,
        "candidate_kernels_launched": row.candidate_launches,
        "kernels_added": list(row.kernels_added),
        "kernels_removed": list(row.kernels_removed),
        "reference_relative": row.reference_relative,
        "candidate_relative": row.candidate_relative,
    }
