"""The pictures of benchmarks and sweeps: of what their tables hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter, truediv
from typing import Any

from opscope.benchmarking.benchmark_sweep import BenchmarkSweep
from opscope.model.benchmark import BenchmarkResult, BenchmarkRow, Verdict
from opscope.model.queries import grouped
from opscope.report import benchmark
from opscope.report.html import figures as fig
from opscope.units import NS_PER_MS, counted, format_duration, format_fraction

_ROWS = 15  # of bars, that are read at once
_EVERY_SAMPLE = 3_000  # points that a browser draws without delay
_FEW_SAMPLES = 20
_OUTLYING = 0.02  # of the samples of an implementation on each side may lie outside of the picture
_OPERATORS = 7  # of each configuration, beside all others
_SHARES = {
    "cuda": ("Of device time (%)", "Shares of device time by operator."),
    "cpu": ("Of CPU time (%)", "Shares of CPU time by operator."),
}
_VERDICTS = {"slower": fig.RED, "faster": fig.BLUE, "same, or no verdict": fig.GRAY}


def benchmark_charts(result: BenchmarkResult | BenchmarkSweep) -> tuple[fig.Chart, ...]:
    """Of one problem every sample and the ratios; of a sweep the medians over its points."""
    if isinstance(result, BenchmarkResult):
        return tuple(_of_problem("", result))
    if len(result.points) == 1:
        (only,) = result.points
        return tuple(_of_problem(benchmark.benchmark_title(only), only))
    return tuple(_scaling(result))


def _of_problem(section: str, result: BenchmarkResult) -> Iterator[fig.Chart]:
    rows = [(row, row.median_ns) for row in result.rows if row.samples_ns and row.median_ns]
    if not rows:
        return
    unit = fig.unit_of(max(ns for _, ns in rows))
    bars = []
    for row, ns in rows:
        is_reference = row.name == result.reference
        low, high = row.interval_ns or (ns, ns)
        ends = None if row.interval_ns is None else (low / unit.ns, high / unit.ns)
        kind = "reference" if is_reference else "same, or no verdict"
        told = format_duration(ns)
        if row.ratio is not None and not is_reference:
            told += f", {benchmark.ratio_text(row.ratio, row.verdict)}"
            kind = str(row.verdict) if row.verdict in {Verdict.SLOWER, Verdict.FASTER} else kind
        if row.ratio_interval is not None and not is_reference:
            low, high = benchmark.interval_beside(row.ratio_interval, row.verdict)
            told += f", 95 % interval {low:.3f} to {high:.3f}"
        bars.append(fig.Bar(row.name, ns / unit.ns, ends, kind=kind, hover=told))
    colors = {"reference": fig.GREEN, **_VERDICTS}
    mark = next((one.end for one in bars if one.kind == "reference"), None)
    drawing = fig.bars(bars, title=f"Median ({unit.name})", colors=colors, mark=mark)
    note = "Median time of a call with its 95 % interval."
    yield fig.Chart("times", section, "Which is faster", note, *drawing)
    yield _samples(section, rows)


def _samples(section: str, rows: Sequence[tuple[BenchmarkRow, float]]) -> fig.Chart:
    spreads = [sorted(100 * (ns / median_ns - 1) for ns in row.samples_ns) for row, median_ns in rows]
    cuts = [int(_OUTLYING * len(spread)) + (len(spread) > _FEW_SAMPLES) for spread in spreads]
    low = min(spread[cut] for spread, cut in zip(spreads, cuts, strict=True))
    high = max(spread[-1 - cut] for spread, cut in zip(spreads, cuts, strict=True))
    margin = 0.05 * (high - low) or 1.0
    outside = sum(not low - margin <= one <= high + margin for spread in spreads for one in spread)
    count = sum(map(len, spreads))
    data = [
        {
            "type": "box", "orientation": "h", "x": spread, "jitter": 0.7,
            "name": f"{fig.as_text(row.name)}, {format_duration(median_ns)}",
            "boxpoints": "all" if count <= _EVERY_SAMPLE else "outliers",
            "pointpos": 0, "marker": {**fig.stroke(index), "size": 3, "opacity": 0.6}, "line": {"width": 1.5},
            "hoverinfo": "skip",
        }
        for index, ((row, median_ns), spread) in enumerate(zip(rows, spreads, strict=True))
    ]  # fmt: skip
    layout = {
        "xaxis": fig.axis("From the median (%)", range=[low - margin, high + margin]),
        "yaxis": fig.NAMED_ROWS,
        "showlegend": False,
    }
    note = "Deviation of each sample from the median of its implementation; boxes hold the middle half."
    if outside:
        note += f" {outside} of {counted(count, 'sample')} lie outside of the picture."
    figure = {"data": data, "layout": layout}
    return fig.Chart("samples", section, "How samples spread", note, figure, 90 + 42 * len(rows))


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
        ends = [(ns, row.interval_ns or (ns, ns)) for _, row, ns in rows]
        data.append(
            fig.curve(
                fig.as_text(name),
                (xs[place] for place, *_ in rows),
                (ns for *_, ns in rows),
                mode="lines+markers",
                error_y={**fig.whiskers(ends), "thickness": 1.2},
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


def workload_charts(configurations: Sequence[Mapping[str, Any]]) -> tuple[fig.Chart, ...]:
    """Maps over batch size and sequence length; of a sweep of one point none."""
    done = [one for one in configurations if one["config"]]
    sizes = [(one["config"].get("batch_size"), one["config"].get("seq_len")) for one in done]
    batches = sorted({batch for batch, _ in sizes if batch is not None})
    lengths = sorted({length for _, length in sizes if length is not None})
    if len(done) < 2 or not batches or not lengths:
        return ()
    maps: tuple[tuple[str, str, str, Callable[[Any], float | None], Callable[[float], str]], ...] = (
        (
            "latency", "Latency", "Median of a step; the brightest is the longest.",
            lambda one: one["latency_ms"] and one["latency_ms"]["median"] * NS_PER_MS, format_duration,
        ),
        (
            "throughput", "Sequences per second", "The brightest is the most.",
            itemgetter("throughput_sequences_per_s"), "{:,.1f}".format,
        ),
        (
            "busy", "Device busy", "Share of a step in which the device works.",
            lambda one: (one["step"] or {}).get("busy_fraction"), format_fraction,
        ),
    )  # fmt: skip
    rows, columns = [f"length {one}" for one in lengths], [f"batch {one}" for one in batches]
    places, charts = [(f"length {length}", f"batch {batch}") for batch, length in sizes], [*_operators(done)]
    for key, title, note, value_of, form in maps:
        values = zip(places, map(value_of, done), strict=True)
        if known := {place: value for place, value in values if value is not None}:
            drawing = fig.cells(known, form=form, rows=rows, columns=columns)
            charts.append(fig.Chart(key, "", title, note, *drawing))
    return tuple(charts)


def _operators(done: Sequence[Mapping[str, Any]]) -> Iterator[fig.Chart]:
    side = "cuda" if any(one["summary"]["total_cuda_time_ms"] for one in done) else "cpu"
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(done))
    for place, one in enumerate(done):
        for row in one["operators"]:
            spent[row["name"]][place] += row[f"self_{side}_time_ms"]
    totals = [one["summary"][f"total_{side}_time_ms"] or 0.0 for one in done]
    if not all(totals):
        return
    shown = sorted(spent, key=lambda name: -max(map(truediv, spent[name], totals)))[:_OPERATORS]
    rest = [max(0.0, total - sum(spent[name][at] for name in shown)) for at, total in enumerate(totals)]
    labels = [one["label"] for one in done]
    data = [
        fig.boxes(
            (100 * ms / total for ms, total in zip(times, totals, strict=True)),
            labels,
            name=fig.as_text(name),
            marker={"color": fig.GRAY} if name == "others" else fig.stroke(index),
            hovertext=[
                f"{fig.as_text(name)}<br>{label}: {format_duration(ms * NS_PER_MS)}"
                for label, ms in zip(labels, times, strict=True)
            ],
            hoverinfo="text",
        )
        for index, (name, times) in enumerate([*((name, spent[name]) for name in shown), ("others", rest)])
    ]
    axis, note = _SHARES[side]
    layout = {
        "barmode": "stack",
        "xaxis": fig.axis(axis, rangemode="tozero"),
        "yaxis": {**fig.NAMED_ROWS, "type": "category"},
    }
    figure = {"data": data, "layout": layout}
    yield fig.Chart("operators", "", "Operators of each configuration", note, figure, 130 + 30 * len(done))
