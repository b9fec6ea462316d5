"""The stats file of one configuration, `profiling_stats_bs{N}_seq{M}.json`: a published contract.

Its field names are fixed (`schema_version` 1, times in milliseconds as floats) and every key is present in
every file; what is not known is null. Times cover all recorded steps. Without a device `cuda_*` are 0.0 and
CPU time ranks the operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from opscope._version import __version__
from opscope.analysis.efficiency import Roofline
from opscope.analysis.summary import DeviceTime, Summary
from opscope.analysis.totals import CategoryTotal, KernelTotal, LaunchGeometry, OperatorTotal
from opscope.model.environment import Environment
from opscope.model.measurement import Latency
from opscope.report.analysis import finding_record, shape_records
from opscope.report.document import BulletList, Code, Column, Document, Section, Strong, Table, Text, numeric
from opscope.report.efficiency import coverage_record, limits_record, partition_records, roofline_record
from opscope.report.operators import ranked_findings, ranked_operators
from opscope.report.provenance import (
    accuracy_record,
    decoded_record,
    function_record,
    kernel_source_record,
    location_record,
)
from opscope.units import NS_PER_MS, NS_PER_S, format_count, format_duration, format_fraction, ns_to_ms

__all__ = [
    "STATS_SCHEMA_VERSION",
    "SWEEP_SCHEMA_VERSION",
    "SweepEntry",
    "benchmark_document",
    "stats_document",
    "sweep_document",
    "sweep_report",
]


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


SWEEP_SCHEMA_VERSION = 1

_SUMMARY_KEYS = (
    "total_cuda_time_ms",
    "total_cpu_time_ms",
    "cuda_time_ms_per_step",
    "cpu_time_ms_per_step",
    "wall_time_ms_per_step",
    "gpu_busy_fraction",
    "kernel_launches",
    "attributed_fraction",
)


@dataclass(frozen=True)
class SweepEntry:
    """One configuration: its stats document, or the reason there is none.

    Args:
        label: Name of the configuration, e.g. `bs8_seq128`.
        stats: Its stats document; None if it failed.
        files: File names by role: `stats`, `report`, `trace`.
        error: Why it failed; None if it did not.
    """

    label: str
    stats: Mapping[str, Any] | None
    files: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


def sweep_document(entries: Sequence[SweepEntry]) -> dict[str, Any]:
    """All configurations in order, each with its headline figures and file names."""
    return {
        "schema_version": SWEEP_SCHEMA_VERSION,
        "opscope_version": __version__,
        "configurations": [_record(entry) for entry in entries],
    }


def sweep_report(entries: Sequence[SweepEntry], *, title: str = "Profiling summary") -> Document:
    """One table of all configurations, and the failures with their reasons."""
    records = [_record(entry) for entry in entries]
    on_device = any(record["summary"]["kernel_launches"] for record in records)
    columns = (
        Column("Config"),
        *map(
            numeric,
            ("Device per step" if on_device else "CPU per step", "Wall per step", "Busy", "Kernel launches"),
        ),
        Column("Latency ms, median (5–95 %)"),
        numeric("Seq. per s"),
        Column("Top operator"),
    )
    blocks = (Table(columns, tuple(_row(record, on_device=on_device) for record in records)),)
    failures = tuple(
        ((Code(entry.label), f": {entry.error}")) for entry in entries if entry.error is not None
    )
    sections = (Section("Failed configurations", (BulletList(failures),)),) if failures else ()
    return Document(_title(title, records), blocks, sections)


def _record(entry: SweepEntry) -> dict[str, Any]:
    stats: Mapping[str, Any] = entry.stats or {}
    totals = stats.get("summary") or {}
    benchmark = stats.get("benchmark") or {}
    latency = benchmark.get("latency_ms")
    return {
        "label": entry.label,
        "status": "failed" if entry.stats is None else "complete",
        "error": entry.error,
        "config": stats.get("config"),
        "summary": {key: totals.get(key) for key in _SUMMARY_KEYS},
        "latency_ms": None if latency is None else {key: latency.get(key) for key in ("median", "p5", "p95")},
        "throughput_sequences_per_s": benchmark.get("throughput_sequences_per_s"),
        "top_operator": _top_operator(stats),
        "files": dict(entry.files),
    }


def _top_operator(stats: Mapping[str, Any]) -> dict[str, Any] | None:
    operators = stats.get("top_aten_operators") or []
    if not operators:
        return None
    first = operators[0]
    on_device = first["self_cuda_time_ms"] > 0
    return {
        "name": first["name"],
        "self_cuda_time_ms": first["self_cuda_time_ms"],
        "self_cpu_time_ms": first["self_cpu_time_ms"],
        "fraction": first["cuda_time_fraction"] if on_device else first.get("cpu_time_fraction"),
    }


def _title(title: str, records: Sequence[Mapping[str, Any]]) -> str:
    config = next((record["config"] for record in records if record["config"]), None)
    if config is None:
        return title
    what = [str(config[key]) for key in ("workload", "dtype", "device") if config.get(key)]
    return f"{title}: {', '.join(what)}" + (", training" if config.get("train") else "")


def _row(record: Mapping[str, Any], *, on_device: bool) -> tuple[Text, ...]:
    if record["status"] == "failed":
        return (record["label"], *("–",) * 6, Strong("failed"))
    totals = record["summary"]
    top = record["top_operator"]
    throughput = record["throughput_sequences_per_s"]
    return (
        record["label"],
        _milliseconds(totals["cuda_time_ms_per_step" if on_device else "cpu_time_ms_per_step"]),
        _milliseconds(totals["wall_time_ms_per_step"]),
        format_fraction(totals["gpu_busy_fraction"]),
        format_count(totals["kernel_launches"]),
        _latency(record["latency_ms"]),
        "–" if throughput is None else f"{throughput:,.1f}",
        "–" if top is None else Code(top["name"]),
    )


def _latency(latency_ms: Mapping[str, float] | None) -> str:
    if latency_ms is None:
        return "–"
    median, low, high = (_significant(latency_ms[key]) for key in ("median", "p5", "p95"))
    return f"{median} ({low}–{high})"


def _significant(value: float) -> str:
    decimals = next((decimals for least, decimals in ((100, 0), (10, 1), (1, 2)) if value >= least), 3)
    return f"{value:.{decimals}f}"


def _milliseconds(duration_ms: float | None) -> str:
    return format_duration(None if duration_ms is None else duration_ms * NS_PER_MS)
