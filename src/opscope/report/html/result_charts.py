"""The pictures of what verbs other than `analyze` find: one or two each, of the values their tables hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from opscope.analysis.counters import CounterAnalysis
from opscope.analysis.nsys_reports import ReportTable
from opscope.benchmarking.benchmark_sweep import BenchmarkSweep
from opscope.model.benchmark import BenchmarkResult, BenchmarkRow, Interval, Verdict
from opscope.model.comparison import (
    Basis,
    BenchmarkComparison,
    OperatorChange,
    SessionComparison,
    TimeChange,
    UnattributedChange,
)
from opscope.model.trial import TrialResult, Variant
from opscope.provenance.kernel_names.decoder import decode
from opscope.report.benchmark import (
    benchmark_title,
    interval_beside,
    point_label,
    points_by_suite,
    ratio_text,
)
from opscope.report.comparison import difference_text, point_title
from opscope.report.html.figures import (
    BLUE,
    GRAY,
    GREEN,
    LINE_COLORS,
    ORANGE,
    RED,
    Bar,
    Chart,
    as_lines,
    as_text,
    bars,
    cells,
    log_axis,
    unit_of,
    whiskers,
)
from opscope.report.names import fitting_names
from opscope.report.tables import total_column
from opscope.toolchain.ncu_report import Quantity
from opscope.units import NS_PER_MS, counted, format_duration, format_fraction, format_share

_ROWS = 15  # of bars, that are read at once
_TITLE = 36  # characters of a kernel beside its bars
_EVERY_SAMPLE = 3_000  # points that a browser draws without delay
_FEW_SAMPLES = 20
_OUTLYING = 0.02  # of the samples of an implementation on each side may lie outside of the picture
_VERDICTS = {"slower": RED, "faster": BLUE, "same, or no verdict": GRAY}


# -- comparisons


def comparison_charts(comparison: SessionComparison | BenchmarkComparison) -> tuple[Chart, ...]:
    """Of recordings, what each operator adds to the difference; of benchmarks, the ratios."""
    if isinstance(comparison, SessionComparison):
        return tuple(_waterfall(comparison))
    several = len(comparison.points) > 1
    rows = [
        _ratio_bar(f"{row.name}, {point_title(point)}" if several else row.name, row.time)
        for point, row in comparison.rows
        if row.time.ratio is not None
    ]
    note = "Candidate over reference with its 95 % interval; left of the line the candidate is faster."
    return tuple(_ratios("", note, rows))


def _ratios(section: str, note: str, rows: Sequence[Bar], key: str = "ratios") -> Iterator[Chart]:
    if not rows:
        return
    shown = sorted(rows, key=lambda row: -abs(row.end - 1))[: 2 * _ROWS]
    if len(shown) < len(rows):
        note += f" The {len(shown)} farthest from 1 of {len(rows)}."
    ordered = [row for row in rows if row in shown]
    drawing = bars(ordered, axis="Ratio of times", colors=_VERDICTS, mark=1.0, is_ratio=True)
    yield Chart(key, section, "Time relative to the reference", note, *drawing)


def _ratio_bar(label: str, judged: TimeChange | BenchmarkRow) -> Bar:
    ratio, interval, verdict = judged.ratio or 0.0, judged.ratio_interval, judged.verdict
    hover = ratio_text(ratio, verdict)
    if interval is not None:
        low, high = interval_beside(interval, verdict)
        hover += f", 95 % interval {low:.3f} to {high:.3f}"
    return Bar(
        label,
        ratio,
        interval,
        kind=str(verdict) if verdict in {Verdict.SLOWER, Verdict.FASTER} else "same, or no verdict",
        hover=hover,
    )


def _waterfall(comparison: SessionComparison) -> Iterator[Chart]:
    every: list[OperatorChange | UnattributedChange] = [*comparison.operators, *comparison.unattributed]
    every.sort(key=lambda one: -abs(one.time.difference_ns))
    changed = [one for one in every if one.time.difference_ns]
    if not changed:
        return
    shown, others = changed[:_ROWS], changed[_ROWS:]
    steps = [
        (
            one.name if isinstance(one, OperatorChange) else f"unattributed: {one.reason}",
            one.time.difference_ns,
            one.time,
        )
        for one in shown
    ]
    rest_ns = sum(one.time.difference_ns for one in others)
    left_out: list[tuple[str, float, TimeChange | None]] = [(counted(len(others), "other"), rest_ns, None)]
    reached, largest = 0.0, abs(changed[0].time.difference_ns)
    unit = unit_of(largest)
    rows = []
    for name, ns, time in (*steps, *(left_out if others else [])):
        start, reached = reached, reached + ns
        hover, interval = difference_text(ns), None
        if time is not None and time.ratio_interval is not None and time.reference_ns:
            low, high = ((start + (end - 1) * time.reference_ns) / unit.ns for end in time.ratio_interval)
            interval = (low, high)
        if time is not None and time.ratio is not None:
            hover += f", {ratio_text(time.ratio, time.verdict)}"
        kind = "takes longer" if ns > 0 else "takes less"
        rows.append(Bar(name, reached / unit.ns, interval, start / unit.ns, kind, hover))
    rows.append(Bar("in all", reached / unit.ns, kind="in all", hover=difference_text(reached)))
    per = " per step" if comparison.basis is Basis.STEP else ""
    note = (
        "Each bar begins where the one above ends; together they are the whole difference, candidate minus "
        "reference."
    )
    if any(row.interval for row in rows):
        note += " Whiskers: the 95 % interval of the ratio, times the reference's time."
    colors = {"takes longer": RED, "takes less": BLUE, "in all": GRAY}
    drawing = bars(rows, axis=f"Difference{per} ({unit.name})", colors=colors, mark=0.0)
    title = f"Where the difference{per} comes from"
    yield Chart("waterfall", "Operators by difference", title, note, *drawing)


# -- benchmarks


def benchmark_charts(result: BenchmarkResult | BenchmarkSweep) -> tuple[Chart, ...]:
    """Of one problem every sample and the ratios; of a sweep the medians over its points."""
    if isinstance(result, BenchmarkResult):
        return (*_samples("samples", "", result), *_own_ratios("ratios", "", result))
    charts: list[Chart] = []
    for number, (suite, points) in enumerate(points_by_suite(result).items()):
        if len(points) > 1:
            charts += _scaling(f"scaling{number}", f"Scaling of {suite}", result, points)
        else:
            section = benchmark_title(points[0])
            charts += _samples(f"samples{number}", section, points[0])
            charts += _own_ratios(f"ratios{number}", section, points[0])
    return tuple(charts)


def _samples(key: str, section: str, result: BenchmarkResult) -> Iterator[Chart]:
    rows = [(row, row.median_ns) for row in result.rows if row.samples_ns and row.median_ns]
    if not rows:
        return
    spreads = [sorted(100 * (ns / median_ns - 1) for ns in row.samples_ns) for row, median_ns in rows]
    cuts = [int(_OUTLYING * len(spread)) + (len(spread) > _FEW_SAMPLES) for spread in spreads]
    low = min(spread[cut] for spread, cut in zip(spreads, cuts, strict=True))
    high = max(spread[-1 - cut] for spread, cut in zip(spreads, cuts, strict=True))
    margin = 0.05 * (high - low) or 1.0
    outside = sum(not low - margin <= one <= high + margin for spread in spreads for one in spread)
    count = sum(map(len, spreads))
    data = [
        {
            "type": "box",
            "orientation": "h",
            "name": f"{as_text(row.name)}, {format_duration(median_ns)}",
            "x": spread,
            "boxpoints": "all" if count <= _EVERY_SAMPLE else "outliers",
            "jitter": 0.7,
            "pointpos": 0,
            "marker": {"size": 3, "color": LINE_COLORS[index % len(LINE_COLORS)], "opacity": 0.6},
            "line": {"width": 1.5},
            "hoverinfo": "skip",
        }
        for index, ((row, median_ns), spread) in enumerate(zip(rows, spreads, strict=True))
    ]
    layout = {
        "xaxis": {
            "title": {"text": "From the median (%)"},
            "range": [low - margin, high + margin],
        },
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False},
        "showlegend": False,
    }
    note = "Deviation of each sample from the median of its implementation; boxes hold the middle half."
    if outside:
        note += f" {outside} of {counted(count, 'sample')} lie outside of the picture."
    figure = {"data": data, "layout": layout}
    yield Chart(key, section, "How samples spread", note, figure, 90 + 42 * len(rows))


def _own_ratios(key: str, section: str, result: BenchmarkResult) -> Iterator[Chart]:
    rows = [
        _ratio_bar(row.name, row)
        for row in result.rows
        if row.ratio is not None and row.name != result.reference
    ]
    note = f"Median over that of {result.reference}, with its 95 % interval; left of the line is faster."
    yield from _ratios(section, note, rows, key)


def _scaling(
    key: str, section: str, sweep: BenchmarkSweep, points: Sequence[BenchmarkResult]
) -> Iterator[Chart]:
    """Median times over the swept parameter, with what the device allows at best."""
    values = _places(sweep, points)
    labels = [point_label(sweep, point) for point in points]
    measured: dict[str, list[tuple[int, BenchmarkRow]]] = {}
    for place, point in enumerate(points):
        for row in point.rows:
            if row.median_ns:
                measured.setdefault(row.name, []).append((place, row))
    if not measured:
        return
    xs: Sequence[Any] = labels if values is None else values
    data = [_curve(name, rows, xs, labels, index) for index, (name, rows) in enumerate(measured.items())]
    floor = _floor(points, xs)
    data += [floor] if floor else []
    times = [ns for point in points for row in point.rows for ns in row.interval_ns or (row.median_ns,) if ns]
    times += floor["y"] if floor else []
    x_axis: dict[str, Any] = {"type": "category", "automargin": True}
    if values is not None:
        name = next(name for name in sweep.parameters if name in points[0].parameters)
        x_axis = log_axis(as_text(name), min(values) / 1.2, max(values) * 1.2, "{:,.10g}".format)
        x_axis |= {"tickvals": values, "ticktext": [f"{value:,.10g}" for value in values]}
    layout = {
        "xaxis": x_axis,
        "yaxis": log_axis("Median time per call", min(times) / 1.3, max(times) * 1.3, format_duration),
        "hovermode": "closest",
    }
    note = "Medians with their 95 % intervals."
    if floor:
        note += " The dashed line is what the measured ceiling allows at best."
    yield Chart(key, section, "Time over the sweep", note, {"data": data, "layout": layout}, 420)


def _places(sweep: BenchmarkSweep, points: Sequence[BenchmarkResult]) -> list[float] | None:
    """Where points lie on an axis of numbers; None if they are no numbers, or several are swept."""
    names = [name for name in sweep.parameters if name in points[0].parameters]
    values = [points[at].parameters.get(names[0]) for at in range(len(points))] if len(names) == 1 else []
    numbers = [
        one for one in values if isinstance(one, int | float) and not isinstance(one, bool) and one > 0
    ]
    return numbers if numbers and len(numbers) == len(points) else None


def _curve(
    name: str, rows: Sequence[tuple[int, BenchmarkRow]], xs: Sequence[Any], labels: Sequence[str], index: int
) -> dict[str, Any]:
    medians = [row.median_ns or 0.0 for _, row in rows]
    ends = [row.interval_ns or (ns, ns) for ns, (_, row) in zip(medians, rows, strict=True)]
    shares = [
        ""
        if row.ceiling_fraction is None
        else f"<br>{format_fraction(row.ceiling_fraction)} of {as_text(row.ceiling or '')}"
        for _, row in rows
    ]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": as_text(name),
        "x": [xs[place] for place, _ in rows],
        "y": medians,
        "error_y": {**whiskers(zip(medians, ends, strict=True)), "thickness": 1.2},
        "line": {"color": LINE_COLORS[index % len(LINE_COLORS)], "width": 1.8},
        "marker": {"symbol": index},
        "hovertext": [
            f"{as_lines(name)}<br>{as_text(labels[place])}<br>{format_duration(row.median_ns)}{share}"
            for (place, row), share in zip(rows, shares, strict=True)
        ],
        "hoverinfo": "text",
    }


def _floor(points: Sequence[BenchmarkResult], xs: Sequence[Any]) -> dict[str, Any] | None:
    """The time that the binding ceiling allows the reference at each point."""
    known = [
        (xs[place], row.median_ns * row.ceiling_fraction)
        for place, point in enumerate(points)
        for row in point.rows
        if row.name == point.reference and row.median_ns and row.ceiling_fraction
    ]
    if not known:
        return None
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "at the ceiling",
        "x": [x for x, _ in known],
        "y": [ns for _, ns in known],
        "line": {"dash": "dash", "width": 1.5},
        "hoverinfo": "skip",
        "themed": True,
    }


# -- workloads


def workload_charts(configurations: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    """Maps over batch size and sequence length; of a sweep of one point none."""
    done = [one for one in configurations if one["config"]]
    sizes = [(one["config"].get("batch_size"), one["config"].get("seq_len")) for one in done]
    batches = sorted({batch for batch, _ in sizes if batch is not None})
    lengths = sorted({length for _, length in sizes if length is not None})
    if len(done) < 2 or not batches or not lengths:
        return ()
    maps: tuple[tuple[str, str, str, list[float | None], Callable[[float], str]], ...] = (
        (
            "latency", "Latency", "Median of a step; the brightest is the longest.",
            [one["latency_ms"] and one["latency_ms"]["median"] * NS_PER_MS for one in done], format_duration,
        ),
        (
            "throughput", "Sequences per second", "The brightest is the most.",
            [one["throughput_sequences_per_s"] for one in done], "{:,.1f}".format,
        ),
        (
            "busy", "Device busy", "Share of a step in which the device works.",
            [(one["step"] or {}).get("busy_fraction") for one in done], format_fraction,
        ),
    )  # fmt: skip
    rows, columns = [f"length {one}" for one in lengths], [f"batch {one}" for one in batches]
    charts = []
    for key, title, note, found, form in maps:
        values = {
            (f"length {length}", f"batch {batch}"): value
            for (batch, length), value in zip(sizes, found, strict=True)
            if value is not None
        }
        if values:
            charts.append(Chart(key, "", title, note, *cells(values, form=form, rows=rows, columns=columns)))
    return tuple(charts)


# -- changes tried


def trial_charts(result: TrialResult) -> tuple[Chart, ...]:
    """The step of every change, and of the best set, beside that of the program as it is."""
    base, best = result.baseline, result.best
    timed = [one for one in result.variants if one.step_ns is not None]
    if not timed:
        return ()
    unit = unit_of(max(base.step_ns, *(one.step_ns or 0.0 for one in timed)))

    def bar(name: str, ns: float, interval: Interval | None, kind: str, hover: str) -> Bar:
        ends = None if interval is None else (interval[0] / unit.ns, interval[1] / unit.ns)
        return Bar(name, ns / unit.ns, ends, kind=kind, hover=hover)

    rows = [bar("unchanged", base.step_ns, base.interval_ns, "unchanged", format_duration(base.step_ns))]
    rows += [
        bar(
            one.name,
            one.step_ns or 0.0,
            one.interval_ns,
            "recommended" if one.is_recommended else "not recommended",
            _trial_text(one),
        )
        for one in timed
    ]
    if best is not None and len(best.names) > 1:
        rows.append(
            bar(
                " + ".join(best.names), best.step_ns, None, "best together",
                f"{format_duration(best.step_ns)}, {100 * best.ratio:.1f} % of the time",
            )
        )  # fmt: skip
    colors = {"unchanged": GRAY, "recommended": GREEN, "not recommended": ORANGE, "best together": BLUE}
    note = "Median step of each change, and of those that help together; whiskers are 95 % intervals."
    drawing = bars(rows, axis=f"Step ({unit.name})", colors=colors, mark=base.step_ns / unit.ns)
    return (Chart("steps", "Changes tried", "What each change brings", note, *drawing),)


def _trial_text(one: Variant) -> str:
    share = "" if one.ratio is None else f", {100 * one.ratio:.1f} % of the time"
    return f"{format_duration(one.step_ns)}{share}: {one.verdict}"


# -- counters and statistics


def counter_charts(analysis: CounterAnalysis) -> tuple[Chart, ...]:
    """What each kernel reaches of the limits of the device."""
    ranked = sorted(analysis.kernels, key=lambda kernel: -(kernel.counters.duration_ns or 0))[:_ROWS]
    titles = fitting_names([kernel.title for kernel in ranked], _TITLE)
    rows = [
        Bar(f"{counters.index}: {title}", 100 * share, kind=kind, hover=f"{kind} {format_fraction(share)}")
        for title, counters in zip(titles, (kernel.counters for kernel in ranked), strict=True)
        for kind, share in (
            ("compute", counters.ratio(Quantity.SM_FRACTION)),
            ("memory", counters.ratio(Quantity.MEMORY_FRACTION)),
            ("occupancy", counters.occupancy.achieved),
        )
        if share is not None
    ]
    if not rows:
        return ()
    note = "Share of its peak that each unit reaches while a kernel runs; resident warps of the maximum."
    if len(ranked) < len(analysis.kernels):
        note += f" The longest {len(ranked)} of {counted(len(analysis.kernels), 'launch')}."
    colors = {"compute": BLUE, "memory": ORANGE, "occupancy": GRAY}
    drawing = bars(rows, axis="Share of the limit (%)", colors=colors, mark=100.0)
    return (Chart("limits", "Kernels", "Counters relative to their limits", note, *drawing),)


def statistics_charts(tables: Sequence[ReportTable]) -> tuple[Chart, ...]:
    """Of each report, what takes the most."""
    charts = []
    for number, one in enumerate(tables):
        rows = []
        for row in one.rows:
            function = decode(name := str(row[one.report.name_column])).function
            # A kernel by its function; what is none stays as it is.
            label = name if function is None else function.rpartition("::")[2]
            rows.append((label, row[total_column(one)]))
        whole = sum(value for _, value in rows)
        if whole:
            form = partial(format_share, whole=whole)
            unit = unit_of(max(value for _, value in rows))
            divisor, name = (1.0, "MB") if one.report.is_size else unit
            drawn = [Bar(label, value / divisor, kind="", hover=form(value)) for label, value in rows[:_ROWS]]
            note = (
                f"The largest {len(drawn)} of {len(rows)}." if len(drawn) < len(rows) else "All of the table."
            )
            drawing = bars(drawn, axis=f"Total ({name})", colors={"": BLUE})
            charts.append(Chart(f"table{number}", one.report.title, one.report.title, note, *drawing))
    return tuple(charts)
