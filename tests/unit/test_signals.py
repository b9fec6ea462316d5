"""SIGTERM and SIGHUP are errors inside the block, and what they were outside of it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from opscope import signals

ENDING = [signal.SIGTERM, signal.SIGHUP]


def send(number):
    os.kill(os.getpid(), number)
    time.sleep(1)  # a handler runs before the sleep is over, and ends it


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_raises_and_is_remembered_until_the_block_ends(number):
    with signals.ending_signals_raise():
        with pytest.raises(signals.Terminated):
            send(number)
        assert signals.interrupted_by() == number
    assert signals.interrupted_by() == signal.SIGINT
    assert signal.getsignal(number) is signal.SIG_DFL


def test_it_ends_a_program_as_ctrl_c_does_also_through_an_error():
    assert issubclass(signals.Terminated, KeyboardInterrupt)
    assert not issubclass(signals.Terminated, Exception)
    # As an import does that is interrupted.
    error = ImportError("cannot import")
    assert not signals.is_of_signal(error)
    error.__cause__ = KeyboardInterrupt()
    assert signals.is_of_signal(error)


def test_the_innermost_block_says_what_is_raised():
    with signals.ending_signals_raise():
        with (
            pytest.raises(SystemExit, match="143"),
            signals.ending_signals_raise(lambda number: SystemExit(128 + number)),
        ):
            send(signal.SIGTERM)
        with pytest.raises(signals.Terminated):
            send(signal.SIGTERM)


def test_handlers_of_others_and_ignored_signals_stay():
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.ending_signals_raise():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.01)
        assert got == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, ignored)


def test_a_handler_that_is_set_inside_the_block_stays():
    def own(number, frame):
        pass

    try:
        with signals.ending_signals_raise():
            signal.signal(signal.SIGTERM, own)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_in_another_thread_nothing_is_taken():
    seen = []

    def work():
        with signals.ending_signals_raise():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_forked_process_ends_by_the_signal_itself():
    script = Path(__file__).with_name("signal_in_a_fork.py.txt")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "-15\n"


@pytest.mark.parametrize("is_printed", [False, True])
def test_errors_of_signals_on_the_way_into_a_callback_are_not_printed(tmp_path, *, is_printed):
    error = "ValueError('of its own')" if is_printed else "Terminated(15)"
    script, text = tmp_path / "calls.py", Path(__file__).with_name("signal_in_a_callback.py.txt").read_text()
    script.write_text(text.format(error=error))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr.count("\nSystemError") == (2 if is_printed else 0), done.stderr


def test_a_signal_whose_error_is_lost_still_ends_the_block():
    """What it raised on the way into a callback reaches nobody; the engine's own error follows."""
    error = RuntimeError("INTERRUPT Error: Interrupted!")
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        with signals.signals_interrupt():
            assert not signals.is_of_signal(error)
            send(signal.SIGTERM)
            assert signals.is_of_signal(error)
            assert signals.interrupted_by() == signal.SIGTERM
            with pytest.raises(KeyboardInterrupt):
                signals.raise_if_interrupted(error)
        assert not signals.is_of_signal(error)
        signals.raise_if_interrupted(error)
    finally:
        signal.signal(signal.SIGTERM, before)
