"""Summary → Document: what reports say, in which order and under which numbers.

The section numbers of files are part of the report's contract (`### 4.1` is the first operator). Every figure
comes from the Summary; a value no one has found is said to be unknown, never left out. Imports no renderer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from opscope.analysis.measured_step import MeasuredStep, UnrecordedTime
from opscope.analysis.ranges import GraphTotal
from opscope.analysis.summary import Summary
from opscope.analysis.totals import CategoryTotal
from opscope.model.environment import Environment
from opscope.model.finding import Severity
from opscope.model.measurement import Latency
from opscope.model.schema import Attribution
from opscope.model.sidecar import StepPlace
from opscope.provenance.categories import category_title
from opscope.report.advice import advice_blocks, advice_notes, advice_sections, remarks
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


def _environment_facts(environment: Environment) -> FactList:
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


def _overview_facts(summary: Summary, latency: Latency | None, batch_size: int | None) -> FactList:
    """The totals of a recording, a step without the profiler first, and its latency where measured."""
    step, window = summary.measured_step, "the recording"
    told: list[tuple[str, Text]] = []
    if step.unrecorded_ns is not None:
        told.append(
            ("Step", (Strong(format_duration(step.unrecorded_ns.median)), _samples_text(step.unrecorded_ns)))
        )
    if summary.steps:
        window = "the step" if len(summary.steps) == 1 else "the steps"
        used = summary.counted_steps
        duration_ns = sum(one.duration_ns for one in used) / len(used)
        text = f"{len(used)}, {format_duration(duration_ns)} each on average"
        if summary.has_device:
            device_ns = sum(one.device_ns for one in used) / len(used)
            text += f", {format_duration(device_ns)} of device time each"
        if left_out := len(summary.steps) - len(used):
            text += f", {left_out} of start-up left out"
        told.append(("Recorded steps", f"{text}; {_stretch_text(step)}"))
    operators: list[tuple[str, Text]] = [
        ("CPU time in operators", format_duration(summary.cpu_time_ns)),
        ("Operator calls", f"{summary.operator_calls:,}, of {summary.operator_names:,} operators"),
    ]
    if not summary.has_device:
        told += [("Device time", Strong("none: ranked by CPU time")), *operators]
    else:
        whole = f"{format_duration(summary.device_time_ns)} in {counted(summary.activity_count, 'activity')}"
        attributed = (
            f"{format_duration(summary.attributed_ns)} ({format_fraction(summary.attributed_fraction)})"
        )
        busy = f"{format_fraction(summary.busy_fraction)} of {window} as recorded"
        if step.busy_fraction is not None:
            busy = f"{format_fraction(step.busy_fraction)} of the step; {busy}"
        told += [
            ("Device time", whole),
            ("Attributed to operators", attributed if summary.operators else ""),
            ("Set aside", format_duration(summary.set_aside_ns) if summary.set_aside_ns else ""),
            ("Device busy", busy),
            ("Kernel launches", format_count(summary.kernel_launches)),
            *(operators if summary.operators else ()),
        ]
    if latency is not None:
        low, high = format_duration(latency.p5_ns), format_duration(latency.p95_ns)
        text = (
            f"median {format_duration(latency.median_ns)} [5 %: {low}, 95 %: {high}], "
            f"{len(latency.samples_ns)} samples by {latency.clock}"
        )
        told.append(("Latency without the profiler", text))
        if batch_size and latency.median_ns:
            rate = batch_size / latency.median_ns * NS_PER_S
            told.append(("Throughput", f"{rate:,.1f} sequences/s"))
    return facts(*told)


def _samples_text(time: UnrecordedTime) -> str:
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
    if step.host_stretch is None or step.recorder_idle_ns is None:
        return "not timed without the profiler"
    text = f"{format_ratio(step.host_stretch)} the step without the profiler"
    if step.recorder_idle_ns and step.busy_ns is not None:
        text += f", which leaves the device idle for {format_duration(step.recorder_idle_ns)} of each"
    return text


def _device_table(summary: Summary) -> Table:
    return table(
        summary.devices,
        number("Rank", "rank", if_known=True),
        number("Device", "device", str),
        words("Name", lambda device: device.name or "unknown"),
        number("Activities", "activity_count"),
        number("Window", "span_ns"),
        number("Busy", "busy_ns"),
        number("Idle", "idle_ns"),
        number("Busy share", lambda device: format_share(device.busy_ns, device.span_ns)),
    )


def recording_document(
    summary: Summary,
    *,
    top: int | None = 10,
    is_full: bool = False,
    is_screen: bool = False,
    detailed: int | None = None,
    config: Mapping[str, Any] | None = None,
    environment: Environment | None = None,
    latency: Latency | None = None,
) -> Document:
    """What is said of a recording: one list of sections, for terminals, files and pages.

    Args:
        summary: Of the recording.
        top: Rows of long tables; all for None.
        is_full: With all that is known of each row and what it rests on.
        is_screen: About one screen: what is found first and the longest rows, nothing else being computed.
        detailed: Operators that a full report tells in detail; all of its table for None.
        config: Of a configuration of a sweep, as in the stats file.
        environment: What that ran on, where it was recorded.
        latency: Of that without the profiler, where it was measured.
    """
    if is_screen:
        return Document(_title(summary, config), (headline(summary),), _screen(summary, top))
    has_operators = bool(summary.operators) or not summary.has_device
    operators = top_operators(summary, top)
    details = [one for one in operators[:detailed] if rank_ns(summary, one) > 0] if is_full else []
    has_accuracy = (
        summary.has_device and summary.is_of_torch
    )  # its figures are of PyTorch's operators and kernels
    is_advised = summary.advice is not None and summary.has_device and summary.is_usable
    batch_size = None if config is None else config.get("batch_size")
    first, count = summary.steps[:_STEP_ROWS], len(summary.steps)
    steps = table(
        first,
        number("Step", "step", str),
        number("Duration", "duration_ns"),
        number("Device time", "device_ns") if summary.has_device else None,
        number("Kernels", "kernel_count") if summary.has_device else None,
        caption=f"The first {len(first)} of {count} steps." if len(first) < count else None,
    )
    shown = sections(
        _NO_ADVICE if is_full and not is_advised else None,
        Section("What to change", advice_notes(summary), advice_sections(summary))
        if is_full and is_advised
        else Section("What to change", advice_blocks(summary))
        if is_advised
        else None,
        Section(
            "Overview",
            blocks(
                _overview_facts(summary, latency, batch_size),
                *((_device_table(summary), steps) if is_full else ()),
                overview_meaning(summary),
            ),
        ),
        Section("Categories", blocks(_category_bars(summary), categories_meaning(summary))),
        Section(
            "Top operators",
            blocks(
                ranking_paragraph(summary) if is_full else None,
                operator_table(summary, operators),
                operators_meaning(summary),
            ),
            tuple(operator_section(summary, one) for one in details),
        )
        if has_operators
        else None,
        _range_section(summary, top),
        Section("Kernels", _kernel_blocks(summary, top)) if summary.kernels else None,
        Section("How far from the limit", efficiency_blocks(summary, top)),
        Section("Where the GPU waits", _waiting_blocks(summary) if is_full else time_blocks(summary)),
        Section("Devices", (_device_table(summary), devices_meaning(summary)))
        if len(summary.devices) > 1 and not is_full
        else None,
        _graph_section(summary),
        Section("Collectives", collective_blocks(summary)),
        *program_sections(summary, top),
        Section("Unattributed time", _unattributed_blocks(summary, is_full=is_full))
        if is_full or (has_operators and summary.unattributed_ns)
        else None,
        Section("Accuracy", (accuracy_blocks if is_full else accuracy_overview)(summary))
        if has_accuracy
        else None,
        Section("Findings", (FindingList(merged_findings(summary)),)),
        _basis_section(summary, config, environment) if is_full else None,
    )
    return Document(_title(summary, config), (headline(summary),), shown)


_NO_ADVICE = Section(
    "What to change", (Paragraph("No change is suggested: that takes a sound recording of a GPU."),)
)


def _screen(summary: Summary, top: int | None) -> tuple[Section, ...]:
    """What is to be known beside the changes, what takes longest, and where the rest of the report is."""
    operators = top_operators(summary, top)
    asked = summary.ranges and summary.ranges[0].phase is None
    is_concluded = summary.has_device and summary.is_usable
    parts = {
        "change": is_concluded and summary.advice is not None,
        "waits": is_concluded and bool(summary.timeline.partitions),
        "kernels": bool(summary.kernels),
        "categories": not summary.has_device,
    }
    named = " ".join(part for part, is_there in parts.items() if is_there)
    more: Text = (
        "More: ", Code("--full"), ", or parts of it, such as ", Code(f"--section {named}"),
        ", and with pictures ", Code("--output page.html"), ".",
    )  # fmt: skip
    warnings = [one for one in merged_findings(summary) if one.severity is not Severity.INFO]
    return sections(
        Section("Remarks", remarks(summary) if is_concluded else ()),
        Section("Warnings", (FindingList(tuple(warnings)),) if warnings else ()),
        _range_section(summary, top) if asked else None,
        Section(
            "Top operators",
            (operator_table(summary, operators, per_step=bool(summary.counted_steps)), Paragraph(more)),
        )
        if operators
        else Section("Kernels", (*_kernel_blocks(summary, top)[:1], Paragraph(more))),
    )


def _title(summary: Summary, config: Mapping[str, Any] | None) -> str:
    if config is not None:
        sizes = f"batch size {config.get('batch_size')}, sequence length {config.get('seq_len')}"
        return f"Kernel analysis: {config.get('workload')}, {sizes}"
    if len(summary.traces) == 1:
        return summary.traces[0]
    return f"{len(summary.traces)} traces" if summary.traces else "no trace"


def _basis_section(
    summary: Summary, config: Mapping[str, Any] | None, environment: Environment | None
) -> Section:
    if config is None:
        names = Counter(
            (device.name or "a device the trace does not describe")
            + (f" (compute capability {device.compute_capability})" if device.compute_capability else "")
            for device in summary.devices
        )
        used = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items())
        read = facts(
            *(("Trace", Code(source)) for source in summary.traces),
            ("Ranks", ", ".join(str(rank) for rank in summary.ranks if rank is not None)),
            ("Devices", used or "none used"),
        )
        return Section("What was read", (read, *map(_environment_facts, summary.environments)))

    def text(value: Any) -> str:
        if value is None or isinstance(value, bool):
            return "–" if value is None else "yes" if value else "no"
        return format_count(value) if isinstance(value, int) else str(value)

    values = ((key.replace("_", " ").capitalize(), text(value)) for key, value in config.items())
    told: list[Block] = [facts(*values)]
    if environment is not None:
        told += [Paragraph(Strong("Environment")), _environment_facts(environment)]
    return Section("Configuration", tuple(told))


def _waiting_blocks(summary: Summary) -> tuple[Block, ...]:
    """Where the GPU waits, and before what that means how to record what is missing."""
    time = time_blocks(summary)
    hint = recording_hint(summary) if time else None
    has_meaning = bool(time) and isinstance(time[-1], Meaning)
    place = len(time) - 1 if has_meaning else len(time)
    return blocks(*time[:place], hint, *time[place:])


def _category_bars(summary: Summary) -> BarList:
    def title(one: CategoryTotal) -> str:
        name = category_title(one.category)
        return f"{name}, no operator" if one.without_operator else name

    device, cpu = number("Device time", "device_ns"), number("CPU time", "cpu_ns")
    share = number("Share", "fraction")
    # Without a device the share is of CPU time.
    times = (device, share, cpu) if summary.has_device else (cpu, share)
    rows = table(summary.categories, words("Category", title), *times, number("Calls", "calls"))
    return BarList(rows, tuple(category.fraction for category in summary.categories))


def _range_section(summary: Summary, top: int | None) -> Section | None:
    """Ranges by annotation: the steps of a serving engine, or what was asked for."""
    rows = summary.ranges[:top]
    rest = summary.ranges[len(rows) :]
    if not rows:
        return None
    total = format_duration(sum(one.device_ns for one in rest))
    is_engine = rows[0].phase is not None
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
                number("Requests", "requests", spare=2, if_known=True),
                number("Tokens", "tokens", if_known=True),
                number("Per token", "device_ns_per_token", format_duration, if_known=True),
                number("Layers", "layers", spare=6, if_known=True),
                number("Per layer", "device_ns_per_layer", format_duration, spare=4, if_known=True),
                number("Host time", "host_ns", spare=5),
                number("Kernels", "kernels", spare=3),
            ),
            Paragraph(f"{len(rest):,} more ranges take {total}.") if rest else None,
            ranges_meaning(summary),
        ),
    )


def _graph_section(summary: Summary) -> Section:
    def matched(one: GraphTotal) -> str:
        return "; ".join(filter(None, (one.evidence and one.evidence.meaning, one.reason)))

    graphs = table(
        summary.graphs,
        number("Graph", "graph", str),
        number("Replays", "replays"),
        number("Activities", "activities"),
        number("Device time", "device_ns"),
        words("Operators known from", lambda one: one.source.meaning if one.source else "unknown"),
        words("Matched", matched),
    )
    return Section("CUDA graphs", (graphs, graphs_meaning(summary)) if summary.graphs else ())


def _kernel_blocks(summary: Summary, top: int | None) -> tuple[Block, ...]:
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


def _unattributed_blocks(summary: Summary, *, is_full: bool) -> tuple[Block, ...]:
    if not summary.has_device:
        return (Paragraph("No device activity was recorded, so there is nothing to attribute."),)
    reasons = table(
        sorted(summary.unattributed_ns.items(), key=lambda item: -item[1]),
        identifier("Reason", lambda item: item[0]),
        number("Time", lambda item: f"{item[1]:,} ns"),
        number("Share", lambda item: format_share(item[1], summary.device_time_ns)),
        words("Meaning", lambda item: Attribution(item[0]).meaning),
    )
    none = Paragraph("Every nanosecond of device time belongs to an operator.")
    return blocks(
        reasons if summary.unattributed_ns else none,
        _conservation(summary) if is_full else None,
        unattributed_meaning(summary),
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
