"""How far from the limits, and where time goes on the device, as JSON values: contracts of both JSON files.

Rates are per second, times in nanoseconds, fractions 0–1; what is unknown is null.
"""

from __future__ import annotations

from typing import Any

from opscope.analysis.efficiency import CallEfficiency, Efficiency, Roofline
from opscope.analysis.program.values import ProgramTotals
from opscope.analysis.timeline.values import IdleGap, Timeline, TimePartition
from opscope.hardware.limits import DeviceLimits, Limit
from opscope.report.json_export import from_json_text

__all__ = [
    "NO_ROOFLINE",
    "call_records",
    "coverage_record",
    "limits_record",
    "partition_records",
    "program_record",
    "roofline_record",
    "timeline_record",
]


def roofline_record(roofline: Roofline | None) -> dict[str, Any]:
    """The roofline fields of an operator or kernel; every key is there, null where unknown."""
    if roofline is None:
        return dict(NO_ROOFLINE)
    return {
        "flop_count": roofline.flop_count,
        "min_bytes": roofline.min_bytes,
        "arithmetic_intensity": roofline.arithmetic_intensity,
        "achieved_flop_per_s": roofline.achieved_flop_per_s,
        "achieved_bytes_per_s": roofline.achieved_bytes_per_s,
        "attainable_ns": roofline.attainable_ns,
        "roofline_fraction": roofline.fraction,
        "bound": roofline.bound,
        "bound_ns": {str(bound): ns for bound, ns in roofline.bound_ns.items()},
        "costed_ns": roofline.costed_ns,
        "held_ns": roofline.held_ns,
        "cache_resident_ns": roofline.cache_resident_ns,
        "excess_ns": roofline.excess_ns,
        "data_type": roofline.data_type,
        "tensor_cores": roofline.tensor_cores,
    }


NO_ROOFLINE: dict[str, Any] = {
    "flop_count": None,
    "min_bytes": None,
    "arithmetic_intensity": None,
    "achieved_flop_per_s": None,
    "achieved_bytes_per_s": None,
    "attainable_ns": None,
    "roofline_fraction": None,
    "bound": None,
    "bound_ns": {},
    "costed_ns": 0,
    "held_ns": 0,
    "cache_resident_ns": 0,
    "excess_ns": 0,
    "data_type": None,
    "tensor_cores": None,
}


def call_records(efficiency: Efficiency, top: int | None) -> list[dict[str, Any]]:
    """The distinct calls with the most device time, with their cost and what it is known by."""
    return [_call(call) for call in efficiency.calls[:top]]


def _call(call: CallEfficiency) -> dict[str, Any]:
    cost = call.cost
    return {
        "call_id": call.call_id,
        "operator": call.operator,
        "overload": call.overload,
        "shapes": None if call.shapes is None else from_json_text(call.shapes),
        "types": None if call.types is None else from_json_text(call.types),
        "calls": call.calls,
        "device_ns": call.roofline.device_ns,
        "gap_ns": call.gap_ns,
        "kernels": list(call.kernels),
        "read_bytes": cost.read_bytes,
        "written_bytes": cost.written_bytes,
        "cost_evidence": cost.evidence,
        "flop_source": cost.flop_source,
        "unknown_because": cost.reason,
        **roofline_record(call.roofline),
    }


def coverage_record(efficiency: Efficiency) -> dict[str, Any]:
    """The share of all device time whose bytes and operations are known, and what is not."""
    coverage = efficiency.coverage
    return {
        "bytes_fraction": coverage.bytes_fraction,
        "flop_fraction": coverage.flop_fraction,
        "uncosted": [
            {"name": name, "device_ns": ns, "reason": reason} for name, ns, reason in coverage.uncosted
        ],
    }


def limits_record(limits: DeviceLimits | None) -> dict[str, Any] | None:
    """The limits that fractions refer to, each with how it is known; None where none are."""
    if limits is None:
        return None
    return {
        "device": limits.name,
        "memory_bytes_per_s": _limit(limits.memory),
        "l2_bytes_per_s": _limit(limits.l2),
        "peaks_flop_per_s": {str(data_type): _limit(limit) for data_type, limit in limits.peaks.items()},
        "launch_ns": limits.launch_ns,
    }


