"""The pictures of a recording, and of a sweep of benchmarks: every one is of values that analysis holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from opscope.analysis.collectives import transfer_ns
from opscope.analysis.program.stacks import StackBasis, StackProfile, StackWeight, stack_profiles
from opscope.analysis.roofline import CallEfficiency, Efficiency
from opscope.analysis.step_model import step_model
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.host import SessionRecords, read_session
from opscope.analysis.timeline.step_view import Lane, LaneKind, StepTime, StepView, step_times, step_view
from opscope.analysis.timeline.values import IdleCause, trace_name
from opscope.benchmarking.benchmark_sweep import BenchmarkSweep
from opscope.ingest.memory_snapshot import DeviceMemory
from opscope.ingest.nesting import Int64
from opscope.model.benchmark import BenchmarkResult
from opscope.model.queries import grouped, summed
from opscope.model.session import Session
from opscope.report import benchmark
from opscope.report.html import figures as fig
from opscope.report.operators import call_arguments
from opscope.units import (
    UNKNOWN,
    counted,
    format_byte_rate,
    format_bytes,
    format_duration,
    format_flop_rate,
    format_fraction,
    format_share,
)

_STEP_BARS = 24
_POINTS = 600  # of memory over time
_MOST_PIECES = 8_000  # of a timeline: what a browser draws in half a second
_MOST_STEPS = 48  # that have a timeline
_DEEPEST = 9  # levels of the icicle seen at once

_COLORS = {
    "compute": "#0072b2",
    "communication": "#cc79a7",
    "copy": "#009e73",
    "kernel": "#0072b2",
    "operators": "#7d94ab",
    "runtime calls": "#b0a58f",
    "host": "#e69f00",
    "wait": "#d55e00",
    "launch latency": "#d8c500",
    IdleCause.HOST_LAUNCH: "#e69f00",
    IdleCause.SYNCHRONIZATION: "#d55e00",
    IdleCause.DATA_LOADING: "#d8c500",
    IdleCause.MEMORY_ALLOCATION: "#8c6d31",
    IdleCause.PROFILER_OVERHEAD: "#8a8fa0",
    IdleCause.DEPENDENCY: "#56b4e9",
    IdleCause.NOTHING_SCHEDULED: "#b9bdc9",
    IdleCause.UNKNOWN: "#5f6470",
}
_BOUND_COLORS = {"compute": "#0072b2", "memory": "#e69f00", "latency": "#cc79a7", "launch": "#d55e00"}
_PART_COLORS = {"kernel": "#0072b2", "operator": "#56b4e9", "module": "#009e73", "other": fig.GRAY}
_BUSY_PARTS = (
    ("Compute", "compute", "compute_ns", "a kernel computed"),
    ("Exposed communication", "communication", "exposed_communication_ns", "only communication ran"),
    ("Exposed copy", "copy", "exposed_copy_ns", "only copies ran"),
)
_MODULE = "nn.Module: "


def session_charts(session: Session, summary: Summary) -> Iterator[fig.Chart]:
    if not summary.has_device:
        if any(one.self_cpu_ns for one in summary.operators):
            yield from _icicle_chart(stack_profiles(session, weight=StackWeight.CPU), summary)
        return
    records = read_session(session)
    has_ranks = len({one.trace_id for one in records.traces if one.devices}) > 1
    # As many cells of the map of ranks and steps.
    times = step_times(records, most=1_024 if has_ranks else _MOST_STEPS)
    if times:
        yield _steps_chart(times, summary)
    yield from _ranks_chart(times)
    yield from _waits_charts(summary)
    yield from _memory_chart(session, summary)
    yield from _roofline_chart(summary.efficiency)
    has_modules = summary.program.has_modules and summary.program.module_ns > 0
    basis, section = (StackBasis.MODULE, "By module") if has_modules else (StackBasis.OPERATOR, "Kernels")
    above = "module → operator → kernel" if has_modules else "operator → kernel"
    yield from _icicle_chart(stack_profiles(session, by=basis), summary, section, above)
    yield from _timeline_chart(session, records, summary, times)


def _steps_chart(every: Sequence[StepTime], summary: Summary) -> fig.Chart:
    # As many of each device as make no more bars than are read at once.
    of_device = grouped(((one.trace_id, one.device), one) for one in every)
    each = max(1, _STEP_BARS // len(of_device))
    times = [one for mine in of_device.values() for one in mine[:each]][:_STEP_BARS]
    unit = fig.unit_of(max(one.end_ns - one.start_ns for one in times))
    labels = [_label(one, times) for one in times]
    whole_ns = [one.end_ns - one.start_ns for one in times]
    split = [*_split_step(summary)]
    busy = [
        (title, _COLORS[color], [getattr(one, attribute) for one in times], meaning, labels, whole_ns)
        for title, color, attribute, meaning in _BUSY_PARTS
    ]
    idle = [
        (f"Idle: {str(cause).replace('_', ' ')}", _COLORS[cause], ns, cause.meaning, labels, whole_ns)
        for cause in IdleCause
        for ns in [[one.idle_by_cause.get(cause, 0) for one in times]]
    ]
    data = [
        fig.boxes(
            fig.scaled(ns, unit),
            rows,
            name=name,
            marker={"color": color, "pattern": {"shape": "/" if name.startswith("Idle") else ""}},
            hovertext=[
                f"{label}<br>{name}: {format_duration(part)}, {format_share(part, of_ns)}<br>{meaning}"
                for label, part, of_ns in zip(rows, ns, wholes, strict=True)
            ],
            hoverinfo="text",
        )
        for name, color, ns, meaning, rows, wholes in (*split, *busy, *idle)
        if any(ns)
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.25,
        "xaxis": fig.axis(f"Time ({unit.name})", rangemode="tozero"),
        "yaxis": {**fig.NAMED_ROWS, "type": "category"},
    }
    title = "Where the time of a step goes"
    whole = "Each bar is one step of one device, from its start to the start of the next"
    if times[0].step is None:
        title, whole = "Where the time goes", "Each bar is all that was recorded of one device"
    note = f"{whole}. Every nanosecond is in one part; hatched parts are idle time, by its cause."
    if split:
        note += " The first bar is a median step: without the profiler, and the profiler's part."
    figure = {"data": data, "layout": layout}, 130 + min(26 * (len(times) + bool(split)), 300)
    return fig.Chart("steps", "", title, note, *figure)


# Name and color, nanoseconds by row and what they are, the rows' labels and their whole times.
_Part = tuple[str, str, Sequence[float], str, Sequence[str], Sequence[float]]


def _split_step(summary: Summary) -> Iterator[_Part]:
    """Parts of a median step: busy and idle without the profiler, timed or simulated, and the profiler's."""
    step, measured = summary.typical_step, summary.measured_step
    if step is not None and measured.recorded_ns is not None:
        alone_ns = (
            sum(step.step_interval_ns) / 2 if (timed := measured.unrecorded_ns) is None else timed.median
        )
        busy_ns = min(step.device_ns, alone_ns)
        row = ["a step"], [max(alone_ns, measured.recorded_ns)]
        yield "Busy without profiler", fig.LINE_COLORS[4], [busy_ns], "", *row
        yield "Idle without profiler", fig.LINE_COLORS[4], [alone_ns - busy_ns], "", *row
        yield "Profiler", fig.GRAY, [max(0.0, measured.recorded_ns - alone_ns)], "", *row


