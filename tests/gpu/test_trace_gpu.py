"""`opscope trace` on a GPU: records agree with the programs' own clocks and counts, however they end."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opscope.api import load
from opscope.hardware.driver import find_cuda_tool

pytestmark = pytest.mark.gpu

LIMIT_S = 90
PYTHON_PATH = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)

# The guide's program, with CUDA events around its kernel.
ADD = Path(__file__).with_name("add.cu").read_text(encoding="utf-8")

# launches COUNT END: a first launch, COUNT more, a wait; prints what these took in nanoseconds, and its
# process id; and ends as END says.
LAUNCHES = Path(__file__).with_name("launches.cu").read_text(encoding="utf-8")

TORCH = """
import torch
x = torch.randn(1024, 1024, device="cuda")
for _ in range(10):
    y = torch.nn.functional.gelu(x @ x)
torch.cuda.synchronize()
print(float(y.sum()) is not None)
"""


@dataclass(frozen=True)
class Traced:
    """One run of `opscope trace --json`: its exit code, document, standard error and the traces' folder."""

    code: int
    document: Any
    err: str
    folder: Path

    @property
    def events(self):
        return [one["events"] for one in self.document["traces"]]

    @property
    def codes(self):
        return {finding["code"] for one in self.document["traces"] for finding in one["findings"]}

    def calls(self):
        return {row["Name"]: row["Num Calls"] for row in self.document["reports"]["cuda_api_sum"]}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    nvcc = find_cuda_tool("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("programs")

    def compile_program(name, source):
        program = folder / name
        if not program.exists():
            (folder / f"{name}.cu").write_text(source)
            command = [nvcc, "-O1", "-arch=native", "-o", str(program), f"{name}.cu"]
            subprocess.run(command, check=True, cwd=folder, timeout=LIMIT_S)
        return program

    return compile_program


@pytest.fixture
def trace(tmp_path):
    """Runs `opscope trace --json` on a program, in a process of its own."""

    def run(*program, options=()):
        process = start(tmp_path, *program, options=options)
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return finished(process, out, err, tmp_path)

    return run


def start(folder, *program, options=()):
    own = [sys.executable, "-m", "opscope", "trace", "--json", "--force", *options, "--"]
    return subprocess.Popen(
        [*own, *map(str, program)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process, out, err, folder):
    assert out, err
    return Traced(process.returncode, json.loads(out), err, folder / "opscope_trace")


@pytest.fixture(scope="module")
def added(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("added")
    process = start(folder, build("add", ADD))
    out, err = process.communicate(timeout=LIMIT_S)
    return finished(process, out, err, folder)


def test_the_guides_kernel_takes_what_its_events_say(added, record_property):
    assert added.code == 0
    milliseconds, error = map(float, added.err.splitlines()[0].split())
    assert error == 0
    (row,) = added.document["reports"]["cuda_gpu_kern_sum"]
    assert row["Name"].replace(" ", "") == "add(int,float*,float*)"
    assert row["Instances"] == 1
    recorded_ms = row["Total Time (ns)"] / 1e6
    record_property("terminal_report", f"add: {recorded_ms:.3f} ms recorded, {milliseconds:.3f} ms by events")
    assert abs(recorded_ms / milliseconds - 1) <= 0.05


def test_its_calls_are_the_programs_and_no_others(added, record_property):
    calls = added.calls()
    record_property("terminal_report", f"calls of add: {calls}")
    expected = {
        "cudaMallocManaged": 2, "cudaEventRecord": 2, "cudaLaunchKernel": 1, "cudaDeviceSynchronize": 1,
        "cudaEventElapsedTime": 1, "cudaFree": 2,
    }  # fmt: skip
    assert {name: calls.get(name) for name in expected} == expected
    assert not [name for name in calls if name.startswith(("cuDeviceGet", "cuGetProcAddress", "__cuda"))]
    assert added.events[0]["calls"] == sum(calls.values()) < 100


def test_its_unified_memory_is_copied_there_and_back(added, record_property):
    refused = [
        one for one in added.document["traces"][0]["findings"] if one["code"] == "recorder.unified_memory"
    ]
    if refused:
        pytest.skip(refused[0]["message"])
    sizes = {row["Operation"]: row for row in added.document["reports"]["cuda_gpu_mem_size_sum"]}
    times = {row["Operation"]: row for row in added.document["reports"]["cuda_gpu_mem_time_sum"]}
    record_property("terminal_report", f"unified copies of add: {sizes}")
    there, back = (f"[CUDA memcpy Unified {way}]" for way in ("Host-to-Device", "Device-to-Host"))
    # Two arrays of 4 MiB go there, one of them comes back; a part may go twice.
    assert 8.388 <= sizes[there]["Total (MB)"] <= 17
    assert 4.194 <= sizes[back]["Total (MB)"] <= 9
    assert all(times[name]["Total Time (ns)"] > 0 for name in (there, back))


def test_its_trace_names_device_and_source_file(added):
    import torch

    properties = torch.cuda.get_device_properties(0)
    with load(added.folder / "trace.json") as session:
        assert not [violation for check in session.check() for violation in check.violations]
        name, sms, memory, optin = session.query(
            "SELECT name, sm_count, memory_bytes, shared_memory_per_block_optin_bytes FROM devices "
            "WHERE activity_count > 0"
        )[0]
        assert (name, sms) == (properties.name, properties.multi_processor_count)
        assert (memory, optin) == (properties.total_memory, properties.shared_memory_per_block_optin)
        assert session.query("SELECT library, unit FROM kernel_origins") == [("add", "add.cu")]
        # The kernel starts after its launch began, and the last copy ends before the program does.
        launch, kernel, window = session.query(
            "SELECT (SELECT min(start_ns) FROM runtime_calls WHERE name = 'cudaLaunchKernel'), "
            "(SELECT min(start_ns) FROM device_activities WHERE kind = 'kernel'), "
            "(SELECT window_end_ns FROM traces)"
        )[0]
        assert launch < kernel < window


def test_of_a_hundred_thousand_launches_none_is_lost(build, trace):
    program, count = build("launches", LAUNCHES), 100_000
    outcome = trace(program, count, 0)
    assert outcome.events[0]["kernels"] == count + 1
    assert outcome.calls()["cudaLaunchKernel"] == count + 1
    assert outcome.document["traces"][0]["dropped_records"] == 0
    assert not outcome.codes & {"recorder.dropped", "recorder.lost", "recorder.unfinished"}


def test_a_pytorch_process(trace, record_property):
    outcome = trace(sys.executable, "-c", TORCH)
    assert outcome.code == 0
    assert "True" in outcome.err.splitlines()
    kernels = {row["Name"]: row["Instances"] for row in outcome.document["reports"]["cuda_gpu_kern_sum"]}
    record_property("terminal_report", f"kernels of PyTorch: {kernels}")
    gelu = [name for name in kernels if "Gelu" in name]
    assert [kernels[name] for name in gelu] == [10]
    assert sum(kernels.values()) >= 22  # random numbers, products, gelu, the sum
    assert "[CUDA memcpy Device-to-Host]" in {
        row["Operation"] for row in outcome.document["reports"]["cuda_gpu_mem_time_sum"]
    }
    with load(outcome.folder / "trace.json") as session:
        origins = dict(
            session.query("SELECT n.name, library FROM kernel_origins JOIN kernel_names n USING (name_id)")
        )
        assert origins[gelu[0]] == "libtorch_cuda.so"


def test_processes_that_fork_before_cuda(build, trace):
    outcome = trace(build("launches", LAUNCHES), 100, "fork_before")
    assert outcome.code == 0
    assert sorted(one["kernels"] for one in outcome.events) == [101, 201]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("fork_after", 6),
        ("fork_exit", 7),
        ("abort", 134),
        ("fault", 139),
        ("leave", 3),
        ("reset", 0),
        ("9", 9),
    ],
)
def test_however_it_ends_its_kernels_are_kept(build, trace, end, code):
    outcome = trace(build("launches", LAUNCHES), 1000, end)
    assert outcome.code == code
    assert [one["kernels"] for one in outcome.events] == [1001]


@pytest.mark.parametrize("end", ["wait", "launch"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_program(build, tmp_path, end, number):
    process = start(tmp_path, build("launches", LAUNCHES), 1000, end)
    first = process.stderr.readline()
    program = int(first.split()[1])
    try:
        os.kill(program, number)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.kill(program, signal.SIGKILL)
    outcome = finished(process, out, first + err, tmp_path)
    assert outcome.code == 128 + number
    assert "recorder.signal" in outcome.codes
    (events,) = outcome.events
    assert events["kernels"] == 1001 if end == "wait" else events["kernels"] >= 1001


def test_a_program_without_cuda(trace):
    outcome = trace(sys.executable, "-c", "raise SystemExit(4)")
    assert (outcome.code, outcome.document["traces"]) == (4, [])
    assert "never started CUDA" in outcome.err
