"""Regions of a running profile: what is recorded inside, between and after them, and what is said of it."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from case_tables import cases

torch = pytest.importorskip("torch")

from opscope.api import load  # noqa: E402
from opscope.capture import recording as recording_module  # noqa: E402
from opscope.capture.profiler import Profiler, _session  # noqa: E402
from opscope.capture.recording import Recording  # noqa: E402
from opscope.errors import CaptureError, InputError  # noqa: E402
from opscope.model.sidecar import RecordedSettings  # noqa: E402

pytestmark = pytest.mark.torch


def work():
    torch.ones(4, 4) @ torch.ones(4, 4)


def stepped(folder, steps=None, *, more=0, **options):
    """A Profiler that has recorded so many steps of work; those of its schedule, and more, if None."""
    with Profiler(folder, **options) as profiler:
        for _ in range(profiler.total_steps + more if steps is None else steps):
            work()
            profiler.step()
    return profiler


def events(path):
    return json.loads(path.read_text())["traceEvents"]


def names(path, category):
    """Of events of a category, the earliest first."""
    chosen = [event for event in events(path) if event.get("cat") == category]
    return [event["name"] for event in sorted(chosen, key=lambda event: event["ts"])]


def files(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture(autouse=True)
def nothing_runs_afterwards():
    yield
    assert not torch.autograd._profiler_enabled()
    assert not torch.autograd.profiler._is_profiler_enabled
    assert not _session.locked()


def test_leaving_early_keeps_what_was_recorded_and_without_any_is_an_error(tmp_path):
    profiler = Profiler(tmp_path, wait=1, warmup=2)
    with pytest.raises(CaptureError, match="nothing was recorded"), profiler:
        profiler.step()
    assert files(tmp_path) == []
    profiler = stepped(tmp_path, 3, warmup=1, active=5)
    (cycle,) = profiler.cycles
    assert (cycle.sidecar.steps, cycle.sidecar.partial) == (2, True)
    assert len(cycle.sidecar.wall_time_ns_per_step) == 2
    assert names(cycle.trace_path, "cpu_op").count("aten::matmul") == 2


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_the_programs_own_error_passes_and_finished_cycles_stay(tmp_path, steps):
    profiler = Profiler(tmp_path, warmup=1, active=1, repeat=3)
    with pytest.raises(ZeroDivisionError), profiler:
        for _ in range(steps):
            work()
            profiler.step()
        _ = 1 / 0
    assert len(profiler.cycles) == steps // 2
    assert files(tmp_path) == ["trace_cycle0.json", "trace_cycle0.opscope.json"][: 2 * len(profiler.cycles)]


def test_out_of_memory_is_a_capture_error_and_the_next_profiler_works(tmp_path):
    profiler = Profiler(tmp_path, warmup=0, active=1, repeat=2)
    message = r"out of memory in step 1 .*1 finished cycle is kept"
    with pytest.raises(CaptureError, match=message) as caught, profiler:
        work()
        profiler.step()
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert "smaller batch" in caught.value.hint
    assert files(tmp_path) == ["trace_cycle0.json", "trace_cycle0.opscope.json"]
    with Profiler(tmp_path, name="next", warmup=0, active=1) as after:
        work()
    assert "aten::matmul" in names(after.cycles[0].trace_path, "cpu_op")


def test_a_foreign_profiler_is_left_alone_and_found_when_it_starts_during_the_wait(tmp_path):
    # acc_events: some releases warn without it when a process records more than once.
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as foreign:
        with pytest.raises(CaptureError, match="already recording"), Profiler(tmp_path):
            pass
        work()
    assert any(event.key == "aten::matmul" for event in foreign.key_averages())
    assert files(tmp_path) == []
    foreign = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True)
    with pytest.raises(CaptureError, match="already recording"), Profiler(tmp_path, wait=1) as own, foreign:
        own.step()


def test_one_profiler_at_a_time(tmp_path):
    inner = Profiler(tmp_path, name="inner")
    with Profiler(tmp_path, warmup=0, active=1), pytest.raises(CaptureError, match="already running"), inner:
        pass
    assert files(tmp_path) == ["trace.json", "trace.opscope.json"]


def test_kineto_refusing_is_a_capture_error(tmp_path, monkeypatch):
    def refuse(self):
        raise RuntimeError("CUPTI says no\nat length")

    monkeypatch.setattr(torch.profiler._KinetoProfile, "prepare_trace", refuse)
    with pytest.raises(CaptureError, match=r"cannot be prepared \(CUPTI says no\)"), Profiler(tmp_path):
        pass


def test_a_profiler_runs_once(tmp_path):
    profiler = Profiler(tmp_path, warmup=0)
    with profiler:
        work()
    with pytest.raises(CaptureError, match="already run"), profiler:
        pass
    with pytest.raises(CaptureError, match="outside"):
        profiler.step()


@pytest.mark.parametrize("name", ["", "a/b", "..", "x.opscope.json", ".json"])
def test_names_that_are_no_trace_or_no_engine(name):
    with pytest.raises(InputError):
        Profiler(name=name)
    with pytest.raises(InputError, match=r"is not an engine.*profiler or autograd"):
        Profiler(engine=name)


@pytest.mark.exhaustive  # a process that imports torch
def test_a_temporary_folder_lasts_until_the_interpreter_exits(tmp_path):
    program = (
        "import torch\n"
        "from opscope.capture.profiler import Profiler\n"
        "with Profiler(warmup=0) as p: torch.ones(2)\n"
        "assert p.cycles[0].trace_path.exists()\n"
        "print(p.cycles[0].trace_path)\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert not Path(result.stdout.strip()).exists()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_what_was_recorded_can_be_kept_when_the_block_fails(tmp_path, steps):
    profiler = Profiler(tmp_path, warmup=0, active=3, keep_on_error=True)
    with pytest.raises(ZeroDivisionError), profiler:
        for _ in range(steps):
            work()
            profiler.step()
        work()
        _ = 1 / 0
    (cycle,) = profiler.cycles
    assert (cycle.sidecar.steps, cycle.sidecar.partial) == (steps, True)
    assert cycle.sidecar.ended_by == "ZeroDivisionError"
    assert names(cycle.trace_path, "cpu_op").count("aten::matmul") == steps + 1


def test_a_window_that_cannot_be_kept_is_lost_with_its_reason(tmp_path, monkeypatch):
    def stop(self):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.profiler._KinetoProfile, "stop_trace", stop)
    profiler = Profiler(tmp_path, warmup=0, keep_on_error=True)
    with pytest.raises(ZeroDivisionError), profiler:
        _ = 1 / 0
    assert profiler.cycles == []
    assert "illegal memory access" in profiler.lost


def mark(name):
    """An annotation with an operator inside."""
    with torch.profiler.record_function(name):
        torch.ones(2)


def marks(profiler, cycle=0):
    return names(profiler.cycles[cycle].trace_path, "user_annotation")


def regions(profiler, cycle=0):
    return profiler.cycles[cycle].sidecar.regions


def recorded(tmp_path, **options):
    return Profiler(tmp_path, warmup=0, active=1, **options)


def test_regions_nest_and_the_innermost_holds(tmp_path):
    with recorded(tmp_path) as profiler, profiler.off():
        mark("a")
        with profiler.only("cpu"):
            mark("b")
            with profiler.off():
                mark("c")
            mark("d")
        mark("e")
        with pytest.raises(ZeroDivisionError), profiler.only("cpu"):
            _ = 1 / 0
        mark("f")
    assert marks(profiler) == ["ProfilerStep#0", "b", "d"]


def test_steps_stay_in_the_trace_when_they_begin_inside_a_region(tmp_path):
    with Profiler(tmp_path, warmup=0, active=3) as profiler:
        with profiler.off():
            mark("a")
            profiler.step()
            mark("b")
        mark("c")
        profiler.step()
        profiler.step()
    assert marks(profiler) == ["ProfilerStep#0", "ProfilerStep#1", "c", "ProfilerStep#2"]
    assert [region.step for region in regions(profiler)] == [0]
    assert profiler.cycles[0].sidecar.steps == 3


def test_a_region_around_several_windows_holds_in_each(tmp_path):
    with Profiler(tmp_path, warmup=1, active=1, repeat=2) as profiler:
        with profiler.off():
            for _ in range(3):
                mark("inside")
                profiler.step()
        mark("outside")
        profiler.step()
    assert marks(profiler, 0) == ["ProfilerStep#1"]
    assert marks(profiler, 1) == ["ProfilerStep#3", "outside"]
    assert [len(regions(profiler, cycle)) for cycle in (0, 1)] == [1, 1]


def test_the_sidecar_knows_when_and_the_session_says_so(tmp_path):
    with Profiler(tmp_path, warmup=0, active=2) as profiler:
        for _ in range(2):
            mark("on")
            with profiler.off():
                mark("off")
            profiler.step()
    first, second = regions(profiler)
    assert (first.off, first.step, second.step) == (("cpu",), 0, 1)
    assert first.start_ns < first.end_ns < second.start_ns < second.end_ns
    with load(profiler.cycles[0].trace_path) as session:
        assert all(not check.violations for check in session.check())
        (finding,) = [one for one in session.findings() if one.code == "capture.partial_collection"]
        ((start_ns, end_ns),) = session.query(
            "SELECT window_start_ns + base_time_ns, window_end_ns + base_time_ns FROM traces"
        )
    assert "Nothing was recorded in 2 regions" in finding.message
    assert finding.evidence["duration_ns"] == sum(one.end_ns - one.start_ns for one in (first, second))
    assert start_ns < first.start_ns
    assert second.end_ns < end_ns


def test_torch_does_not_log_each_switch(tmp_path, capfd):
    with recorded(tmp_path) as profiler:
        for _ in range(3):
            with profiler.off():
                torch.ones(2)
    assert "Toggling" not in capfd.readouterr().err


@cases("engine", "activities", "message")
def test_regions_that_cannot_be_are_refused_before_anything_runs(tmp_path, engine, activities, message):
    with pytest.raises((InputError, CaptureError), match=message):
        recorded(tmp_path, engine=engine).only(*activities)


def test_another_thread_is_refused(tmp_path):
    def enter():
        with pytest.raises(CaptureError, match="thread that records"), profiler.off():
            pass

    with recorded(tmp_path) as profiler, ThreadPoolExecutor(1) as thread:
        thread.submit(enter).result()
        mark("on")
    assert marks(profiler) == ["ProfilerStep#0", "on"]
    assert not regions(profiler)


@pytest.fixture
def gpu_recording(monkeypatch):
    """A started recording of both activities, and what it did since."""
    log = []
    engine = SimpleNamespace(  # with a GPU; only writes down what it is told
        prepare=lambda: log.append("prepare"),
        start=lambda: log.append("start"),
        toggle=lambda activities, *, is_on: log.append((tuple(activities), is_on)),
        stop=lambda: log.append("stop"),
    )
    monkeypatch.setattr(recording_module, "CaptureEngine", lambda settings: engine)
    monkeypatch.setattr(recording_module, "synchronize", lambda: log.append("wait"))
    recording = Recording(RecordedSettings(True, False, False, False, ("cpu", "cuda")))
    recording.start(4)
    log.clear()
    return recording, log


BOTH, CPU, CUDA = ("cpu", "cuda"), ("cpu",), ("cuda",)


@pytest.mark.parametrize(
    ("wanted", "told", "regions"),
    [
        # The devices are waited for before they are switched.
        ([(), CUDA, None], ["wait", (BOTH, False), "wait", (CUDA, True), (CPU, True)], [BOTH, CPU]),
        # From one activity to the other is off before on.
        ([CPU, CUDA], ["wait", (CUDA, False), "wait", (CPU, False), (CUDA, True)], [CUDA]),
        # Nothing is switched to what it is.
        ([BOTH, None], [], []),
        # A window that ends in a region ends switched on.
        ([CPU, "stop"], ["wait", (CUDA, False), "wait", "wait", (CUDA, True), "stop"], [CUDA]),
    ],
)
def test_activities_are_switched_in_order(gpu_recording, wanted, told, regions):
    recording, log = gpu_recording
    for one in wanted:
        if one == "stop":
            recording.stop(last_step_is_whole=True)
        else:
            recording.collect(None if one is None else frozenset(one))
    assert log == told
    assert [(region.off, region.step) for region in recording.regions] == [(off, 4) for off in regions]
    starts_and_ends = zip(recording.regions[1:], recording.regions, strict=False)
    assert all(later.start_ns == earlier.end_ns for later, earlier in starts_and_ends)
