"""The execution graph on small programs whose times are known by hand, and its laws on recorded ones."""

import numpy as np
import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis import execution_graph
from opscope.analysis.execution_graph import Edge, critical_path, simulate
from opscope.analysis.measured_step import StepClockKind, UnrecordedTime
from opscope.analysis.step_model import Gain, HostSpeed, StepExecution, StepModel, step_model
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.host import read_session
from opscope.model.sidecar import StepKind

US = 1000


@pytest.fixture
def load(load_once):
    return load_once


def launch_bound():
    """One step of 1000 µs: ten operators of 40 µs, 90 apart, each launching a kernel of 10."""
    builder = TraceBuilder().step(1, 0, 1000)
    for place in range(10):
        at = 10 + 90 * place
        builder.operator("aten::add", at, 40).launch(at + 10, 5).kernel("add", at + 16, 10)
    return builder


def device_bound(steps=1):
    """Steps of 200 µs on the host whose ten kernels of 100 µs run one after the other, 1 µs apart."""
    builder = TraceBuilder()
    for number in range(steps):
        builder.step(number + 1, 200 * number, 200)
        for place in range(10):
            at = 200 * number + 10 + 15 * place
            builder.operator("aten::mm", at, 10).launch(at + 2, 5)
            builder.kernel("gemm", 18 + 1010 * number + 101 * place, 100)
    return builder


def two_streams():
    """A kernel of 200 µs, and on another stream one of 50 that an event holds back until it is done."""
    builder = TraceBuilder().step(1, 0, 400)
    builder.operator("aten::mm", 10, 10).launch(12, 4).kernel("gemm", 20, 200)
    builder.launch(30, 2, name="cudaEventRecord").launch(34, 2, name="cudaStreamWaitEvent")
    return builder.operator("aten::copy_", 40, 10).launch(42, 4).kernel("copy", 223, 50, stream=20)


def asks_for_a_number():
    """Two kernels of 300 µs, and between them the host reads a number: a copy and a wait."""
    builder = TraceBuilder().step(1, 0, 1000)
    builder.operator("aten::mm", 10, 10).launch(12, 4).kernel("gemm", 20, 300)
    builder.operator("aten::item", 30, 310).launch(32, 295, name="cudaMemcpyAsync")
    builder.kernel("Memcpy DtoH (Device -> Pageable)", 321, 2, category="gpu_memcpy", bytes=4)
    builder.launch(328, 4, name="cudaStreamSynchronize")
    return builder.operator("aten::mm", 600, 10).launch(602, 4).kernel("gemm", 610, 300)


def copies_in():
    """Two steps: a copy from pageable memory, whose call returns 5 µs before it ends; then a kernel."""
    builder = TraceBuilder()
    for number in range(2):
        at = 1000 * number
        builder.step(number + 1, at, 1000)
        builder.operator("aten::copy_", at + 10, 600).launch(
            at + 20, 475 + 60 * number, name="cudaMemcpyAsync"
        )
        begins = at + (30 if number == 0 else 130)  # behind the first step's kernel
        builder.kernel("Memcpy HtoD (Pageable -> Device)", begins, at + 500 + 60 * number - begins,
                       category="gpu_memcpy", bytes=1 << 20)  # fmt: skip
        builder.launch(at + 497 + 60 * number, 6, name="cudaStreamSynchronize")
        builder.operator("aten::mm", at + 800, 20).launch(at + 805, 4).kernel("gemm", at + 820, 300)
    return builder


def backward():
    """Forward on one thread, backward on a second one while the first pauses, then the first again."""
    builder = TraceBuilder().step(1, 0, 1000)
    builder.operator("aten::mm", 10, 80).launch(50, 4).kernel("forward", 60, 10)
    for at in (200, 300, 400):
        builder.operator("MmBackward0", at, 90, thread=2).launch(at + 50, 4, thread=2)
        builder.kernel("backward", at + 60, 10)
    return builder.operator("aten::add_", 600, 80).launch(650, 4).kernel("update", 660, 10)


