"""`opscope trace` on a fake CUDA: what it writes and prints, how programs end, what cannot be recorded."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from case_tables import cases
from opscope.api import load
from opscope.cli import trace as module
from opscope.model.origin import RecordedKernel, RecordedUnit
from opscope.model.sidecar import read_sidecar

FAKES = Path(__file__).parent.parent / "unit" / "cupti" / "fake_cuda.py"


@pytest.fixture(scope="module")
def fake_cuda(tmp_path_factory):
    return runpy.run_path(str(FAKES))["build_fake_cuda"](tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture
def trace(fake_cuda, tmp_path, monkeypatch, opscope_and_programs):
    """Runs `opscope trace` on the fake CUDA."""
    for name, value in {**fake_cuda.environment, "CUDA_HOME": str(fake_cuda.root)}.items():
        monkeypatch.setenv(name, value)
    for name in ("CUDA_PATH", "CONDA_PREFIX", "CUDA_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "driver_cuda_version", lambda: 13_000)
    (tmp_path / "program").symlink_to(fake_cuda.program)
    monkeypatch.chdir(tmp_path)
    return partial(opscope_and_programs, "trace")


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.exhaustive(few=False)
def test_a_trace_and_nsys_tables(trace, tmp_path):
    outcome = trace("--", "./program", "everything").fine(out="hello\n")
    lines = outcome.err.splitlines()
    assert any("cuda_gpu_sum" in line for line in lines)
    row = next(line.split() for line in lines if "add(int, float*, float*)" in line)
    assert row == ["25.0", "2,002", "2", "1,001.0", "1,001.0", "1,001", "1,001", "0.0", "CUDA_KERNEL",
        "add(int,", "float*,", "float*)"]  # fmt: skip
    assert any("[CUDA memcpy Unified Host-to-Device]" in line for line in lines)
    calls = [
        line.split()[-1] for line in lines if line.strip().endswith(("cudaLaunchKernel", "cuLaunchKernel"))
    ]
    assert calls == ["cudaLaunchKernel", "cuLaunchKernel"]
    assert lines[-1] == f"Wrote {Path('opscope_trace') / 'trace.json'}"
    assert files(tmp_path / "opscope_trace") == ["trace.json", "trace.opscope.json"]


def test_json_is_alone_on_standard_output(trace):
    outcome = trace("--json", "--", "./program", "exit", "3").fails(code=3, out=None)
    document = outcome.json
    assert outcome.err.startswith("hello\n")
    assert document["program"] == ["./program", "exit", "3"]
    assert (document["exit_code"], document["signal"]) == (3, None)
    (one,) = document["traces"]
    assert one["events"] == {"kernels": 4, "copies": 0, "sets": 0, "migrations": 0, "calls": 4}
    assert (one["dropped_records"], one["findings"]) == (0, [])
    assert {row["Name"]: row["Instances"] for row in document["reports"]["cuda_gpu_kern_sum"]} == {
        "add(int, float*, float*)": 2, "(anonymous namespace)::inner(float*)": 2,
    }  # fmt: skip
    assert set(document["reports"]) == {
        "cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum", "cuda_gpu_sum",
    }  # fmt: skip


@pytest.mark.parametrize(("number", "name"), [(15, "SIGTERM"), (6, "SIGABRT"), (11, "SIGSEGV")])
def test_a_program_that_a_signal_ends(trace, tmp_path, number, name):
    trace("--", "./program", "raise", number).fails(
        f"The process was ended by {name}; it is recorded until then.", code=128 + number, out=None
    )
    with load(tmp_path / "opscope_trace" / "trace.json") as session:
        assert session.scalar("SELECT count(*) FROM device_activities") == 4


@pytest.mark.exhaustive(few=False)
def test_a_program_that_executes_another(trace, tmp_path):
    traces = trace("--json", "--", "./program", "execute").json["traces"]
    assert [one["events"]["kernels"] for one in traces] == [2, 3]
    assert Path(traces[1]["path"]).name == f"trace_{traces[0]['process']}-1.json"


def test_a_program_without_cuda(trace, tmp_path):
    trace("--", "./program", "nothing", 4).fails(
        "the program never started CUDA before it ended with exit code 4", code=4, out="hello\n"
    )
    assert files(tmp_path / "opscope_trace") == []
    assert trace("--json", "--", "./program", "nothing", 0).json["traces"] == []


def test_records_that_cannot_be_written(trace):
    (one,) = trace("--json", "--", "./program", "full", 200_000).json["traces"]
    assert one["findings"][0]["code"] == "recorder.lost"
    assert one["dropped_records"] + sum(one["events"][kind] for kind in ("kernels", "calls")) == 400_000


@cases("variable", "value", "words", "out")
def test_what_keeps_it_from_recording(trace, monkeypatch, tmp_path, *, variable, value, words, out):
    monkeypatch.setenv(variable, value)
    trace("--", "./program", "exit", 0).fails(words, out=out)
    assert not (tmp_path / "opscope_trace").exists() or files(tmp_path / "opscope_trace") == []
    if "another tool holds" in words:  # the program's own failure comes first
        assert trace("--", "./program", "exit", 5).code == 5


@cases("arguments", "code", "words")
def test_what_is_said_of_a_recording(trace, arguments, code, words):
    outcome = trace(*arguments.split())
    assert (outcome.code, words in outcome.said) == (code, True)


def test_files_of_an_earlier_run(trace, tmp_path):
    folder = tmp_path / "opscope_trace"
    folder.mkdir()
    (folder / "trace_99.json").write_text("of an earlier run")
    (folder / "trace_old.json").write_text("the user's own")
    trace("--", "./program", "exit", 0).fails("trace_99.json: the file exists. Overwrite it with --force")
    assert trace("--force", "--", "./program", "exit", 0).code == 0
    assert files(folder) == ["trace.json", "trace.opscope.json", "trace_old.json"]


def test_raw_records_make_the_trace_again(trace, tmp_path, monkeypatch):
    written = module._written

    def kept(output, records, run):
        if run is not None:
            shutil.copytree(records, tmp_path / "kept")
        return written(output, records, run)

    monkeypatch.setattr(module, "_written", kept)
    assert trace("--", "./program", "everything").code == 0
    document = trace("--from-records", tmp_path / "kept", "--output-dir", "again", "--json").fine().json
    assert (document["exit_code"], len(document["traces"])) == (None, 1)
    events = [
        json.loads((tmp_path / name / "trace.json").read_text())["traceEvents"]
        for name in ("opscope_trace", "again")
    ]
    assert events[0] == events[1]


def test_a_trace_that_cannot_be_written_keeps_the_records(trace, tmp_path, monkeypatch):
    def fail(*_):
        raise module.CaptureError("the trace cannot be written", source="trace.json")

    monkeypatch.setattr(module, "write_trace", fail)
    trace("--", "./program", "exit", 0).fails("opscope trace --from-records", out=None)
    assert len(files(tmp_path / "opscope_trace" / "trace.records")) == 1


def test_kernels_are_sought_in_what_the_program_had_loaded(trace, tmp_path, monkeypatch):
    def find(names, *, maps):
        assert str(Path("program").resolve()) in maps.read_text()
        unit = RecordedUnit("add.cu", "0123abcd", "/src/add.cu")
        return {name: RecordedKernel(name, "program", "id", (unit,)) for name in names if "add" in name}

    monkeypatch.setattr(module, "recorded_origins", find)
    trace("--", "./program", "exit", 0)
    sidecar = read_sidecar(tmp_path / "opscope_trace" / "trace.opscope.json")
    assert {kernel.name: kernel.library for kernel in sidecar.kernels} == {
        "add(int, float*, float*)": "program", "(anonymous namespace)::inner(float*)": None,
    }  # fmt: skip
    with load(tmp_path / "opscope_trace" / "trace.json") as session:
        assert session.query("SELECT unit, source_path FROM kernel_origins") == [("add.cu", "/src/add.cu")]


@cases("arguments", "message")
def test_what_cannot_be_run(trace, arguments, message):
    trace(*arguments).fails(message)


def test_without_cupti(trace, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_places", lambda: ([], []))
    monkeypatch.setattr("opscope.cupti.library._SYSTEM_ROOTS", ("/nowhere",) * 3)
    monkeypatch.setattr("opscope.cupti.library._USUAL_TOOLKITS", "/nowhere")
    trace("--", "./program").fails("pip install nvidia-cuda-cupti")
    assert not (tmp_path / "opscope_trace").exists()


@pytest.mark.exhaustive(few=False)
def test_a_cache_that_cannot_be_written_is_done_without(trace, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert trace("--", "./program", "exit", 0).code == 0


def test_a_signal_to_opscope_ends_the_program_and_keeps_its_records(trace, tmp_path):
    assert trace("--output-dir", "built", "--", "./program", "exit", 0).code == 0  # builds the recorder
    command = [sys.executable, "-m", "opscope", "trace", "--", "./program", "wait"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    int(process.stderr.readline())  # the program's process id: it has launched its kernels
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Wrote" in err
    with load(tmp_path / "opscope_trace" / "trace.json") as session:
        assert session.scalar("SELECT count(*) FROM device_activities") == 4


def test_records_may_be_bounded(trace):
    outcome = trace("--json", "--max-trace-size", "1MB", "--", "./program", "launch", 50_000).fine()
    (one,) = outcome.json["traces"]
    assert one["findings"][0]["code"] == "recorder.size_limit"
    assert "--max-trace-size" in outcome.said
    assert 0 < one["dropped_records"] < 100_000
    assert one["dropped_records"] + sum(one["events"][kind] for kind in ("kernels", "calls")) == 100_000
    assert "not a size in bytes" in trace("--force", "--max-trace-size", "1e999", "--", "./program").said
