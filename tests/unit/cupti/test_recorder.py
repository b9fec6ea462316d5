"""The recorder in programs that end in every way, on a fake CUPTI: nothing is lost, nothing disturbed."""

import signal
import time
from collections import Counter
from functools import partial

import pytest

from case_tables import cases
from opscope.cupti.recording import WRITE_LIMIT, ChunkKind, FileState, TextTable, UnifiedState

START_NS = 1_790_857_026_000_000_000


@pytest.fixture
def run(fake_cuda, tmp_path):
    """Runs the program in a mode, with variables; its exit code and its recordings."""
    return partial(fake_cuda.run, tmp_path / "records")


def kernels(recording):
    return len(recording.of(ChunkKind.KERNELS))


def test_every_kind_of_record_arrives(run):
    code, (recording,) = run("everything")
    assert code == 0
    assert recording.outcome.state is FileState.ENDED
    counts = {kind.name: len(found) for kind, found in recording.records.items()}
    assert counts == {
        "KERNELS": 4, "COPIES": 2, "SETS": 1, "RUNTIME_CALLS": 5, "DRIVER_CALLS": 2, "MIGRATIONS": 2,
        "OVERHEADS": 1, "DEVICES": 1,
    }  # fmt: skip
    names = recording.names
    assert names[TextTable.KERNEL] == {
        0: "_Z3addiPfS_",
        1: "_ZN12_GLOBAL__N_15innerEPf",
        2: "_Z10unfinishedv",
    }
    assert names[TextTable.RUNTIME_FUNCTION] == {
        120: "cudaMallocManaged_v6000",
        211: "cudaLaunchKernel_v7000",
    }
    assert names[TextTable.DRIVER_FUNCTION] == {307: "cuLaunchKernel"}
    assert list(names[TextTable.THREAD].values()) == ["program"]
    first = recording.of(ChunkKind.KERNELS)[0]
    assert (int(first["start_ns"]), int(first["end_ns"])) == (START_NS + 123, START_NS + 1124)
    assert (first["grid"].tolist(), first["block"].tolist()) == ([4, 1, 1], [256, 1, 1])
    assert [int(first[field]) for field in ("registers", "static_shared_bytes", "dynamic_shared_bytes")] == [
        32, 128, 1024,
    ]  # fmt: skip
    migration = recording.of(ChunkKind.MIGRATIONS)[0]
    assert [int(migration[field]) for field in ("kind", "size_bytes", "source", "target")] == [
        1, 2_097_152, 0xFFFFFFFF, 0,
    ]  # fmt: skip
    assert recording.outcome.unified is UnifiedState.RECORDED


def test_what_is_known_of_the_process(run, fake_cuda):
    _, (recording,) = run("launch", 1)
    assert recording.path.name == f"{recording.process}.0.cuda"
    assert recording.program == str(fake_cuda.program)
    assert recording.command == (str(fake_cuda.program), "launch", "1")
    assert recording.cupti_version == fake_cuda.cupti.api_version
    assert recording.cupti_path == str(fake_cuda.cupti.library)
    assert recording.driver_version == 13_000
    assert abs(recording.clock_offset_ns) < 1e9
    assert recording.end_ns >= recording.start_ns
    assert str(fake_cuda.program) in recording.maps
    device = recording.of(ChunkKind.DEVICES)[0]
    assert bytes(device["name"]) == b"NVIDIA H200"
    assert (int(device["memory_bytes"]), int(device["shared_per_block_optin"])) == (150_109_880_320, 232_448)


def test_no_record_of_many_is_lost(run):
    _, (recording,) = run("launch", 100_001)
    assert kernels(recording) == 100_001
    calls = recording.of(ChunkKind.RUNTIME_CALLS)
    assert sorted(calls["correlation"].tolist()) == sorted(
        recording.of(ChunkKind.KERNELS)["correlation"].tolist()
    )
    assert len(set(calls["correlation"].tolist())) == 100_001


def test_threads_are_told_apart_and_named(run):
    _, (recording,) = run("threads")
    assert kernels(recording) == 4000
    threads = Counter(recording.of(ChunkKind.RUNTIME_CALLS)["thread"].tolist())
    assert list(threads.values()) == [1000] * 4
    # A thread that ended before its records came has no name any more.
    names = recording.names[TextTable.THREAD]
    assert set(names) <= set(threads)
    assert set(names.values()) <= {"launcher"}


@cases("mode", "code")
def test_the_exit_code_is_the_programs_own(run, mode, code):
    found, (recording,) = run(*mode)
    assert (found, kernels(recording), recording.outcome.signal) == (code, 4, None)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV, signal.SIGABRT]
)
def test_a_signal_ends_the_program_after_its_records_are_written(run, number):
    code, (recording,) = run("raise", int(number))
    assert code == -number
    assert kernels(recording) == 4
    assert recording.outcome.state is FileState.ENDED
    assert recording.outcome.signal == number