def replays():
    """A CUDA graph of three kernels on two streams."""
    builder = TraceBuilder().step(1, 0, 300).launch(10, 20, name="cudaGraphLaunch", correlation=7)
    builder.kernel("first", 40, 50, correlation=7).kernel("branch", 92, 80, stream=20, correlation=7)
    return builder.kernel("second", 92, 50, correlation=7).kernel("join", 174, 10, correlation=7)


def model_of(load, builder):
    return Summary(load(builder)).step_model


def node(model, kernel):
    """The last activity of a name."""
    return int(np.flatnonzero(model.is_named([kernel]))[-1])


def without_recorder(model):
    """As recorded: what these programs take is known by hand."""
    model.hosts = (HostSpeed(0.0),)
    return model


ALL = (launch_bound, device_bound, two_streams, asks_for_a_number, copies_in, backward, replays)


@pytest.mark.parametrize("program", ALL)
def test_a_recording_simulates_as_itself(load, monkeypatch, program):
    reproduces(graph := model_of(load, program()).graph)
    times = simulate(graph).times
    monkeypatch.setattr(execution_graph, "native_library", lambda: None)
    assert (simulate(graph).times == times).all()


def reproduces(graph):
    """Every node comes when it was recorded, and the critical path is what the recording took."""
    times = simulate(graph, rounds=1).times
    assert (times == graph.time_ns)[graph.initial_count :].all()
    # It begins with the steps, or where a stream got free from work of before.
    path = critical_path(graph)
    began_ns = graph.recorded_ns - int(path.edge_ns.sum() + path.own_ns.sum())
    assert began_ns in graph.time_ns[1 : graph.initial_count]


def test_a_host_too_slow_decides_the_step(load):
    model = without_recorder(model_of(load, launch_bound()))
    assert model.step_ns == model.host_ns == 1000 * US
    assert model.device_ns < 200 * US
    assert model.gain(model.change().scale(model.is_named(["add"]), 0.5)) == Gain(0.0, 0.0, 0.0)
    # One launch is left, and the kernels follow each other.
    assert model.gain(model.change().replay(50 * US)).ns == pytest.approx(1000 * US - 110 * US, rel=0.02)


def test_what_an_event_holds_back_comes_sooner(load):
    model = model_of(load, two_streams())
    graph = model.graph
    held = node(model, "copy")
    assert (graph.edge[2, held], graph.before[2, held]) == (Edge.EVENT, node(model, "gemm"))
    durations = graph.duration_ns.copy()
    durations[node(model, "gemm")] //= 2
    times = simulate(graph, duration_ns=durations, rounds=1).times
    assert times[held] == graph.time_ns[held] - 100 * US


def test_a_copy_from_pageable_memory_holds_up_its_call(load):
    model = without_recorder(model_of(load, copies_in()))
    returns = model.graph.edge[1] == Edge.WAIT
    assert returns.sum() == 4  # each copy's call and the synchronization after it
    assert model.missing is None
    assert model.host_ns <= 500 * US  # of 1000, without the copies


def test_a_thread_waits_for_the_one_that_runs_backward(load):
    model = without_recorder(model_of(load, backward()))
    update = node(model, "update")
    launch = int(model.graph.before[1, update])
    assert model.graph.edge[2, launch] == Edge.HAND_OVER
    ids = ids_of(model, "MmBackward0")
    # Between the launches of the second thread; what surrounds them belongs to the hand-overs.
    assert model.gain(model.change().drop_host(model.extents(ids))).ns == pytest.approx(180 * US, rel=0.01)


def test_a_replay_is_one_launch_and_joins_its_streams(load):
    model = model_of(load, replays())
    assert (model.launches, model.graph.missing_edges) == (1, 0)
    assert model.graph.before[2, node(model, "branch")] == node(model, "first")


def test_work_of_before_occupies_the_stream(load):
    builder = TraceBuilder().kernel("earlier", -50, 150, correlation=1).step(1, 0, 400)
    builder.operator("aten::mm", 10, 10).launch(12, 4).kernel("gemm", 101, 100)
    model = without_recorder(model_of(load, builder))
    assert simulate(model.graph, rounds=1).times[node(model, "gemm")] == 201 * US
    # In a row with others there is nothing of before.
    assert model.step_ns == 400 * US


