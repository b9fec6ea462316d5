"""Summary → Document: what reports say, in which order and under which numbers.

The section numbers of files are part of the report's contract (`### 4.1` is the first operator). Every figure
comes from the Summary; a value no one has found is said to be unknown, never left out. A section ends in the
sentence that says what its figures come to. Imports no renderer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from opscope.analysis.measured_step import MeasuredStep, UnrecordedTime
from opscope.analysis.summary import Summary
from opscope.analysis.totals import CategoryTotal
from opscope.model.benchmark import Latency
from opscope.model.finding import Severity
from opscope.model.schema import Attribution
from opscope.model.sidecar import Environment, StepPlace
from opscope.provenance.categories import category_title
from opscope.report import document as doc
from opscope.report.advice import advice_blocks, advice_sections, headline, remarks
from opscope.report.operators import (
    efficiency_blocks,
    merged_findings,
    operator_section,
    operator_table,
    rank_ns,
    top_operators,
)
from opscope.report.provenance import accuracy_blocks
from opscope.report.ranks import collective_blocks
from opscope.report.timeline import host_section, module_blocks, program_sections, time_blocks
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

_SHORT_NS = 10_000  # a launch costs the host about as much
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
) -> doc.Document:
    """What is said of a recording: one list of sections, for terminals, files and pages.

    `top` bounds the rows of long tables, `detailed` the operators that a full report tells in detail; None
    bounds none. On a screen are what is found first and the longest rows, and nothing else is computed. Of a
    configuration of a sweep its `config`, what it ran on and its latency without the profiler are told.
    """
    title = f"{len(summary.traces)} traces" if summary.traces else "no trace"
    if config is not None:
        sizes = f"batch size {config.get('batch_size')}, sequence length {config.get('seq_len')}"
        title = f"Kernel analysis: {config.get('workload')}, {sizes}"
    elif len(summary.traces) == 1:
        (title,) = summary.traces
    if is_screen:
        return doc.Document(title, (headline(summary),), _screen(summary, top))
    shown = doc.sections(
        _changes(summary, is_full=is_full),
        _overview(summary, latency, config or {}),
        _categories(summary),
        _operators(summary, top, detailed, is_full=is_full),
        _ranges(summary, top),
        doc.Section("Kernels", _kernel_blocks(summary, top)),
        doc.Section("How far from the limit", efficiency_blocks(summary, top)),
        doc.Section("Where the GPU waits", time_blocks(summary, is_full=is_full)),
        _graphs(summary),
        doc.Section("Collectives", collective_blocks(summary)),
        *program_sections(summary, top),
        _unattributed(summary, is_full=is_full),
        # Its figures are of PyTorch's operators and kernels.
        doc.Section("Accuracy", accuracy_blocks(summary))
        if summary.has_device and summary.is_of_torch
        else None,
        doc.Section("Findings", (doc.FindingList(merged_findings(summary)),)),
        _basis(summary, config, environment) if is_full else None,
    )
    return doc.Document(title, (headline(summary),), shown)


def _screen(summary: Summary, top: int | None) -> tuple[doc.Section, ...]:
    """What is to be known beside the changes, what takes longest, and where the rest of the report is."""
    # Where the host decides, operators by device time say less.
    half = None if top is None else -(-top // 2)
    operators = top_operators(summary, half if summary.host_lines else top)
    is_concluded = summary.has_device and summary.is_usable
    parts = {
        "change": is_concluded and summary.advice is not None,
        "waits": is_concluded and bool(summary.timeline.partitions),
        "kernels": bool(summary.kernels),
        "categories": bool(summary.categories) and not summary.has_device,
    }
    named = " ".join(part for part, is_there in parts.items() if is_there)
    more: doc.Text = named and (
        "More: ", doc.Code("--full"), ", or parts of it, such as ", doc.Code(f"--section {named}"),
        ", and with pictures ", doc.Code("--output page.html"), ".",
    )  # fmt: skip
    longest = doc.Section("Kernels", doc.blocks(*_kernel_blocks(summary, top)[:1], doc.Paragraph(more)))
    if operators:
        rows = operator_table(summary, operators, per_step=bool(summary.counted_steps))
        longest = doc.Section("Top operators", (rows, doc.Paragraph(more)))
    # Of what the first lines say as defects, what to do is left.
    said = {one.code for one in summary.defects if one.suggestion}
    warnings = [
        replace(one, message=one.suggestion or "", suggestion=None) if one.code in said else one
        for one in merged_findings(summary)
        if one.severity is not Severity.INFO
    ]
    is_asked = summary.ranges and summary.ranges[0].phase is None
    return doc.sections(
        doc.Section("Remarks", remarks(summary) if is_concluded else ()),
        doc.Section("Warnings", (doc.FindingList(tuple(warnings)),)),
        _ranges(summary, top) if is_asked else None,
        host_section(summary, half),
        longest,
    )


def _changes(summary: Summary, *, is_full: bool) -> doc.Section | None:
    if summary.advice is not None and summary.has_device and summary.is_usable:
        return doc.Section(
            "What to change",
            advice_blocks(summary, is_full=is_full),
            advice_sections(summary) if is_full else (),
        )
    none = doc.Paragraph("No change is suggested: that takes a sound recording of a GPU.")
    return doc.Section("What to change", (none,)) if is_full else None


def _overview(summary: Summary, latency: Latency | None, config: Mapping[str, Any]) -> doc.Section:
    """The totals of a recording, a step without the profiler first, and its latency where measured."""
    step, window, recorded = summary.measured_step, "the recording", None
    timed, has_operators = step.unrecorded_ns, bool(summary.operators) or not summary.has_device
    if summary.steps:
        window = "the step" if len(summary.steps) == 1 else "the steps"
        used = summary.counted_steps
        duration_ns = sum(one.duration_ns for one in used) / len(used)
        recorded = f"{len(used)}, {format_duration(duration_ns)} each on average"
        if summary.has_device:
            device_ns = sum(one.device_ns for one in used) / len(used)
            recorded += f", {format_duration(device_ns)} of device time each"
        if left_out := len(summary.steps) - len(used):
            recorded += f", {left_out} of start-up left out"
        recorded += f"; {_stretch_text(step)}"
    unrecorded = None if timed is None else (doc.Strong(format_duration(timed.median)), _samples_text(timed))
    whole = f"{format_duration(summary.device_time_ns)} in {counted(summary.activity_count, 'activity')}"
    attributed = f"{format_duration(summary.attributed_ns)} ({format_fraction(summary.attributed_fraction)})"
    busy = f"{format_fraction(summary.busy_fraction)} of {window} as recorded"
    if step.busy_fraction is not None:
        busy = f"{format_fraction(step.busy_fraction)} of the step; {busy}"
    device = (
        ("Device time", whole),
        ("Attributed to operators", attributed if summary.operators else None),
        ("Set aside", format_duration(summary.set_aside_ns) if summary.set_aside_ns else None),
        ("Device busy", busy),
        ("Kernel launches", format_count(summary.kernel_launches)),
    )
    none = ("Device time", doc.Strong("none: ranked by CPU time"))
    calls = f"{summary.operator_calls:,}, of {summary.operator_names:,} operators"
    told = doc.facts(
        ("Step", unrecorded),
        ("Recorded steps", recorded),
        *(device if summary.has_device else (none,)),
        ("CPU time in operators", format_duration(summary.cpu_time_ns) if has_operators else None),
        ("Operator calls", calls if has_operators else None),
        *_latency_facts(latency, config.get("batch_size")),
    )
    devices = doc.table(
        summary.devices,
        doc.number("Rank", "rank", if_known=True),
        doc.number("Device", "device", str),
        doc.words("Name", lambda device: device.name or "unknown"),
        doc.number("Activities", "activity_count"),
        doc.number("Window", "span_ns"),
        doc.number("Busy", "busy_ns"),
        doc.number("Idle", "idle_ns"),
        doc.number("Busy share", lambda device: format_share(device.busy_ns, device.span_ns)),
    )
    first, count = summary.steps[:12], len(summary.steps)
    steps = doc.table(
        first,
        doc.number("Step", "step", str),
        doc.number("Duration", "duration_ns"),
        doc.number("Device time", "device_ns") if summary.has_device else None,
        doc.number("Kernels", "kernel_count") if summary.has_device else None,
        caption=f"The first {len(first)} of {count} steps." if len(first) < count else None,
    )
    return doc.Section("Overview", doc.blocks(told, devices, steps))


def _latency_facts(latency: Latency | None, batch_size: int | None) -> tuple[tuple[str, str | None], ...]:
    if latency is None:
        return ()
    low, high = format_duration(latency.p5_ns), format_duration(latency.p95_ns)
    text = (
        f"median {format_duration(latency.median_ns)} [5 %: {low}, 95 %: {high}], "
        f"{len(latency.samples_ns)} samples by {latency.clock}"
    )
    rate = batch_size / latency.median_ns * NS_PER_S if batch_size and latency.median_ns else None
    return (
        ("Latency without the profiler", text),
        ("Throughput", None if rate is None else f"{rate:,.1f} sequences/s"),
    )


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


def _categories(summary: Summary) -> doc.Section:
    def title(one: CategoryTotal) -> str:
        name = category_title(one.category)
        return f"{name}, no operator" if one.without_operator else name

    device, cpu = doc.number("Device time", "device_ns"), doc.number("CPU time", "cpu_ns")
    share = doc.number("Share", "fraction")
    # Without a device the share is of CPU time.
    times = (device, share, cpu) if summary.has_device else (cpu, share)
    rows = doc.table(summary.categories, doc.words("Category", title), *times, doc.number("Calls", "calls"))
    return doc.Section("Categories", (rows,))


def _operators(
    summary: Summary, top: int | None, detailed: int | None, *, is_full: bool
) -> doc.Section | None:
    if summary.has_device and not summary.operators:
        return None
    operators, ranking = top_operators(summary, top), None
    if is_full:
        ranking = doc.Paragraph(
            "Ranked by self device time: the time of the kernels, copies and memory sets an operator "
            "launched itself. Total adds those of the operators it called."
            if summary.has_device
            else "No device time was recorded, so operators are ranked by self CPU time."
        )
    details = [one for one in operators[:detailed] if rank_ns(summary, one) > 0] if is_full else []
    return doc.Section(
        "Top operators",
        doc.blocks(ranking, operator_table(summary, operators)),
        tuple(operator_section(summary, one) for one in details),
    )


def _ranges(summary: Summary, top: int | None) -> doc.Section | None:
    """Ranges by annotation: the steps of a serving engine, or what was asked for."""
    rows = summary.ranges[:top]
    if not rows:
        return None
    rest, is_engine = summary.ranges[len(rows) :], rows[0].phase is not None
    total = format_duration(sum(one.device_ns for one in rest))
    shown = doc.table(
        rows,
        doc.words("Phase", "name") if is_engine else doc.identifier("Range", "name"),
        doc.number("Calls", "calls"),
        doc.number("Device time", "device_ns"),
        doc.number("Share", "device_fraction"),
        doc.number("Each", "device_ns_per_call", format_duration, spare=1),
        doc.number("Requests", "requests", spare=2, if_known=True),
        doc.number("Tokens", "tokens", if_known=True),
        doc.number("Per token", "device_ns_per_token", format_duration, if_known=True),
        doc.number("Layers", "layers", spare=6, if_known=True),
        doc.number("Per layer", "device_ns_per_layer", format_duration, spare=4, if_known=True),
        doc.number("Host time", "host_ns", spare=5),
        doc.number("Kernels", "kernels", spare=3),
    )
    more = doc.Paragraph(f"{len(rest):,} more ranges take {total}.") if rest else None
    return doc.Section("Steps of the engine" if is_engine else "By range", doc.blocks(shown, more))


def _graphs(summary: Summary) -> doc.Section:
    graphs = doc.table(
        summary.graphs,
        doc.number("Graph", "graph", str),
        doc.number("Replays", "replays"),
        doc.number("Activities", "activities"),
        doc.number("Device time", "device_ns"),
        doc.words("Operators known from", lambda one: one.source.meaning if one.source else "unknown"),
        doc.words(
            "Matched",
            lambda one: "; ".join(filter(None, (one.evidence and one.evidence.meaning, one.reason))),
        ),
    )
    return doc.Section("CUDA graphs", (graphs,))


def _kernel_blocks(summary: Summary, top: int | None) -> tuple[doc.Block, ...]:
    shown = summary.kernels[:top]
    rest = summary.kernels[len(shown) :]
    rows = doc.table(
        shown,
        doc.identifier("Name", "name"),
        doc.words("Kind", "kind", spare=2),
        doc.number("Calls", "calls", spare=1),
        doc.number("Time", "total_ns"),
        doc.number("Share", "fraction"),
        doc.number("Mean", lambda kernel: format_duration(kernel.total_ns / kernel.calls)),
    )
    sampled = doc.table(
        [one for kernel in shown for one in summary.counters if one["kernel"] == kernel.name],
        doc.identifier("Sampled kernel", itemgetter("kernel")),
        doc.identifier("Counter", itemgetter("counter")),
        doc.number("Samples", itemgetter("samples")),
        doc.number("Mean", itemgetter("mean"), "{:,.4g}".format),
        caption="Hardware counters: the mean of the samples that begin within a kernel's launches.",
    )
    total = format_duration(sum(kernel.total_ns for kernel in rest))
    more = doc.Paragraph(f"{len(rest):,} more names take {total}.") if rest else None
    # Whether kernels are long enough to be worth a launch.
    kernels = [one for one in summary.kernels if one.kind == "kernel"]
    launches, meaning = sum(one.calls for one in kernels), None
    if launches:
        mean_ns = sum(one.total_ns for one in kernels) / launches
        short = sum(one.calls for one in kernels if one.total_ns < _SHORT_NS * one.calls)
        text = (
            f"A kernel runs for {format_duration(mean_ns)} on average; {format_share(short, launches)} of "
            f"launches are of kernels shorter than {format_duration(_SHORT_NS)}"
        )
        meaning = doc.Meaning(f"{text}: fusing them saves launches." if short > launches / 2 else f"{text}.")
    return doc.blocks(rows, more, meaning, sampled)


def _unattributed(summary: Summary, *, is_full: bool) -> doc.Section | None:
    by_reason, whole = summary.unattributed_ns, summary.device_time_ns
    if not summary.has_device or not (is_full or (by_reason and summary.operators)):
        return None
    conserved = None
    if is_full:
        self_ns, rest_ns = sum(one.self_device_ns for one in summary.operators), sum(by_reason.values())
        sums: doc.Text = (
            f"Σ self device time of operators {self_ns:,} ns + Σ unattributed {rest_ns:,} ns = "
            f"device time {whole:,} ns"
        )
        if missing_ns := whole - self_ns - rest_ns:
            fails = doc.Strong(f"fails by {missing_ns:,} ns.")
            conserved = doc.Paragraph((f"{sums} ", fails, " The figures above are not reliable."))
        else:
            conserved = doc.Paragraph(f"{sums}, to the nanosecond.")
    reasons = doc.table(
        sorted(by_reason.items(), key=lambda item: -item[1]),
        doc.identifier("Reason", itemgetter(0)),
        doc.number("Time", lambda item: f"{item[1]:,} ns"),
        doc.number("Share", lambda item: format_share(item[1], whole)),
        doc.words("Meaning", lambda item: Attribution(item[0]).meaning),
    )
    none = doc.Paragraph("Every nanosecond of device time belongs to an operator.")
    return doc.Section("Unattributed time", doc.blocks(reasons if by_reason else none, conserved))


def _basis(
    summary: Summary, config: Mapping[str, Any] | None, environment: Environment | None
) -> doc.Section:
    def text(value: Any) -> str:
        if value is None or isinstance(value, bool):
            return "–" if value is None else "yes" if value else "no"
        return format_count(value) if isinstance(value, int) else str(value)

    if config is not None:
        values = ((key.replace("_", " ").capitalize(), text(value)) for key, value in config.items())
        ran_on: list[doc.Block] = []
        if environment is not None:
            ran_on = [doc.Paragraph(doc.Strong("Environment")), _environment_facts(environment)]
        return doc.Section("Configuration", (doc.facts(*values), *ran_on))
    names = Counter(
        (device.name or "a device the trace does not describe")
        + (f" (compute capability {device.compute_capability})" if device.compute_capability else "")
        for device in summary.devices
    )
    used = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items())
    read = doc.facts(
        *(("Trace", doc.Code(source)) for source in summary.traces),
        ("Ranks", ", ".join(str(rank) for rank in summary.ranks if rank is not None)),
        ("Devices", used or "none used"),
    )
    return doc.Section("What was read", (read, *map(_environment_facts, summary.environments)))


def _environment_facts(environment: Environment) -> doc.FactList:
    return doc.facts(
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


def named_part(
    name: str, summary: Summary, *, is_full: bool = False, spoken: Callable[[str], str] = str
) -> tuple[Any, tuple[doc.Section, ...]]:
    """What its report calls so, a change (`Change 2`), a module or a section: as values and as words."""
    number = name.lower().removeprefix("change ")
    changes = zip(summary.advice or (), advice_sections(summary), strict=True)
    named = [one for one in changes if number.isdigit() and one[1].title.startswith(f"Change {number}:")]
    if named:
        return named[0][0], (named[0][1],)
    module = re.sub(r" ×\d+$", "", name).lstrip("· ")
    within = [one for one in summary.program.modules if module in (one.class_name, *one.path.split("."))]
    if within:
        return within, (doc.Section("By module", module_blocks(summary, None, within=module)),)
    report = recording_document(summary, top=None if is_full else 10, is_full=is_full)
    found = doc.titled(report.sections, name, spoken) if name else ()
    return found, found