@pytest.mark.parametrize(("mode", "code"), [("leave", 3), ("kill", -signal.SIGKILL)])
def test_a_program_that_leaves_no_time_keeps_what_was_flushed(run, fake_cuda, mode, code):
    found, (recording,) = run(mode)
    assert (found, kernels(recording)) == (code, 4)
    assert recording.outcome.state is FileState.RECORDING
    assert recording.end_ns is None
    assert str(fake_cuda.program) in recording.maps


def test_a_child_forked_after_cuda_can_be_ended(run):
    started = time.monotonic()
    code, (recording,) = run("fork_signal")
    assert (code, kernels(recording)) == (128 + signal.SIGTERM, 4)
    assert time.monotonic() - started < 15


def test_processes_that_start_cuda_after_a_fork_have_files_of_their_own(run):
    code, recordings = run("fork_before")
    assert code == 0
    child, parent = sorted(recordings, key=kernels)
    assert (kernels(child), kernels(parent)) == (2, 5)
    assert child.parent_process == parent.process


def test_a_program_that_executes_another_leaves_two_files(run):
    _, recordings = run("execute")
    assert [kernels(one) for one in recordings] == [2, 3]
    assert len({one.process for one in recordings}) == 1


def test_descriptors_that_the_program_closes_and_reuses_are_not_written_to(run, tmp_path):
    user_file = tmp_path / "user.txt"
    _, (recording,) = run("close", user_file)
    assert user_file.read_bytes() == b""
    assert kernels(recording) == 5


def test_what_cannot_be_written_is_counted_and_the_rest_stays_readable(run):
    code, (recording,) = run("full", 300_000)
    assert code == 0
    outcome = recording.outcome
    # Texts go first: each kernel that was written has its name.
    assert set(recording.of(ChunkKind.KERNELS)["name"].tolist()) <= set(recording.names[TextTable.KERNEL])
    written = kernels(recording) + len(recording.of(ChunkKind.RUNTIME_CALLS))
    assert written + outcome.lost_count == 600_000
    assert outcome.lost_count > 0
    assert outcome.write_errno == 27  # EFBIG: the limit stands for a full disk


@pytest.mark.parametrize(
    ("variable", "state", "refusal"),
    [
        ({"FAKE_UNIFIED": 0}, UnifiedState.RECORDED, None),
        ({"FAKE_UNIFIED": 28}, UnifiedState.REFUSED, "CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED"),
        ({"OPSCOPE_TRACE_UNIFIED": 0}, UnifiedState.UNWANTED, None),
    ],
)
def test_unified_memory_is_recorded_or_refused_or_unwanted(run, variable, state, refusal):
    _, (recording,) = run("launch", 1, **variable)
    assert (recording.outcome.unified, recording.outcome.unified_refusal) == (state, refusal)


@pytest.mark.parametrize("mode", [("launch", "4"), ("raise", "15"), ("raise", "11")])
def test_a_cupti_that_never_answers_holds_nothing_up(run, mode):
    _, (recording,) = run(*mode, FAKE_STUCK=1)
    assert kernels(recording) == 4
    assert recording.outcome.state is FileState.ENDED
    assert recording.outcome.unified is UnifiedState.UNTRIED


def test_records_that_cupti_drops_are_counted(run):
    _, (recording,) = run("launch", 3, FAKE_DROPPED=12)
    assert recording.outcome.dropped_count == 12


def test_a_cupti_that_cannot_be_loaded_is_named(run, tmp_path):
    missing = tmp_path / "libcupti.so.99"
    code, (recording,) = run("exit", 0, OPSCOPE_TRACE_CUPTI=missing, FAKE_SUBSCRIBE=1)
    assert code == 0
    assert recording.outcome.failed_code == -1
    assert str(missing) in (recording.outcome.failure or "")


@pytest.mark.parametrize(("folder", "variables"), [("none", {}), (".", {"OPSCOPE_TRACE_CUPTI": ""})])
def test_without_its_folder_or_variables_it_disturbs_no_program(fake_cuda, tmp_path, folder, variables):
    process = fake_cuda.start(tmp_path / folder, "exit", 4, FAKE_SUBSCRIBE=1, **variables)
    process.communicate(timeout=10)
    assert process.returncode == 4
    assert list(tmp_path.iterdir()) == []


def test_records_stop_at_a_size(run, tmp_path):
    """What is there is what came first, whole; the rest is counted."""
    most = 1_000_000
    code, (recording,) = run("launch", 100_000, OPSCOPE_TRACE_MOST_BYTES=most)
    assert code == 0
    (file,) = (tmp_path / "records").iterdir()
    assert most // 2 < file.stat().st_size < most + 10_000
    outcome = recording.outcome
    written = kernels(recording) + len(recording.of(ChunkKind.RUNTIME_CALLS))
    assert written + outcome.lost_count == 200_000
    assert written > 0
    assert (outcome.write_errno, outcome.failure) == (WRITE_LIMIT, None)
    assert set(recording.of(ChunkKind.KERNELS)["name"].tolist()) <= set(recording.names[TextTable.KERNEL])