@pytest.mark.parametrize("share", [0.95, 0.6, 0.3])
def test_a_step_that_was_timed_is_met_where_the_host_decides(load, share):
    model = model_of(load, launch_bound())
    timed = refit(model, share * model.recorded_ns)
    assert timed.step_ns == pytest.approx(share * model.recorded_ns, rel=0.01)
    assert timed.unrecorded_error == pytest.approx(0.0, abs=0.01)


def test_with_an_idle_device_the_host_is_as_fast_as_timed_and_else_as_in_recordings_of_others(load):
    model = model_of(load, device_bound(3))
    timed = refit(model, model.recorded_ns, alone_ns=(120.0 * US, 150.0 * US, 160.0 * US))
    assert timed.host_ns == pytest.approx(150 * US, rel=0.01)
    assert timed.host_range_ns == pytest.approx((120 * US, 160 * US), rel=0.01)
    assert timed.step_ns == model.step_ns
    timed = refit(model, model.recorded_ns)
    assert timed.host_ns == pytest.approx(model.host_ns, rel=0.01)
    assert timed.host_range_ns == pytest.approx(model.host_range_ns, rel=0.01)


@pytest.mark.parametrize("low", [1.0, 1.2])
def test_a_step_with_an_idle_device_counts_where_timed_steps_may_be_as_short(load, low):
    """Recorded steps had less to do than the timed ones, which differ."""
    model = model_of(load, device_bound(3))
    steps_ns = [share * model.recorded_ns for share in (low, 1.25, 1.4)]
    timed = refit(model, *steps_ns, alone_ns=(150.0 * US, 150.0 * US, 150.0 * US))
    assert (timed.host_ns == pytest.approx(150 * US, rel=0.01)) == (low == 1.0)


def test_a_gain_holds_what_hosts_differ_by_from_process_to_process(load):
    """The host decides once the device is quick; how fast it is, one process does not show."""
    model = model_of(load, device_bound(3))
    timed = refit(model, model.recorded_ns, alone_ns=(150.0 * US, 150.0 * US, 150.0 * US))
    gain = timed.gain(timed.change().scale(timed.is_named(["gemm"]), 0.01))
    left_ns = [timed.step_ns - one for one in (gain.high_ns, gain.ns, gain.low_ns)]
    assert left_ns == pytest.approx([0.91 * left_ns[1], left_ns[1], 1.23 * left_ns[1]], rel=0.05)


def test_a_pause_of_one_recorded_step_is_not_the_hosts_usual_work(load):
    """Steps of 200 µs on the host, but for the first, which pauses for 9 ms: the device, 1010 µs, waits."""
    builder, began, free = TraceBuilder(), 0, 0
    for number in range(3):
        pause = 9000 if number == 0 else 0
        builder.step(number + 1, began, 200 + pause)
        for place in range(10):
            at = began + pause + 10 + 15 * place
            builder.operator("aten::mm", at, 10).launch(at + 2, 5)
            free = max(free, at + 8)
            builder.kernel("gemm", free, 100)
            free += 101
        began += 200 + pause
    model = without_recorder(model_of(load, builder))
    assert model.host_ns > 3000 * US
    timed = refit(model, 1010.0 * US, alone_ns=(140.0 * US, 150.0 * US, 160.0 * US))
    # Of the pause the first 200 µs count as time between launches.
    assert 150 * US <= timed.host_ns < 210 * US
    assert timed.step_ns == pytest.approx(1010 * US, rel=0.05)


