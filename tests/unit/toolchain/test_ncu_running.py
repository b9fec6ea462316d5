"""A program under an ncu that is a script, and what ncu's words mean."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from opscope.errors import CaptureError, DependencyError
from opscope.toolchain.ncu_command import NcuRun, check_run, compute_capability, find_ncu, run_ncu


def executable(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!{sys.executable}\n{body}")
    file.chmod(0o755)
    return file


def run_of(log: str, *, exit_code: int = 1, target_code: int = 0) -> NcuRun:
    return NcuRun(exit_code, target_code, log)


def test_ncu_is_found_on_a_path_and_missed_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = executable(tmp_path / "bin", "ncu", "")
    assert find_ncu(f"/nowhere{os.pathsep}{tmp_path / 'bin'}") == str(found)
    monkeypatch.setattr("opscope.toolchain.ncu_command._PLACES", ())
    with pytest.raises(DependencyError, match=r"ncu .* is not installed.*CUDA toolkit.*opscope analyze"):
        find_ncu(str(tmp_path))


def test_ncu_is_found_where_installers_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2024.1", "2025.3"):
        (tmp_path / version).mkdir()
        executable(tmp_path / version, "ncu", "")
    monkeypatch.setattr("opscope.toolchain.ncu_command._PLACES", (f"{tmp_path}/*/ncu",))
    assert find_ncu("") == str(tmp_path / "2025.3" / "ncu")


def test_the_programs_code_is_what_the_log_says(tmp_path: Path) -> None:
    log = tmp_path / "log"
    body = (
        f"open({str(log)!r}, 'w').write('==ERROR== The application returned an error code (7).\\n')\n"
        "raise SystemExit(1)"
    )
    run = run_ncu([str(executable(tmp_path, "ncu", body))], log)
    assert (run.exit_code, run.target_code, run.was_interrupted) == (1, 7, False)


def test_a_command_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be started"):
        run_ncu([str(tmp_path / "none")], tmp_path / "log")


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
            "Counters on the target device 0.",
            r"only administrators.*NVreg_RestrictProfilingToAdminUsers=0.*cap-add SYS_ADMIN.*opscope analyze",
        ),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "another tool.*dcgmi"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded.", "cannot reach the counters"),
        ("==WARNING== No kernels were profiled.\nAvailable Kernels:\n1. foo\n2. bar(int)\n", "foo; bar"),
        ("==WARNING== No kernels were profiled.\n", "launched no kernels"),
        ("==ERROR== Failed to find metric x.sum\n", "ncu profiled nothing: Failed to find metric"),
        ("", "wrote no report"),
    ],
)
def test_what_went_wrong_is_one_error_with_a_remedy(tmp_path: Path, log: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        check_run(run_of(log), tmp_path / "none.ncu-rep")


def test_a_program_that_failed_first_is_named_before_the_filter(tmp_path: Path) -> None:
    log = "==ERROR== The application returned an error code (3).\n==WARNING== No kernels were profiled.\n"
    with pytest.raises(CaptureError, match="exit code 3 before a kernel was profiled"):
        check_run(run_of(log, target_code=3), tmp_path / "none.ncu-rep")


def test_a_report_that_is_there_is_no_error_even_of_a_failed_program(tmp_path: Path) -> None:
    report = tmp_path / "a.ncu-rep"
    report.touch()
    check_run(run_of("==ERROR== The application returned an error code (3).", target_code=3), report)


@pytest.mark.parametrize(
    ("body", "expected"),
    [("print('9.0\\n9.0')", "9.0"), ("print('No devices were found')", None), ("raise SystemExit(9)", None)],
)
def test_the_first_gpus_compute_capability(tmp_path: Path, body: str, expected: str | None) -> None:
    executable(tmp_path, "nvidia-smi", body)
    assert compute_capability(str(tmp_path)) == expected
    assert compute_capability("") is None