def _limit(limit: Limit | None) -> dict[str, Any] | None:
    return None if limit is None else {"value": limit.per_s, "evidence": limit.evidence, "how": limit.how}


def partition_records(timeline: Timeline) -> list[dict[str, Any]]:
    """The partition of each device's span: every nanosecond in one part, of idle time in one cause."""
    return [_partition(one) for one in timeline.partitions]


def _partition(one: TimePartition) -> dict[str, Any]:
    return {
        "trace_id": one.trace_id,
        "rank": one.rank,
        "device": one.device,
        "span_ns": one.span_ns,
        "compute_ns": one.compute_ns,
        "exposed_copy_ns": one.exposed_copy_ns,
        "exposed_communication_ns": one.exposed_communication_ns,
        "idle_ns": one.idle_ns,
        "idle_by_cause": {str(cause): ns for cause, ns in one.idle_by_cause.items()},
        "copy_ns": one.copy_ns,
        "communication_ns": one.communication_ns,
        "longest_gaps": [_gap(gap) for gap in one.longest_gaps],
    }


def _gap(gap: IdleGap) -> dict[str, Any]:
    return {
        "start_ns": gap.start_ns,
        "duration_ns": gap.duration_ns,
        "cause": gap.cause,
        "step": gap.step,
        "host": gap.host,
        "line": gap.line,
    }


def timeline_record(timeline: Timeline) -> dict[str, Any]:
    """Waits, launches, queue and steps."""
    return {
        "waits": [
            {
                "name": wait.name,
                "operator": wait.operator,
                "line": wait.line,
                "calls": wait.calls,
                "host_ns": wait.host_ns,
                "idle_ns": wait.idle_ns,
                "copy": wait.copy,
                "size_bytes": wait.size_bytes,
            }
            for wait in timeline.waits
        ],
        "launch_latency": [
            {
                "trace_id": one.trace_id,
                "device": one.device,
                "launches": one.launches,
                "median_ns": one.median_ns,
                "p95_ns": one.p95_ns,
                "negative_count": one.negative_count,
            }
            for one in timeline.latencies
        ],
        "queue_depth": [
            {
                "trace_id": one.trace_id,
                "device": one.device,
                "mean": one.mean,
                "maximum": one.maximum,
                "empty_fraction": one.empty_fraction,
            }
            for one in timeline.queues
        ],
        "over_time": [
            {
                "trace_id": one.trace_id,
                "device": one.device,
                "start_ns": one.start_ns,
                "interval_ns": one.interval_ns,
                "queue_depth": list(one.mean),
                "launch_latency_ns": list(one.latency_ns),
            }
            for one in timeline.series
        ],
        "steps": [
            {
                "trace_id": one.trace_id,
                "count": one.count,
                "mean_ns": one.mean_ns,
                "median_ns": one.median_ns,
                "min_ns": one.min_ns,
                "max_ns": one.max_ns,
                "outliers": list(one.outliers),
            }
            for one in timeline.steps
        ],
        "host": [
            {
                "trace_id": one.trace_id,
                "steps": one.steps,
                "step_ns": one.step_ns,
                "device_busy_ns": one.device_busy_ns,
                "launch_path_ns": one.launch_path_ns,
                "launches": one.launches,
                "recorder_ns": one.recorder_ns,
                "recorder_basis": one.recorder_basis,
            }
            for one in timeline.host
        ],
    }


def program_record(program: ProgramTotals, top: int | None) -> dict[str, Any]:
    """Device time by module and by source line."""
    return {
        "module_ns": program.module_ns,
        "line_ns": program.line_ns,
        "modules": [
            {
                "path": one.path,
                "class_name": one.class_name,
                "depth": one.depth,
                "calls": one.calls,
                "self_device_ns": one.self_device_ns,
                "total_device_ns": one.total_device_ns,
                "forward_ns": one.forward_ns,
                "backward_ns": one.backward_ns,
                "kernel_launches": one.kernel_launches,
            }
            for one in program.modules
        ],
        "lines": [
            {
                "file": one.file,
                "line": one.line,
                "kind": str(one.kind),
                "function": one.function,
                "calls": one.calls,
                "self_device_ns": one.self_device_ns,
                "forward_ns": one.forward_ns,
                "backward_ns": one.backward_ns,
                "kernel_launches": one.kernel_launches,
            }
            for one in program.lines[:top]
        ],
    }
