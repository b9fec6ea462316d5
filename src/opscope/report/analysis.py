"""Summary → Document: what reports say, in which order and under which numbers.

The section numbers are part of the report's contract (`### 4.1` is the first operator). Every figure comes
from the Summary; a value no one has found is said to be unknown, never left out. Imports no renderer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from opscope.analysis.measured_step import MeasuredStep, UnrecordedTime
from opscope.analysis.ranges import GraphTotal
from opscope.analysis.summary import Summary
from opscope.analysis.totals import CategoryTotal
from opscope.model.environment import Environment
from opscope.model.measurement import Latency
from opscope.model.schema import Attribution
from opscope.model.sidecar import StepPlace
from opscope.provenance.categories import category_title
from opscope.report.advice import advice_blocks, advice_notes, advice_sections
from opscope.report.collectives import collective_blocks
from opscope.report.document import (
    BarList,
    Block,
    Code,
    Document,
    FactList,
    FindingList,
    Meaning,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    blocks,
    facts,
    identifier,
    number,
    sections,
    table,
    words,
)
from opscope.report.efficiency import efficiency_blocks
from opscope.report.headline import headline
from opscope.report.meanings import (
    categories_meaning,
    devices_meaning,
    graphs_meaning,
    kernels_meaning,
    operators_meaning,
    overview_meaning,
    ranges_meaning,
    unattributed_meaning,
)
from opscope.report.operators import (
    merged_findings,
    operator_section,
    operator_table,
    rank_ns,
    ranking_paragraph,
    top_operators,
)
from opscope.report.program import program_sections, recording_hint
from opscope.report.provenance import accuracy_blocks, accuracy_overview
from opscope.report.timeline import time_blocks
from opscope.units import (
    NS_PER_S,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_fraction,
    format_ratio,
    format_share,
)

_STEP_ROWS = 12
_PAGE_ROWS = 300


def _trace_facts(summary: Summary) -> FactList:
    """Which traces, ranks and devices the report is about."""
    return facts(
        *(("Trace", Code(source)) for source in summary.traces),
        ("Ranks", ", ".join(str(rank) for rank in summary.ranks if rank is not None)),
        ("Devices", _device_names(summary)),
    )


def _device_names(summary: Summary) -> Text:
    names = Counter(
        (device.name or "a device the trace does not describe")
        + (f" (compute capability {device.compute_capability})" if device.compute_capability else "")
        for device in summary.devices
    )
    return (
        ", ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items()) or "none used"
    )


def _environment_facts(environment: Environment) -> FactList:
    """Versions and hardware of the machine it was recorded on."""
    return facts(
        *((label, str(getattr(environment, name) or "")) for label, name in _ENVIRONMENT.items()),
        *(
            (
                "GPU",
                f"{gpu.name}: compute capability {gpu.compute_capability}, {gpu.sm_count} multiprocessors, "
                f"{format_bytes(gpu.memory_bytes)}",
            )
            for gpu in environment.gpu
        ),
    )


_ENVIRONMENT = {
    "Python": "python",
    "PyTorch": "torch",
    "PyTorch revision": "torch_git_version",
    "CUDA runtime": "cuda_runtime",
    "CUDA driver": "cuda_driver",
    "cuDNN": "cudnn",
    "Triton": "triton",
    "Transformers": "transformers",
    "CPU": "cpu",
    "opscope": "opscope",
}


def _value(value: Any) -> Text:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_count(value) if isinstance(value, int) else str(value)


def _overview_blocks(
    summary: Summary, benchmark: Latency | None, batch_size: int | None
) -> tuple[Block, ...]:
    return blocks(
        _overview_facts(summary, benchmark, batch_size),
        _device_table(summary) if summary.devices else None,
        _step_table(summary) if summary.steps else None,
        overview_meaning(summary),
    )


def _overview_facts(
    summary: Summary, benchmark: Latency | None = None, batch_size: int | None = None
) -> FactList:
    """The totals of a recording, and its latency without the profiler where measured."""
    device: list[tuple[str, Text]] = [("Device time", Strong("none: ranked by CPU time"))]
    operators: list[tuple[str, Text]] = [
        ("CPU time in operators", format_duration(summary.cpu_time_ns)),
        ("Operator calls", f"{summary.operator_calls:,}, of {summary.operator_names:,} operators"),
    ]
    if summary.has_device:
        attributed = (
            f"{format_duration(summary.attributed_ns)} ({format_fraction(summary.attributed_fraction)})"
        )
        operators = operators if summary.operators else []
        device = [
            (
                "Device time",
                f"{format_duration(summary.device_time_ns)} in {counted(summary.activity_count, 'activity')}",
            ),
            ("Attributed to operators", attributed if operators else ""),
            ("Set aside", format_duration(summary.set_aside_ns) if summary.set_aside_ns else ""),
            ("Device busy", _busy_text(summary)),
            ("Kernel launches", format_count(summary.kernel_launches)),
        ]
    return facts(
        *_step_facts(summary),
        *device,
        *operators,
        *([] if benchmark is None else _benchmark_facts(benchmark, batch_size)),
    )


def _step_facts(summary: Summary) -> list[tuple[str, Text]]:
    """A step without the profiler first, then as recorded; nothing where no step is known."""
    step = summary.measured_step
    known: list[tuple[str, Text]] = []
    if step.unrecorded_ns is not None:
        known = [
            ("Step", (Strong(format_duration(step.unrecorded_ns.median)), _samples_text(step.unrecorded_ns)))
        ]
    if summary.steps:
        known.append(("Recorded steps", f"{_steps_text(summary)}; {_stretch_text(step)}"))
    return known


def _samples_text(time: UnrecordedTime) -> str:
    """How sure an unrecorded step is."""
    if time.samples == 1:
        return " without the profiler, by a single sample"
    interval = f"{format_duration(time.low)} to {format_duration(time.high)}"
    count = counted(time.samples, "sample")
    if not time.has_interval:
        return f" without the profiler: median of {count} from {interval}, too few for an interval"
    text = f" without the profiler: median of {count}, 95 % interval {interval}"
    # A profiler may leave something behind that slows the host.
    return f"{text}; all after the recording" if time.place is StepPlace.AFTER else text


def _stretch_text(step: MeasuredStep) -> str:
    """What the recorder did to a step."""
    if step.host_stretch is None or step.recorder_idle_ns is None:
        return "not timed without the profiler"
    text = f"{format_ratio(step.host_stretch)} the step without the profiler"
    if step.recorder_idle_ns and step.busy_ns is not None:
        text += f", which leaves the device idle for {format_duration(step.recorder_idle_ns)} of each"
    return text


def _busy_text(summary: Summary) -> str:
    """Of the program's step where that is known, and of what was recorded."""
    recorded = f"{format_fraction(summary.busy_fraction)} of {_window_text(summary)} as recorded"
    fraction = summary.measured_step.busy_fraction
    return recorded if fraction is None else f"{format_fraction(fraction)} of the step; {recorded}"


