"""The summary over the configurations of a sweep, as JSON and as a Document.

It is made from stats documents alone, so a configuration kept from an earlier run (`--resume`) and one that
just ended read the same. A failed configuration keeps its row and its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opscope._version import __version__
from opscope.report.document import BulletList, Code, Column, Document, Section, Strong, Table, Text, numeric
from opscope.units import NS_PER_MS, format_count, format_duration, format_fraction

__all__ = ["SWEEP_SCHEMA_VERSION", "SweepEntry", "sweep_document", "sweep_report"]

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
