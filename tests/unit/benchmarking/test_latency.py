from __future__ import annotations

import pytest

from opscope.benchmarking.timer import WallTimer, latency_measure, measure_latency, timer_for
from opscope.errors import InputError, MeasurementError
from opscope.model.measurement import Clock, Latency, LatencyOptions
from opscope.testing import FakeTimer


def nothing() -> None:
    pass


def test_all_samples_are_kept_in_order_and_outliers_stay():
    timer = FakeTimer([900, 10, 12, 5000, 11])
    latency = measure_latency(nothing, timer, warmup=1, min_samples=4, max_samples=4)
    assert latency == Latency((10, 12, 5000, 11), Clock.WALL, 1)
    assert timer.calls == 5


def test_the_sample_count_follows_from_the_time_budget():
    second_ns = 1_000_000_000
    latency = measure_latency(
        nothing, FakeTimer([second_ns // 4] * 100), warmup=0, min_samples=2, max_samples=50, time_budget_s=1.0
    )
    assert len(latency.samples_ns) == 4


def test_a_spent_budget_still_takes_the_minimum():
    latency = measure_latency(
        nothing, FakeTimer([10**10] * 5), warmup=0, min_samples=3, max_samples=9, time_budget_s=0.5
    )
    assert len(latency.samples_ns) == 3


def test_the_maximum_is_never_exceeded():
    latency = measure_latency(
        nothing, FakeTimer([1] * 9), warmup=0, min_samples=1, max_samples=7, time_budget_s=9
    )
    assert len(latency.samples_ns) == 7


@pytest.mark.parametrize(("warmup", "low", "high"), [(-1, 1, 1), (0, 0, 1), (0, 3, 2)])
def test_contradicting_counts_are_refused(warmup, low, high):
    with pytest.raises(InputError, match="cannot be measured"):
        measure_latency(nothing, FakeTimer([]), warmup=warmup, min_samples=low, max_samples=high)


def test_a_script_that_runs_out_says_so():
    with pytest.raises(MeasurementError, match="ran out at call 2"):
        measure_latency(nothing, FakeTimer([1]), warmup=0, min_samples=2, max_samples=2)


def test_percentiles_are_linear_between_samples():
    latency = Latency(tuple(range(0, 101)), Clock.CUDA_EVENT, 0)
    assert (latency.p5_ns, latency.median_ns, latency.p95_ns) == (5.0, 50.0, 95.0)
    assert Latency((7,), Clock.WALL, 0).p95_ns == 7.0


def test_a_latency_has_samples():
    with pytest.raises(MeasurementError, match="without samples"):
        Latency((), Clock.WALL, 3)


def test_the_clock_is_its_text():
    assert Clock.CUDA_EVENT == "cuda_event"
    assert f"{Clock.WALL}" == "wall"


def test_wall_timer_calls_once_and_counts_whole_nanoseconds():
    calls = []
    duration_ns = WallTimer().measure(lambda: calls.append(1))
    assert isinstance(duration_ns, int)
    assert duration_ns >= 0
    assert calls == [1]


def test_a_cpu_is_measured_by_the_wall_clock():
    assert timer_for("cpu").clock is Clock.WALL
    measure = latency_measure(LatencyOptions(warmup=1, min_samples=3, max_samples=3))
    assert len(measure(nothing, "cpu").samples_ns) == 3


def test_cuda_events_need_a_device():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(MeasurementError, match="need a CUDA device"):
        timer_for("cuda:0")
