"""Finds a program and runs it to its end or its time limit, whatever it does.

No function raises for what a program does: missing, not executable, silent, crashing or hanging are
values. A program that its own kill does not end (a hanging driver) is left behind after a moment.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from opscope.errors import CaptureError
from opscope.signals import Terminated

_AFTER_KILL_S = 2.0


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

    exit_code: int
    was_interrupted: bool = False  # by the user; it was given time to write what it had


def find_program(name: str, search_path: str | None, places: Sequence[str] = ()) -> str | None:
    """Path of a program on a search path (this process's if None), else the last by name of glob patterns."""
    found = shutil.which(name, path=search_path)
    if found is not None:
        return found
    for place in places:
        path = Path(place)
        for candidate in sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))), reverse=True):
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return str(candidate)
    return None


def run_program(
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ProgramExit:
    """Run a command without input and collect what it writes; at the limit all that it started is killed."""
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        return ProgramExit(None, "", "", f"cannot be started: {error.strerror or error}")
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as expired:
        _kill(process)
        written: tuple[bytes | None, bytes | None]
        try:
            written = process.communicate(timeout=_AFTER_KILL_S)
        except subprocess.TimeoutExpired as again:
            # Inside a system call that does not return. Nothing more can be done from here.
            written = again.output or expired.output, again.stderr or expired.stderr
        failure = f"did not end within {timeout_s:g} s"
        return ProgramExit(None, _text(written[0]), _text(written[1]), failure)
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
    grace_s: float = 10.0,  # to end when interrupted, before it is asked to, and then made to
) -> AttachedExit:
    """Run a command on this process's own terminal to its end, also after Ctrl-C."""
    try:
        process = subprocess.Popen(
            list(command), stdout=stdout, env=None if environment is None else dict(environment)
        )
    except OSError as error:
        raise CaptureError(f"{what} cannot be started ({error.strerror})", source=source) from error
    try:
        return AttachedExit(process.wait())
    except KeyboardInterrupt as error:
        # A terminal sent the interrupt to the program too, unlike who ends this process alone.
        for end in (None, process.terminate, process.kill)[isinstance(error, Terminated) :]:
            if end is not None:
                end()
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                return AttachedExit(process.wait(grace_s), was_interrupted=True)
        return AttachedExit(process.wait(), was_interrupted=True)


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
