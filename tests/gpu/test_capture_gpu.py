"""What only a device can show: clean windows, device time against CUDA events, running out of memory."""

import json
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking.timer import (  # noqa: E402
    CudaEventTimer,
    WallTimer,
    measure_latency,
)
from opscope.capture.calls import Configuration, run_configuration  # noqa: E402
from opscope.capture.environment import collect_environment  # noqa: E402
from opscope.capture.profiler import Profiler  # noqa: E402
from opscope.errors import CaptureError  # noqa: E402
from opscope.model.benchmark import Clock  # noqa: E402
from opscope.workloads.target import resolve  # noqa: E402
from opscope.workloads.workload import WorkloadOptions  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
HOST_CATEGORIES = {"cuda_runtime", "cuda_driver"}


def events(path):
    return json.loads(path.read_text())["traceEvents"]


def device_activities(trace):
    return [event for event in trace if event.get("cat") in DEVICE_CATEGORIES]


def host_calls(trace):
    return [event for event in trace if event.get("cat") in HOST_CATEGORIES]


def steps(trace):
    annotations = [event for event in trace if event.get("cat") == "user_annotation"]
    found = [event for event in annotations if event["name"].startswith("ProfilerStep#")]
    return sorted(found, key=lambda event: event["ts"])


def activities_per_step(trace):
    """Names of the device activities of each step, by the step that launched them."""
    launched_at = {call["args"]["correlation"]: call["ts"] for call in host_calls(trace)}
    per_step = []
    for step in steps(trace):
        inside = (step["ts"], step["ts"] + step["dur"])
        per_step.append(
            Counter(
                event["name"]
                for event in device_activities(trace)
                if inside[0] <= launched_at[event["args"]["correlation"]] <= inside[1]
            )
        )
    return per_step


@pytest.fixture
def backlog():
    """A step that returns long before its kernels have run: a careless window catches some of them."""
    matrix = torch.randn(4096, 4096, device="cuda")

    def step():
        for _ in range(20):
            matrix @ matrix
            torch.relu(matrix)

    step()
    torch.cuda.synchronize()
    return step


@pytest.mark.parametrize("repeat", [1, 3])
def test_the_window_is_clean(tmp_path, backlog, repeat):
    with Profiler(tmp_path, wait=1, warmup=1, active=3, repeat=repeat) as profiler:
        for _ in range(profiler.total_steps + 1):
            backlog()
            profiler.step()
    assert len(profiler.cycles) == repeat
    for cycle in profiler.cycles:
        trace = events(cycle.trace_path)
        launched = {call["args"]["correlation"] for call in host_calls(trace)}
        arrived = [event["args"]["correlation"] for event in device_activities(trace)]
        assert arrived
        assert set(arrived) <= launched
        assert min(arrived) >= min(launched)
        per_step = activities_per_step(trace)
        assert len(per_step) == 3
        assert per_step[0].total() >= 40
        assert per_step[0] == per_step[1] == per_step[2]
        assert sum(step.total() for step in per_step) == len(arrived)


def test_the_last_step_lasts_as_long_as_its_work(tmp_path, backlog):
    with Profiler(tmp_path, active=2) as profiler:
        for _ in range(profiler.total_steps):
            backlog()
            profiler.step()
    trace = events(profiler.cycles[0].trace_path)
    last = steps(trace)[-1]
    end = max(event["ts"] + event["dur"] for event in device_activities(trace))
    assert end <= last["ts"] + last["dur"] + 50  # µs between the two clocks
    kernel_ns = sum(event["dur"] for event in device_activities(trace)) * 1000
    assert sum(profiler.cycles[0].sidecar.wall_time_ns_per_step) >= kernel_ns


def test_a_block_without_step_is_recorded_whole(tmp_path, backlog):
    with Profiler(tmp_path, warmup=0, active=1) as profiler:
        backlog()
    (step,) = activities_per_step(events(profiler.cycles[0].trace_path))
    assert step.total() >= 40


def test_leaving_early_cuts_off_no_kernel(tmp_path, backlog):
    with Profiler(tmp_path, warmup=1, active=5) as profiler:
        for _ in range(3):
            backlog()
            profiler.step()
    (cycle,) = profiler.cycles
    assert (cycle.sidecar.partial, cycle.sidecar.steps) == (True, 2)
    first, second, left_in = activities_per_step(events(cycle.trace_path))
    assert first == second
    assert first.total() >= 40
    assert not left_in


def test_out_of_memory_leaves_a_working_profiler(tmp_path, backlog):
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    profiler = Profiler(tmp_path, warmup=0, active=1, repeat=2)
    with pytest.raises(CaptureError, match="out of memory in step 1") as caught, profiler:
        backlog()
        profiler.step()
        torch.empty(2 * total_bytes, dtype=torch.uint8, device="cuda")
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert len(profiler.cycles) == 1
    with Profiler(tmp_path, name="after", active=1) as after:
        for _ in range(after.total_steps):
            backlog()
            after.step()
    assert activities_per_step(events(after.cycles[0].trace_path))[0].total() >= 40


def test_out_of_memory_in_a_sweep_gives_the_memory_back(tmp_path):
    spec = resolve("bert", WorkloadOptions(train=True, layers=2))
    torch.cuda.empty_cache()
    before_bytes = torch.cuda.memory_reserved()
    huge = Configuration(spec, 16384, 512)
    with pytest.raises(CaptureError, match="out of memory with bert bs16384_seq512"):
        run_configuration(huge, tmp_path, trace_name="huge")
    assert torch.cuda.memory_reserved() <= before_bytes + 256 * 2**20  # cuBLAS keeps its workspace
    run = run_configuration(Configuration(spec, 1, 64), tmp_path, trace_name="small", active=2)
    assert run.cycle.sidecar.steps == 2


def test_kernel_time_is_what_cuda_events_say(tmp_path):
    spec = resolve("bert", WorkloadOptions(dtype="float32"))
    run = run_configuration(
        Configuration(spec, 64, 512), tmp_path, trace_name="bert", measure=measure_latency
    )
    assert run.latency.clock is Clock.CUDA_EVENT
    trace = events(run.cycle.trace_path)
    kernel_ns = sum(event["dur"] for event in device_activities(trace)) * 1000 / run.cycle.sidecar.steps
    assert kernel_ns == pytest.approx(run.latency.median_ns, rel=0.02)


@pytest.mark.parametrize("name", ["bert", "transformer"])
@pytest.mark.parametrize("options", [{}, {"dtype": "bf16", "train": True}], ids=["inference", "training"])
def test_built_in_workloads_are_recorded_with_identical_steps(tmp_path, name, options):
    spec = resolve(name, WorkloadOptions(**options))
    run = run_configuration(Configuration(spec, 4, 128), tmp_path, trace_name="t", with_modules=True)
    trace = events(run.cycle.trace_path)
    first, *others = activities_per_step(trace)
    assert first
    assert all(step == first for step in others)
    assert any(event["name"].startswith("nn.Module: ") for event in trace)


def test_both_timers_agree_on_device_bound_work(backlog):
    by_events, by_wall = CudaEventTimer(), WallTimer()
    for timer in (by_events, by_wall):
        timer.measure(backlog)
    event_ns = min(by_events.measure(backlog) for _ in range(5))
    wall_ns = min(by_wall.measure(backlog) for _ in range(5))
    assert event_ns == pytest.approx(wall_ns, rel=0.05)


def test_the_environment_names_the_device():
    environment = collect_environment()
    assert environment.gpu[0].name == torch.cuda.get_device_name(0)
    assert environment.cuda_driver is not None
    assert environment.cudnn is not None