def _label(one: StepTime, times: Sequence[StepTime], step: str | None = None) -> str:
    parts = []
    if len({(other.trace_id, other.rank) for other in times}) > 1:
        parts.append(trace_name(one.rank, one.trace_id))
    if len({other.device for other in times if other.trace_id == one.trace_id}) > 1:
        parts.append(f"device {one.device}")
    if step is None:
        step = "recording" if one.step is None else f"step {one.step}"
    return ", ".join(part for part in (*parts, step) if part)


def _ranks_chart(times: Sequence[StepTime]) -> Iterator[fig.Chart]:
    ranks = sorted({(one.trace_id, one.rank, one.device) for one in times}, key=str)
    steps = sorted({one.step for one in times if one.step is not None})
    if len({trace_id for trace_id, *_ in ranks}) < 2 or not steps:
        return
    labels = {(one.trace_id, one.rank, one.device): _label(one, times, "") for one in times}
    own_ns = {
        (labels[one.trace_id, one.rank, one.device], f"step {one.step}"): one.end_ns
        - one.start_ns
        - one.exposed_communication_ns
        for one in times
        if one.step is not None
    }
    note = (
        "Each step of each rank without its exposed communication, in which it waits or transfers: "
        "the rank that stands out keeps the others waiting. "
        f"The brightest is {format_duration(max(own_ns.values()))}."
    )
    columns, rows = [f"step {step}" for step in steps], [labels[rank] for rank in ranks]
    yield fig.Chart("ranks", "Overview", "Steps of the ranks", note, *fig.cells(own_ns, rows, columns))


