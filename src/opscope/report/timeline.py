"""Where time goes: each device's window by what it did, idle time by cause; device time by module and line.

The parts of a window sum to it exactly; a cause that the trace does not tell is shown as unknown. Modules
that play one part (the layers of a stack) share a row; their sums are exact, and every one alone is in the
JSON document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from opscope.analysis.program.places import LineKind, ModuleTotal
from opscope.analysis.step_model import PathTotal, StepExecution
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleCause, TimePartition, WindowKind, trace_name
from opscope.analysis.watched_steps import as_tree
from opscope.model.queries import summed
from opscope.report import document as doc
from opscope.report.names import INDEX
from opscope.report.operators import whole_ns
from opscope.units import (
    counted,
    format_count,
    format_duration,
    format_fraction,
    format_quantity,
    format_share,
)
from opscope.visible_text import is_shown_as

_REMEDIES = {
    IdleCause.HOST_LAUNCH: "launch fewer kernels",
    IdleCause.SYNCHRONIZATION: "remove the calls that make the host wait",
    IdleCause.DATA_LOADING: "load batches ahead, in other processes",
    IdleCause.MEMORY_ALLOCATION: "keep memory instead of freeing it",
    IdleCause.PROFILER_OVERHEAD: "the program itself does not wait there",
    IdleCause.DEPENDENCY: "these kernels wait for one another, not for the host",
    IdleCause.NOTHING_SCHEDULED: "see what the host did during the longest gaps",
    IdleCause.UNKNOWN: "record the host side too to learn the cause",
}


def time_blocks(summary: Summary, *, is_full: bool) -> tuple[doc.Block, ...]:
    """Partitions, causes, waits, gaps, queue and steps; nothing without trustworthy device times."""
    timeline = summary.timeline
    if not timeline.partitions or not summary.is_usable:
        return ()
    longest = (gap for partition in timeline.partitions for gap in partition.longest_gaps)
    totals_ns = [
        (cause, sum(partition.idle_by_cause.get(cause, 0) for partition in timeline.partitions))
        for cause in IdleCause
    ]
    idle_ns = sum(ns for _, ns in totals_ns)
    return doc.blocks(
        _partition_table(timeline.partitions),
        doc.table(
            sorted((item for item in totals_ns if item[1]), key=lambda item: -item[1]),
            doc.words("Idle because of", lambda item: _spoken(item[0])),
            doc.number("Time", lambda item: format_duration(item[1])),
            doc.number("Of idle", lambda item: format_fraction(item[1] / idle_ns)),
            doc.words("Meaning", lambda item: item[0].meaning),
        ),
        doc.table(
            timeline.waits[:5],
            doc.identifier(
                "Call", lambda one: one.name if one.copy is None else (doc.Code(one.name), f", {one.copy}")
            ),
            doc.identifier("Operator", "operator", if_known=True),
            doc.identifier("Line", "line", if_known=True),
            doc.number("Calls", "calls"),
            doc.number("Host waited", "host_ns"),
            doc.number("Device idle after", "idle_ns"),
            caption="Calls that make the host wait for the device.",
        ),
        doc.table(
            sorted(longest, key=lambda gap: -gap.duration_ns)[:5],
            doc.number("Longest gaps", "duration_ns"),
            doc.words("Cause", "cause", _spoken),
            doc.number("Step", "step", str, if_known=True),
            doc.identifier("Host was in", "host", if_known=True),
            doc.identifier("Line", "line", if_known=True),
        ),
        _path_table(summary),
        _launch_table(summary),
        doc.FactList(tuple(_facts(summary))),
        recording_hint(summary) if is_full else None,
        _waiting(summary),
    )


def _waiting(summary: Summary) -> doc.Meaning | None:
    causes = summed(cause for one in summary.timeline.in_use for cause in one.idle_by_cause.items())
    span_ns = sum(one.span_ns for one in summary.timeline.in_use)
    if not span_ns:
        return None
    if not causes.total():
        return doc.Meaning("The GPU never waits.")
    cause, ns = causes.most_common(1)[0]
    remedy, step = _REMEDIES[cause], summary.typical_step
    if cause is IdleCause.HOST_LAUNCH and step is not None and step.host_ns <= step.device_ns:
        remedy = (
            "that may be the profiler's doing, for without it the host alone needs less time than the GPU"
        )
    elif cause is IdleCause.HOST_LAUNCH:
        # One diagnosis: what the first change is about, and a graph only where the step can be captured.
        changes = [one.code for one in summary.advice or () if one.is_to_try]
        if changes[:1] == ["advice.host_work"]:
            remedy = "most of that is what change 1 is about"
        elif "advice.launch_bound" in changes:
            remedy = "launch fewer kernels, or replay them as a CUDA graph"
    idle = f"{format_duration(causes.total())} ({format_share(causes.total(), span_ns)})"
    return doc.Meaning(
        f"The GPU waits for {idle}, {format_share(ns, causes.total())} of it because {cause.meaning}: "
        f"{remedy}."
    )


def _partition_table(partitions: tuple[TimePartition, ...]) -> doc.Table:
    def part(title: str, attribute: str, *, spare: bool = False) -> doc.Field:
        return doc.number(
            title,
            lambda one: ", ".join(
                (format_duration(getattr(one, attribute)), format_share(getattr(one, attribute), one.span_ns))
            ),
            spare=spare,
        )

    def beside(title: str, attribute: str) -> doc.Field | None:
        is_any = any(getattr(one, attribute) for one in partitions)
        return doc.number(title, attribute, spare=True) if is_any else None

    kinds = {one.window for one in partitions}
    of_steps = "of the steps, until the work that they launched is done"
    window = "from the first event of host or device to the last"
    if kinds == {WindowKind.STEPS}:
        window = of_steps
    elif kinds == {WindowKind.WORK}:
        window = "from the device's first work to its last, without launches that load code"
    elif WindowKind.STEPS in kinds:
        window += f"; where there are steps, {of_steps}"
    return doc.table(
        partitions,
        doc.number("Rank", "rank", str, if_known=True),
        doc.number("Device", "device", str),
        doc.number("Window", "span_ns"),
        part("Compute", "compute_ns"),
        part("Exposed copy", "exposed_copy_ns", spare=True),
        part("Exposed communication", "exposed_communication_ns"),
        part("Idle", "idle_ns"),
        beside("Busy with earlier work", "launched_outside_ns"),
        beside("Busy outside steps", "outside_steps_ns"),
        caption=f"The time {window}.",
    )


def _path_table(summary: Summary) -> doc.Table:
    step = summary.typical_step

    def place(one: PathTotal) -> doc.Text:
        # What the host does before it launches an operator need not be of that operator.
        if not one.name:
            return "–"
        return ("until ", doc.Code(one.name)) if one.kind == "host" else doc.Code(one.name)

    return doc.table(
        () if step is None else step.critical_path[:6],
        doc.words("On the critical path", "kind"),
        doc.words("Of", place),
        doc.number("Per step" if summary.steps else "Time", "ns", format_duration),
        doc.number("Share", "fraction"),
    )


def _launch_table(summary: Summary) -> doc.Table:
    """Launches, queue and host of each device."""
    timeline = summary.timeline
    latencies = {(one.trace_id, one.device): one for one in timeline.latencies}
    queues = {(one.trace_id, one.device): one for one in timeline.queues}
    steps = {one.trace_id: one for one in timeline.steps}
    host = {one.trace_id: one for one in timeline.host}

    def number(
        title: str, values: Mapping[Any, Any], attribute: str, form: doc.Form | None = None, *, spare: int = 0
    ) -> doc.Field:
        def value(one: TimePartition) -> Any:
            return getattr(values.get((one.trace_id, one.device), values.get(one.trace_id)), attribute, None)

        form = form or partial(format_quantity, attribute)
        return doc.number(title, value, form, spare=spare, if_known=True)

    return doc.table(
        timeline.partitions,
        doc.words("Of", lambda one: _of(summary, one.trace_id, one.device).removeprefix(" of "))
        if len(timeline.partitions) > 1
        else None,
        number("Launch latency", latencies, "median_ns"),
        number("p95", latencies, "p95_ns", spare=True),
        number("Queue mean", queues, "mean", "{:.1f}".format),
        number("Most queued", queues, "maximum", spare=True),
        number("Queue empty", queues, "empty_fraction"),
        number("Median recorded step", steps, "median_ns"),
        number("Host work", host, "launch_path_ns"),
        number("Launches", host, "launches", "{:,.0f}".format, spare=True),
        number("Estimated profiler overhead", host, "recorder_ns"),
        caption=f"Launches, their queue, and what the host needs for them{' per step' if steps else ''}.",
    )


def _facts(summary: Summary) -> Iterator[tuple[str, doc.Text]]:
    """What the tables leave out."""
    step = summary.typical_step
    for latency in summary.timeline.latencies:
        if latency.negative_count:
            early = counted(
                latency.negative_count, "kernel begins before its launch", "kernels begin before their launch"
            )
            yield f"Clocks{_of(summary, latency.trace_id, latency.device)}", f"{early}, so clocks disagree"
    for steps in summary.timeline.steps:
        if steps.outliers:
            yield f"Outlier steps{_of(summary, steps.trace_id)}", ", ".join(map(str, steps.outliers))
    if step is None:
        return
    late = "1 event starts" if step.missing_edges == 1 else f"{step.missing_edges:,} events start"
    told = f"; {simulated_rank(summary, step)} is simulated" if len(summary.traces) > 1 else ""
    told += f"; {late} later than known dependencies explain" if step.missing_edges else ""
    if step.missing is not None:
        told += f"; no change is simulated, because {step.missing}"
    low, high = map(format_duration, step.step_interval_ns)
    between = low if low == high else f"{low} to {high}"
    yield (
        "Simulated",
        f"{between}{' a step' if summary.steps else ''} without the profiler, "
        f"{format_duration(step.recorded_ns)} with it{told}",
    )


def simulated_rank(summary: Summary, step: StepExecution) -> str:
    return trace_name(summary.ranks[step.trace_id], step.trace_id)


def _of(summary: Summary, trace_id: int, device: int | None = None) -> str:
    """Which trace and device a fact is of, where there are several."""
    rank = summary.ranks[trace_id] if trace_id < len(summary.ranks) else None
    parts = []
    if len(summary.traces) > 1:
        parts.append(trace_name(rank, trace_id))
    if device is not None and len({one.device for one in summary.timeline.partitions}) > 1:
        parts.append(f"device {device}")
    return f" of {', '.join(parts)}" if parts else ""


def _spoken(cause: IdleCause) -> str:
    return str(cause).replace("_", " ")


_INDENT = "· "
_KIND_NOTES = {
    LineKind.FUNCTION: "Of a function marked “def” only the first line is known, not which one launched.",
    LineKind.RUNNING: "A function marked “running” had begun before the recording, and stood at that line.",
}
_KIND_MARKS = {LineKind.EXECUTED: "", LineKind.FUNCTION: " def", LineKind.RUNNING: " running"}


class _Part(msgspec.Struct, frozen=True):
    """Modules that play one part: `total` sums them; `key` is their path with classes and `*` for indices."""

    key: tuple[str, ...]
    modules: int
    total: ModuleTotal


def program_sections(summary: Summary, top: int | None) -> tuple[doc.Section, ...]:
    program = summary.program
    return doc.sections(
        host_section(summary, top),
        doc.Section("By module", module_blocks(summary, top)) if program.module_ns else None,
        doc.Section("By source line", _line_blocks(summary, top)) if program.line_ns else None,
    )


def host_section(summary: Summary, top: int | None) -> doc.Section | None:
    """Lines of the program by host time, as a tree; None where they are not known, or the device decides."""
    step = summary.typical_step
    if step is None or not summary.host_lines:
        return None
    rows = doc.table(
        as_tree(summary.host_lines, top),
        doc.words("Line", lambda one: (_INDENT * one[0], doc.Code(line_text(one[1].line)))),
        doc.number("Times per step", lambda one: format_count(one[1].times)),
        doc.number("Operators", lambda one: format_count(one[1].operators)),
        doc.number("Host per step", lambda one: f"≈ {format_duration(one[1].fraction * step.host_ns)}"),
        doc.number("Share", lambda one: format_fraction(one[1].fraction)),
    )
    return doc.Section("Host time by line", (rows,))


def line_text(line: str) -> str:
    place, space, function = line.partition(" ")
    return f"{place.rpartition('/')[2]}{space}{function}"


def recording_hint(summary: Summary) -> doc.Paragraph | None:
    """How to record what is missing; None where both are there, or no device time is."""
    program = summary.program
    if not (summary.has_device and summary.is_of_torch) or (program.has_modules and program.has_stacks):
        return None
    return doc.Paragraph(
        (
            "Device time by nn.Module and by source line is not known: the recording has no Python stacks. ",
            doc.Code("opscope run --record stack --record modules SCRIPT"),
            " records them.",
        )
        if not program.has_stacks
        else (
            "Device time by nn.Module is not known: no calls of modules were recorded. ",
            doc.Code("opscope run --record modules SCRIPT"),
            " records them.",
        )
    )


def module_blocks(summary: Summary, top: int | None, *, within: str = "") -> tuple[doc.Block, ...]:
    """The modules as a tree, those of one part in one row, the longest parts; or of one name alone."""
    parts = _parts(summary.program.modules)
    what = "device" if summary.has_device else "cpu"
    time_ns = attrgetter(f"total.total_{what}_ns")
    parts.sort(key=lambda part: (-time_ns(part), len(part.key)))
    # A part has no more time than the one around it, so what is cut off has nothing listed inside.
    kept = {part.key for part in parts[: None if top is None else 2 * top]}
    # Each before what is inside, the longest first.
    rank = {part.key: index for index, part in enumerate(parts)}
    parts.sort(key=lambda part: [rank[part.key[: length + 1]] for length in range(len(part.key))])
    shown = [
        part
        for part in parts
        if part.key in kept and any(within in one or is_shown_as(one, within) for one in part.key)
    ]
    caption = _rest(summary, summary.program.module_ns, "in no module")
    if len(kept) < len(parts):
        caption = f"The {len(shown)} of {len(parts)} parts with the most {_time_of(summary)}. {caption}"

    def name(part: _Part) -> doc.Text:
        count = f" ×{part.modules}" if part.modules > 1 else ""
        return (_INDENT * (len(part.key) - 1), doc.Code(part.key[-1]), count)

    return (
        doc.table(
            shown,
            doc.words("Module", name),
            doc.number("Calls", "total.calls"),
            doc.number("Device time" if summary.has_device else "CPU time", f"total.total_{what}_ns"),
            doc.number("Share", lambda part: _share(summary, time_ns(part))),
            doc.number("Self", f"total.self_{what}_ns"),
            doc.number("Forward", "total.forward_ns"),
            doc.number("Backward", "total.backward_ns"),
            doc.number("Launches", "total.kernel_launches") if summary.has_device else None,
            caption=caption,
        ),
    )


def _parts(modules: tuple[ModuleTotal, ...]) -> list[_Part]:
    parts: dict[tuple[str, ...], _Part] = {}
    around: list[tuple[ModuleTotal, tuple[str, ...]]] = []
    for module in modules:
        del around[module.depth :]
        above, key = around[-1] if around else (None, ())
        segment = module.path if above is None else module.path[len(above.path) + 1 :]
        # Its attribute with `*` for an index; its class where that is unknown.
        role = f"{INDEX.sub('*', segment)}: {module.class_name}"
        if re.fullmatch(rf"{re.escape(module.class_name)}_\d+", segment):
            role = module.class_name
        key = (*key, role)
        around.append((module, key))
        count, total = 1, module
        if known := parts.get(key):
            sums = {
                field: getattr(known.total, field) + value
                for field, value in asdict(module).items()
                if type(value) is int and field != "depth"
            }
            count, total = known.modules + 1, replace(known.total, **sums)
        parts[key] = _Part(key, count, total)
    return list(parts.values())


def _line_blocks(summary: Summary, top: int | None) -> tuple[doc.Block, ...]:
    lines, on_device = summary.program.lines, summary.has_device
    own = "self_device_ns" if on_device else "self_cpu_ns"
    shown = lines[:top]
    caption = _rest(summary, summary.program.line_ns, "under no line of the program")
    if len(shown) < len(lines):
        caption = f"The first {len(shown)} of {len(lines)} lines. {caption}"
    notes = [note for kind, note in _KIND_NOTES.items() if any(line.kind is kind for line in shown)]
    return (
        doc.table(
            shown,
            doc.words("Line", lambda line: (doc.Code(f"{line.file}:{line.line}"), _KIND_MARKS[line.kind])),
            doc.identifier("Function", "function"),
            doc.number("Calls", "calls"),
            doc.number("Device time" if on_device else "CPU time", own),
            doc.number("Share", lambda line: _share(summary, getattr(line, own))),
            doc.number("Forward", "forward_ns"),
            doc.number("Backward", "backward_ns"),
            doc.number("Launches", "kernel_launches") if on_device else None,
            caption=" ".join([caption, *notes]),
        ),
    )


def _rest(summary: Summary, charged_ns: int, where: str) -> str:
    rest_ns = whole_ns(summary) - charged_ns
    if not rest_ns:
        return f"All {_time_of(summary)}."
    return f"{format_duration(rest_ns)} ({_share(summary, rest_ns)}) of all {_time_of(summary)} is {where}."


def _time_of(summary: Summary) -> str:
    return "device time" if summary.has_device else "CPU time of operators"


def _share(summary: Summary, time_ns: int) -> str:
    return format_share(time_ns, whole_ns(summary))
