"""Finding and running programs: what they do, and the signals that reach those on this terminal."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from opscope.errors import CaptureError, InputError
from opscope.toolchain import programs
from opscope.toolchain.programs import AttachedExit, run_attached, run_program


def _script(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def test_what_a_program_says_and_how_it_ends(tmp_path):
    end = run_program(
        [_script(tmp_path, "tool", 'echo "out $X"; echo err >&2; exit 3')],
        timeout_s=20,
        environment={"X": "1"},
    )
    assert (end.exit_code, end.out, end.err, end.failure) == (3, "out 1\n", "err\n", None)
    assert not end.succeeded


def test_a_program_runs_without_input():
    end = run_program(["/bin/sh", "-c", "cat; echo end"], timeout_s=20)
    assert (end.succeeded, end.out) == (True, "end\n")


def test_a_program_that_hangs_is_killed_with_its_children_and_keeps_its_words():
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    code = f"import subprocess, sys, time; print('so far', flush=True); {child}; time.sleep(60)"
    start = time.monotonic()
    end = run_program([sys.executable, "-c", code], timeout_s=1.5)
    assert end.exit_code is None
    assert end.failure == "did not end within 1.5 s"
    assert end.out == "so far\n"
    assert time.monotonic() - start < 30


def python(code):
    return run_attached([sys.executable, "-c", code], "the program", sys.executable)


@pytest.mark.parametrize(
    ("code", "ended"), [("raise SystemExit(7)", (7, 7)), ("import os; os.kill(os.getpid(), 9)", (137, -9))]
)
def test_the_exit_code_is_that_of_shells(code, ended):
    run = python(code)
    assert (run.shell_code, run.exit_code) == ended


WAITS = "import os, time, pathlib; pathlib.Path({!r}).touch(); time.sleep(20)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_this_process_reaches_the_program(tmp_path, monkeypatch, number):
    monkeypatch.setattr(programs, "_is_of_terminal", lambda: False)
    ready = tmp_path / "ready"

    def send():
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
    assert (run.shell_code, run.was_interrupted) == (128 + number, True)
    assert signal.getsignal(number) == before


def test_the_terminals_interrupt_is_not_sent_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_is_of_terminal", lambda: True)
    ready, sent = tmp_path / "ready", tmp_path / "sent"

    def send():
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
    assert run == AttachedExit(0, was_interrupted=True)


def wait_for(path):
    """Not for ever: a program that ended before has left none, and no signal is sent then."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.01)


def test_a_file_that_is_no_program(tmp_path):
    path = Path(_script(tmp_path, "text", ""))
    path.write_text("no interpreter line")
    with pytest.raises(InputError, match="not a program for this machine"):
        run_attached([str(path)], "the program", path)
    broken = Path(_script(tmp_path, "broken", ""))
    broken.write_text("#!/nowhere/interpreter\n")
    with pytest.raises(CaptureError, match="cannot be started"):
        run_attached([str(broken)], "the program", broken)


def test_a_crash_is_a_negative_code_and_other_bytes_are_replaced():
    end = run_program([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], timeout_s=20)
    assert end.exit_code == -11
    end = run_program(["/bin/sh", "-c", r"printf '\377ok'"], timeout_s=20)
    assert end.out == "\ufffdok"