def _waits_charts(summary: Summary) -> Iterator[fig.Chart]:
    """Who waits in which collective."""
    ranks = summary.collectives.ranks
    waits = summed(
        ((f"rank {ranks[one.trace_id]}", fig.as_text(one.title or UNKNOWN)), one.duration_ns - least_ns)
        for kernels in summary.collectives.matched
        if (least_ns := transfer_ns(kernels)) is not None
        for one in kernels
    )
    if columns := summed((title, ns) for (_, title), ns in waits.items()):
        note = (
            "How long kernels of a collective took beyond the shortest of the same one: the rank that waits "
            "least is the one that the others wait for."
        )
        names = [f"rank {rank}" for rank in sorted({rank for rank in summary.ranks if rank is not None})]
        drawing = fig.cells(
            waits,
            rows=[name for name in names if any(name == of for of, _ in waits)],
            columns=[title for title, _ in columns.most_common()],
        )
        yield fig.Chart("waits", "Collectives", "Waiting in collectives", note, *drawing)


def _memory_chart(session: Session, summary: Summary) -> Iterator[fig.Chart]:
    lines: dict[str, list[tuple[int, int, int | None]]] = defaultdict(list)
    for trace_id, device, *point in session.query(_MEMORY_SQL, [_POINTS]):
        rank = summary.ranks[trace_id]
        of = f"rank {rank}, " if rank is not None and len(summary.traces) > 1 else ""
        lines[f"{of}device {device}"].append((point[0], point[1], point[2]))
    yield from _memory_over_time("Overview", lines)