def test_a_timed_step_loses_no_more_than_the_device_or_the_host_leaves(load):
    """Recorded, 290 µs of a copy's wait decide the step; the timed one is 20 µs longer than the device."""
    model = without_recorder(model_of(load, asks_for_a_number()))
    timed = refit(model, model.device_ns + 20 * US)
    timed.hosts = model.hosts
    waits = [call_id for (call_id,) in model.session.query("SELECT runtime_call_id FROM runtime_calls")]
    assert model.gain(model.change().free_waits(waits)).ns > 200 * US
    gain = timed.gain(timed.change().free_waits(waits))
    assert gain.low_ns <= gain.ns <= gain.high_ns == pytest.approx(20 * US)
    assert timed.gain_ns(timed.change().free_waits(waits)) == gain.ns
    # Simulated, waits make the step longer than the timed one: less work of the device leaves the host's.
    timed = refit(model, model.host_ns + 30 * US)
    timed.hosts = model.hosts
    assert timed.step_ns > timed.timed.high
    faster = timed.change().scale(timed.graph.activity >= 0, 0.01)
    assert model.gain(faster).ns > 200 * US
    assert timed.gain(faster).ns == pytest.approx(30 * US)


def test_a_host_slower_than_recorded_is_slower_in_all_or_left_open(load):
    model = without_recorder(model_of(load, launch_bound()))
    timed = refit(model, 1.5 * model.recorded_ns)
    assert timed.host.share > 1
    assert timed.host.work == timed.host.share
    # An idle device shows a quick host, the usual step a slow one: gains hold for either.
    step_ns = 1.5 * model.recorded_ns
    timed = refit(model, step_ns, alone_ns=(0.6 * step_ns, 0.6 * step_ns, 0.6 * step_ns))
    assert timed.step_ns == pytest.approx(step_ns, rel=0.01)
    assert min(timed.steps_ns) < 0.8 * step_ns


def test_the_quickest_step_and_the_device_bound_the_host(load):
    model = without_recorder(model_of(load, launch_bound()))
    device_ns, quickest_ns = model.device_ns, 0.9 * model.device_ns
    timed = refit(model, device_ns, host_ns=quickest_ns)
    assert timed.host_ns <= 1.01 * quickest_ns
    assert max(timed.steps_ns) <= 1.05 * device_ns


