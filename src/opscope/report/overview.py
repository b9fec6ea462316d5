"""What a report says of a whole recording: where it was made, and its totals, devices and steps.

Every figure comes from the Summary; absent ones are left out of fact lists and shown as "–" in tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opscope.analysis.summary import Summary
from opscope.model.environment import Environment
from opscope.model.measurement import Latency
from opscope.report.document import Block, Code, Column, FactList, Strong, Table, Text, numeric
from opscope.units import NS_PER_S, format_bytes, format_count, format_duration, format_fraction

__all__ = [
    "config_facts",
    "device_table",
    "environment_facts",
    "overview_blocks",
    "overview_facts",
    "trace_facts",
]

_STEP_ROWS = 12


def config_facts(config: Mapping[str, Any]) -> FactList:
    """The settings of a configuration, in their order."""
    return FactList(tuple((_label(key), _value(value)) for key, value in config.items()))


def trace_facts(summary: Summary) -> FactList:
    """Which traces, ranks and devices the report is about."""
    facts: list[tuple[str, Text]] = [("Trace", Code(source)) for source in summary.traces]
    ranks = [str(rank) for rank in summary.ranks if rank is not None]
    if ranks:
        facts.append(("Ranks", ", ".join(ranks)))
    facts.append(("Devices", _device_names(summary)))
    return FactList(tuple(facts))


def _device_names(summary: Summary) -> Text:
    counts: dict[str, int] = {}
    for device in summary.devices:
        name = device.name or "a device the trace does not describe"
        capability = f" (compute capability {device.compute_capability})" if device.compute_capability else ""
        counts[name + capability] = counts.get(name + capability, 0) + 1
    names = [name if count == 1 else f"{count} × {name}" for name, count in counts.items()]
    return ", ".join(names) or "none used"


def environment_facts(environment: Environment) -> FactList:
    """Versions and hardware of the machine it was recorded on."""
    facts: list[tuple[str, Text]] = [
        (label, str(value))
        for label, value in (
            ("Python", environment.python),
            ("PyTorch", environment.torch),
            ("PyTorch revision", environment.torch_git_version),
            ("CUDA runtime", environment.cuda_runtime),
            ("CUDA driver", environment.cuda_driver),
            ("cuDNN", environment.cudnn),
            ("Triton", environment.triton),
            ("Transformers", environment.transformers),
            ("CPU", environment.cpu),
            ("opscope", environment.opscope),
        )
        if value
    ]
    for gpu in environment.gpu:
        facts.append(
            (
                "GPU",
                f"{gpu.name}: compute capability {gpu.compute_capability}, {gpu.sm_count} multiprocessors, "
                f"{format_bytes(gpu.memory_bytes)}",
            )
        )
    return FactList(tuple(facts))


def _label(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _value(value: Any) -> Text:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_count(value) if isinstance(value, int) else str(value)


def overview_blocks(summary: Summary, benchmark: Latency | None, batch_size: int | None) -> tuple[Block, ...]:
    """Totals, devices and steps."""
    blocks: list[Block] = [overview_facts(summary, benchmark, batch_size)]
    if summary.devices:
        blocks.append(device_table(summary))
    if summary.steps:
        blocks.append(_step_table(summary))
    return tuple(blocks)


def overview_facts(
    summary: Summary, benchmark: Latency | None = None, batch_size: int | None = None
) -> FactList:
    """The totals of a recording, and its latency without the profiler where measured."""
    facts: list[tuple[str, Text]] = []
    if summary.has_device:
        attributed = format_fraction(summary.attributed_fraction)
        facts += [
            (
                "Device time",
                f"{format_duration(summary.device_time_ns)} in {summary.activity_count:,} activities",
            ),
            ("Attributed to operators", f"{format_duration(summary.attributed_ns)} ({attributed})"),
            ("Device busy", f"{format_fraction(summary.busy_fraction)} of the span of its activities"),
            ("Kernel launches", format_count(summary.kernel_launches)),
        ]
    else:
        facts.append(("Device time", Strong("none: ranked by CPU time")))
    facts += [
        ("CPU time in operators", format_duration(summary.cpu_time_ns)),
        ("Operator calls", f"{summary.operator_calls:,}, of {summary.operator_names:,} operators"),
    ]
    if summary.steps:
        facts.append(("Steps", _steps_text(summary)))
    if benchmark is not None:
        facts += _benchmark_facts(benchmark, batch_size)
    return FactList(tuple(facts))


def _steps_text(summary: Summary) -> str:
    durations = [step.duration_ns for step in summary.steps]
    mean = format_duration(sum(durations) / len(durations))
    text = f"{len(durations)}, {mean} each on average while recorded"
    if summary.has_device:
        device_ns = sum(step.device_ns for step in summary.steps) / len(durations)
        text += f", {format_duration(device_ns)} of device time each"
    return text


def _benchmark_facts(benchmark: Latency, batch_size: int | None) -> list[tuple[str, Text]]:
    low, high = format_duration(benchmark.p5_ns), format_duration(benchmark.p95_ns)
    facts: list[tuple[str, Text]] = [
        (
            "Latency without the profiler",
            f"median {format_duration(benchmark.median_ns)} [5 %: {low}, 95 %: {high}], "
            f"{len(benchmark.samples_ns)} samples by {benchmark.clock}",
        )
    ]
    if batch_size and benchmark.median_ns:
        facts.append(("Throughput", f"{batch_size / benchmark.median_ns * NS_PER_S:,.1f} sequences/s"))
    return facts


def device_table(summary: Summary) -> Table:
    """Span, busy and idle time of each device."""
    with_rank = any(device.rank is not None for device in summary.devices)
    rows = tuple(
        (
            *((_value(device.rank),) if with_rank else ()),
            f"{device.device}",
            device.name or "unknown",
            format_count(device.activity_count),
            format_duration(device.span_ns),
            format_duration(device.busy_ns),
            format_duration(device.idle_ns),
            format_fraction(device.busy_ns / device.span_ns if device.span_ns else None),
        )
        for device in summary.devices
    )
    rank = (numeric("Rank"),) if with_rank else ()
    columns = (
        numeric("Device"),
        Column("Name"),
        *map(numeric, ("Activities", "Span", "Busy", "Idle", "Busy share")),
    )
    return Table((*rank, *columns), rows)


def _step_table(summary: Summary) -> Table:
    shown = summary.steps[:_STEP_ROWS]
    titles = ("Step", "Duration", "Device time", "Kernels") if summary.has_device else ("Step", "Duration")
    rows = tuple(
        (
            f"{step.step}",
            format_duration(step.duration_ns),
            format_duration(step.device_ns),
            format_count(step.kernel_count),
        )[: len(titles)]
        for step in shown
    )
    caption = (
        f"The first {len(shown)} of {len(summary.steps)} steps." if len(shown) < len(summary.steps) else None
    )
    return Table(tuple(map(numeric, titles)), rows, caption)