def _window_text(summary: Summary) -> str:
    if len(summary.steps) == 1:
        return "the step"
    return "the steps" if summary.steps else "the recording"


def _steps_text(summary: Summary) -> str:
    counted = summary.counted_steps
    durations = [step.duration_ns for step in counted]
    text = f"{len(durations)}, {format_duration(sum(durations) / len(durations))} each on average"
    if summary.has_device:
        device_ns = sum(step.device_ns for step in counted) / len(durations)
        text += f", {format_duration(device_ns)} of device time each"
    left_out = len(summary.steps) - len(counted)
    return f"{text}, {left_out} of start-up left out" if left_out else text


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


def _device_table(summary: Summary) -> Table:
    """Window, busy and idle time of each device."""
    with_rank = any(device.rank is not None for device in summary.devices)
    return table(
        summary.devices,
        number("Rank", "rank") if with_rank else None,
        number("Device", "device", str),
        words("Name", lambda device: device.name or "unknown"),
        number("Activities", "activity_count"),
        number("Window", "span_ns"),
        number("Busy", "busy_ns"),
        number("Idle", "idle_ns"),
        number("Busy share", lambda device: format_share(device.busy_ns, device.span_ns)),
    )


def _step_table(summary: Summary) -> Table:
    shown = summary.steps[:_STEP_ROWS]
    is_cut = len(shown) < len(summary.steps)
    return table(
        shown,
        number("Step", "step", str),
        number("Duration", "duration_ns"),
        number("Device time", "device_ns") if summary.has_device else None,
        number("Kernels", "kernel_count") if summary.has_device else None,
        caption=f"The first {len(shown)} of {len(summary.steps)} steps." if is_cut else None,
    )