def refit(model, *steps_ns, host_ns=None, alone_ns=None):
    """The model as if these steps had been timed: least, median, most."""
    low_ns, median_ns, high_ns = steps_ns * (3 // len(steps_ns))
    timed = UnrecordedTime(
        median_ns, low_ns, high_ns, samples=6, coverage=0.97, warmup_samples=1, clock=StepClockKind.HOST,
        kind=StepKind.PERIOD, least_host_ns=host_ns, alone_ns=alone_ns,
    )  # fmt: skip
    return StepModel(
        model.session, model.trace, model.graph, origin_ns=model.origin_ns, loading=model.loading, timed=timed
    )


def test_what_was_timed_leaves_open_where_the_recorder_slowed_the_host(load):
    model = model_of(load, launch_bound())
    timed = refit(model, *(share * model.recorded_ns for share in (0.5, 0.6, 0.7)))
    least, *_, most = sorted(timed.steps_ns)
    assert timed.step_ns == pytest.approx(0.6 * model.recorded_ns, rel=0.01)
    assert least == pytest.approx(0.5 * model.recorded_ns, rel=0.01)
    assert most == pytest.approx(0.7 * model.recorded_ns, rel=0.01)
    alike = [
        host for host, ns in zip(timed.hosts, timed.steps_ns, strict=True) if abs(ns - timed.step_ns) < US
    ]
    assert len({host.recorder for host in alike}) == len(alike) > 1
    gain = timed.gain(timed.change().replay(0))
    assert gain.low_ns < gain.ns < gain.high_ns


def test_the_recorder_slows_a_hand_over_too(load):
    model = model_of(load, backward())
    handed = model.is_handed_over
    assert handed.any()
    lags = [model.unrecorded_lags(host)[2, handed].sum() for host in (HostSpeed(0), HostSpeed(0, 0.5))]
    assert lags[1] == pytest.approx(lags[0] / 2, abs=len(model.graph))
    assert (model.graph.recorder_ns[2, handed] > 0).any()
    assert (model.unrecorded_lags(HostSpeed(1))[2, handed] < model.graph.lag_ns[2, handed]).any()
    assert model.change().replay(0).apply(HostSpeed(0)) < model.device_ns + 100 * US


def test_of_two_changes_the_stronger_counts(load):
    model = without_recorder(model_of(load, device_bound(3)))
    half, third = (model.change().scale(model.is_named(["gemm"]), factor) for factor in (0.5, 1 / 3))
    assert model.gain_ns(half & third) == model.gain_ns(third)
    error = model.gain(half, 0.3)
    assert error.low_ns < error.ns < error.high_ns


def test_a_merged_set_of_launches_is_one(load):
    model = without_recorder(model_of(load, device_bound(1)))
    merged = model.change().merge_operators(ids_of(model, "%"), 0.5)
    assert merged.device_saved_ns == pytest.approx(500 * US, rel=0.001)
    assert model.gain_ns(model.change() & merged) == model.gain_ns(merged)
    assert model.gain_ns(merged) == pytest.approx((500 + 9) * US, rel=0.02)


def ids_of(model, name, of="operator"):
    key = {"operator": "operator_id", "runtime_call": "runtime_call_id"}[of]
    return [one for (one,) in model.session.query(f"SELECT {key} FROM {of}s WHERE name LIKE ?", [name])]


def asking(model):
    """Calls that read a number: the copy and the wait."""
    return ids_of(model, "cuda%Memcpy%", CALLS) + ids_of(model, "%Synchronize", CALLS)


CALLS = "runtime_call"
CHANGES = {
    "operators gone, with their host": (
        launch_bound, lambda m: m.change().drop_operators(ids_of(m, "aten::add")), 400),
    "operators gone, the host as before": (
        launch_bound, lambda m: m.change().drop(m.is_launched_by(ids_of(m, "aten::add"))), 0),
    "the host's time in a gap": (
        launch_bound, lambda m: m.change().drop_host_between([(0, 110_000, 190_000), (7, 0, 900_000)]), 80),
    "more for the host to do": (launch_bound, lambda m: m.change().add_host(100 * US), -100),
    "half the time of operators": (
        device_bound, lambda m: m.change().scale(m.is_launched_by(ids_of(m, "aten::mm")), 0.5), 500),
    "kernels gone": (device_bound, lambda m: m.change().scale(m.is_named(["gemm"]), 0.0), 810),
    "kernels gone, and their launches": (launch_bound, lambda m: m.change().drop_launches(["add"]), 50),
    "kernels gone, but for those of some calls": (
        launch_bound, lambda m: m.change().drop_launches(["add"], but_of=[-1]), 0),
    "a copy that the host waits for at the next synchronization": (
        asks_for_a_number,
        lambda m: m.change().free_launches(m.is_named(["Memcpy DtoH (Device -> Pageable)"])), 0),
    "waits no longer made, or for less": (
        asks_for_a_number, lambda m: m.change().free_waits(asking(m)), 290),
    "what a wait is for in half the time": (
        asks_for_a_number, lambda m: m.change().scale(m.is_named(["gemm"]), 0.5), 150),
    "calls no longer made": (
        asks_for_a_number,
        lambda m: m.change().drop_calls(asking(m)), 299),
    "a number no longer asked for": (
        asks_for_a_number,
        lambda m: m.change().drop_questions(
            asking(m)), 310),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_change_brings(load, name):
    program, change, gain_us = CHANGES[name]
    model = without_recorder(model_of(load, program()))
    assert model.gain_ns(change(model)) == pytest.approx(gain_us * US, abs=12 * US)


def test_a_full_launch_queue_holds_the_host_up(load):
    builder = TraceBuilder().step(1, 0, 10_000)
    for number in range(1010):
        builder.launch(5 * number, 2 if number < 1009 else 500).kernel("k", 5_400 + 2 * number, 2)
    model = without_recorder(model_of(load, builder))
    assert int((model.graph.edge[1] == Edge.WAIT).sum()) == 1


@pytest.mark.parametrize(("last_us", "waits"), [(50, 1), (500, 0)])
def test_what_is_allocated_beside_a_busy_device_waits_for_nothing(load, last_us, waits):
    """A kernel ends within the call; another one, launched before, runs on."""
    builder = TraceBuilder().step(1, 0, 1_000).launch(0, 2).kernel("first", 10, 40).launch(4, 2)
    builder.kernel("second", 51, last_us).launch(20, 100, name="cudaMalloc").launch(200, 2).kernel(
        "k", 600, 5
    )
    model = without_recorder(model_of(load, builder))
    assert int((model.graph.edge[1] == Edge.WAIT).sum()) == waits


def test_a_synchronization_with_nothing_to_wait_for_costs_what_it_took(load):
    builder = TraceBuilder().step(1, 0, 500).operator("aten::mm", 10, 10).launch(12, 4).kernel("gemm", 20, 50)
    builder.launch(200, 40, name="cudaDeviceSynchronize")
    model = without_recorder(model_of(load, builder))
    assert model.gain_ns(model.change().free_waits(ids_of(model, "%Synchronize", CALLS))) <= 40 * US
    assert model.gain_ns(model.change().scale(model.is_named(["gemm"]), 0.1)) == 0


TRACES = (
    "h200/bert_bs8_seq128_infer.json.gz", "h200/bert_train_bf16.json.gz", "h200/ddp_straggler_w4",
    "h200/gpt2_compile_cudagraph_bf16.json.gz", "h200/gpt2_generate_fp16.json.gz",
    "h200/misc_ops_fp32.json.gz",
    "field/h100_timesformer.json.gz", "public/HTA/tests/data/trace_diff/test/test.json.gz",
)  # fmt: skip
# What a step is short of where no edge is known to explain a moment; measured, not chosen.
UNEXPLAINED = 0.03


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TRACES)
def test_recorded_programs_obey_the_laws(load, shared, name):
    session = load(shared / "traces" / name)
    for records in read_session(session).of_each():
        model = step_model(session, records)
        reproduces(model.graph)
        assert model.recorded_error <= UNEXPLAINED
        # The more of the recorder is taken away, the shorter the step.
        by_recorder = [ns for _, ns in sorted(zip(model.hosts, model.steps_ns, strict=True))]
        if model.timed is None:
            assert by_recorder == sorted(by_recorder, reverse=True)
        everything = [name for (name,) in session.query("SELECT name FROM kernel_names")]
        waits = model.trace.calls.call_id.tolist()
        for change in (
            model.change().scale(model.is_named(everything), 0.7),
            model.change().free_waits(waits),
        ):
            assert change.apply(model.host) <= model.step_ns


def makes_inputs():
    """One step of 6 ms: 5 ms of random numbers between two launches."""
    builder = TraceBuilder().step(1, 0, 6000)
    for at in (10, 5200):
        builder.operator("aten::add", at, 40).launch(at + 10, 5).kernel("add", at + 16, 10)
    return builder.operator("aten::normal_", 100, 5000)


def test_long_work_of_the_host_is_not_what_recording_slowed(load):
    model = model_of(load, makes_inputs())
    lags = [model.unrecorded_lags(HostSpeed(0.0, share))[0] for share in (1.0, 0.5)]
    shorter = lags[0] - lags[1]
    assert shorter.max() == 100 * US
    assert lags[0][shorter.argmax()] > 5000 * US
    both = model.unrecorded_lags(HostSpeed(0.0, 0.5, 0.5))[0]
    assert both.max() == pytest.approx(lags[0].max() / 2, abs=1)


def test_a_graph_does_not_spare_what_the_host_does_besides_launching(load):
    model = without_recorder(model_of(load, makes_inputs()))
    left_ns = model.step_ns - model.gain_ns(model.change().replay(0))
    assert 4800 * US < left_ns < 5700 * US


@cases("step_ns", "host_ns", "device_ns", "bound")
def test_which_side_decides(step_ns, host_ns, device_ns, bound):
    one = StepExecution(0, 110, step_ns, (step_ns, step_ns), host_ns, device_ns, 0.0, None, 0, ())
    assert one.bound == bound
