"""The picture of a sweep: times over what was swept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opscope.benchmarking.benchmark_sweep import BenchmarkSweep
from opscope.model.benchmark import BenchmarkResult
from opscope.model.queries import grouped
from opscope.report import benchmark
from opscope.report.html import figures as fig
from opscope.units import format_duration, format_fraction


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
