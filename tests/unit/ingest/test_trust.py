"""What cannot be trusted is said first, kept out of figures, and takes conclusions with it."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.advice import assess
from opscope.analysis.summary import Summary
from opscope.errors import InputError
from opscope.report import document as doc
from opscope.report.advice import headline
from opscope.report.analysis import recording_document


def program(device_us=lambda _: 0, kernels=lambda _: True):
    """40 launches, 100 µs apart; their kernels begin 5 µs later, and later by the clocks' difference."""
    builder = TraceBuilder().step(1, 0, 4000)
    for number in range(40):
        at = 10 + 100 * number
        builder.operator("aten::add", at, 20).launch(at + 2, 4)
        if kernels(number):
            builder.kernel("add", at + 7 + device_us(number), 60)
    return builder


def defects(summary):
    return {one.code: (one.evidence["count"], one.evidence["withholds"]) for one in summary.defects}


def silent(summary):
    """No bound, no idle cause and no change on the first screen, and the defect on its first line."""
    (first, _), *lines = headline(summary).facts
    is_bound = "bound" in doc.plain(dict(lines).get("GPU busy", ""))
    return first == "Defect" and not is_bound and not {"GPU waits", "Change 1", "Changes"} & {*dict(lines)}


def test_what_is_sound_has_no_defect(load):
    summary = Summary(load(program()))
    assert (summary.defects, summary.is_usable, summary.set_aside_ns) == ((), True, 0)
    assert Summary(load(program(lambda number: -20 * (number == 7)))).defects == ()
    assert Summary(load(capturing(program(), 30))).defects == ()


def capturing(builder, launches):
    builder.launch(4100, 2, name="cudaStreamBeginCapture")
    for place in range(launches):
        builder.launch(4110 + 2 * place, 1)
    return builder.launch(4400, 2, name="cudaStreamEndCapture")


def test_a_recording_of_captures_alone_withholds(load):
    """As serving engines write one beside the recording in which the graphs run."""
    summary = assess(load(capturing(program(), 100)))
    assert defects(summary) == {"recording.captures_only": (100, True)}
    assert silent(summary)
    running = capturing(program(), 100).launch(4500, 5, name="cudaGraphLaunch").kernel("add", 4510, 60)
    assert Summary(load(running)).defects == ()


@pytest.mark.parametrize(("at_us", "busy_us", "is_sound"), [(1, 0, False), (1, 3000, True), (2500, 0, True)])
def test_a_first_wait_for_what_was_not_recorded_withholds(load, at_us, busy_us, is_sound):
    """SGLang's scheduler waits for the step before, which was launched before the recording began."""
    builder = program(lambda _: 5000)
    builder.launch(at_us, 4000, thread=2, name="hipMemcpyWithStream")
    if busy_us:
        builder.launch(0, 1, thread=2).kernel("add", 5, busy_us, stream=9)
    summary = assess(load(builder))
    assert defects(summary) == ({} if is_sound else {"recording.unrecorded_work": (1, True)})
    assert is_sound or silent(summary)


def test_waits_that_recur_are_the_programs(load):
    builder = program(lambda _: 5000)
    for at in (1, 20_000):
        builder.launch(at, 4000, thread=2, name="hipMemcpyWithStream")
    assert defects(Summary(load(builder))) == {}


def test_one_offset_of_the_clocks_is_taken_out(load):
    session = load(program(lambda _: -300))
    summary = assess(session)
    assert defects(summary) == {"recording.device_clock_offset": (40, False)}
    assert summary.is_usable
    # As late as the first of them can have begun: with its launch.
    assert session.scalar("SELECT min(start_ns) FROM device_activities") == 12_000
    assert summary.typical_step.missing is None


@pytest.mark.parametrize(("late", "device", "is_shared"), [(5, 0, True), (4, 0, False), (5, 1, False)])
def test_kernels_that_begin_late_on_an_idle_gpu_leave_gains_without_numbers(load, late, device, is_shared):
    """Another process has its turn; kernels of several devices wait for each other."""
    builder = program(lambda number: 60 * (number % 8 == 0 and number < 8 * late))
    builder.launch(1, 2).kernel("add", 4, 5, device=device)
    summary = assess(load(builder))
    assert defects(summary) == ({"recording.shared_gpu": (late, False)} if is_shared else {})
    assert ("the GPU serves others too" in (summary.typical_step.missing or "")) is is_shared


def test_clocks_that_drift_withhold(load):
    summary = assess(load(program(lambda number: -10.0 * number)))
    assert defects(summary) == {"recording.device_clock_drift": (39, True)}
    assert (summary.advice, summary.best_set, summary.typical_step) == ((), None, None)
    assert silent(summary)
    # The device's own times are right.
    assert doc.plain(dict(headline(summary).facts)["GPU busy"]).endswith(" % recorded")


@pytest.mark.parametrize(
    ("kernels", "code", "count"),
    [
        (lambda _: False, "recording.no_device_records", 40),
        (lambda number: number % 2 == 0, "recording.device_records_missing", 20),
    ],
    ids=["none", "half"],
)
def test_launches_without_device_records(load, kernels, code, count):
    summary = assess(load(program(kernels=kernels)))
    assert defects(summary) == {code: (count, True)}
    assert summary.advice == ()


def test_a_recording_of_nothing_says_so(load):
    summary = assess(load(TraceBuilder().launch(10, 2, name="cudaGetDevice").launch(20, 9, name="cuInit")))
    assert defects(summary) == {"recording.empty": (2, True)}
    assert silent(summary)
    assert [one.title for one in recording_document(summary, is_screen=True).sections] == ["Warnings"]


