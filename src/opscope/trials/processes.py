"""The processes that run a program: each is started anew, and ends with what it found or its last lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from opscope.model.files import scratch_prefix
from opscope.toolchain.programs import signal_name
from opscope.trials.child import remove_folder
from opscope.trials.rounds import TrialRequest, TrialRun

_SAID_LINES = 6
_END_S = 5.0


class ProgramRuns:
    def __init__(self, *, in_place: bool) -> None:
        self._in_place = in_place
        self.scratch = Path()
        self.unfinished: TrialRun | None = None  # what the process had found that was interrupted

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the scratch folder; at the end, whatever ran has ended and the folder is removed."""
        self.scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix()))
        try:
            yield
        finally:
            remove_folder(self.scratch)

    def run(
        self, request: TrialRequest, environment: Mapping[str, str], limit_s: float
    ) -> tuple[TrialRun | None, str]:
        """Run it once, with the variables of a change, and end it after so many seconds.

        What it found, None if it left nothing; and the last lines of what it said.
        """
        with tempfile.TemporaryDirectory(dir=self.scratch, ignore_cleanup_errors=True) as folder:
            path = Path(folder, "request.json")
            path.write_bytes(msgspec.json.encode(msgspec.structs.replace(request, scratch=str(self.scratch))))
            output = path.with_suffix(".result")
            try:
                code, lines = self._process(path, request.seed, environment, limit_s)
            except KeyboardInterrupt:
                self.unfinished = None if request.is_constant else found_in(output)
                raise
            found = found_in(output)
            if found is None or (code is None and not found.base_ns):
                return None, _told(code, limit_s, lines)
            if code is None or not (found.is_enough or found.exit_code is not None):
                # It was lost in the middle: what it had found by then is not.
                found.error = _told(code, limit_s, lines)
            return found, "\n".join(lines)

    def _process(
        self, request: Path, seed: int, environment: Mapping[str, str], limit_s: float
    ) -> tuple[int | None, list[str]]:
        """The exit code of `child` (less than 0: a signal; None: no end in time), and its last lines."""
        folder = request.parent
        work, said = Path.cwd() if self._in_place else folder / "work", folder / "said.txt"
        work.mkdir(exist_ok=True)
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "inductor"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            # They lie in the process's own folder: the next one would compile them again.
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
            "TRITON_CACHE_DIR": str(self.scratch / "triton"),
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": str(seed),
            "TMPDIR": str(folder),
            **environment,
        }
        with said.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "opscope.trials.child", str(request)],
                cwd=work,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
        finally:  # what is left of its group ends too
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return code, lines[-_SAID_LINES:]


def found_in(output: Path) -> TrialRun | None:
    return msgspec.msgpack.decode(output.read_bytes(), type=TrialRun) if output.exists() else None


def _told(code: int | None, limit_s: float, said: Sequence[str]) -> str:
    """How a run that left nothing ended, and the last lines it said."""
    if code is None:
        return f"no end after {limit_s:.0f} s"
    end = f"exit code {code}" if code >= 0 else f"ended by {signal_name(-code)} (signal {-code})"
    return ": ".join([end, *filter(None, ["\n".join(said)])])