def analysis_report(summary: Summary, *, top: int | None = 10) -> Document:
    """The full report on any trace, of its `top` operators and kernels (every one for None)."""
    configuration = Section("Configuration", (_trace_facts(summary),), number="1")
    body = _body(summary, top, benchmark=None, batch_size=None)
    return Document("Operator report", (headline(summary),), (configuration, *body))


def configuration_report(
    summary: Summary,
    config: Mapping[str, Any],
    environment: Environment | None,
    benchmark: Latency | None,
    *,
    top: int = 10,
) -> Document:
    """The full report on one configuration of a sweep.

    Args:
        summary: Of the configuration's trace.
        config: As in the stats file: workload, batch_size, seq_len, dtype, device, ….
        environment: What it ran on; None if no one recorded it.
        benchmark: Latency without the profiler; None if skipped.
        top: Operators in detail.
    """
    sizes = f"batch size {config.get('batch_size')}, sequence length {config.get('seq_len')}"
    blocks: list[Block] = [
        facts(*((key.replace("_", " ").capitalize(), _value(value)) for key, value in config.items()))
    ]
    if environment is not None:
        blocks += [Paragraph(Strong("Environment")), _environment_facts(environment)]
    configuration = Section("Configuration", tuple(blocks), number="1")
    body = _body(summary, top, benchmark=benchmark, batch_size=config.get("batch_size"))
    title = f"Kernel analysis: {config.get('workload')}, {sizes}"
    return Document(title, (headline(summary),), (configuration, *body))


def overview_document(summary: Summary, *, top: int | None = 10) -> Document:
    """The short form for a terminal: ranked tables without details per operator; all rows for None."""
    has_operators = bool(summary.operators) or not summary.has_device
    unattributed = _unattributed_table(summary) if has_operators and summary.unattributed_ns else None
    advice = advice_blocks(summary) if _is_advised(summary) else ()
    return Document(
        _source_title(summary),
        (headline(summary),),
        sections(
            Section("What to change", advice),
            Section("Overview", (_overview_facts(summary), overview_meaning(summary))),
            _range_section(summary, top),
            Section("Devices", (_device_table(summary), devices_meaning(summary)))
            if len(summary.devices) > 1
            else None,
            Section(
                "Top operators",
                (operator_table(summary, top_operators(summary, top)), operators_meaning(summary)),
            )
            if has_operators
            else None,
            Section("Categories", _category_blocks(summary)),
            Section("Kernels", _kernel_blocks(summary, top)) if summary.kernels else None,
            Section("How far from the limit", efficiency_blocks(summary, top)),
            Section("Where the GPU waits", time_blocks(summary)),
            _graph_section(summary),
            Section("Collectives", collective_blocks(summary)),
            *program_sections(summary, top),
            Section(
                "Unattributed time", blocks(unattributed, unattributed and unattributed_meaning(summary))
            ),
            Section("Accuracy", accuracy_overview(summary) if _has_accuracy(summary) else ()),
            Section("Findings", (FindingList(merged_findings(summary)),)),
        ),
    )


def full_document(summary: Summary, *, top: int | None = None) -> Document:
    """All that is known: what to change first, tables long enough to be searched, what it rests on last."""
    rows = None if top is None else max(top, _PAGE_ROWS)
    operators = top_operators(summary, rows)
    detailed = [operator for operator in operators[:top] if rank_ns(summary, operator) > 0]
    return Document(
        _source_title(summary),
        (headline(summary),),
        sections(
            _advice_section(summary),
            Section("Overview", _overview_blocks(summary, None, None)),
            _range_section(summary, rows),
            Section(
                "Operators",
                (ranking_paragraph(summary), operator_table(summary, operators), operators_meaning(summary)),
            )
            if operators
            else None,
            Section("Kernels", _kernel_blocks(summary, rows)) if summary.kernels else None,
            Section("Categories", _category_blocks(summary)),
            Section("How far from the limit", efficiency_blocks(summary, rows)),
            *program_sections(summary, rows),
            Section("Where the GPU waits", _waiting_blocks(summary)),
            _graph_section(summary),
            Section("Collectives", collective_blocks(summary)),
            Section(
                "Operators in detail", sections=tuple(operator_section(summary, one) for one in detailed)
            ),
            Section("Accuracy", accuracy_blocks(summary) if _has_accuracy(summary) else ()),
            Section("Unattributed time", _unattributed_blocks(summary)),
            Section("Findings", (FindingList(merged_findings(summary)),)),
            Section("What was read", (_trace_facts(summary), *map(_environment_facts, summary.environments))),
        ),
    )