def snapshot_charts(devices: Sequence[DeviceMemory]) -> Iterator[fig.Chart]:
    """The memory of each device over the time that a memory snapshot's history reaches back."""
    for one in devices:
        each = max(1, len(one.curve) // _POINTS)
        # The most of each interval, as peaks are what is looked for.
        parts = (one.curve[at : at + each] for at in range(0, len(one.curve), each))
        points = [max(part, key=itemgetter(1)) for part in parts]
        title = f"Device {one.device}"
        yield from _memory_over_time(title, {title: [(us * 1000, used, held) for us, used, held in points]})


def _memory_over_time(
    section: str, lines: Mapping[str, Sequence[tuple[int, int, int | None]]]
) -> Iterator[fig.Chart]:
    points = [point for each in lines.values() for point in each]
    if not points:
        return
    first_ns = min(time_ns for time_ns, *_ in points)
    unit = fig.unit_of(max(time_ns for time_ns, *_ in points) - first_ns)
    data = []
    for index, (label, mine) in enumerate(lines.items()):
        xs = fig.scaled((point[0] - first_ns for point in mine), unit)
        for kind, (name, style) in enumerate((("allocated", "solid"), ("reserved", "dot")), 1):
            values = [point[kind] for point in mine]
            told = {
                "line": fig.stroke(index, shape="hv", width=1.6, dash=style),
                "text": [UNKNOWN if value is None else format_bytes(value) for value in values],
                "hovertemplate": "%{text} " + name + f"<extra>{label}</extra>",
            }
            data += [fig.curve(f"{label}: {name}", xs, values, **told)] if any(values) else []
    most = max(max(used, held or 0) for _, used, held in points)
    ticks = [most * part // 4 for part in range(5)]
    texts = [format_bytes(one) for one in ticks]
    layout = {
        "xaxis": fig.axis(f"Time since the first event ({unit.name})"),
        "yaxis": {"tickvals": ticks, "ticktext": texts, "rangemode": "tozero", "automargin": True},
        "hovermode": "x unified",
    }
    note = "Peak memory of tensors and of the caching allocator, in each interval in which it changed."
    key = "memory" if section == "Overview" else f"memory-{section.lower().replace(' ', '-')}"
    yield fig.Chart(key, section, "Device memory over time", note, {"data": data, "layout": layout}, 300)


_MEMORY_SQL = """WITH span AS (
    SELECT min(time_ns) AS first_ns, greatest(1, (max(time_ns) - min(time_ns)) // ?) AS part_ns
    FROM memory_events WHERE device_type = 1 AND total_allocated_bytes IS NOT NULL
)
SELECT trace_id, coalesce(device, 0) AS device, min(time_ns),
    max(total_allocated_bytes), max(total_reserved_bytes)
FROM memory_events, span WHERE device_type = 1 AND total_allocated_bytes IS NOT NULL
GROUP BY trace_id, coalesce(device, 0), (time_ns - first_ns) // part_ns ORDER BY 1, 2, 3"""


def _roofline_chart(efficiency: Efficiency) -> Iterator[fig.Chart]:
    limits = efficiency.limits
    calls = [one for one in efficiency.calls if one.roofline.flop_count and one.roofline.arithmetic_intensity]
    if limits is None or limits.memory is None or not calls:
        return
    used = {one.roofline.data_type for one in calls}
    peaks = [(str(kind), limit) for kind, limit in limits.peaks.items() if kind in used]
    intensities = [one.roofline.arithmetic_intensity or 0.0 for one in calls]
    bandwidth = limits.memory.per_s
    top = max([limit.per_s for _, limit in peaks], default=bandwidth * max(intensities))
    left, right = min(intensities) / 3, max(max(intensities) * 3, top / bandwidth * 4)
    memory = f"memory {format_byte_rate(bandwidth)} ({limits.memory.evidence})"
    lines = [(memory, [left, top / bandwidth], [left * bandwidth, top], "bottom right")]
    lines += [
        (
            f"{name} {format_flop_rate(limit.per_s)} ({limit.evidence})",
            [right, limit.per_s / bandwidth], [limit.per_s, limit.per_s], "top left",
        )
        for name, limit in sorted(peaks, key=lambda item: -item[1].per_s)
    ]  # fmt: skip
    data = [
        {
            "type": "scatter", "mode": "lines+text", "x": xs, "y": ys, "text": [text, ""],
            "textposition": place, "hoverinfo": "skip", "showlegend": False, "line": {"width": 1.5},
            "cliponaxis": False, "themed": True,
        }
        for text, xs, ys, place in lines
    ]  # fmt: skip
    by_bound = grouped((str(call.roofline.bound or "unknown"), call) for call in calls)
    largest_ns = max(one.roofline.device_ns for one in calls)
    data += [
        fig.curve(
            f"{bound}-bound" if bound != "unknown" else "bound unknown",
            (one.roofline.arithmetic_intensity for one in mine),
            (one.roofline.achieved_flop_per_s for one in mine),
            mode="markers",
            marker={
                "color": _BOUND_COLORS.get(bound, fig.GRAY),
                "size": [one.roofline.device_ns for one in mine],
                "sizemode": "area",
                "sizeref": 2 * largest_ns / 44**2,
                "sizemin": 3,
                "opacity": 0.75,
            },
            hovertext=[_call_text(one) for one in mine],
            hoverinfo="text",
        )
        for bound, mine in sorted(by_bound.items())
    ]
    rates = [one.roofline.achieved_flop_per_s or top for one in calls]
    layout = {
        "xaxis": fig.log_axis("Arithmetic intensity (FLOP/byte)", left, right, "{:,.10g}".format),
        "yaxis": fig.log_axis("Achieved rate", min(rates) / 3, max(*rates, top) * 3, format_flop_rate),
        "hovermode": "closest",
    }
    note = (
        f"Each circle is a call with its shapes ({limits.name}); its area is its device time, its distance "
        "below the lines what could be gained."
    )
    if without := len(efficiency.calls) - len(calls):
        kinds = counted(without, "kind")
        note += f" {kinds} of calls without floating-point operations, or of unknown cost, are not shown."
    yield fig.Chart("roofline", "How far", "Roofline", note, {"data": data, "layout": layout}, 480)


def _call_text(call: CallEfficiency) -> str:
    roofline = call.roofline
    rate = format_flop_rate(roofline.achieved_flop_per_s)
    lines = [
        fig.as_lines(call.operator),
        fig.as_lines(call_arguments(call)),
        f"{counted(call.calls, 'call')}, {format_duration(roofline.device_ns)}",
        f"{rate}, {format_byte_rate(roofline.achieved_bytes_per_s)}",
    ]
    if roofline.fraction is not None:
        lines.append(f"{format_fraction(roofline.fraction)} of the attainable")
    if call.gap_ns is not None:
        lines.append(f"avoidable: {format_duration(call.gap_ns)}")
    return "<br>".join([*lines, *(f"kernel: {fig.as_lines(one)}" for one in call.kernels[:1])])


def _icicle_chart(
    profiles: Sequence[StackProfile], summary: Summary, section: str = "", above: str = ""
) -> Iterator[fig.Chart]:
    """Stacks of a recording, which `above` says what they are made of, as wide as their time."""
    nodes: dict[tuple[int, str], int] = {}  # by parent and name
    weights: list[int] = []
    leaves: set[int] = set()
    whole = sum(profile.total for profile in profiles)
    for profile in profiles:
        for stack, weight in zip(profile.stacks, profile.weights, strict=True):
            parent = -1
            for label in stack:
                parent = nodes.setdefault((parent, profile.names[label]), len(weights))
                if parent == len(weights):
                    weights.append(0)
                weights[parent] += weight
            leaves.add(parent)
    if not whole:
        return
    # A node of the icicle has a little of the device time at least, and is one of the largest.
    least = max(whole * 0.0005, sorted(weights, reverse=True)[:1_000][-1])
    kept = [(index, *node) for node, index in nodes.items() if weights[index] >= least]
    # Through what nearly all of the time passes, a program's start for one, is above the picture.
    level = -1
    while through := [one for one, parent, _ in kept if parent == level and weights[one] > 0.98 * whole]:
        level = through[0]
    operators = {one.name for one in summary.operators}
    whole_label, title = "all device time", "Device time from the program down to the kernels"
    note = f"Width is device time: {above}. A click, buttons and arrow keys show the way to the source."
    if not summary.has_device:
        whole_label, title = "all CPU time", "CPU time from the program down to the operators"
        note = "Width is CPU time. A click, buttons and arrow keys show the way to the source."
    unit = fig.unit_of(whole)
    kinds, depths, texts = [], {-1: 0}, []
    for index, parent, name in kept:  # a parent stands before its children
        depths[index] = depths[parent] + 1
        kind = "module" if name.startswith(_MODULE) else "operator" if name in operators else "other"
        kinds.append("kernel" if index in leaves and summary.has_device else kind)
        texts.append(f"{kinds[-1]}: {format_duration(weights[index])}, {format_share(weights[index], whole)}")
    data = {
        "type": "icicle",
        "level": "all" if level < 0 else str(level),
        "ids": ["all", *(str(index) for index, *_ in kept)],
        "parents": ["", *("all" if parent < 0 else str(parent) for _, parent, _ in kept)],
        "labels": [whole_label, *(fig.as_text(name.removeprefix(_MODULE)) for *_, name in kept)],
        "values": fig.scaled([whole, *(weights[index] for index, *_ in kept)], unit),
        "hovertext": [format_duration(whole), *texts],
        "hovertemplate": "%{label}<br>%{hovertext}<extra></extra>",
        "branchvalues": "total",
        "tiling": {"orientation": "v"},
        "marker": {"colors": [fig.GRAY, *(_PART_COLORS[kind] for kind in kinds)], "line": {"width": 0.5}},
        "textposition": "middle left",
        "leaf": {"opacity": 1},
        "pathbar": {"visible": True},
        "sort": True,
        "maxdepth": _DEEPEST + 1,
        "customdata": ["", *kinds],
    }
    if left_out := len(nodes) - len(kept):
        note += f" {counted(left_out, 'part')} of less than {format_duration(least)} are left blank."
    layout = {"margin": {"l": 4, "r": 4, "t": 26, "b": 4}, "uniformtext": {"minsize": 9, "mode": "hide"}}
    figure, height_px = {"data": [data], "layout": layout}, 90 + 42 * min(max(depths.values()), _DEEPEST)
    yield fig.Chart("icicle", section, title, note, figure, height_px, kind="chain")


def _timeline_chart(
    session: Session, records: SessionRecords, summary: Summary, times: Sequence[StepTime]
) -> Iterator[fig.Chart]:
    """Steps of the trace that is simulated, each on all of its devices; the typical one is in front."""
    typical = summary.typical_step
    trace_id = times[0].trace_id if typical is None and times else getattr(typical, "trace_id", None)
    steps = list(grouped((one.step, one) for one in times if one.trace_id == trace_id).values())[:_MOST_STEPS]
    if not steps:
        return
    model = step_model(session, records.of(steps[0][0].trace_id))
    path = () if model is None else model.recorded_path
    # In front is a step of the usual length.
    used = {(one.trace_id, one.step) for one in summary.counted_steps}
    lengths = {
        (one.trace_id, one.step): one.end_ns - one.start_ns for devices in steps for one in devices[:1]
    }
    usual = {step: ns for step, ns in lengths.items() if step in used} or lengths
    median = sorted(usual.values())[len(usual) // 2]
    front = list(lengths).index(min(usual, key=lambda step: abs(usual[step] - median)))
    # All other steps' timelines take about 0.7 MB together.
    each = min(_MOST_PIECES, 48_000 // len(steps))
    of_all = "" if len(steps) == 1 else " Press p and n for the steps before and after."
    if len(steps) < (recorded := len(records.windows[steps[0][0].trace_id].steps)):
        of_all += f" The first {len(steps)} of {recorded:,} steps are here."
    views = (step_view(session, records, step, path) for step in steps)
    charts = [
        _step_chart(view, summary, _MOST_PIECES if at == front else each, of_all)
        for at, view in enumerate(views)
    ]
    before, after = tuple(charts[:front]), tuple(charts[front + 1 :])
    yield msgspec.structs.replace(charts[front], before=before, after=after)


def _step_chart(view: StepView, summary: Summary, most: int, of_all: str) -> fig.Chart:
    span_ns = view.end_ns - view.start_ns
    unit = fig.unit_of(span_ns)
    # So many parts of a step are told apart.
    finest_ns = max(1, span_ns // 4_000)
    while True:
        pieces = [_merged(lane, view, finest_ns) for lane in view.lanes]
        if sum(len(one[0]) for one in pieces) <= most:
            break
        finest_ns = finest_ns * 4 // 3 + 1
    exact_ns = finest_ns / 20
    names: dict[str, int] = {}
    data: list[dict[str, Any]] = []
    for row, (lane, (start_ns, end_ns, groups, of_name, events, busy_ns)) in enumerate(
        zip(view.lanes, pieces, strict=True)
    ):
        for group in np.unique(groups).tolist():
            mine = np.flatnonzero(groups == group)
            title, color = _meaning_of_color(lane.kind, lane.groups[group])
            lengths_ns = (end_ns - start_ns)[mine].tolist()
            joined = zip(lengths_ns, events[mine].tolist(), busy_ns[mine].tolist(), strict=True)
            shown = (fig.as_lines(lane.names[one]) for one in of_name[mine].tolist())
            data.append(
                fig.boxes(
                    fig.scaled(lengths_ns, unit, exact_ns),
                    [row] * len(mine),
                    name=title,
                    legendgroup=title,
                    showlegend=all(one["name"] != title for one in data),
                    base=fig.scaled((start_ns[mine] - view.start_ns).tolist(), unit, exact_ns),
                    width=0.82,
                    marker={"color": color, "line": {"width": 0}},
                    names=[names.setdefault(name, len(names)) for name in shown],
                    hovertext=[
                        format_duration(ns)
                        if count == 1
                        else f"and {count - 1:,} more: {format_duration(busy)} in {format_duration(ns)}"
                        for ns, count, busy in joined
                    ],
                    hoverinfo="text",
                )
            )
    if view.arrows:  # from launches to what they launched; the page shows them when asked
        ends = [ns - view.start_ns for one in view.arrows for ns in (one.call_ns, one.start_ns)]
        xs = fig.scaled(ends, unit, exact_ns)
        data.append(
            fig.curve(
                f"launch → kernel ({len(view.arrows)} longest)",
                (x for at in range(0, len(xs), 2) for x in (*xs[at : at + 2], None)),
                (row for one in view.arrows for row in (one.call_row, one.row, None)),
                mode="lines+markers",
                line={"width": 0.8},
                marker={"symbol": "arrow", "angleref": "previous", "size": [0, 8, 0] * len(view.arrows)},
                hoverinfo="skip",
                visible=False,
                themed=True,
            )
        )
    layout = {
        "barmode": "overlay",
        "xaxis": fig.axis(f"Time since the start ({unit.name})", range=[0, span_ns / unit.ns]),
        "yaxis": {
            "tickvals": list(range(len(view.lanes))),
            "ticktext": [fig.as_text(one.title) for one in view.lanes],
            "range": [len(view.lanes) - 0.4, -0.6],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        "hovermode": "closest",
        "dragmode": "zoom",
    }
    of = "The recording" if view.step is None else f"Step {view.step}"
    title = f"{of}, event by event"
    if len(summary.traces) > 1:
        title = f"{of} of {trace_name(summary.ranks[view.trace_id], view.trace_id)}, event by event"
    note = (
        "Host threads above, the critical path between them and the streams, idle time by cause below. Drag "
        "or press w and s to zoom, a and d to move, double-click for all; events shorter than "
        f"{format_duration(finest_ns)} are joined with their neighbors and found by the name of the longest."
    )
    note += of_all
    figure = {"data": data, "layout": layout, "names": list(names)}
    return fig.Chart(
        "timeline", "Where the GPU", title, note, figure, 170 + 30 * len(view.lanes), kind="zoom"
    )


def _meaning_of_color(kind: LaneKind, group: str) -> tuple[str, str]:
    if kind is LaneKind.IDLE:
        return f"idle: {group.replace('_', ' ')}", _COLORS[IdleCause(group)]
    if kind is LaneKind.PATH and group not in ("kernel", "communication", "copy"):
        return f"path: {group}", _COLORS.get(group, fig.GRAY)
    return "compute" if group == "kernel" else group, _COLORS.get(group, fig.GRAY)


def _merged(lane: Lane, view: StepView, finest_ns: int) -> tuple[Int64, Int64, Int64, Int64, Int64, Int64]:
    """Start, end, group, name, count and time of a lane's events; short ones joined as the longest."""
    order = np.argsort(lane.start_ns, kind="stable")
    start_ns = np.maximum(lane.start_ns[order], view.start_ns)
    end_ns = np.minimum(lane.end_ns[order], view.end_ns)
    group, name = lane.group[order], lane.name[order]
    if not len(order):
        return start_ns, end_ns, group, name, start_ns, start_ns
    is_short = end_ns - start_ns < finest_ns
    part = (start_ns - view.start_ns) // finest_ns
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = ~((np.diff(part) == 0) & is_short[1:] & is_short[:-1])
    first = np.flatnonzero(is_first)
    of_joined = np.lexsort((end_ns - start_ns, np.cumsum(is_first)))
    longest = of_joined[np.append(first[1:], len(order)) - 1]
    busy_ns = np.add.reduceat(end_ns - start_ns, first)
    until_ns = np.maximum.reduceat(end_ns, first)
    counts = np.diff(np.append(first, len(order)))
    return start_ns[first], until_ns, group[longest], name[longest], counts, busy_ns


def benchmark_charts(result: BenchmarkResult | BenchmarkSweep) -> tuple[fig.Chart, ...]:
    """Of a sweep the medians over its points; none of a single problem, whose table has it all."""
    return tuple(_scaling(result)) if isinstance(result, BenchmarkSweep) and len(result.points) > 1 else ()


def _scaling(sweep: BenchmarkSweep) -> Iterator[fig.Chart]:
    """Median times over the swept parameter, with what the device allows at best."""
    points = sweep.points
    labels = [benchmark.point_label(sweep, point) for point in points]
    measured = grouped(
        (row.name, (place, row, row.median_ns))
        for place, point in enumerate(points)
        for row in point.rows
        if row.median_ns
    )
    if not measured:
        return
    # An axis of numbers, if one parameter is swept and its values are some.
    names = [name for name in sweep.parameters if name in points[0].parameters]
    given = [point.parameters.get(names[0]) for point in points] if len(names) == 1 else []
    values = [one for one in given if isinstance(one, int | float) and not isinstance(one, bool) and one > 0]
    is_numeric = bool(values) and len(values) == len(points)
    xs: Sequence[Any] = values if is_numeric else labels
    data = []
    for index, (name, rows) in enumerate(measured.items()):
        above, below = zip(
            *((high - ns, ns - low) for _, row, ns in rows for low, high in [row.interval_ns or (ns, ns)]),
            strict=True,
        )
        data.append(
            fig.curve(
                fig.as_text(name),
                (xs[place] for place, *_ in rows),
                (ns for *_, ns in rows),
                mode="lines+markers",
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": above,
                    "arrayminus": below,
                    "thickness": 1.2,
                },
                line=fig.stroke(index, width=1.8),
                marker={"symbol": index},
                hovertext=[
                    f"{fig.as_lines(name)}<br>{fig.as_text(labels[place])}<br>{format_duration(ns)}"
                    + (
                        f"<br>{format_fraction(row.ceiling_fraction)} of {fig.as_text(row.ceiling or '')}"
                        if row.ceiling_fraction is not None
                        else ""
                    )
                    for place, row, ns in rows
                ],
                hoverinfo="text",
            )
        )
    times = [ns for point in points for row in point.rows for ns in row.interval_ns or (row.median_ns,) if ns]
    note = "Medians with their 95 % intervals."
    # The time that the binding ceiling allows the reference at each point.
    floor = [
        (xs[place], row.median_ns * row.ceiling_fraction)
        for place, point in enumerate(points)
        for row in point.rows
        if row.name == point.reference and row.median_ns and row.ceiling_fraction
    ]
    if floor:
        best = fig.curve("at the ceiling", *zip(*floor, strict=True), hoverinfo="skip", themed=True)
        data.append({**best, "line": {"dash": "dash", "width": 1.5}})
        times += [ns for _, ns in floor]
        note += " The dashed line is what the measured ceiling allows at best."
    x_axis: dict[str, Any] = {"type": "category", "automargin": True}
    if is_numeric:
        x_axis = fig.log_axis(fig.as_text(names[0]), min(values) / 1.2, max(values) * 1.2, "{:,.10g}".format)
        x_axis |= {"tickvals": values, "ticktext": [f"{value:,.10g}" for value in values]}
    layout = {
        "xaxis": x_axis,
        "yaxis": fig.log_axis("Median time per call", min(times) / 1.3, max(times) * 1.3, format_duration),
        "hovermode": "closest",
    }
    section, figure = f"Scaling of {points[0].suite}", {"data": data, "layout": layout}
    yield fig.Chart("scaling", section, "Time over the sweep", note, figure, 420)
