from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from opscope.capture import recording  # noqa: E402
from opscope.capture.profiler import Profiler, _session  # noqa: E402
from opscope.errors import CaptureError, InputError  # noqa: E402
from opscope.model.sidecar import read_sidecar  # noqa: E402

pytestmark = pytest.mark.torch


def work() -> None:
    torch.ones(4, 4) @ torch.ones(4, 4)


def events(path):
    return json.loads(path.read_text())["traceEvents"]


def names(path, category):
    return [event["name"] for event in events(path) if event.get("cat") == category]


def files(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture(autouse=True)
def nothing_runs_afterwards():
    yield
    assert not torch.autograd._profiler_enabled()
    assert not torch.autograd.profiler._is_profiler_enabled
    assert not _session.locked()


def test_only_active_steps_are_recorded(tmp_path):
    with Profiler(tmp_path, wait=1, warmup=1, active=2) as profiler:
        for _ in range(profiler.total_steps + 3):
            work()
            profiler.step()
    (cycle,) = profiler.cycles
    assert files(tmp_path) == ["trace.json", "trace.opscope.json"]
    assert names(cycle.trace_path, "user_annotation") == ["ProfilerStep#2", "ProfilerStep#3"]
    assert names(cycle.trace_path, "cpu_op").count("aten::matmul") == 2
    assert json.loads(cycle.trace_path.read_text())["traceName"] == "trace.json"


def test_the_sidecar_says_how_it_was_made(tmp_path):
    with Profiler(tmp_path, active=2, workload={"workload": "w"}) as profiler:
        for _ in range(3):
            work()
            profiler.step()
    (cycle,) = profiler.cycles
    sidecar = read_sidecar(cycle.sidecar_path)
    assert sidecar == cycle.sidecar
    assert (sidecar.steps, sidecar.partial, sidecar.clean_window) == (2, False, True)
    assert len(sidecar.wall_time_ns_per_step) == 2
    assert min(sidecar.wall_time_ns_per_step) > 0
    assert sidecar.workload == {"workload": "w"}
    assert sidecar.environment.torch == torch.__version__


def test_cycles_repeat_and_handlers_see_each_whole(tmp_path):
    seen = []

    def handler(cycle):
        seen.append((cycle.index, json.loads(cycle.trace_path.read_text())["traceName"]))
        assert not torch.autograd._profiler_enabled()

    with Profiler(tmp_path, wait=1, warmup=1, active=1, repeat=2, on_cycle=[handler]) as profiler:
        for _ in range(profiler.total_steps):
            work()
            profiler.step()
    assert seen == [(0, "trace_cycle0.json"), (1, "trace_cycle1.json")]
    assert [cycle.sidecar.schedule.cycle for cycle in profiler.cycles] == [0, 1]
    assert names(profiler.cycles[1].trace_path, "user_annotation") == ["ProfilerStep#5"]


def test_back_to_back_cycles_without_warmup(tmp_path):
    with Profiler(tmp_path, warmup=0, active=1, repeat=2, name="t.json") as profiler:
        for _ in range(2):
            work()
            profiler.step()
    assert [names(cycle.trace_path, "user_annotation") for cycle in profiler.cycles] == [
        ["ProfilerStep#0"],
        ["ProfilerStep#1"],
    ]


def test_a_block_without_step_is_one_step(tmp_path):
    with Profiler(tmp_path, warmup=0, active=1) as profiler:
        work()
    (cycle,) = profiler.cycles
    assert (cycle.sidecar.steps, cycle.sidecar.partial) == (1, False)
    assert "aten::matmul" in names(cycle.trace_path, "cpu_op")


def test_leaving_early_keeps_what_was_recorded(tmp_path):
    with Profiler(tmp_path, warmup=1, active=5) as profiler:
        for _ in range(3):
            work()
            profiler.step()
    (cycle,) = profiler.cycles
    assert (cycle.sidecar.steps, cycle.sidecar.partial) == (2, True)
    assert len(cycle.sidecar.wall_time_ns_per_step) == 2
    assert names(cycle.trace_path, "cpu_op").count("aten::matmul") == 2


def test_leaving_before_anything_is_recorded_is_an_error(tmp_path):
    profiler = Profiler(tmp_path, wait=1, warmup=2)
    with pytest.raises(CaptureError, match="nothing was recorded"), profiler:
        profiler.step()
    assert files(tmp_path) == []


def test_leaving_in_a_later_warmup_is_fine(tmp_path):
    with Profiler(tmp_path, warmup=1, active=1, repeat=2) as profiler:
        for _ in range(2):
            work()
            profiler.step()
    assert files(tmp_path) == ["trace_cycle0.json", "trace_cycle0.opscope.json"]


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
    with (
        pytest.raises(CaptureError, match=r"out of memory in step 1 .*1 finished cycle is kept") as caught,
        profiler,
    ):
        work()
        profiler.step()
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert "smaller batch" in caught.value.hint
    assert files(tmp_path) == ["trace_cycle0.json", "trace_cycle0.opscope.json"]
    with Profiler(tmp_path, name="next", warmup=0, active=1) as after:
        work()
    assert "aten::matmul" in names(after.cycles[0].trace_path, "cpu_op")


def test_a_running_torch_profiler_is_left_alone(tmp_path):
    # acc_events: some releases warn without it when a process records more than once.
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as foreign:
        with pytest.raises(CaptureError, match="already recording"), Profiler(tmp_path):
            pass
        work()
    assert any(event.key == "aten::matmul" for event in foreign.key_averages())
    assert files(tmp_path) == []


def test_a_foreign_profiler_that_starts_during_the_wait_is_found(tmp_path):
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


def test_a_device_that_only_raises_does_not_hide_the_programs_error(tmp_path, monkeypatch):
    def broken(self):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.profiler._KinetoProfile, "stop_trace", broken)
    with pytest.raises(ZeroDivisionError), Profiler(tmp_path, warmup=0):
        _ = 1 / 0