def _body(
    summary: Summary, top: int | None, *, benchmark: Latency | None, batch_size: int | None
) -> tuple[Section, ...]:
    operators = top_operators(summary, top)
    detailed = [operator for operator in operators if rank_ns(summary, operator) > 0]
    findings = merged_findings(summary)
    shown = sections(
        Section("Overview", _overview_blocks(summary, benchmark, batch_size)),
        Section("Categories", _category_blocks(summary)),
        Section(
            f"Top {len(detailed)} operators in detail" if detailed else "Top operators in detail",
            (ranking_paragraph(summary), operator_table(summary, operators), operators_meaning(summary)),
            tuple(operator_section(summary, operator) for operator in detailed),
        ),
        Section("How far from the limit", efficiency_blocks(summary, top)),
        Section("Where the GPU waits", _waiting_blocks(summary)),
        _range_section(summary, top),
        _graph_section(summary),
        Section("Collectives", collective_blocks(summary)),
        *program_sections(summary, top),
        _advice_section(summary),
        Section("Kernels", _kernel_blocks(summary, None if top is None else max(top, 10))),
        Section("Unattributed time", _unattributed_blocks(summary)),
        Section("Findings", (FindingList(findings) if findings else Paragraph("None."),)),
        Section("Accuracy", accuracy_blocks(summary) if _has_accuracy(summary) else ()),
    )
    return tuple(_numbered(section, rank) for rank, section in enumerate(shown, 2))


def _numbered(section: Section, rank: int) -> Section:
    below = (replace(one, number=f"{rank}.{index}") for index, one in enumerate(section.sections, 1))
    return replace(section, number=str(rank), sections=tuple(below))


def _has_accuracy(summary: Summary) -> bool:
    """Its figures are of PyTorch's operators and kernels."""
    return summary.has_device and summary.is_of_torch


def _is_advised(summary: Summary) -> bool:
    return summary.advice is not None and summary.has_device and summary.is_usable


def _advice_section(summary: Summary) -> Section | None:
    if not _is_advised(summary):
        return None
    return Section("What to change", advice_notes(summary), advice_sections(summary))


def _waiting_blocks(summary: Summary) -> tuple[Block, ...]:
    """Where the GPU waits, and before what that means how to record what is missing."""
    time = time_blocks(summary)
    hint = recording_hint(summary) if time else None
    has_meaning = bool(time) and isinstance(time[-1], Meaning)
    place = len(time) - 1 if has_meaning else len(time)
    return blocks(*time[:place], hint, *time[place:])


def _category_blocks(summary: Summary) -> tuple[Block, ...]:
    return blocks(_category_bars(summary), categories_meaning(summary))


def _category_bars(summary: Summary) -> BarList:
    device, cpu = number("Device time", "device_ns"), number("CPU time", "cpu_ns")
    share = number("Share", "fraction")
    # Without a device the share is of CPU time.
    times = (device, share, cpu) if summary.has_device else (cpu, share)
    rows = table(
        summary.categories,
        words("Category", _category_name),
        *times,
        number("Calls", "calls"),
    )
    return BarList(rows, tuple(category.fraction for category in summary.categories))


