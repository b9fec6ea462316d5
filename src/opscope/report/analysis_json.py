"""The document `opscope analyze --json` prints: a Summary in integer nanoseconds, with full names.

Its keys are a contract (`schema_version` 1); keys may be added, none changes its meaning. Also the home of
the small records that both JSON documents share.
"""

from __future__ import annotations

from typing import Any

from opscope._version import __version__
from opscope.analysis.efficiency import Roofline
from opscope.analysis.summary import DeviceTime, StepTotal, Summary
from opscope.analysis.totals import CategoryTotal, KernelTotal, LaunchGeometry, OperatorTotal
from opscope.model.finding import Finding
from opscope.report.efficiency_json import (
    call_records,
    coverage_record,
    limits_record,
    partition_records,
    program_record,
    roofline_record,
    timeline_record,
)
from opscope.report.json_export import from_json_text
from opscope.report.kernel_section import improvement_record, launch_records
from opscope.report.provenance_json import (
    accuracy_record,
    decoded_record,
    function_record,
    kernel_source_record,
    location_record,
)
from opscope.report.selection import rank_fraction, ranked_findings, ranked_operators
from opscope.units import ns_to_ms

__all__ = [
    "ANALYSIS_SCHEMA_VERSION",
    "analysis_document",
    "finding_record",
    "kernel_record",
    "operator_record",
    "shape_records",
]

ANALYSIS_SCHEMA_VERSION = 1


def analysis_document(summary: Summary, *, top: int | None = 10) -> dict[str, Any]:
    """The Summary as JSON values: the `top` operators (every one for None), everything else complete."""
    operators = summary.operators if top is None else ranked_operators(summary)[:top]
    return {
        "schema_version": ANALYSIS_SCHEMA_VERSION,
        "opscope_version": __version__,
        "trace": summary.traces[0] if summary.traces else None,
        "traces": list(summary.traces),
        "ranks": list(summary.ranks),
        "torch_version": summary.torch_version,
        "torch_version_grade": summary.torch_version_grade,
        "torch_version_reason": summary.torch_version_reason,
        "summary": _totals(summary),
        "unattributed": dict(summary.unattributed_ns),
        "ranked_by": "self_device_ns" if summary.has_device else "self_cpu_ns",
        "top_operators": [operator_record(summary, operator) for operator in operators],
        "categories": [_category(category) for category in summary.categories],
        "kernels": [
            kernel_record(kernel, summary.efficiency.kernels.get((None, kernel.name)))
            for kernel in summary.kernels
        ],
        "steps": [_step(step) for step in summary.steps],
        "limits": limits_record(summary.efficiency.limits),
        "cost_coverage": coverage_record(summary.efficiency),
        "calls": call_records(summary.efficiency, top),
        "time_partition": partition_records(summary.timeline),
        "timeline": timeline_record(summary.timeline),
        "program": program_record(summary.program, top),
        "accuracy": accuracy_record(summary.accuracy),
        "findings": [finding_record(finding) for finding in ranked_findings(summary)],
    }


def finding_record(finding: Finding) -> dict[str, Any]:
    """A finding with all its fields."""
    return {
        "code": finding.code,
        "severity": str(finding.severity),
        "message": finding.message,
        "suggestion": finding.suggestion,
        "trace_id": finding.trace_id,
        "evidence": dict(finding.evidence),
        "estimated_gain_ms_per_step": None
        if finding.estimated_gain_ns_per_step is None
        else ns_to_ms(finding.estimated_gain_ns_per_step),
        "gain_basis": finding.gain_basis,
        "change": finding.change,
    }


def shape_records(operator: OperatorTotal) -> list[dict[str, Any]]:
    """The operator's input shapes with their calls, most frequent first."""
    return [{"shapes": from_json_text(shapes), "calls": calls} for shapes, calls in operator.input_shapes]


