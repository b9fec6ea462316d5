"""The processes that run a program: each ends with what it found, or with the last lines it said.

The first run of a program is a process started anew. It tells which installed packages were imported (6 of
6.7 s where torch and transformers are). Later runs have them imported already: they are forked from one more
process that imports just these, or, of a program that uses a GPU, some are made ahead: they import while
another run starts, pause while its steps are timed, and become a run each. A fork is as fresh as a new
process as long as nothing but imports ran before: no thread, and no memory, stream or driver state of a GPU
exists yet. The process that imports checks this and refuses otherwise; a run that sets environment variables
for a change starts anew.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from opscope.model.files import scratch_prefix
from opscope.toolchain.programs import signal_name
from opscope.trials.child import QUIET_FILE, ForkedRun, TrialRequest, TrialRun, remove_folder

_SAID_LINES = 6
_END_S = 5.0
_MOST_AHEAD = 4
_IMPORTED_BYTES = 2 << 30  # generously, of a process that has imported torch and more


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
        self._make: Callable[[], _Imported] | None = None
        self._ahead: list[_Imported] = []
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
            self._imported = _Imported(modules, self._environment(seed), self.scratch, limit_s, forks=True)

    def make_ahead(self, modules: Sequence[str], seed: int, limit_s: float) -> None:
        """From now on, have processes import these modules before their runs, several side by side."""
        if modules:
            self._make = partial(
                _Imported, modules, self._environment(seed), self.scratch, limit_s, forks=False
            )
            self._fill()

    def _fill(self) -> None:
        if self._make is not None:
            self._ahead += [self._make() for _ in range(_count_ahead() - len(self._ahead))]

    def _next_ahead(self) -> _Imported | None:
        """A process made ahead; another one begins to import, until this one's steps are timed."""
        if self._make is None:
            return None
        found = self._ahead.pop(0)
        if not found.is_ready:
            found.end()
            self.start_anew()
            return None
        self._fill()
        return found

    def start_anew(self) -> None:
        """From now on, start each run anew."""
        for one in [*self._ahead, *([self._imported] if self._imported else [])]:
            one.end()
        self._ahead, self._imported, self._make = [], None, None

    @property
    def are_forked(self) -> bool:
        """Whether runs are forked from a process that has imported."""
        if self._imported is not None and not self._imported.is_ready:
            self.start_anew()
        return self._imported is not None

    @property
    def have_imported(self) -> bool:
        """Whether runs begin where imports have been made: forked, or in a process made ahead."""
        return self.are_forked or self._make is not None

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
            (self.scratch / QUIET_FILE).unlink(missing_ok=True)
            imported = None if environment else self._imported or self._next_ahead()
            end = _run_anew(task, limit_s) if imported is None else imported.run(task, limit_s)
            lines = _lines_of(task)[-_SAID_LINES:]
            if output.exists() and end is not None:
                return msgspec.msgpack.decode(output.read_bytes(), type=TrialRun), "\n".join(lines)
            return None, _told(end, limit_s, lines)
        finally:
            (self.scratch / QUIET_FILE).unlink(missing_ok=True)
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


def _count_ahead() -> int:
    """How many processes may import side by side: a quarter of the cores, as far as memory reaches."""
    has_pages = "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", ())
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if has_pages else 0
    return max(1, min(_MOST_AHEAD, (os.cpu_count() or 2) // 4, free_bytes // _IMPORTED_BYTES))


class _Imported:
    """A process that imports modules, to be forked for runs or to become one.

    Args:
        modules: To import; it does so while this one goes on.
        environment: Of the process.
        scratch: Folder to remove if this process dies.
        limit_s: Time to import.
        forks: It is forked for each run; else it becomes one.
    """

    def __init__(
        self,
        modules: Sequence[str],
        environment: dict[str, str],
        scratch: Path,
        limit_s: float,
        *,
        forks: bool,
    ) -> None:
        ours, theirs = socket.socketpair()
        how = "--fork" if forks else "--become"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "opscope.trials.child", how, str(theirs.fileno()), str(scratch)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket, self._received, self._forks = ours, b"", forks
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
        if not self.is_ready:
            return _run_anew(task, limit_s)
        return self._fork(task, limit_s) if self._forks else self._become(task, limit_s)

    def _become(self, task: ForkedRun, limit_s: float) -> int | None:
        self._tell(msgspec.to_builtins(task))
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.end()

    def _fork(self, task: ForkedRun, limit_s: float) -> int | None:
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
        self._socket.close()
        _end_group(self._process)

    def _tell(self, what: Any) -> None:
        with suppress(OSError):
            self._socket.sendall(json.dumps(what).encode() + b"\n")

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


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and what is left of its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal_group(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