def test_files_of_an_earlier_recording_are_not_replaced_unless_asked(tmp_path):
    (tmp_path / "trace.opscope.json").write_text("old")
    ran = []
    with pytest.raises(InputError, match="exists"), Profiler(tmp_path):
        ran.append(1)
    assert not ran
    with Profiler(tmp_path, warmup=0, overwrite=True):
        work()
    assert read_sidecar(tmp_path / "trace.opscope.json").steps == 1


def test_a_profiler_runs_once(tmp_path):
    profiler = Profiler(tmp_path, warmup=0)
    with profiler:
        work()
    with pytest.raises(CaptureError, match="already run"), profiler:
        pass
    with pytest.raises(CaptureError, match="outside"):
        profiler.step()


@pytest.mark.parametrize("name", ["", "a/b", "..", "x.opscope.json", ".json"])
def test_names_that_are_no_trace(name):
    with pytest.raises(InputError):
        Profiler(name=name)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"), Profiler(tmp_path / "file" / "sub"):
        pass


def test_compressed_traces(tmp_path):
    with Profiler(tmp_path, name="t.json.gz", warmup=0, repeat=1):
        work()
    assert files(tmp_path) == ["t.json.gz", "t.opscope.json"]


def test_modules_are_recorded(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with Profiler(tmp_path, warmup=0, with_modules=True) as profiler:
        model(torch.ones(2, 4))
    frames = names(profiler.cycles[0].trace_path, "python_function")
    assert any(frame.startswith("nn.Module: Linear") for frame in frames)
    assert profiler.cycles[0].sidecar.settings.with_stack


def test_memory_and_shapes_are_recorded(tmp_path):
    with Profiler(tmp_path, warmup=0, profile_memory=True) as profiler:
        work()
    trace = events(profiler.cycles[0].trace_path)
    assert any(event["name"] == "[memory]" for event in trace)
    matmul = next(event for event in trace if event["name"] == "aten::matmul")
    assert matmul["args"]["Input Dims"] == [[4, 4], [4, 4]]


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
    assert not recording.Path(result.stdout.strip()).exists()


def test_an_error_of_a_handler_leaves_the_files(tmp_path):
    def fail(cycle):
        raise ValueError("handler")

    profiler = Profiler(tmp_path, warmup=0, active=1, repeat=2, on_cycle=[fail])
    with pytest.raises(ValueError, match="handler"), profiler:
        profiler.step()
    assert len(profiler.cycles) == 1
    assert files(tmp_path) == ["trace_cycle0.json", "trace_cycle0.opscope.json"]


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


def test_nothing_is_kept_of_a_warmup_that_fails(tmp_path):
    profiler = Profiler(tmp_path, warmup=1, keep_on_error=True)
    with pytest.raises(ZeroDivisionError), profiler:
        _ = 1 / 0
    assert (profiler.cycles, profiler.lost, files(tmp_path)) == ([], None, [])


def test_a_kept_error_passes_as_it_is_even_out_of_memory(tmp_path):
    profiler = Profiler(tmp_path, warmup=0, keep_on_error=True)
    with pytest.raises(torch.OutOfMemoryError), profiler:
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert profiler.cycles[0].sidecar.ended_by == "OutOfMemoryError"


def test_a_window_that_cannot_be_kept_is_lost_with_its_reason(tmp_path, monkeypatch):
    def broken(self):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.profiler._KinetoProfile, "stop_trace", broken)
    profiler = Profiler(tmp_path, warmup=0, keep_on_error=True)
    with pytest.raises(ZeroDivisionError), profiler:
        _ = 1 / 0
    assert profiler.cycles == []
    assert "illegal memory access" in profiler.lost


def test_a_profiler_can_give_way_to_another(tmp_path):
    outer = Profiler(tmp_path, name="outer", warmup=0, active=5)
    outer.give_way = lambda: outer.__exit__(None, None, None)
    outer.__enter__()
    work()
    outer.step()
    with Profiler(tmp_path, name="inner", warmup=0, active=1) as inner:
        work()
    assert outer.cycles[0].sidecar.partial
    assert names(inner.cycles[0].trace_path, "cpu_op").count("aten::matmul") == 1
