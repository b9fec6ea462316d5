"""Pictures of a job, of steps and of a sweep."""

import pytest

from fakes import TraceBuilder
from opscope.analysis.summary import Summary
from opscope.api import load as load_source
from opscope.report.html.charts import benchmark_charts, session_charts
from opscope.units import format_duration


def rank(number, compute_us):
    trace = TraceBuilder(distributedInfo={"rank": number, "world_size": 2, "backend": "nccl"})
    for step, start in ((1, 0), (2, 100)):
        trace.step(step, start, 100).operator("aten::mm", start + 1, 10).launch(start + 2)
        trace.kernel("gemm", start + 5, compute_us)
        trace.operator("c10d::allreduce_", start + 12, 8).launch(start + 13)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32", start + 5 + compute_us, 80 - compute_us, stream=20)
    return trace


def test_the_rank_that_computes_longer_stands_out_and_others_wait(make_trace, tmp_path):
    for number, compute_us in ((0, 20), (1, 60), (2, 20)):
        make_trace(rank(number, compute_us), f"rank{number}.json")
    with load_source(str(tmp_path)) as session:
        summary = Summary(session).complete()
        charts = {one.key: one for one in session_charts(session, summary)}
    (cells,) = charts["ranks"].figure["data"]
    assert cells["y"] == ["rank 0"] * 2 + ["rank 1"] * 2 + ["rank 2"] * 2
    # The step without the time in which only the collective ran.
    assert cells["text"] == [*["40.0 µs"] * 2, *["80.0 µs"] * 2, *["40.0 µs"] * 2]
    assert len(charts["steps"].figure["data"][-1]["y"]) == 6
    (cells,) = charts["waits"].figure["data"]
    waiting = {f"rank {skew.rank}": format_duration(skew.waiting_ns) for skew in summary.timeline.skews}
    assert dict(zip(cells["y"], cells["text"], strict=True)) == waiting
    assert waiting == {"rank 0": "80.0 µs", "rank 1": "0 ns", "rank 2": "80.0 µs"}


def test_without_a_device_the_program_is_drawn_by_cpu_time_from_where_it_branches(make_trace):
    trace = TraceBuilder().frame("run.py(1): <module>", 0, 100).frame("train.py(7): main", 0, 100, parent=1)
    trace.operator("aten::mm", 5, 60).operator("aten::add", 70, 20)
    with load_source(make_trace(trace)) as session:
        (chart,) = session_charts(session, Summary(session).complete())
    (data,) = chart.figure["data"]
    assert chart.title == "CPU time from the program down to the operators"
    assert data["labels"][int(data["level"]) + 1] == "train.py(7): main"
    named = dict(zip(data["labels"], data["values"], strict=True))
    assert (named["all CPU time"], named["aten::mm"], named["aten::add"]) == (100, 60, 20)


def test_every_step_has_a_timeline_and_the_typical_one_is_in_front(make_trace):
    trace = TraceBuilder()
    for step in range(50):
        start_us = 100 * step + step**2
        trace.step(step, start_us, 100 + 2 * step).operator("aten::mm", start_us + 1, 10)
        trace.launch(start_us + 2).kernel("gemm", start_us + 5, 90)
    with load_source(make_trace(trace)) as session:
        charts = {one.key: one for one in session_charts(session, Summary(session).complete())}
    front = charts["timeline"]
    shown = [*front.before, front, *front.after]
    assert [one.title for one in shown] == [f"Step {step}, event by event" for step in range(48)]
    assert all("The first 48 of 50 steps are here." in one.note for one in shown)
    assert front.title == "Step 24, event by event"
    assert {"gemm", "aten::mm"} <= set(front.after[0].figure["names"])


def test_thousands_of_events_of_turning_colors_are_joined(make_trace):
    """On the critical path kernels and host take turns, so that neighbors have other colors."""
    trace = TraceBuilder().step(0, 0, 100_000)
    for number in range(5000):
        start_us = 20 * number
        trace.operator("aten::mm", start_us, 9).launch(start_us + 1, 2).kernel("gemm", start_us + 10, 8)
        trace.launch(start_us + 11, 8, name="cudaDeviceSynchronize")
    with load_source(make_trace(trace)) as session:
        (chart,) = (
            one for one in session_charts(session, Summary(session).complete()) if one.key == "timeline"
        )
    drawn = [len(one["names"]) for one in chart.figure["data"] if "names" in one]
    assert 100 < sum(drawn) <= 8000
    path = [one for one in chart.figure["data"] if one["name"].startswith("path: ")]
    assert path


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
