"""Running a program: its exit code, the signals that reach it, and what cannot be run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from opscope.cupti import running
from opscope.cupti.running import (
    INJECTION_VARIABLE,
    ProgramRun,
    check_program,
    run_recorded,
    trace_environment,
)
from opscope.errors import CaptureError, InputError


def python(code: str) -> ProgramRun:
    return run_recorded([sys.executable, "-c", code], os.environ)


@pytest.mark.parametrize(
    ("code", "ended"),
    [("raise SystemExit(7)", (7, None)), ("import os; os.kill(os.getpid(), 9)", (137, 9))],
)
def test_the_exit_code_is_that_of_shells(code: str, ended: tuple[int, int | None]) -> None:
    run = python(code)
    assert (run.exit_code, run.signal) == ended


WAITS = "import os, time, pathlib; pathlib.Path({!r}).touch(); time.sleep(20)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_this_process_reaches_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(running, "_is_of_terminal", lambda: False)
    ready = tmp_path / "ready"

    def send() -> None:
        wait_for(ready)
        time.sleep(0.1)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    before = signal.getsignal(number)
    # Python turns SIGINT into an exception; here it is to end by it.
    code = "import signal; signal.signal(2, signal.SIG_DFL); " + WAITS.format(str(ready))
    run = python(code)
    thread.join()
    assert (run.exit_code, run.signal) == (128 + number, number)
    assert signal.getsignal(number) == before


def test_the_terminals_interrupt_is_not_sent_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_is_of_terminal", lambda: True)
    ready, sent = tmp_path / "ready", tmp_path / "sent"

    def send() -> None:
        try:
            wait_for(ready)
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            sent.touch()

    thread = threading.Thread(target=send)
    thread.start()
    # The program outlasts the signal however late that is sent: sent after it, it would end pytest instead.
    run = python(
        f"import pathlib, time; pathlib.Path({str(ready)!r}).touch()\n"
        f"while not pathlib.Path({str(sent)!r}).exists(): time.sleep(0.01)\n"
        "time.sleep(0.2)"
    )
    thread.join()
    assert run.exit_code == 0


def test_from_another_thread_too() -> None:
    runs: list[ProgramRun] = []
    thread = threading.Thread(target=lambda: runs.append(python("raise SystemExit(3)")))
    thread.start()
    thread.join()
    assert runs[0].exit_code == 3


def wait_for(path: Path) -> None:
    """Not for ever: a program that ended before has left none, and no signal is sent then."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.01)


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_programs_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = script(tmp_path / "plain", "", 0o644)
    script(tmp_path / "tool", "#!/bin/sh\n")
    check_program("./tool", None)
    check_program("sh", os.environ["PATH"])
    for name, words in (
        ("./none", r"there is no program './none'"),
        (str(tmp_path), "a folder is not a program"),
        (str(plain), r"may not be executed.*chmod \+x"),
        ("tool", r"on PATH.*\./tool"),
    ):
        with pytest.raises(InputError, match=words):
            check_program(name, "/nowhere")


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    path = script(tmp_path / "text", "no interpreter line")
    with pytest.raises(InputError, match="not a program for this machine"):
        run_recorded([str(path)], os.environ)
    broken = script(tmp_path / "broken", "#!/nowhere/interpreter\n")
    with pytest.raises(CaptureError, match="cannot be started"):
        run_recorded([str(broken)], os.environ)


def test_the_environment_names_recorder_and_folder(tmp_path: Path) -> None:
    made = trace_environment(
        {"A": "b", INJECTION_VARIABLE: ""},
        library=Path("lib.so"),
        cupti=tmp_path / "libcupti.so.13",
        folder=tmp_path,
        with_unified_memory=False,
    )
    assert made == {
        "A": "b",
        INJECTION_VARIABLE: str(Path.cwd() / "lib.so"),
        "OPSCOPE_TRACE_FOLDER": str(tmp_path),
        "OPSCOPE_TRACE_CUPTI": str(tmp_path / "libcupti.so.13"),
        "OPSCOPE_TRACE_UNIFIED": "0",
    }


def test_another_tools_injection_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"another tool records.*nsys\.so"):
        trace_environment(
            {INJECTION_VARIABLE: "/opt/nsys.so"},
            library=tmp_path,
            cupti=tmp_path,
            folder=tmp_path,
            with_unified_memory=True,
        )
