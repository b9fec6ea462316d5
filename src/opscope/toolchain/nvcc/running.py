"""Runs a compiled program, its standard streams its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from opscope.errors import CaptureError

__all__ = ["run_compiled"]

_SIGNALED = 128  # what shells add to the number of the signal that ended a program
_GRACE_S = 10


def run_compiled(
    program: Path, arguments: Sequence[str], environment: Mapping[str, str], *, stdout: int | None = None
) -> int:
    """Run to the end and return the exit code; 128 and its number where a signal ended it.

    Args:
        program: The file.
        arguments: Its own.
        environment: Its own.
        stdout: File descriptor that takes its standard output; this process's own if None.

    Raises:
        CaptureError: It cannot be started.
    """
    command = [str(program.resolve()), *arguments]
    try:
        process = subprocess.Popen(command, stdout=stdout, env=dict(environment))
    except OSError as error:
        raise CaptureError(f"the program cannot be started ({error.strerror})", source=program) from error
    try:
        code = process.wait()
    except KeyboardInterrupt:
        # The terminal sent the interrupt to the program too.
        _end(process)
        raise
    return _SIGNALED - code if code < 0 else code


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for an interrupted program, and end it if it goes on."""
    for end in (None, process.terminate, process.kill):
        if end is not None:
            end()
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(_GRACE_S)
            return
