"""Trace files: ordinary Kineto traces that load, and say what is missing."""

import json
import re

import pytest
from msgspec.structs import replace

from case_tables import cases
from opscope.cupti.recording import ChunkKind, FileState, Outcome, TextTable, UnifiedState
from opscope.cupti.trace_file import (
    first_moment_ns,
    process_events,
    recording_findings,
    recording_sidecar,
    write_trace,
)
from opscope.errors import CaptureError
from opscope.model.finding import Severity
from opscope.model.sidecar import read_sidecar, sidecar_path, write_sidecar

START_NS = 1_790_857_026_000_000_000


def kernel(start, end, **fields):
    return {"start_ns": START_NS + start, "end_ns": START_NS + end, "stream": 7, **fields}


@pytest.fixture
def recording(make_recording):
    return make_recording(
        {
            ChunkKind.KERNELS: [
                kernel(2000, 5003, name=0, correlation=1),
                kernel(6000, 6500, name=1, correlation=2),
            ],
            ChunkKind.RUNTIME_CALLS: [
                {"start_ns": START_NS + 100, "end_ns": START_NS + 900, "function": 211, "correlation": 1}
            ],
            ChunkKind.DEVICES: [
                {
                    "name": b"NVIDIA H200", "major": 9, "minor": 0, "multiprocessors": 132,
                    "memory_bytes": 150_109_880_320, "warp_size": 32,
                }
            ],
        },
        {
            TextTable.KERNEL: {0: "_Z3addiPf", 1: "plain"},
            TextTable.RUNTIME_FUNCTION: {211: "cudaLaunchKernel_v7000"},
        },
        start_realtime_ns=START_NS + 42,
    )  # fmt: skip


def written(path, recording):
    return write_trace(path, recording, first_moment_ns(recording))


def test_its_keys_are_kinetos(tmp_path, recording):
    path = tmp_path / "new" / "trace.json"
    result = written(path, recording)
    document = json.loads(path.read_text())
    assert document["schemaVersion"] == 1
    assert document["baseTimeNanoseconds"] == START_NS + 42
    assert (document["cuda_driver_version"], document["cupti_version"]) == (13_000, 130_001)
    assert document["deviceProperties"] == [
        {
            "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_109_880_320, "computeMajor": 9,
            "computeMinor": 0, "warpSize": 32, "numSms": 132,
        }
    ]  # fmt: skip
    assert document["opscopeRecorder"]["mangled_names"] == {"add(int, float*)": "_Z3addiPf"}
    assert document["opscopeRecorder"]["command"] == ["./add"]
    assert result.kernel_names == {"add(int, float*)", "plain"}
    assert result.counts == {"kernels": 2, "copies": 0, "sets": 0, "migrations": 0, "calls": 1}
    assert result.is_clean
    assert list(path.parent.iterdir()) == [path]


def test_its_findings_come_back_when_it_is_loaded(tmp_path, make_recording, load):
    recording = make_recording(
        {ChunkKind.KERNELS: [{"start_ns": START_NS, "end_ns": START_NS + 1}]},
        outcome=Outcome(FileState.RECORDING, dropped_count=3, unified=UnifiedState.RECORDED),
    )
    path = tmp_path / "trace.json"
    result = written(path, recording)
    assert not result.is_clean
    found = {one.code: one for one in load(str(path)).findings() if one.code.startswith("recorder.")}
    assert set(found) == {"recorder.dropped", "recorder.not_ended"}
    assert found["recorder.dropped"].severity is Severity.WARNING
    assert found["recorder.dropped"].evidence == {"dropped_count": 3}
    assert found == {one.code: replace(one, trace_id=0) for one in result.findings}


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path, recording):
    (tmp_path / "file").write_text("")
    (tmp_path / "trace.json").mkdir()
    for path in ("file/trace.json", "trace.json"):
        with pytest.raises(CaptureError, match="cannot be written"):
            written(tmp_path / path, recording)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "trace.json"]


def test_the_sidecar_says_which_devices(tmp_path, recording):
    path = tmp_path / "trace.json"
    sidecar = recording_sidecar(written(path, recording), (), (), created="2026-11-21T00:00:00+00:00")
    write_sidecar(sidecar_path(path), sidecar)
    kept = read_sidecar(sidecar_path(path))
    assert kept.environment.gpu[0].name == "NVIDIA H200"
    assert (kept.environment.gpu[0].compute_capability, kept.environment.cuda_driver) == ("9.0", "13.0")
    assert (kept.settings.activities, kept.settings.engine, kept.clean_window) == (("cuda",), "cupti", True)


@cases("outcome", "code", "words")
def test_findings(tmp_path, make_recording, outcome, code, words):
    words_of = {"state": "ENDED", "unified": "RECORDED", **outcome}
    states = {"state": FileState[words_of["state"]], "unified": UnifiedState[words_of["unified"]]}
    made = Outcome(**{**outcome, **states})
    found = written(tmp_path / "trace.json", make_recording(outcome=made)).findings
    assert [one.code for one in found] == ([f"recorder.{code}"] if code else [])
    assert all(re.search(words or "", one.message) for one in found)


def test_missing_copies_matter_to_a_program_with_managed_memory(make_recording):
    runtime = {TextTable.RUNTIME_FUNCTION: {1: "cudaMallocManaged_v6000"}}
    driver = {TextTable.DRIVER_FUNCTION: {1: "cuMemAllocManaged"}}
    for given, severity in ((runtime, Severity.WARNING), (driver, Severity.WARNING), ({}, Severity.INFO)):
        recording = make_recording(names=given)
        (finding,) = recording_findings(recording, process_events(recording, {}, 0))
        assert finding.severity is severity


def test_planted_keys_are_in_no_file(tmp_path, make_recording):
    planted = "sk-PlantedKeyThatNobodyMaySee123"
    command = f"./train --token {planted} API_KEY={planted} {planted} --url=https://me:{planted}@host".split()
    recording = make_recording({ChunkKind.KERNELS: [kernel(10, 20)]}, command=tuple(command))
    trace = write_trace(tmp_path / "trace.json", recording, START_NS)
    write_sidecar(sidecar_path(trace.path), recording_sidecar(trace, (), (), created="2026-11-24"))
    assert len(list(tmp_path.iterdir())) == 2
    assert not [file.name for file in tmp_path.iterdir() if planted.encode() in file.read_bytes()]