def _totals(summary: Summary) -> dict[str, Any]:
    return {
        "device_time_ns": summary.device_time_ns,
        "attributed_ns": summary.attributed_ns,
        "attributed_fraction": summary.attributed_fraction,
        "busy_fraction": summary.busy_fraction,
        "cpu_time_ns": summary.cpu_time_ns,
        "window_ns": summary.window_ns,
        "kernel_launches": summary.kernel_launches,
        "activities": summary.activity_count,
        "operators": summary.operator_calls,
        "operator_names": summary.operator_names,
        "steps": len(summary.steps),
        "devices": [_device(device) for device in summary.devices],
    }


def _device(device: DeviceTime) -> dict[str, Any]:
    return {
        "trace_id": device.trace_id,
        "rank": device.rank,
        "device": device.device,
        "name": device.name,
        "compute_capability": device.compute_capability,
        "sm_count": device.sm_count,
        "memory_bytes": device.memory_bytes,
        "span_ns": device.span_ns,
        "busy_ns": device.busy_ns,
        "idle_ns": device.idle_ns,
        "activities": device.activity_count,
    }


def operator_record(summary: Summary, operator: OperatorTotal) -> dict[str, Any]:
    """One operator, with its native function, source and kernels."""
    return {
        "name": operator.name,
        "overload": operator.overload,
        "category": operator.category,
        "calls": operator.calls,
        "self_device_ns": operator.self_device_ns,
        "total_device_ns": operator.total_device_ns,
        "self_device_fraction": operator.self_device_fraction,
        "total_device_fraction": operator.total_device_fraction,
        "self_cpu_ns": operator.self_cpu_ns,
        "total_cpu_ns": operator.total_cpu_ns,
        "rank_fraction": rank_fraction(summary, operator),
        "kernel_launches": operator.kernel_launches,
        "input_shapes": shape_records(operator),
        "native_function": function_record(operator),
        "source": location_record(operator.source),
        **roofline_record(summary.efficiency.operators.get(operator.name)),
        "improvement": improvement_record(summary.improvements.get(operator.name)),
        "called_operators": [
            {"name": name, "calls": calls, "total_device_ns": total_ns}
            for name, calls, total_ns in operator.called_operators
        ],
        "kernels": [
            {
                **kernel_record(kernel, summary.efficiency.kernels.get((operator.name, kernel.name))),
                "parallelism": launch_records(summary, operator.name, kernel.name),
            }
            for kernel in operator.kernels
        ],
    }


def _category(category: CategoryTotal) -> dict[str, Any]:
    return {
        "category": category.category,
        "device_ns": category.device_ns,
        "cpu_ns": category.cpu_ns,
        "fraction": category.fraction,
        "calls": category.calls,
    }


def kernel_record(kernel: KernelTotal, roofline: Roofline | None = None) -> dict[str, Any]:
    """One kernel, with what its name states, where its code lies and how far it is from the limit."""
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "calls": kernel.calls,
        "total_ns": kernel.total_ns,
        "min_ns": kernel.min_ns,
        "max_ns": kernel.max_ns,
        "fraction": kernel.fraction,
        "size_bytes": kernel.size_bytes,
        "decoded": decoded_record(kernel.facts),
        "source": kernel_source_record(kernel.facts),
        **roofline_record(roofline),
        "launches": [_geometry(geometry) for geometry in kernel.geometries],
    }


def _geometry(geometry: LaunchGeometry) -> dict[str, Any]:
    return {
        "grid": None if geometry.grid is None else list(geometry.grid),
        "block": None if geometry.block is None else list(geometry.block),
        "registers_per_thread": geometry.registers_per_thread,
        "shared_memory_bytes": geometry.shared_memory_bytes,
        "occupancy_estimate": geometry.occupancy_estimate,
        "calls": geometry.calls,
        "total_ns": geometry.total_ns,
    }


def _step(step: StepTotal) -> dict[str, Any]:
    return {
        "trace_id": step.trace_id,
        "step": step.step,
        "duration_ns": step.duration_ns,
        "device_ns": step.device_ns,
        "kernel_count": step.kernel_count,
    }