def _range_section(summary: Summary, top: int | None) -> Section | None:
    """Ranges by annotation: the steps of a serving engine, or what was asked for."""
    rows = summary.ranges[:top]
    rest = summary.ranges[len(rows) :]
    if not rows:
        return None
    total = format_duration(sum(one.device_ns for one in rest))
    is_engine = rows[0].phase is not None
    has_tokens = any(one.tokens for one in rows)
    has_layers = any(one.layers for one in rows)
    return Section(
        "Steps of the engine" if is_engine else "By range",
        blocks(
            table(
                rows,
                words("Phase", "name") if is_engine else identifier("Range", "name"),
                number("Calls", "calls"),
                number("Device time", "device_ns"),
                number("Share", "device_fraction"),
                number("Each", "device_ns_per_call", format_duration, spare=1),
                number("Requests", "requests", spare=2) if is_engine else None,
                number("Tokens", "tokens") if has_tokens else None,
                number("Per token", "device_ns_per_token", format_duration) if has_tokens else None,
                number("Layers", "layers", spare=6) if has_layers else None,
                number("Per layer", "device_ns_per_layer", format_duration, spare=4) if has_layers else None,
                number("Host time", "host_ns", spare=5),
                number("Kernels", "kernels", spare=3),
            ),
            Paragraph(f"{len(rest):,} more ranges take {total}.") if rest else None,
            ranges_meaning(summary),
        ),
    )


def _how_matched(graph: GraphTotal) -> str:
    parts = (graph.evidence.meaning if graph.evidence else None, graph.reason)
    return "; ".join(part for part in parts if part)


def _graph_section(summary: Summary) -> Section | None:
    """CUDA graphs that were replayed, and what their operators are known from."""
    if not summary.graphs:
        return None
    return Section(
        "CUDA graphs",
        (
            table(
                summary.graphs,
                number("Graph", "graph", str),
                number("Replays", "replays"),
                number("Activities", "activities"),
                number("Device time", "device_ns"),
                words("Operators known from", lambda one: one.source.meaning if one.source else "unknown"),
                words("Matched", _how_matched),
            ),
            graphs_meaning(summary),
        ),
    )


def _category_name(category: CategoryTotal) -> str:
    title = category_title(category.category)
    return f"{title}, no operator" if category.without_operator else title


def _kernel_blocks(summary: Summary, top: int | None) -> tuple[Block, ...]:
    if not summary.kernels:
        return (Paragraph("No device activity was recorded."),)
    shown = summary.kernels[:top]
    rest = summary.kernels[len(shown) :]
    kernels = table(
        shown,
        identifier("Name", "name"),
        words("Kind", "kind", spare=2),
        number("Calls", "calls", spare=1),
        number("Time", "total_ns"),
        number("Share", "fraction"),
        number("Mean", lambda kernel: format_duration(kernel.total_ns / kernel.calls)),
    )
    total = format_duration(sum(kernel.total_ns for kernel in rest))
    more = Paragraph(f"{len(rest):,} more names take {total}.") if rest else None
    return blocks(kernels, more, kernels_meaning(summary))


def _unattributed_blocks(summary: Summary) -> tuple[Block, ...]:
    if not summary.has_device:
        return (Paragraph("No device activity was recorded, so there is nothing to attribute."),)
    none = Paragraph("Every nanosecond of device time belongs to an operator.")
    return blocks(
        _unattributed_table(summary) if summary.unattributed_ns else none,
        _conservation(summary),
        unattributed_meaning(summary),
    )


def _unattributed_table(summary: Summary) -> Table:
    return table(
        sorted(summary.unattributed_ns.items(), key=lambda item: -item[1]),
        identifier("Reason", lambda item: item[0]),
        number("Time", lambda item: f"{item[1]:,} ns"),
        number("Share", lambda item: format_share(item[1], summary.device_time_ns)),
        words("Meaning", lambda item: Attribution(item[0]).meaning),
    )


def _conservation(summary: Summary) -> Paragraph:
    self_ns = sum(operator.self_device_ns for operator in summary.operators)
    unattributed_ns = sum(summary.unattributed_ns.values())
    difference_ns = summary.device_time_ns - self_ns - unattributed_ns
    text = (
        f"Σ self device time of operators {self_ns:,} ns + Σ unattributed {unattributed_ns:,} ns = "
        f"device time {summary.device_time_ns:,} ns"
    )
    if difference_ns == 0:
        return Paragraph(f"{text}, to the nanosecond.")
    return Paragraph(
        (f"{text} ", Strong(f"fails by {difference_ns:,} ns."), " The figures above are not reliable.")
    )


def _source_title(summary: Summary) -> str:
    if len(summary.traces) == 1:
        return summary.traces[0]
    return f"{len(summary.traces)} traces" if summary.traces else "no trace"
