"""The processes that run a program: each is started anew, and ends with what it found or its last lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from opscope.model.files import replacing, scratch_prefix
from opscope.toolchain.programs import signal_name
from opscope.trials.child import remove_folder
from opscope.trials.rounds import TrialRequest, TrialRun

_SAID_LINES = 6
_END_S, _POLL_S = 5.0, 0.05


class ProgramRun:
    """A process that runs the program; it works in a folder of its own, or in this one."""

    def __init__(self, folder: Path, request: TrialRequest, *, in_place: bool) -> None:
        self._folder, self._path, self._output = folder, folder / "request.json", folder / "request.result"
        self._has_ended, work = False, Path.cwd() if in_place else folder / "work"
        self.ask(request)
        work.mkdir(exist_ok=True)
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / "inductor"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            # They lie in the process's own folder: the next one would compile them again.
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
            "TRITON_CACHE_DIR": str(folder.parent / "triton"),
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": str(request.seed),
            "TMPDIR": str(folder),
        }
        with (folder / "said.txt").open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "opscope.trials.child", str(self._path)],
                cwd=work,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ask(self, request: TrialRequest) -> None:
        """Write what it is to do; one that was started early reads it anew."""
        with replacing(self._path) as partial:
            asked = msgspec.structs.replace(request, scratch=str(self._folder.parent))
            partial.write_bytes(msgspec.json.encode(asked))

    @property
    def found(self) -> TrialRun | None:
        """What it has found so far."""
        output = self._output
        return msgspec.msgpack.decode(output.read_bytes(), type=TrialRun) if output.exists() else None

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether its steps are steady, and it checks nothing now."""
        return (found := self.found) is not None and found.is_steady and not found.active

    def result(
        self, limit_s: float, look: Callable[[TrialRun], object] = lambda found: None
    ) -> tuple[TrialRun | None, str]:
        """What it found, None if it left nothing, and the last lines of what it said; it is ended in time.

        `look` is called with what it has found so far, whenever that changes.
        """
        deadline, seen_ns = time.monotonic() + limit_s, 0
        while self._process.poll() is None and time.monotonic() < deadline:
            changed_ns = self._output.stat().st_mtime_ns if self._output.exists() else 0
            if changed_ns != seen_ns and (found := self.found) is not None:
                seen_ns = changed_ns
                look(found)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_S)
        code = self._process.poll()
        self.end()
        lines = (self._folder / "said.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said, found = "\n".join(lines[-_SAID_LINES:]), self.found
        if code is None:
            end = f"no end after {limit_s:.0f} s"
        else:
            end = f"exit code {code}" if code >= 0 else f"ended by {signal_name(-code)} (signal {-code})"
            end = ": ".join([end, *filter(None, [said])])
        remove_folder(self._folder)
        if found is None or (code is None and not found.base_ns):
            return None, end
        if code is None or not (found.is_enough or found.exit_code is not None):
            # It was lost in the middle: what it had found by then is not.
            found.error = end
        return found, said

    def end(self) -> None:
        """End it, and what is left of its group."""
        if self._has_ended:
            return
        self._has_ended = True  # its number may be another's soon
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)


class ProgramRuns:
    def __init__(self, *, in_place: bool) -> None:
        self._in_place = in_place
        self._runs: list[ProgramRun] = []
        self.scratch = Path()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the scratch folder; at the end, whatever ran has ended and the folder is removed."""
        self.scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix()))
        try:
            yield
        finally:
            for run in self._runs:
                run.end()
            remove_folder(self.scratch)

    def start(self, request: TrialRequest) -> ProgramRun:
        """Run the program once more."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        self._runs.append(ProgramRun(folder, request, in_place=self._in_place))
        return self._runs[-1]
