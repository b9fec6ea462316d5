"""Steps, the host's time in them and what recording adds; launch latency, queues and calls."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.host import RECORDED_EVENT_NS
from opscope.analysis.timeline.measure import estimate_recorder
from opscope.analysis.timeline.records import CallRole, role_of
from opscope.analysis.timeline.values import LaunchLatency, QueueDepth

NOTHING = dict.fromkeys(RECORDED_EVENT_NS, 0)


class TestSteps:
    @cases("durations", "outliers")
    def test_outliers(self, timeline, durations, outliers):
        trace = TraceBuilder()
        for number, duration in enumerate(durations):
            trace.step(number, 1000 * number, duration)
        assert list(timeline(trace).steps[0].outliers) == outliers


class TestHostTime:
    def test_waits_for_the_device_are_left_out(self, timeline):
        trace = TraceBuilder().step(1, 0, 100).step(2, 100, 60)
        trace.operator("aten::mm", 10, 10).launch(12, 2).kernel("gemm", 20, 70)
        trace.launch(30, 60, name="cudaStreamSynchronize")
        trace.operator("aten::mm", 110, 10).launch(112, 2).kernel("gemm", 120, 20)
        (host,) = timeline(trace).host
        assert (host.steps, host.step_ns, host.launches) == (2, 80_000, 1)
        assert host.launch_path_ns == (100_000 - 60_000 + 60_000) / 2
        assert host.device_busy_ns == (70_000 + 20_000) / 2

    def test_another_thread_at_work_meanwhile_does_not_wait(self, timeline):
        trace = TraceBuilder().step(1, 0, 100).launch(2).kernel("gemm", 5, 90)
        trace.launch(10, 80, name="cudaStreamSynchronize")
        trace.operator("MulBackward0", 50, 20, thread=2).launch(55, 2, thread=2).kernel("gemm", 95, 3)
        (host,) = timeline(trace).host
        assert host.launch_path_ns == 20_000 + 20_000

    def test_without_steps_the_whole_recording_is_one_and_a_replay_one_launch(self, timeline):
        trace = TraceBuilder().launch(10, 2).kernel("gemm", 20, 70).launch(40, 2).kernel("gemm", 95, 5)
        (host,) = timeline(trace).host
        assert (host.steps, host.step_ns, host.device_busy_ns, host.launches) == (1, 90_000, 75_000, 2)
        trace = TraceBuilder().step(1, 0, 100).launch(10, 2, name="cudaGraphLaunch")
        trace.kernel("a", 20, 5).kernel("b", 30, 5)
        assert timeline(trace).host[0].launches == 1

    def test_launches_that_wait_for_a_place_in_the_queue(self, timeline):
        trace = TraceBuilder().step(1, 0, 10_000)
        for number in range(1010):
            duration = 2 if number < 1009 else 500
            trace.launch(5 * number, duration).kernel("k", 9_000 + number, 1)
        (host,) = timeline(trace).host
        assert host.launch_path_ns == 10_000_000 - 498_000


class TestTheRecordersPart:
    def test_is_events_times_their_costs_as_far_as_the_step_leaves_them(self):
        counts = (100, 10, 40, 60)
        events = dict(zip(RECORDED_EVENT_NS, counts, strict=True))
        ns, basis = estimate_recorder(events, 2, most_ns=1e9)
        assert ns == (100 * 2100 + 10 * 1200 + 40 * 740 + 60 * 500) / 2
        assert "50 operators with shapes" in str(basis)
        assert "30 Python frames" in str(basis)
        assert "bounded" not in str(basis)
        ns, basis = estimate_recorder(NOTHING | {"operators": 100}, 1, most_ns=5_000.0)
        assert ns == 5_000
        assert "bounded" in str(basis)
        assert estimate_recorder(NOTHING, 3, most_ns=1e9) == (None, None)

    def test_counts_the_launching_threads_within_the_steps(self, timeline):
        shapes = {"Input Dims": [[4, 4]]}
        trace = TraceBuilder().step(1, 0, 20_000).operator("aten::mm", 10, 10, **shapes).launch(12, 2)
        trace.kernel("gemm", 20, 70).operator("aten::mm", 30_000, 10, **shapes)
        trace.operator("aten::mm", 30, 10, thread=9, **shapes).operator("aten::view", 40, 2)
        trace.event("python_function", "train.py(3): step", 5, 50, 1, {"Python id": 1})
        (host,) = timeline(trace).host
        assert host.recorder_ns == sum(RECORDED_EVENT_NS.values())

    @cases("name", "bare_ms", "recorded_ms")
    def test_bare_times_measured_without_a_recorder_are_met(self, load, shared, name, bare_ms, recorded_ms):
        (host,) = Summary(load(shared / f"traces/h200/{name}.json.gz")).timeline.host
        assert host.launch_path_ns == pytest.approx(recorded_ms * 1e6, rel=0.02)
        assert host.launch_path_ns - host.recorder_ns == pytest.approx(bare_ms * 1e6, rel=0.25)


def test_latency_is_from_the_launch_calls_start_to_the_first_kernels(timeline):
    trace = TraceBuilder()
    for number, latency in enumerate((5, 7, 6, 100, -2)):
        trace.launch(1000 * number).kernel("k", 1000 * number + latency, 10)
    trace.launch(9000).kernel("Memset (Device)", 9900, 1, category="gpu_memset")
    assert timeline(trace).latencies == (LaunchLatency(0, 0, 5, 6_000, 100_000, 1),)
    trace = TraceBuilder().launch(0, name="cudaGraphLaunch")
    trace.kernel("b", 30, 5).kernel("a", 12, 5).kernel("c", 50, 5)
    assert timeline(trace).latencies == (LaunchLatency(0, 0, 1, 12_000, 12_000, 0),)
    trace = TraceBuilder()
    for number in range(1, 21):
        trace.launch(1000 * number).kernel("k", 1000 * number + number, 10)
    (latency,) = timeline(trace).latencies
    assert (latency.median_ns, latency.p95_ns) == (10_000, 19_000)


def test_what_was_launched_before_the_window_is_queued_from_the_start(timeline):
    trace = TraceBuilder().kernel("a", 0, 5, correlation=1).kernel("b", 15, 5, correlation=2)
    trace.launch(5).kernel("c", 30, 10)
    assert timeline(trace).queues == (QueueDepth(0, 0, (10 + 30 + 20) / 40, 2, 0.0),)
    assert timeline(TraceBuilder().kernel("a", 0, 5, correlation=1)).queues == ()


@cases("role", "names")
def test_roles(role, names):
    assert {name: role_of(name) for name in names.split()} == dict.fromkeys(names.split(), CallRole[role])
