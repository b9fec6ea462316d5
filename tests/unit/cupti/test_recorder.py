"""The recorder in programs that end in every way, on a fake CUPTI: nothing is lost, nothing disturbed."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from opscope.cupti.recording import WRITE_LIMIT, ChunkKind, FileState, TextTable, UnifiedState, read_recording

START_NS = 1_790_857_026_000_000_000


def kernels(recording: Any) -> int:
    return len(recording.of(ChunkKind.KERNELS))


def test_every_kind_of_record_arrives(fake_cuda: Any, tmp_path: Path) -> None:
    code, (recording,) = fake_cuda.run(tmp_path / "records", "everything")
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


def test_what_is_known_of_the_process(fake_cuda: Any, tmp_path: Path) -> None:
    _, (recording,) = fake_cuda.run(tmp_path / "records", "launch", 1)
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


def test_no_record_of_many_is_lost(fake_cuda: Any, tmp_path: Path) -> None:
    _, (recording,) = fake_cuda.run(tmp_path / "records", "launch", 100_001)
    assert kernels(recording) == 100_001
    calls = recording.of(ChunkKind.RUNTIME_CALLS)
    assert sorted(calls["correlation"].tolist()) == sorted(
        recording.of(ChunkKind.KERNELS)["correlation"].tolist()
    )
    assert len(set(calls["correlation"].tolist())) == 100_001


def test_threads_are_told_apart_and_named(fake_cuda: Any, tmp_path: Path) -> None:
    _, (recording,) = fake_cuda.run(tmp_path / "records", "threads")
    assert kernels(recording) == 4000
    threads, counts = zip(*_count(recording.of(ChunkKind.RUNTIME_CALLS)["thread"].tolist()), strict=True)
    assert counts == (1000,) * 4
    # A thread that ended before its records came has no name any more.
    names = recording.names[TextTable.THREAD]
    assert set(names) <= set(threads)
    assert set(names.values()) <= {"launcher"}


def _count(values: list[int]) -> list[tuple[int, int]]:
    return sorted((value, values.count(value)) for value in set(values))


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        (("exit", 0), 0),
        (("exit", 9), 9),
        (("own_handler",), 7),  # of a signal
        (("reset",), -signal.SIGKILL),  # of the device, which flushes first
        (("fork",), 5),  # after CUDA began: the child is not recorded
    ],
)
def test_the_exit_code_is_the_programs_own(
    fake_cuda: Any, tmp_path: Path, mode: tuple[Any, ...], code: int
) -> None:
    found, (recording,) = fake_cuda.run(tmp_path / "records", *mode)
    assert (found, kernels(recording), recording.outcome.signal) == (code, 4, None)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV, signal.SIGABRT]
)
def test_a_signal_ends_the_program_after_its_records_are_written(
    fake_cuda: Any, tmp_path: Path, number: signal.Signals
) -> None:
    code, (recording,) = fake_cuda.run(tmp_path / "records", "raise", int(number))
    assert code == -number
    assert kernels(recording) == 4
    assert recording.outcome.state is FileState.ENDED
    assert recording.outcome.signal == number


def test_a_signal_from_outside(fake_cuda: Any, tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    process = fake_cuda.start(records, "wait")
    assert process.stderr.readline().strip() == str(process.pid)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGTERM
    (recording,) = map(read_recording, records.iterdir())
    assert kernels(recording) == 4


@pytest.mark.parametrize(("mode", "code"), [("leave", 3), ("kill", -signal.SIGKILL)])
def test_a_program_that_leaves_no_time_keeps_what_was_flushed(
    fake_cuda: Any, tmp_path: Path, mode: str, code: int
) -> None:
    found, (recording,) = fake_cuda.run(tmp_path / "records", mode)
    assert (found, kernels(recording)) == (code, 4)
    assert recording.outcome.state is FileState.RECORDING
    assert recording.end_ns is None
    assert str(fake_cuda.program) in recording.maps


def test_a_child_forked_after_cuda_can_be_ended(fake_cuda: Any, tmp_path: Path) -> None:
    started = time.monotonic()
    code, (recording,) = fake_cuda.run(tmp_path / "records", "fork_signal")
    assert (code, kernels(recording)) == (128 + signal.SIGTERM, 4)
    assert time.monotonic() - started < 15


def test_processes_that_start_cuda_after_a_fork_have_files_of_their_own(
    fake_cuda: Any, tmp_path: Path
) -> None:
    code, recordings = fake_cuda.run(tmp_path / "records", "fork_before")
    assert code == 0
    assert sorted(map(kernels, recordings)) == [2, 5]
    parent = next(one for one in recordings if kernels(one) == 5)
    child = next(one for one in recordings if kernels(one) == 2)
    assert child.parent_process == parent.process


def test_a_program_that_executes_another_leaves_two_files(fake_cuda: Any, tmp_path: Path) -> None:
    _, recordings = fake_cuda.run(tmp_path / "records", "execute")
    assert [kernels(one) for one in recordings] == [2, 3]
    assert len({one.process for one in recordings}) == 1


def test_descriptors_that_the_program_closes_and_reuses_are_not_written_to(
    fake_cuda: Any, tmp_path: Path
) -> None:
    user_file = tmp_path / "user.txt"
    _, (recording,) = fake_cuda.run(tmp_path / "records", "close", user_file)
    assert user_file.read_bytes() == b""
    assert kernels(recording) == 5


def test_what_cannot_be_written_is_counted_and_the_rest_stays_readable(
    fake_cuda: Any, tmp_path: Path
) -> None:
    code, (recording,) = fake_cuda.run(tmp_path / "records", "full", 300_000)
    assert code == 0
    outcome = recording.outcome
    # Texts go first: each kernel that was written has its name.
    assert set(recording.of(ChunkKind.KERNELS)["name"].tolist()) <= set(recording.names[TextTable.KERNEL])
    written = kernels(recording) + len(recording.of(ChunkKind.RUNTIME_CALLS))
    assert written + outcome.lost_count == 600_000
    assert outcome.lost_count > 0
    assert outcome.write_errno == 27  # EFBIG: the limit stands for a full disk


@pytest.mark.parametrize(("code", "state"), [(0, UnifiedState.RECORDED), (28, UnifiedState.REFUSED)])
def test_unified_memory_is_recorded_or_refused(
    fake_cuda: Any, tmp_path: Path, code: int, state: UnifiedState
) -> None:
    _, (recording,) = fake_cuda.run(tmp_path / "records", "launch", 1, FAKE_UNIFIED=code)
    assert recording.outcome.unified is state
    refusal = "CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED" if code else None
    assert recording.outcome.unified_refusal == refusal


def test_unified_memory_can_be_unwanted(fake_cuda: Any, tmp_path: Path) -> None:
    _, (recording,) = fake_cuda.run(tmp_path / "records", "launch", 1, OPSCOPE_TRACE_UNIFIED=0)
    assert recording.outcome.unified is UnifiedState.UNWANTED


@pytest.mark.parametrize("mode", [("launch", "4"), ("raise", "15"), ("raise", "11")])
def test_a_cupti_that_never_answers_holds_nothing_up(
    fake_cuda: Any, tmp_path: Path, mode: tuple[str, str]
) -> None:
    _, (recording,) = fake_cuda.run(tmp_path / "records", *mode, FAKE_STUCK=1)
    assert kernels(recording) == 4
    assert recording.outcome.state is FileState.ENDED
    assert recording.outcome.unified is UnifiedState.UNTRIED


def test_records_that_cupti_drops_are_counted(fake_cuda: Any, tmp_path: Path) -> None:
    _, (recording,) = fake_cuda.run(tmp_path / "records", "launch", 3, FAKE_DROPPED=12)
    assert recording.outcome.dropped_count == 12


def test_another_tool_that_holds_cupti_is_named(fake_cuda: Any, tmp_path: Path) -> None:
    code, (recording,) = fake_cuda.run(tmp_path / "records", "exit", 0, FAKE_SUBSCRIBE=39)
    assert code == 0
    assert recording.outcome.failed_code == 39
    assert recording.outcome.failure == "cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
    assert recording.activity_count == 0


def test_a_cupti_that_cannot_be_loaded_is_named(fake_cuda: Any, tmp_path: Path) -> None:
    missing = tmp_path / "libcupti.so.99"
    code, (recording,) = fake_cuda.run(
        tmp_path / "records", "exit", 0, OPSCOPE_TRACE_CUPTI=missing, FAKE_SUBSCRIBE=1
    )
    assert code == 0
    assert recording.outcome.failed_code == -1
    assert str(missing) in (recording.outcome.failure or "")


def test_a_folder_that_is_not_there_disturbs_no_program(fake_cuda: Any, tmp_path: Path) -> None:
    process = fake_cuda.start(tmp_path / "none", "exit", 4, FAKE_SUBSCRIBE=1)
    process.communicate(timeout=10)
    assert process.returncode == 4


def test_without_the_variables_it_does_nothing(fake_cuda: Any, tmp_path: Path) -> None:
    process = fake_cuda.start(tmp_path, "exit", 4, OPSCOPE_TRACE_CUPTI="", FAKE_SUBSCRIBE=1)
    process.communicate(timeout=10)
    assert process.returncode == 4
    assert list(tmp_path.iterdir()) == []


def test_records_stop_at_a_size(fake_cuda: Any, tmp_path: Path) -> None:
    """What is there is what came first, whole; the rest is counted."""
    most = 1_000_000
    code, (recording,) = fake_cuda.run(tmp_path / "records", "launch", 100_000, OPSCOPE_TRACE_MOST_BYTES=most)
    assert code == 0
    (file,) = (tmp_path / "records").iterdir()
    assert most // 2 < file.stat().st_size < most + 10_000
    outcome = recording.outcome
    written = kernels(recording) + len(recording.of(ChunkKind.RUNTIME_CALLS))
    assert written + outcome.lost_count == 200_000
    assert written > 0
    assert (outcome.write_errno, outcome.failure) == (WRITE_LIMIT, None)
    assert set(recording.of(ChunkKind.KERNELS)["name"].tolist()) <= set(recording.names[TextTable.KERNEL])
