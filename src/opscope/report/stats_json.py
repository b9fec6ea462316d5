"""The stats file of one configuration, `profiling_stats_bs{N}_seq{M}.json`: a published contract.

Its field names are fixed (`schema_version` 1, times in milliseconds as floats) and every key is present in
every file; what is not known is null. Times cover all recorded steps. Without a device `cuda_*` are 0.0 and
CPU time ranks the operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from opscope._version import __version__
from opscope.analysis.efficiency import Roofline
from opscope.analysis.summary import DeviceTime, Summary
from opscope.analysis.totals import CategoryTotal, KernelTotal, LaunchGeometry, OperatorTotal
from opscope.model.environment import Environment
from opscope.model.measurement import Latency
from opscope.report.analysis_json import finding_record, shape_records
from opscope.report.efficiency_json import (
    coverage_record,
    limits_record,
    partition_records,
    roofline_record,
)
from opscope.report.provenance_json import (
    accuracy_record,
    decoded_record,
    function_record,
    kernel_source_record,
    location_record,
)
from opscope.report.selection import ranked_findings, ranked_operators
from opscope.units import NS_PER_S, ns_to_ms

__all__ = ["STATS_SCHEMA_VERSION", "benchmark_document", "stats_document"]

STATS_SCHEMA_VERSION = 1


def stats_document(
    summary: Summary,
    config: Mapping[str, Any],
    environment: Environment | None,
    benchmark: Latency | None,
    *,
    wall_time_ns_per_step: float | None = None,
) -> dict[str, Any]:
    """The stats file of one configuration.

    Args:
        summary: Of the configuration's trace.
        config: workload, batch_size, seq_len, dtype, device, parameters, steps, …; kept as given.
        environment: What it ran on; null in the file if None.
        benchmark: Latency without the profiler; null in the file if None.
        wall_time_ns_per_step: Host time of a recorded step; the mean of the trace's steps if None.
    """
    operators = ranked_operators(summary)
    return {
        "schema_version": STATS_SCHEMA_VERSION,
        "opscope_version": __version__,
        "config": dict(config),
        "environment": None if environment is None else msgspec.to_builtins(environment),
        "summary": _totals(summary, wall_time_ns_per_step),
        "top_aten_operators": [_operator(summary, operator) for operator in operators],
        "operator_categories": {category.category: _category(category) for category in summary.categories},
        "native_function_mapping": {operator.name: function_record(operator) for operator in operators},
        "cuda_kernels": [
            _kernel(kernel, summary.efficiency.kernels.get((None, kernel.name))) for kernel in summary.kernels
        ],
        "unattributed": {reason: ns_to_ms(ns) for reason, ns in summary.unattributed_ns.items()},
        "limits": limits_record(summary.efficiency.limits),
        "cost_coverage": coverage_record(summary.efficiency),
        "time_partition": partition_records(summary.timeline),
        "accuracy": accuracy_record(summary.accuracy),
        "benchmark": None if benchmark is None else benchmark_document(benchmark, config.get("batch_size")),
        "findings": [finding_record(finding) for finding in ranked_findings(summary)],
    }


def benchmark_document(benchmark: Latency, batch_size: int | None) -> dict[str, Any]:
    """A latency with all its samples; throughput is null without a batch size."""
    throughput = batch_size * NS_PER_S / benchmark.median_ns if batch_size and benchmark.median_ns else None
    return {
        "latency_ms": {
            "median": ns_to_ms(benchmark.median_ns),
            "p5": ns_to_ms(benchmark.p5_ns),
            "p95": ns_to_ms(benchmark.p95_ns),
            "samples": [ns_to_ms(sample_ns) for sample_ns in benchmark.samples_ns],
        },
        "clock": benchmark.clock,
        "warmup_count": benchmark.warmup_count,
        "throughput_sequences_per_s": throughput,
    }


def _totals(summary: Summary, wall_time_ns_per_step: float | None) -> dict[str, Any]:
    step_count = len(summary.steps)
    if wall_time_ns_per_step is None and step_count:
        wall_time_ns_per_step = sum(step.duration_ns for step in summary.steps) / step_count
    return {
        "total_cuda_time_ms": ns_to_ms(summary.device_time_ns),
        "total_cpu_time_ms": ns_to_ms(summary.cpu_time_ns),
        "cuda_time_ms_per_step": ns_to_ms(summary.device_time_ns) / step_count if step_count else None,
        "cpu_time_ms_per_step": ns_to_ms(summary.cpu_time_ns) / step_count if step_count else None,
        "wall_time_ms_per_step": None if wall_time_ns_per_step is None else ns_to_ms(wall_time_ns_per_step),
        "gpu_busy_fraction": summary.busy_fraction,
        "kernel_launches": summary.kernel_launches,
        "device_activities": summary.activity_count,
        "operator_calls": summary.operator_calls,
        "steps": step_count,
        "attributed_cuda_time_ms": ns_to_ms(summary.attributed_ns),
        "attributed_fraction": summary.attributed_fraction,
        "source_mapped_fraction": summary.source_mapped_fraction,
        "devices": [_device(device) for device in summary.devices],
    }


def _device(device: DeviceTime) -> dict[str, Any]:
    return {
        "device": device.device,
        "name": device.name,
        "span_ms": ns_to_ms(device.span_ns),
        "busy_ms": ns_to_ms(device.busy_ns),
        "idle_ms": ns_to_ms(device.idle_ns),
    }


def _operator(summary: Summary, operator: OperatorTotal) -> dict[str, Any]:
    cpu_fraction = operator.self_cpu_ns / summary.cpu_time_ns if summary.cpu_time_ns else None
    return {
        "name": operator.name,
        "overload": operator.overload,
        "cuda_time_total_ms": ns_to_ms(operator.total_device_ns),
        "self_cuda_time_ms": ns_to_ms(operator.self_device_ns),
        "cpu_time_total_ms": ns_to_ms(operator.total_cpu_ns),
        "self_cpu_time_ms": ns_to_ms(operator.self_cpu_ns),
        "calls": operator.calls,
        "kernel_launches": operator.kernel_launches,
        "cuda_time_fraction": operator.self_device_fraction,
        "cpu_time_fraction": cpu_fraction,
        "category": operator.category,
        "input_shapes": shape_records(operator),
        "native_function": function_record(operator),
        "potential_cuda_file": _cuda_file(operator),
        "source": _source(operator),
        "kernels": [
            _kernel(kernel, summary.efficiency.kernels.get((operator.name, kernel.name)))
            for kernel in operator.kernels
        ],
        **roofline_record(summary.efficiency.operators.get(operator.name)),
    }


def _cuda_file(operator: OperatorTotal) -> str | None:
    """The file of its device code; None for an operator that launched nothing: its file holds none."""
    return None if operator.source is None or not operator.self_device_ns else operator.source.file


def _source(operator: OperatorTotal) -> dict[str, Any] | None:
    record = location_record(operator.source)
    return None if record is None else {**record, "evidence": record["grade"]}


def _category(category: CategoryTotal) -> dict[str, Any]:
    return {
        "cuda_time_ms": ns_to_ms(category.device_ns),
        "cpu_time_ms": ns_to_ms(category.cpu_ns),
        "fraction": category.fraction,
        "calls": category.calls,
    }


_NO_GEOMETRY = LaunchGeometry(None, None, None, None, None, 0, 0)


def _kernel(kernel: KernelTotal, roofline: Roofline | None) -> dict[str, Any]:
    # The kernel's own fields are those of the launch configuration it spent most time in.
    longest = kernel.geometries[0] if kernel.geometries else _NO_GEOMETRY
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "decoded": decoded_record(kernel.facts),
        "source": kernel_source_record(kernel.facts),
        "calls": kernel.calls,
        "cuda_time_ms": ns_to_ms(kernel.total_ns),
        "cuda_time_fraction": kernel.fraction,
        "min_ms": ns_to_ms(kernel.min_ns),
        "max_ms": ns_to_ms(kernel.max_ns),
        "size_bytes": kernel.size_bytes,
        **roofline_record(roofline),
        **_geometry(longest),
        "launches": [
            {**_geometry(geometry), "calls": geometry.calls, "cuda_time_ms": ns_to_ms(geometry.total_ns)}
            for geometry in kernel.geometries
        ],
    }


def _geometry(geometry: LaunchGeometry) -> dict[str, Any]:
    return {
        "grid": None if geometry.grid is None else list(geometry.grid),
        "block": None if geometry.block is None else list(geometry.block),
        "registers_per_thread": geometry.registers_per_thread,
        "shared_memory_bytes": geometry.shared_memory_bytes,
        "occupancy": geometry.occupancy_estimate,
    }
