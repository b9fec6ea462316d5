"""The window that figures are of, what a device did with it, and steps that begin the program."""

import pytest

import opscope
from case_tables import cases
from fakes import ExportBuilder, TraceBuilder
from opscope.advice import assess
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleCause, StartUp, WindowKind
from opscope.cli import main

SYNC, HOST, QUEUED = IdleCause.SYNCHRONIZATION, IdleCause.HOST_LAUNCH, IdleCause.DEPENDENCY
NOTHING, RECORDER = IdleCause.NOTHING_SCHEDULED, IdleCause.PROFILER_OVERHEAD


def told(one):
    """Window, busy, busy outside of steps and busy with work launched outside, in microseconds."""
    assert sum(one.idle_by_cause.values()) == one.idle_ns
    times = (one.span_ns, one.busy_ns, one.outside_steps_ns, one.launched_outside_ns)
    return tuple(ns // 1000 for ns in times)


def causes(one):
    return {cause: ns // 1000 for cause, ns in one.idle_by_cause.items()}


# Windows of steps, what is told of each, and why the device waits in it.
OF_STEPS = {
    "data loading after the last kernel": (
        TraceBuilder().step(1, 0, 200).launch(0).kernel("gemm", 0, 50)
        .event("user_annotation", "enumerate(DataLoader)#Iter.__next__", 60, 140, 1, {}),
        (200, 50, 0, 0), {HOST: 10, IdleCause.DATA_LOADING: 140}),
    "between steps in a row only the recorder works": (
        TraceBuilder().step(1, 0, 50).step(2, 80, 50).launch(0).kernel("a", 0, 40).launch(80)
        .kernel("b", 80, 50), (130, 90, 0, 0), {HOST: 10, RECORDER: 30}),
}  # fmt: skip


class TestTheStepsWindow:
    def test_is_told_with_the_causes_of_idle_time(self, timeline):
        found = {name: timeline(trace).partitions[0] for name, (trace, *_) in OF_STEPS.items()}
        assert {name: (told(one), causes(one)) for name, one in found.items()} == {
            name: (figures, idle) for name, (_, figures, idle) in OF_STEPS.items()
        }

    def test_a_blocking_copy_after_the_last_kernel_is_idle_until_it_returns(self, timeline):
        trace = TraceBuilder().step(1, 0, 200).frame("train.py(9): evaluate", 0, 200)
        trace.launch(0).kernel("gemm", 0, 50).operator("aten::item", 20, 150)
        trace.launch(30, 130, name="cudaMemcpyAsync")
        trace.kernel("Memcpy DtoH (Device -> Pageable)", 50, 10, category="gpu_memcpy", bytes=4)
        found = timeline(trace)
        (one,) = found.partitions
        assert told(one) == (200, 60, 0, 0)
        # 100 in the copy; it lost 130, of which 30 are left for the 40 of Python behind it.
        assert causes(one) == {SYNC: 130, HOST: 10}
        (gap,) = one.longest_gaps
        assert (gap.step, gap.host, gap.line, gap.ended_by) == (
            1, "cudaMemcpyAsync", "train.py:9 evaluate", None,
        )  # fmt: skip
        assert [(wait.calls, wait.idle_ns) for wait in found.waits] == [(1, 130_000)]

    def test_a_device_that_no_step_uses_is_not_left_idle_by_the_steps(self, load):
        trace = TraceBuilder().launch(0).kernel("touch", 2, 8, device=1)
        trace.step(1, 50, 100).operator("aten::mm", 50, 90).launch(55).kernel("gemm", 60, 90, device=0)
        with load(trace) as session:
            summary = opscope.summarize(session)
        used, unused = summary.timeline.partitions
        assert (told(used), told(unused)) == ((100, 90, 0, 0), (100, 0, 8, 0))
        assert causes(unused) == {NOTHING: 100}
        assert summary.timeline.in_use == (used,)
        assert [device.busy_ns for device in summary.devices] == [90_000, 0]
        assert summary.busy_fraction == 0.9


def test_the_span_runs_from_the_first_event_to_the_last_also_of_unknown_launch(timeline):
    trace = TraceBuilder().operator("aten::empty", 0, 20).launch(25, 5).kernel("a", 40, 10)
    trace.launch(45, 55, name="cudaStreamSynchronize")
    (one,) = timeline(trace).partitions
    assert one.window is WindowKind.SPAN
    assert told(one) == (100, 10, 0, 0)
    assert causes(one) == {HOST: 30, QUEUED: 10, SYNC: 50}
    trace = TraceBuilder().operator("aten::empty", 0, 100).kernel("a", 0, 10, correlation=7)
    assert causes(timeline(trace).partitions[0]) == {IdleCause.UNKNOWN: 90}


def at_work_before():
    """An engine schedules a step while the one before it runs; that one was not recorded."""
    trace = TraceBuilder().operator("aten::mm", 0, 900)
    for at in range(4):
        trace.launch(100 * at, correlation=at + 1)
    for at in range(4):
        trace.kernel("gemm", 8000 + 1000 * at, 1000, correlation=at + 1)
    return trace


def test_where_the_device_is_at_work_before_the_window_begins_with_what_was_recorded(timeline, load):
    found = timeline(at_work_before())
    (one,) = found.partitions
    assert told(one) == (4000, 4000, 0, 0)
    (host,) = found.host
    assert (host.launches, host.launch_path_ns, host.step_ns) == (4, 900_000, 12_000_000)
    assert not found.waits
    model = Summary(load(at_work_before())).step_model
    assert model.device_ns == pytest.approx(4_000_000, rel=0.01)
    assert model.host_ns <= 900_000
    assert not model.is_host_bound
    # Not after less than a millisecond.
    found = timeline(TraceBuilder().operator("aten::mm", 0, 20).launch(5).kernel("gemm", 900, 100))
    assert causes(found.partitions[0]) == {HOST: 6, QUEUED: 894}


@pytest.mark.parametrize("prepares_us", [2_000, 463_000])
def test_a_recording_in_which_the_device_does_next_to_nothing_first_is_cold(load, prepares_us):
    trace = TraceBuilder().operator("aten::empty", 0, 20).launch(100).kernel("warm-up", 110, 100)
    for at in range(10):
        began = prepares_us + 10_000 * at
        trace.operator("aten::mm", began, 50).launch(began + 5).kernel("gemm", began + 1000, 9000)
    summary = Summary(load(trace))
    assert summary.is_cold is (prepares_us > 100_000)
    assert [one.lead_in_ns for one in summary.timeline.start_ups] == [464_000_000] * summary.is_cold


US = 1000
LOADS = ("cuLibraryLoadData", 300.0), ("cudaFree", 80.0)


def program(firsts, *, later=3, each=(), is_idle=False):
    """First steps with calls of these durations in µs, and steps of 100 µs after them; one kernel in each.

    Args:
        firsts: What the first steps call.
        later: Steps after them.
        each: What every step calls.
        is_idle: The steps after the first ones launch nothing.
    """
    builder, at = TraceBuilder(), 0.0
    for number, calls in enumerate((*firsts, *[()] * later)):
        begins = at + 10
        for name, duration in (*calls, *each):
            if name.startswith("cu"):
                builder.launch(begins, duration, name=name)
            else:
                builder.operator(name, begins, duration)
            begins += duration
        if number < len(firsts) or not is_idle:
            builder.operator("aten::mm", begins, 40).launch(begins + 5, 4).kernel("gemm", begins + 15, 50)
        builder.step(number, at, begins + 90 - at)
        at = begins + 90
    return builder


def silent_before(name, silence_us):
    """A recording without steps, silent before an operator that is called twice."""
    builder = TraceBuilder()
    begins = 0
    for one, silence in (("aten::mm", 0), (name, silence_us), (name, silence_us)):
        begins += silence
        builder.operator(one, begins, 40).launch(begins + 5, 4).kernel("gemm", begins + 15, 25)
        begins += 40
    return builder


def start_up(*, whole, once, names, step=None, usual=None, is_cold=False, lead_in=0):
    usual_ns = None if usual is None else usual * US
    return StartUp(0, step, whole * US, usual_ns, once * US, tuple(names), is_cold, lead_in * US)


@cases("silence", "firsts", "options", "expected")
def test_steps_of_start_up(load, silence, firsts, options, expected):
    builder = silent_before(*silence) if silence else program(firsts, **(options or {}))
    assert list(Summary(load(builder)).timeline.start_ups) == [start_up(**one) for one in expected]


def test_first_launches_of_a_single_step_take_long(load):
    builder = TraceBuilder().step(0, 0, 9_000).launch(10, 2_000).kernel("a", 2_020, 9)
    (found,) = Summary(load(builder.launch(2_100, 4_000).kernel("a", 6_110, 9))).timeline.start_ups
    assert found == start_up(step=0, whole=9_000, once=2_000, names=["first launches of kernels"])


def test_averages_are_without_them_and_sums_with(load):
    whole, rest = (Summary(load(program(firsts, later=3))) for firsts in ([LOADS], []))
    (statistics,), (host,) = whole.timeline.steps, whole.timeline.host
    model, alone = whole.step_model, rest.step_model
    assert (statistics.count, statistics.left_out, statistics.mean_ns) == (3, 1, 100 * US)
    assert (host.steps, host.step_ns) == (3, 100 * US)
    assert whole.measured_step.recorded_ns == 100 * US
    assert model.graph.steps == 3
    assert [step.step for step in whole.counted_steps] == [1, 2, 3]
    assert model.step_ns == alone.step_ns
    (partition,), (counted,) = whole.timeline.partitions, whole.counted_timeline.partitions
    assert partition.span_ns == (480 + 300) * US
    assert partition.busy_ns + partition.idle_ns == partition.span_ns
    assert counted.span_ns == 300 * US
    assert whole.device_time_ns == 4 * 50 * US


def test_what_a_left_out_step_launched_is_earlier_work(load):
    """Its kernel runs on for 200 µs into the next step, whose own waits for it."""
    builder = TraceBuilder().launch(1, 380, name="cuLibraryLoadData")
    for number, (begins, runs_at, runs) in enumerate(((390, 405, 295), (500, 700, 50), (600, 750, 90))):
        builder.operator("aten::mm", begins, 40).launch(begins + 5, 4).kernel("gemm", runs_at, runs)
        builder.step(number, begins if number else 0, 100 if number else 500)
    (part,) = Summary(load(builder)).counted_timeline.partitions
    assert (part.launched_outside_ns, part.own_ns) == (200 * US, part.span_ns - 200 * US)


def test_reports_say_how_many_are_left_out(tmp_path, capsys):
    assert main(["analyze", str(program([LOADS]).write(tmp_path / "trace.json")), "--full"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "3, 100 µs each on average, 50.0 µs of device time each, 1 of start-up left out" in text


def test_advice_is_that_of_the_other_steps_and_its_name(load):
    """Idle time, allocations and compilations of the first step are not those of the others."""
    calls = [("cudaMalloc", 5.0)] * 40 + [("entire_frame_compile (dynamo_timed)", 3000.0)]
    whole, rest = (assess(load(program(firsts))).advice or () for firsts in ([calls], []))
    (finding,) = [one for one in whole if one.code == "advice.start_up"]
    assert finding.message == (
        "Step 0 takes 3.30 ms, later ones 100 µs each: 3.20 ms of it go into what a program does once, "
        "mostly entire_frame_compile (dynamo_timed) and cudaMalloc. Averages and gains exclude it."
    )
    assert finding.estimated_gain_ns_per_step is None
    assert rest
    assert [one.message for one in whole if one is not finding] == [one.message for one in rest]


def test_of_a_single_step_the_cost_is_named_alone(load):
    (finding,) = assess(load(program([LOADS], later=0))).advice or ()
    assert finding.message == (
        "Step 0 takes 480 µs, 380 µs of it go into what a program does once, mostly cuLibraryLoadData and "
        "cudaFree."
    )
    assert finding.evidence["is_left_out"] is False


def cold(*durations_us):
    """Calls of one operator behind another, each of which launches a kernel at its end."""
    builder, at = TraceBuilder(), 0.0
    for name, one in (("aten::add", 50), *(("aten::mm", one) for one in durations_us)):
        builder.operator(name, at, one).launch(at + one - 5, 4).kernel("gemm", at + one, 25)
        at += one + 30
    return builder


def test_a_cold_recording_tells_of_its_start_alone(tmp_path, load, capsys):
    summary = assess(load(cold(9_000, 100, 100, 110)))
    (start_up,) = summary.timeline.start_ups
    assert start_up.names == ("first calls of operators",)
    assert start_up.once_ns == (9_000 - 110) * US
    assert [one.code for one in summary.advice or ()] == ["advice.start_up"]
    assert main(["analyze", str(cold(9_000, 100, 100, 110).write(tmp_path / "trace.json"))]) == 0
    assert "bound" not in capsys.readouterr().out
    # Of calls that take as long again it is no start.
    for warm in (cold(9_000, 100, 100, 8_000), cold(9_000, 100)):
        assert not assess(load(warm)).is_cold


def test_of_a_process_the_window_is_from_its_first_work_to_its_last(tmp_path, load):
    """Its driver's start, launches that load code, and what it does at its end are none of it."""
    builder = ExportBuilder()
    launches = ((0, 100_000), (101_100, 2_000), (103_200, 10))
    kernels = (("a", 100_600), ("b", 103_110), ("b", 104_110))
    for (at, took), (name, begun) in zip(launches, kernels, strict=True):
        builder.launch(at * US, took * US).kernel(name, begun * US, 1_000 * US)
    builder.launch(105_200 * US, 50_000 * US, name="cudaDeviceReset")
    summary = assess(load(builder.write(tmp_path / "report.sqlite")))
    (partition,) = summary.timeline.partitions
    assert partition.window is WindowKind.WORK
    assert summary.is_whole_process
    # Loading is left out, but for what the device does meanwhile.
    assert partition.span_ns == (105_110 - 100_600 - 2_000 + 500) * US
    assert partition.busy_ns == 3_000 * US
    assert summary.typical_step is None
