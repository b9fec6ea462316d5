"""Pictures of what verbs find: they draw the values that the tables say."""

import pytest

from opscope.report.html import result_charts
from opscope.report.sweep import sweep_json

NAME = "aten::gelu"


@pytest.fixture(scope="module")
def found(results_named):
    return results_named(NAME)


def test_maps_say_what_the_table_of_a_sweep_says(found):
    records = sweep_json(found.configurations)["configurations"]
    operators, latency, throughput, busy = result_charts.workload_charts(records)
    shares = zip(*(trace["x"] for trace in operators.figure["data"]), strict=True)
    assert [sum(one) for one in shares] == [pytest.approx(100)] * len(records)
    assert len({trace["name"] for trace in operators.figure["data"]}) > 2
    assert latency.figure["layout"]["yaxis"]["categoryarray"] == ["length 128", "length 256"]
    (cells,) = latency.figure["data"]
    drawn = dict(zip(zip(cells["y"], cells["base"], strict=True), cells["text"], strict=True))
    assert drawn["length 256", 1 - 0.48] == "2.05 s"  # batch 8
    assert set(throughput.figure["data"][0]["text"]) == {"7.8", "3.9"}
    assert set(busy.figure["data"][0]["text"]) == {"51.0 %", "58.0 %"}
    assert result_charts.workload_charts(records[:1]) == ()


def test_times_of_a_benchmark_come_before_their_samples(found):
    times, samples = result_charts.benchmark_charts(found.benchmark)
    reference, slower = times.figure["data"]
    assert (reference["name"], slower["name"]) == ("reference", "slower")
    drawn_us = [*reference["x"], *slower["x"]]
    assert drawn_us == pytest.approx([row.median_ns / 1e3 for row in found.benchmark.rows])
    for trace, row in zip(samples.figure["data"], found.benchmark.rows, strict=True):
        assert [row.median_ns * (1 + one / 100) for one in trace["x"]] == pytest.approx(
            sorted(row.samples_ns)
        )


def test_curves_of_a_sweep_are_medians_above_the_ceiling(found):
    (chart,) = result_charts.benchmark_charts(found.sweep)
    torch, other, floor = chart.figure["data"]
    assert torch["x"] == other["x"] == floor["x"] == [8, 64]
    assert torch["y"] == [point.rows[0].median_ns for point in found.sweep.points]
    assert floor["y"] == pytest.approx([0.4 * ns for ns in torch["y"]])
    low, high = (10**end for end in chart.figure["layout"]["yaxis"]["range"])
    assert low < min(floor["y"]) and max(other["y"]) < high
