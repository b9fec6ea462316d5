"""What the configurations of `opscope profile` come to: one table, of the stats file of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from opscope.benchmarking.statistics import CONFIDENCE
from opscope.report import document as doc
from opscope.report.json_encoding import versions
from opscope.units import (
    NS_PER_MS,
    counted,
    format_duration,
    format_fraction,
    format_mean_count,
    format_ratio,
    significant,
)

SWEEP_SCHEMA_VERSION = 1

_SUMMARY_KEYS = (
    "total_cuda_time_ms", "total_cpu_time_ms", "cuda_time_ms_per_step", "cpu_time_ms_per_step",
    "wall_time_ms_per_step", "gpu_busy_fraction", "kernel_launches", "attributed_fraction",
)  # fmt: skip


Record = Mapping[str, Any]  # of one configuration, as in the JSON


def sweep_record(
    label: str,
    stats: Mapping[str, Any] | None,
    files: Mapping[str, str] = MappingProxyType({}),
    error: str | None = None,
) -> Record:
    """One configuration, of its stats document or the reason there is none; `files` are names by role."""
    known: Mapping[str, Any] = stats or {}
    totals, benchmark = known.get("summary") or {}, known.get("benchmark") or {}
    latency, top = benchmark.get("latency_ms"), None
    rows = known.get("top_aten_operators") or []
    operators = [{key: one[key] for key in ("name", "self_cuda_time_ms", "self_cpu_time_ms")} for one in rows]
    for first in rows[:1]:
        fraction = "cuda_time_fraction" if first["self_cuda_time_ms"] > 0 else "cpu_time_fraction"
        top = {**operators[0], "fraction": first.get(fraction)}
    return {
        "label": label,
        "status": "failed" if stats is None else "complete",
        "error": error,
        "config": known.get("config"),
        "summary": {key: totals.get(key) for key in _SUMMARY_KEYS},
        "step": known.get("step"),
        "latency_ms": None if latency is None else {key: latency.get(key) for key in ("median", "p5", "p95")},
        "throughput_sequences_per_s": benchmark.get("throughput_sequences_per_s"),
        "top_operator": top,
        "operators": operators,
        "files": dict(files),
    }


def sweep_json(records: Sequence[Record]) -> dict[str, Any]:
    return {**versions(SWEEP_SCHEMA_VERSION), "configurations": list(records)}


def sweep_document(records: Sequence[Record]) -> doc.Document:
    on_device = any(record["summary"]["kernel_launches"] for record in records)
    key = "cuda_time_ms_per_step" if on_device else "cpu_time_ms_per_step"

    def at(part: str, key: str) -> Callable[[Record], Any]:
        return lambda record: (record[part] or {}).get(key)

    def launches(record: Record) -> float | None:
        # A step's: the summary counts those of all recorded steps.
        count, steps = record["summary"]["kernel_launches"], at("config", "steps")(record)
        return count / steps if count is not None and steps else None

    def unrecorded(time: Mapping[str, float]) -> str:
        """A step without the profiler, by the clock of the program's own loop."""
        median, low, high = (significant(time[key], below_one=3) for key in ("median", "low", "high"))
        return f"{median} ms ({low}–{high})" if time["coverage"] >= CONFIDENCE else f"{median} ms"

    def latency(ms: Mapping[str, float]) -> str:
        return "{} ({}–{})".format(*(significant(ms[key], below_one=3) for key in ("median", "p5", "p95")))

    def top_operator(record: Record) -> doc.Text | None:
        if record["status"] == "failed":
            return doc.Strong("failed")
        return record["top_operator"] and doc.Code(record["top_operator"]["name"])

    configurations = doc.table(
        records,
        doc.words("Config", itemgetter("label")),
        doc.number("Step, median (95 %)", at("step", "unrecorded_ms"), unrecorded),
        doc.number("Busy", at("step", "busy_fraction"), format_fraction, spare=1) if on_device else None,
        doc.number("Recorded step", at("summary", "wall_time_ms_per_step"), _milliseconds, spare=4),
        doc.number("Profiler slowdown", at("step", "host_stretch"), format_ratio, spare=6),
        doc.number(
            "Device per step" if on_device else "CPU per step", at("summary", key), _milliseconds, spare=3
        ),
        doc.number("Kernel launches per step", launches, format_mean_count, spare=5) if on_device else None,
        doc.words("Latency ms, median (5–95 %)", itemgetter("latency_ms"), latency, spare=2),
        doc.number("Seq. per s", itemgetter("throughput_sequences_per_s"), _rate),
        doc.words("Top operator", top_operator),
    )
    failures = tuple(
        (doc.Code(one["label"]), f": {one['error']}") for one in records if one["error"] is not None
    )
    title, config = "Profiling summary", next((one["config"] for one in records if one["config"]), None)
    if config is not None:
        what = [str(config[key]) for key in ("workload", "dtype", "device") if config.get(key)]
        title = f"{title}: {', '.join(what)}" + (", training" if config.get("train") else "")
    return doc.Document(
        title,
        (_headline(records),),
        doc.sections(
            doc.Section("Configurations", (configurations,)),
            doc.Section("Failed configurations", (doc.BulletList(failures),)),
        ),
    )


def _headline(records: Sequence[Record]) -> doc.FactList:
    done = [record for record in records if record["status"] != "failed"]
    rates = [(rate, one) for one in done if (rate := one["throughput_sequences_per_s"]) is not None]
    most = max(rates, key=itemgetter(0), default=None)
    return doc.facts(
        ("Highest throughput", None if most is None else f"{_rate(most[0])} per s at {most[1]['label']}"),
        *(
            ("Top operator", (doc.Code(name), f" in {count} of {counted(len(done), 'configuration')}"))
            for name, count in Counter(
                one["top_operator"]["name"] for one in done if one["top_operator"]
            ).most_common(1)
        ),
        ("Failed", f"{len(records) - len(done)} of {len(records)}" if len(done) < len(records) else None),
    )


def _rate(per_s: float) -> str:
    # Of slow rates a tenth tells too little.
    return f"{per_s:,.1f}" if per_s >= 10 else f"{per_s:.3g}"


def _milliseconds(duration_ms: float) -> str:
    return format_duration(duration_ms * NS_PER_MS)
