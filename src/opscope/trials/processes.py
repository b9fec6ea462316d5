"""The processes that run a program: each ends with what it found, or with the last lines it said.

The first run of a program is a process started anew. It tells which installed packages were imported (6 of
6.7 s where torch and transformers are). Later runs of a program that uses no GPU have them imported already:
they are forked from one more process that imports just these. A fork is as fresh as a new process as long as
nothing but imports ran before: no thread, and no driver state of a GPU exists yet. The process that imports
checks this and refuses otherwise; a run that sets environment variables for a change starts anew.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import msgspec

from opscope.model.files import scratch_prefix
from opscope.toolchain.programs import signal_name
from opscope.trials.child import ForkedRun, TrialRequest, TrialRun, remove_folder

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
            remove_folder(self.scratch)

    def fork_from(self, modules: Sequence[str], seed: int, limit_s: float) -> None:
        """From now on, fork runs from a process that imports these modules, if it does so in time."""
        if modules and hasattr(os, "fork"):
            self._imported = _Imported(modules, self._environment(seed), self.scratch, limit_s)

    def start_anew(self) -> None:
        """From now on, start each run anew."""
        if self._imported is not None:
            self._imported.end()
        self._imported = None

    @property
    def are_forked(self) -> bool:
        """Whether runs are forked from a process that has imported."""
        if self._imported is not None and not self._imported.is_ready:
            self.start_anew()
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
            task, output = self._task(folder, request.seed, environment), folder / "request.result"
            asked = msgspec.structs.replace(request, scratch=str(self.scratch))
            Path(task.request).write_bytes(msgspec.json.encode(asked))
            imported = self._imported if self.are_forked and not environment else None
            end = _run_anew(task, limit_s) if imported is None else imported.run(task, limit_s)
            lines = _lines_of(task)[-_SAID_LINES:]
            if output.exists() and end is not None:
                return msgspec.msgpack.decode(output.read_bytes(), type=TrialRun), "\n".join(lines)
            return None, _told(end, limit_s, lines)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def record(self, arguments: Sequence[str], request: TrialRequest, limit_s: float) -> str:
        """Run `opscope` with these arguments as the program of a request is run; the last line it said."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        paths = [request.origin, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            task = self._task(folder, request.seed, {"PYTHONPATH": os.pathsep.join(paths)})
            code = _run_anew(task, limit_s, ["--record", str(self.scratch), *arguments])
            return _told(code, limit_s, _lines_of(task)[-1:])
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _task(self, folder: Path, seed: int, environment: Mapping[str, str]) -> ForkedRun:
        """A run that leaves everything in a folder."""
        work = Path.cwd() if self._in_place else folder / "work"
        work.mkdir(exist_ok=True)
        variables = self._environment(seed) | {"TMPDIR": str(folder)} | dict(environment)
        return ForkedRun(str(folder / "request.json"), str(work), variables, str(folder / "said.txt"))

    def _environment(self, seed: int) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": str(seed),
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "inductor"),
            "TRITON_CACHE_DIR": str(self.scratch / "triton"),
        }


def _lines_of(task: ForkedRun) -> list[str]:
    """What it said."""
    return Path(task.said).read_text(encoding="utf-8", errors="replace").strip().splitlines()


def _told(code: int | None, limit_s: float, said: Sequence[str]) -> str:
    """How a run that left nothing ended, and the last lines it said."""
    if code is None:
        return f"no end after {limit_s:.0f} s"
    end = f"exit code {code}" if code >= 0 else f"ended by {signal_name(-code)} (signal {-code})"
    return ": ".join([end, *filter(None, ["\n".join(said)])])


def _run_anew(task: ForkedRun, limit_s: float, arguments: Sequence[str] | None = None) -> int | None:
    """Run it in a new process; its exit code (less than 0: a signal), None if it did not end in time."""
    with Path(task.said).open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "opscope.trials.child", *(arguments or [task.request])],
            cwd=task.work,
            env=task.environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end_group(process)


class _Imported:
    """A process that imports modules, to be forked for runs.

    Args:
        modules: To import; it does so while this one goes on.
        environment: Of the process.
        scratch: Folder to remove if this process dies.
        limit_s: Time to import.
    """

    def __init__(
        self, modules: Sequence[str], environment: dict[str, str], scratch: Path, limit_s: float
    ) -> None:
        self._connection, theirs = Pipe()
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
        self._until = time.monotonic() + limit_s
        self._is_ready: bool | None = None
        self._tell(list(modules))

    @property
    def is_ready(self) -> bool:
        """Whether it has imported, and can run; waits for that."""
        if self._is_ready is None:
            self._is_ready = self._answer(self._until - time.monotonic()) is True
        return self._is_ready

    def run(self, task: ForkedRun, limit_s: float) -> int | None:
        """Run it; as `_run_anew`."""
        self._tell(msgspec.to_builtins(task))
        pid = self._answer(_END_S)
        if not isinstance(pid, int):
            self._is_ready = False
            return _run_anew(task, limit_s)
        code: int | None = None
        told = None
        try:
            code = told = self._answer(limit_s)
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                _signal_group(pid, number)
                told = self._answer(_END_S) if told is None else told
        self._is_ready = told is not None
        if not self._is_ready:  # it was ended itself, and the run with it
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(_END_S)
        return code

    def end(self) -> None:
        """End the process."""
        self._connection.close()
        _end_group(self._process)

    def _tell(self, what: Any) -> None:
        with suppress(OSError):
            self._connection.send(what)

    def _answer(self, limit_s: float) -> Any:
        """What comes next; None if nothing came in time, or nothing will come."""
        with suppress(OSError, EOFError):
            return self._connection.recv() if self._connection.poll(max(0.0, limit_s)) else None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and what is left of its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal_group(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
