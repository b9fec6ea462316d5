"""The processes that run a program: each ends with what it found, or with the last lines it said.

The first run of a program is a process started anew. It tells which installed packages were imported; one
more process then imports just these and is forked for every later run, so that only the first pays for
imports (6 of 6.7 s where torch and transformers are). A fork is as fresh as a new process as long as nothing
but imports ran before: no thread, and no memory, stream or driver state of a GPU exists yet. The process that
imports checks this and refuses otherwise; a run that sets environment variables for a change starts anew.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from opscope.model.files import scratch_prefix
from opscope.trials.child import ForkedRun, TrialRequest, TrialRun

__all__ = ["ProgramRuns"]

_SAID_LINES = 6
_END_S = 5.0


class ProgramRuns:
    """Runs of a program, one after the other.

    Args:
        in_place: Run in the working folder instead of an empty one.

    Attributes:
        scratch: Holds all that runs write; it exists inside of `open` only.
    """

    def __init__(self, *, in_place: bool) -> None:
        self._in_place = in_place
        self._imported: _Imported | None = None
        self.scratch = Path()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the scratch folder; at the end, whatever ran has ended and the folder is removed."""
        self.scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix()))
        try:
            yield
        finally:
            self.start_anew()
            shutil.rmtree(self.scratch, ignore_errors=True)

    def fork_from(self, modules: Sequence[str], seed: int, limit_s: float) -> None:
        """From now on, fork runs from a process that imports these modules, if it does so in time."""
        if modules and hasattr(os, "fork"):
            self._imported = _Imported(modules, self._environment(seed), self.scratch, limit_s)
            if not self._imported.is_ready:
                self.start_anew()

    def start_anew(self) -> None:
        """From now on, start each run anew."""
        if self._imported is not None:
            self._imported.end()
            self._imported = None

    @property
    def are_forked(self) -> bool:
        """Whether runs are forked from a process that has imported."""
        return self._imported is not None

    def run(
        self, request: TrialRequest, environment: Mapping[str, str], limit_s: float
    ) -> tuple[TrialRun | None, str]:
        """Run it once.

        Args:
            request: What to run.
            environment: Variables of a change.
            limit_s: Time after which it is ended.

        Returns:
            What it found, None if it left nothing; the last lines of what it said.
        """
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            path, output = folder / "request.json", folder / "request.result"
            path.write_bytes(msgspec.json.encode(msgspec.structs.replace(request, scratch=str(self.scratch))))
            work = Path.cwd() if self._in_place else folder / "work"
            work.mkdir(exist_ok=True)
            said = folder / "said.txt"
            variables = self._environment(request.seed) | {"TMPDIR": str(folder)} | dict(environment)
            task = ForkedRun(str(path), str(work), variables, str(said))
            if self._imported is not None and not environment:
                is_over = self._imported.run(task, limit_s)
            else:
                is_over = _run_anew(task, limit_s)
            if not is_over:
                return None, f"no end after {limit_s:.0f} s"
            lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            found = msgspec.msgpack.decode(output.read_bytes(), type=TrialRun) if output.exists() else None
            return found, "\n".join(lines[-_SAID_LINES:])
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _environment(self, seed: int) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": str(seed),
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "inductor"),
            "TRITON_CACHE_DIR": str(self.scratch / "triton"),
        }


def _run_anew(task: ForkedRun, limit_s: float) -> bool:
    """Run it in a new process; whether it ended in time."""
    with Path(task.said).open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "opscope.trials.child", task.request],
            cwd=task.work,
            env=task.environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return False
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            _signal_group(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
    return True


class _Imported:
    """A process that has imported modules, to be forked."""

    def __init__(
        self, modules: Sequence[str], environment: dict[str, str], scratch: Path, limit_s: float
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "opscope.trials.child", "--fork", str(theirs.fileno()), str(scratch)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket, self._received = ours, b""
        self.is_ready = self._ask(list(modules), limit_s) is True

    def run(self, task: ForkedRun, limit_s: float) -> bool:
        """Fork it for a run; whether that ended in time."""
        if not self.is_ready:
            return _run_anew(task, limit_s)
        pid = self._ask(msgspec.to_builtins(task), _END_S)
        if not isinstance(pid, int):
            self.is_ready = False
            return _run_anew(task, limit_s)
        has_ended = False
        try:
            has_ended = self._answer(limit_s) is not None
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                _signal_group(pid, number)
                has_told = has_ended or self._answer(_END_S) is not None
        self.is_ready = has_told
        return has_ended

    def end(self) -> None:
        """End the process."""
        self._socket.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            _signal_group(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def _ask(self, what: Any, limit_s: float) -> Any:
        with suppress(OSError):
            self._socket.sendall(json.dumps(what).encode() + b"\n")
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> Any:
        """The next line; None if none came in time, or none will come."""
        until = time.monotonic() + limit_s
        while b"\n" not in self._received:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                part = self._socket.recv(4096)
            except OSError:
                return None
            if not part:
                return None
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
