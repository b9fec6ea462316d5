"""The picture of a sweep draws the values that its tables say."""

import pytest

from opscope.report.html.charts import benchmark_charts


def test_curves_of_a_sweep_are_medians_above_the_ceiling(results_named):
    found = results_named("aten::gelu")
    assert benchmark_charts(found.benchmark) == ()
    (chart,) = benchmark_charts(found.sweep)
    torch, other, floor = chart.figure["data"]
    assert torch["x"] == other["x"] == floor["x"] == [8, 64]
    assert torch["y"] == [point.rows[0].median_ns for point in found.sweep.points]
    assert floor["y"] == pytest.approx([0.4 * ns for ns in torch["y"]])
    low, high = (10**end for end in chart.figure["layout"]["yaxis"]["range"])
    assert low < min(floor["y"]) and max(other["y"]) < high