def test_events_of_something_else_are_an_error(load):
    with pytest.raises(InputError, match=r"1 event, but none that torch's profiler writes\. opscope reads"):
        load(TraceBuilder().event("", "HTTP_RECV", 20, 30, 7, {}))


def test_memsets_without_device_records_are_sound(load):
    """As cuDNN's recurrent layers call them: 2,892 of 3,060 in six steps of a GRU on an H100."""
    builder = program()
    for place in range(100):
        builder.launch(4110 + 2 * place, 1, name="cudaMemsetAsync")
    assert assess(load(builder)).defects == ()


@cases("start_us", "duration_us", "reason")
def test_a_time_that_cannot_be_is_set_aside(load, start_us, duration_us, reason):
    builder = program()
    builder.operator("aten::mul", 12, 4).launch(13, 1).kernel("mul", start_us, duration_us)
    session = load(builder)
    assert session.scalar("SELECT count(*) FROM duckdb_tables() WHERE temporary") == 0
    summary = assess(session)
    assert defects(summary) == {"recording.impossible_times": (1, True)}
    assert session.query("SELECT name, duration_ns, reason FROM set_aside") == [
        ("mul", duration_us * 1000, reason)
    ]
    assert (summary.device_time_ns, summary.set_aside_ns) == (40 * 60_000, duration_us * 1000)
    assert all(check.holds for check in session.check())
    assert silent(summary)


def test_overlap_of_neighbors_is_sound(load):
    """Programmatic dependent launch: a kernel begins before the one in front of it ends."""
    builder = TraceBuilder()
    for number in range(40):
        builder.operator("aten::add", 10 * number, 5).launch(10 * number + 1, 1)
        builder.kernel("add", 10 * number + 5, 25)
    assert Summary(load(builder)).defects == ()


@pytest.mark.parametrize("category", ["hpu_op", "mtia_ccp_events"])
def test_events_of_an_unknown_device_withhold(load, category):
    builder = program(kernels=lambda _: False)
    builder.events = [one for one in builder.events if one.get("cat") != "cuda_runtime"]
    builder.event(category, "gemm", 20, 30, 7, {})
    summary = assess(load(builder))
    assert defects(summary) == {"recording.unknown_device": (1, True)}
    assert dict(headline(summary).facts)["Defect"].startswith("Events of a device that opscope does not know")


@pytest.mark.parametrize("end", [{}, {"dur": 0}, {"dur": -1}], ids=["none", "zero", "negative"])
def test_a_step_without_an_end_lasts_to_the_next(load, end):
    builder = program().step(2, 2000, 2000)
    for event in builder.events:
        if event["name"] == "ProfilerStep#1":
            del event["dur"]
            event.update(end)
    session = load(builder)
    assert defects(Summary(session)) == {"recording.steps_without_end": (1, False)}
    assert session.query("SELECT step, duration_ns FROM steps ORDER BY step") == [
        (1, 2_000_000),
        (2, 2_000_000),
    ]
    assert not [one for one in session.findings() if one.code == "trace.events_without_time"]


def test_a_step_that_was_written_as_an_operator_is_none(load):
    builder = program()
    for event in builder.events:
        if event["name"] == "ProfilerStep#1":
            event["cat"] = "cpu_op"
    session = load(builder)
    assert session.query("SELECT count(*) FROM steps") == [(1,)]
    assert session.query("SELECT count(*) FROM operators WHERE name LIKE 'ProfilerStep%'") == [(0,)]


def test_counters_without_a_timeline_say_so(load):
    builder = program(kernels=lambda _: False).event("cuda_profiler_range", "range", 0, 9, 1, {})
    assert "range profiler" in dict(headline(assess(load(builder))).facts)["Defect"]


def test_of_a_filtered_recording_nothing_is_simulated(load):
    builder = program().event(
        "kernel", "gemm", 100, 90_000, 7, {"device": 0, "stream": 9, "correlation": 999}
    )
    assert assess(load(builder)).typical_step is None
    assert assess(load(program())).typical_step is not None


def test_a_recording_of_the_cpu_alone(load):
    """A single mark of a step behind the work is none; what waits for data has a line."""
    builder = TraceBuilder().step(1, 900, 4).operator("aten::mm", 0, 400).operator("aten::mm", 500, 390)
    builder.event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 400, 100, 1, {})
    builder.event("Trace", "PyTorch Profiler (0)", 0, 904, 0, {})
    facts = dict(headline(assess(load(builder))).facts)
    assert facts["Recording"] and "Step" not in facts
    assert facts["CPU"].startswith("790 µs of 904 µs in operators")
    assert facts["Data"] == "100 µs (11.1 %) waiting for the DataLoader"


@pytest.mark.parametrize(("silence_us", "is_sound"), [(2000, False), (100, True)])
def test_silences_before_kernels_of_compiled_code_withhold(load, silence_us, is_sound):
    """The profiler holds the host up there, by 2 ms before each kernel of modded-nanogpt."""
    builder = TraceBuilder().operator("## Call CompiledFxGraph abc ##", 0, 60_000)
    for at in range(10, 60_000, 5000):
        builder.operator("aten::mm", at, 20).launch(at + 5).kernel("gemm", at + 10, 40)
        own = at + 20 + silence_us
        builder.operator("linear_relu_kernel", own, 20).launch(own + 5).kernel("linear", own + 10, 40)
    assert defects(Summary(load(builder))) == ({} if is_sound else {"recording.stalls": (12, True)})
