"""Runs a program with the recorder in its environment, as the shell would have run it.

Its standard streams are its own, its exit code is passed on, and signals that are meant for it reach it: what
ends this process alone is handed on, and Ctrl-C, which the terminal sends to both, ends only the program.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from opscope.errors import CaptureError, InputError

INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True)
class ProgramRun:
    """How a program ended."""

    process: int
    exit_code: int  # as a shell reports it: 128 and the signal's number for one that a signal ended
    signal: int | None = None


def check_program(name: str, search_path: str | None) -> None:
    """Raise an InputError unless there is such a program: a path, or a name to be searched for."""
    if shutil.which(name, path=search_path) is not None:
        return
    path = Path(name)
    if path.is_dir():
        raise InputError("a folder is not a program", source=name)
    if path.is_file() and os.sep not in name:
        raise InputError(f"there is no program '{name}' on PATH", hint=f"A file of this folder is ./{name}")
    if path.is_file():
        raise InputError("the file may not be executed", source=name, hint=f"chmod +x {name}")
    raise InputError(f"there is no program '{name}'", hint="opscope trace -- ./program ARGS")


def trace_environment(
    environment: Mapping[str, str],
    *,
    library: Path,
    cupti: Path,
    folder: Path,
    with_unified_memory: bool,
    most_bytes: int | None = None,
) -> dict[str, str]:
    """The environment of a recorded program."""
    other = environment.get(INJECTION_VARIABLE)
    if other:
        raise CaptureError(
            f"another tool records CUDA programs here ({INJECTION_VARIABLE} is {other})",
            hint=f"CUDA takes one such library: end the other tool, or unset {INJECTION_VARIABLE}",
        )
    return {
        **environment,
        INJECTION_VARIABLE: str(library.absolute()),
        "OPSCOPE_TRACE_FOLDER": str(folder.absolute()),
        "OPSCOPE_TRACE_CUPTI": str(cupti.absolute()),
        "OPSCOPE_TRACE_UNIFIED": "1" if with_unified_memory else "0",
        **({} if most_bytes is None else {"OPSCOPE_TRACE_MOST_BYTES": str(max(1, most_bytes))}),
    }


def run_recorded(
    command: Sequence[str], environment: Mapping[str, str], *, stdout: int | None = None
) -> ProgramRun:
    """Run a program to its end."""
    with _forwarding() as forward_to:
        try:
            process = subprocess.Popen(list(command), env=dict(environment), stdout=stdout)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                raise InputError(
                    "not a program for this machine", source=command[0], hint="A script begins with #!"
                ) from error
            raise CaptureError(
                f"the program cannot be started ({error.strerror})", source=command[0]
            ) from error
        forward_to(process)
        code = process.wait()
    if code < 0:
        return ProgramRun(process.pid, 128 - code, -code)
    return ProgramRun(process.pid, code)


def _is_of_terminal() -> bool:
    """Whether the terminal, where there is one, sends its signals to the program too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def _forwarding() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Inside the block signals that end a program go to the one that is named. In the main thread only.

    Those that come before there is one are handed on when there is.
    """
    processes: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        if not processes:
            early.append(number)
        elif not (number in (signal.SIGINT, signal.SIGQUIT) and _is_of_terminal()):
            with suppress(OSError):
                processes[0].send_signal(number)

    def forward_to(process: subprocess.Popen[bytes]) -> None:
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
        yield forward_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
