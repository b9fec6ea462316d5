"""What only a device can show of unrecorded steps: whose clock is true, and that nothing waits for it."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from opscope.analysis.measured_step import StepClockKind  # noqa: E402
from opscope.analysis.summary import Summary  # noqa: E402
from opscope.api import load, profile, profile_call  # noqa: E402
from opscope.capture.step_clock import StepClock, time_calls  # noqa: E402

pytestmark = pytest.mark.gpu

MATRIX = 4096
AROUND = 120  # steps before and after a recording: where taking a sample is dear, one covers several


def device_work():
    a = torch.randn(MATRIX, MATRIX, device="cuda")

    def step():
        for _ in range(4):
            torch.mm(a, a)

    return step


def host_work():
    a = torch.randn(64, 64, device="cuda")

    def step():
        for _ in range(200):
            torch.add(a, a)

    return step


def waiting_work():
    run = device_work()

    def step():
        run()
        torch.ones((), device="cuda").item()

    return step


def alone_ns(step, count=40):
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    start_ns = time.perf_counter_ns()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start_ns) / count


@pytest.mark.parametrize("work", [device_work, host_work, waiting_work])
def test_the_unrecorded_step_is_the_one_alone(tmp_path, work):
    step = work()
    before_ns = alone_ns(step)
    with profile(tmp_path, wait=AROUND, warmup=1, active=3) as profiler:
        for _ in range(profiler.total_steps + AROUND):
            step()
            profiler.step()
    least_ns, most_ns = sorted((before_ns, alone_ns(step)))  # a host gets faster or slower meanwhile
    measured = Summary(profiler.session).measured_step
    assert measured.unrecorded_ns.has_interval
    assert 0.85 * least_ns < measured.unrecorded_ns.median < 1.15 * most_ns
    assert all(one.device_ns is not None for one in profiler.unrecorded_steps)
    if work is not host_work:
        assert measured.busy_fraction > 0.8
    if work is device_work:
        assert measured.unrecorded_ns.clock is StepClockKind.DEVICE


def test_timing_does_not_wait_for_the_device():
    torch.cuda.synchronize()
    clock = StepClock()
    clock.start()
    start_ns = time.perf_counter_ns()
    for step in range(5):
        torch.cuda._sleep(200_000_000)  # cycles: some 0.1 s
        clock.mark(step)
    host_ns = time.perf_counter_ns() - start_ns
    clock.stop()
    taken = clock.read()
    assert host_ns < 50_000_000 < min(one.device_ns for one in taken)


def test_calls_run_back_to_back():
    step = device_work()
    expected_ns = alone_ns(step)
    taken = time_calls(step, 10)
    later = sorted(one.device_ns / one.step_count for one in taken[3:])
    assert later[len(later) // 2] == pytest.approx(expected_ns, rel=0.15)
    _, session = profile_call(step)
    assert Summary(session).measured_step.busy_fraction > 0.8


def test_nothing_is_recorded_into_a_graph_that_is_being_captured():
    a = torch.randn(64, 64, device="cuda")
    torch.mm(a, a)
    clock = StepClock()
    clock.start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        clock.mark(0)
        torch.mm(a, a)
        clock.mark(1)
    clock.stop()
    graph.replay()
    assert [one.device_ns for one in clock.read()] == [None]


def test_graphs_are_replayed_within_and_after_recordings(tmp_path):
    a = torch.randn(256, 256, device="cuda")
    torch.mm(a, a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = torch.mm(a, a)
    with profile(tmp_path, wait=1, warmup=1, active=2, repeat=3) as profiler:
        for _ in range(profiler.total_steps):
            graph.replay()
            profiler.step()
    assert len(profiler.cycles) == 3
    counts = []
    for cycle in profiler.cycles:
        with load(str(cycle.trace_path)) as session:
            counts.extend(count for (count,) in session.query("SELECT count(*) FROM device_activities"))
    assert counts[0] >= 2
    assert set(counts) == {counts[0]}
    later = torch.cuda.CUDAGraph()
    with torch.cuda.graph(later):
        other = torch.mm(a, a)
    later.replay()
    graph.replay()
    torch.testing.assert_close(product, other)


PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).cuda()
x = torch.randn(16384, 2048, device="cuda")
{loop}
print("done")
"""
TRAINING = """
opt = torch.optim.SGD(net.parameters(), lr=1e-4)
for _ in range(60):
    loss = net(x).pow(2).mean()
    loss.backward(); opt.step(); opt.zero_grad()
"""
INFERENCE = """
with torch.no_grad():
    for _ in range(60):
        net(x)
"""


def recorded(tmp_path, loop, *options):
    """Folder of a recording of the program, which ends as it does alone."""
    (tmp_path / "program.py").write_text(PROGRAM.format(loop=loop))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "opscope", "run", "--output-dir", str(out), *options, "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("done\n")
    return out


@pytest.mark.parametrize("loop", [TRAINING, INFERENCE], ids=["training", "inference"])
def test_the_host_by_itself_is_known_where_the_device_decides(tmp_path, loop):
    """Launching a step takes a small part of what the device takes for it."""
    out = recorded(tmp_path, loop)
    steps = json.loads((out / "trace.opscope.json").read_text())["unrecorded_steps"]
    assert sum(one["kind"] == "alone" for one in steps) >= 3
    simulation = json.loads((out / "analysis.json").read_text())["simulation"]
    assert 0 < simulation["host_ns"] < 0.5 * simulation["device_ns"]


@pytest.mark.parametrize("loop", [TRAINING, INFERENCE], ids=["training", "inference"])
@pytest.mark.parametrize("more", ["stack", "modules", "memory"])
def test_recording_more_harms_no_program_whose_forwards_are_steps(tmp_path, loop, more):
    out = recorded(tmp_path, loop, "--steps", "forward", "--record", more)
    assert len(json.loads((out / "analysis.json").read_text())["steps"]) >= 3


# Launches decide; the program prints how long a step takes before, and long after, it is recorded.
LAUNCHES = Path(__file__).with_name("stepped.py.txt").read_text(encoding="utf-8")


def test_steps_after_the_recording_are_as_fast_as_alone(tmp_path):
    """CUPTI is detached: attached, it slows each launch to the end of the process."""
    script = tmp_path / "program.py"
    script.write_text(f"import torch\n{LAUNCHES.format(model=True, count=2000)}")
    command = [sys.executable, "-m", "opscope", "run", "--output-dir", str(tmp_path / "out"), "program.py"]
    medians = []
    for one in ([sys.executable, "program.py"], command):
        ran = subprocess.run(one, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stderr
        (line,) = (line for line in ran.stdout.splitlines() if line.startswith("TIMES"))
        medians.append(statistics.median(map(float, line.split()[30:])))
    assert medians[1] < 1.3 * medians[0]


def test_a_program_without_steps_is_recorded_whole(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(f"import torch\n{LAUNCHES.format(model=False, count=50)}")
    command = [sys.executable, "-m", "opscope", "run", "--output-dir", "out", "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    analysis = json.loads((tmp_path / "out/analysis.json").read_text())
    (kernel,) = (one for one in analysis["kernels"] if "add" in one["name"].lower())
    assert kernel["calls"] == 3000
