"""Regions of a running profile: what is recorded inside, between and after them, and what is said of it."""

from __future__ import annotations

import json
import threading

import pytest

torch = pytest.importorskip("torch")

from opscope.api import load  # noqa: E402
from opscope.capture import recording as recording_module  # noqa: E402
from opscope.capture.profiler import Profiler  # noqa: E402
from opscope.capture.recording import Recording  # noqa: E402
from opscope.errors import CaptureError, InputError  # noqa: E402
from opscope.model.sidecar import RecordedSettings  # noqa: E402

pytestmark = pytest.mark.torch


def mark(name):
    """An annotation with an operator inside."""
    with torch.profiler.record_function(name):
        torch.ones(2)


def marks(profiler, cycle=0):
    trace = json.loads(profiler.cycles[cycle].trace_path.read_text())["traceEvents"]
    annotations = sorted(
        (event for event in trace if event.get("cat") == "user_annotation"), key=lambda event: event["ts"]
    )
    return [event["name"] for event in annotations]


def regions(profiler, cycle=0):
    return profiler.cycles[cycle].sidecar.regions


def recorded(tmp_path, **options):
    return Profiler(tmp_path, warmup=0, active=1, **options)


def test_nothing_of_an_off_region_is_recorded(tmp_path):
    with recorded(tmp_path) as profiler:
        mark("before")
        with profiler.off():
            mark("inside")
        mark("after")
    assert marks(profiler) == ["ProfilerStep#0", "before", "after"]


def test_regions_nest_and_the_innermost_holds(tmp_path):
    with recorded(tmp_path) as profiler, profiler.off():
        mark("a")
        with profiler.only("cpu"):
            mark("b")
            with profiler.off():
                mark("c")
            mark("d")
        mark("e")
    assert marks(profiler) == ["ProfilerStep#0", "b", "d"]


def test_an_exception_inside_restores_what_was_recorded(tmp_path):
    with recorded(tmp_path) as profiler:
        with pytest.raises(ZeroDivisionError), profiler.off():
            _ = 1 / 0
        mark("after")
    assert marks(profiler) == ["ProfilerStep#0", "after"]


def test_an_activity_that_this_machine_lacks_is_not_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with recorded(tmp_path) as profiler:
        with profiler.only("cuda"):
            mark("inside")
        with profiler.only("cpu", "cuda"):
            mark("all")
    assert marks(profiler) == ["ProfilerStep#0", "all"]


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


def test_outside_a_window_regions_do_nothing(tmp_path):
    with Profiler(tmp_path, wait=1, warmup=1, active=1) as profiler:
        for _ in range(4):
            with profiler.off():
                torch.ones(2)
            if profiler.is_recording:
                mark("on")
            profiler.step()
    with profiler.off():
        torch.ones(2)
    assert marks(profiler) == ["ProfilerStep#2", "on"]
    assert len(regions(profiler)) == 1


def test_backward_belongs_to_its_region(tmp_path):
    weight = torch.ones(4, requires_grad=True)
    with recorded(tmp_path) as profiler:
        loss = weight.sum()
        with profiler.off():
            loss.backward()
    names = {event["name"] for event in json.loads(profiler.cycles[0].trace_path.read_text())["traceEvents"]}
    assert "aten::sum" in names
    assert not any("Backward" in name for name in names)


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


def test_unknown_activities_are_refused_before_anything_runs(tmp_path):
    profiler = recorded(tmp_path)
    with pytest.raises(InputError, match="'gpu' is not an activity"):
        profiler.only("cpu", "gpu")
    with pytest.raises(InputError, match="names no activity"):
        profiler.only()


def test_the_autograd_engine_has_no_regions(tmp_path):
    with recorded(tmp_path, engine="autograd") as profiler, pytest.raises(CaptureError, match="autograd"):
        profiler.off()


def test_another_thread_is_refused(tmp_path):
    seen = []

    def enter(profiler):
        try:
            with profiler.off():
                pass
        except CaptureError as error:
            seen.append(str(error))

    with recorded(tmp_path) as profiler:
        thread = threading.Thread(target=enter, args=(profiler,))
        thread.start()
        thread.join()
        mark("on")
    assert "thread that records" in seen[0]
    assert marks(profiler) == ["ProfilerStep#0", "on"]
    assert not regions(profiler)


class LoggedEngine:
    """An engine with a GPU that only writes down what it is told."""

    def __init__(self, log):
        self._log = log

    def prepare(self):
        self._log.append("prepare")

    def start(self):
        self._log.append("start")

    def toggle(self, activities, *, is_on):
        self._log.append((tuple(activities), is_on))

    def stop(self):
        self._log.append("stop")


@pytest.fixture
def gpu_recording(monkeypatch):
    """A started recording of both activities, and what it did since."""
    log = []
    monkeypatch.setattr(recording_module, "make_engine", lambda settings: LoggedEngine(log))
    monkeypatch.setattr(recording_module, "synchronize", lambda: log.append("wait"))
    recording = Recording(RecordedSettings(True, False, False, False, ("cpu", "cuda")))
    recording.start(4)
    log.clear()
    return recording, log


def test_the_devices_are_waited_for_before_they_are_switched(gpu_recording):
    recording, log = gpu_recording
    recording.collect(frozenset())
    recording.collect(frozenset({"cuda"}))
    recording.collect(None)
    assert log == [
        "wait", (("cpu", "cuda"), False),
        "wait", (("cuda",), True),
        (("cpu",), True),
    ]  # fmt: skip
    assert [(region.off, region.step) for region in recording.regions] == [
        (("cpu", "cuda"), 4),
        (("cpu",), 4),
    ]
    first, second = recording.regions
    assert first.end_ns == second.start_ns


def test_from_one_activity_to_the_other_is_off_before_on(gpu_recording):
    recording, log = gpu_recording
    recording.collect(frozenset({"cpu"}))
    recording.collect(frozenset({"cuda"}))
    assert log == ["wait", (("cuda",), False), "wait", (("cpu",), False), (("cuda",), True)]


def test_a_window_that_ends_in_a_region_ends_switched_on(gpu_recording):
    recording, log = gpu_recording
    recording.collect(frozenset({"cpu"}))
    recording.stop(last_step_is_whole=True)
    assert log[-3:] == ["wait", (("cuda",), True), "stop"]
    assert [region.off for region in recording.regions] == [("cuda",)]


def test_nothing_is_switched_to_what_it_is(gpu_recording):
    recording, log = gpu_recording
    recording.collect(frozenset({"cpu", "cuda"}))
    recording.collect(None)
    recording.next_step(5)
    assert log == []
