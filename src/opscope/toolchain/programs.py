"""Runs a program to its end or its time limit, whatever it does.

What a program does that is run for its answer raises nothing: missing, not executable, silent, crashing or
hanging are values. A program that its own kill does not end (a hanging driver) is left behind after a moment.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec

from opscope.errors import CaptureError, InputError

_AFTER_KILL_S = 2.0
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class ProgramExit(msgspec.Struct, frozen=True):
    """How a program ended, and what it wrote as far as it came."""

    exit_code: int | None  # negative for a signal; None where it did not start or did not end in time
    out: str
    err: str
    failure: str | None = None  # why there is no exit code

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0


class AttachedExit(NamedTuple):
    """How a program on this process's terminal ended."""

    exit_code: int  # negative for a signal
    was_interrupted: bool = False  # a signal that ends programs came meanwhile

    @property
    def shell_code(self) -> int:
        """As a shell reports it: 128 and the signal's number for one that a signal ended."""
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code


def run_program(
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> ProgramExit:
    """Run a command without input and collect what it writes; at the limit all that it started is killed."""
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return ProgramExit(None, "", "", f"cannot be started: {error.strerror or error}")
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as expired:
        _kill(process)
        try:
            out, err = process.communicate(timeout=_AFTER_KILL_S)
        except subprocess.TimeoutExpired as again:
            # Inside a system call that does not return. Nothing more can be done from here.
            out, err = again.output or expired.output, again.stderr or expired.stderr or b""
        return ProgramExit(None, _text(out), _text(err), f"did not end within {timeout_s:g} s")
    except BaseException:
        _kill(process)
        raise
    return ProgramExit(process.returncode, _text(out), _text(err))


def run_attached(
    command: Sequence[str],
    what: str,
    source: str | Path,
    *,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
) -> AttachedExit:
    """Run a command on this process's own terminal to its end, as the shell would have run it.

    Signals that are meant for it reach it: what ends this process alone is handed on, and Ctrl-C, which the
    terminal sends to both, ends only the command.
    """
    with _forwarding() as (forward_to, came):
        try:
            process = subprocess.Popen(list(command), stdout=stdout, env=environment)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                raise InputError(
                    "not a program for this machine", source=source, hint="A script begins with #!"
                ) from error
            raise CaptureError(f"{what} cannot be started ({error.strerror})", source=source) from error
        forward_to(process)
        return AttachedExit(process.wait(), was_interrupted=bool(came))


def _is_of_terminal() -> bool:
    """Whether the terminal, where there is one, sends its signals to the program too."""
    with suppress(OSError), Path("/dev/tty").open("rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


@contextmanager
def _forwarding() -> Iterator[tuple[Callable[[subprocess.Popen[bytes]], None], list[int]]]:
    """Inside the block signals that end a program go to the one that is named. In the main thread only.

    Those that come before there is one are handed on when there is; the list has all that came.
    """
    processes: list[subprocess.Popen[bytes]] = []
    came: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        came.append(number)
        if processes and not (number in (signal.SIGINT, signal.SIGQUIT) and _is_of_terminal()):
            with suppress(OSError):
                processes[0].send_signal(number)

    def forward_to(process: subprocess.Popen[bytes]) -> None:
        early = tuple(came)
        processes.append(process)
        for number in early:
            process.send_signal(number)

    before = {}
    for number in _FORWARDED:
        with suppress(ValueError):  # not the main thread, which alone may handle signals
            # One that is ignored (nohup) stays so, for the program too.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, forward)
    try:
        yield forward_to, came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", errors="replace")


def signal_name(number: int) -> str:
    """`SIGTERM` of 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
