"""Running a program once more, without a recorder, to time its steps.

In a process of its own, for the first run has left its modules, caches and compiled kernels behind. What the
program prints there is dropped. Importing this module does not import torch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from opscope.capture.program import Program, ProgramEnd, run_program
from opscope.capture.program_recorder import StepSource, program_of, step_imports, step_source
from opscope.capture.step_clock import StepClock
from opscope.errors import CaptureError
from opscope.model.files import scratch_prefix, write_text
from opscope.model.sidecar import StepPlace, UnrecordedStep


class ProgramTimer:
    """Runs one program and times the steps that a source recognizes."""

    def __init__(self, source: StepSource) -> None:
        self._source = source
        self._clock = StepClock(StepPlace.SECOND_RUN)
        self._step_count = 0
        self._has_torch = False

    def run(self, program: Program) -> tuple[UnrecordedStep, ...]:
        """The samples of its steps; those of its warm-up are among them.

        Raises:
            InputError: It cannot be run.
            CaptureError: It failed.
        """
        ends: list[ProgramEnd] = []
        with step_imports(self._source, self._torch_imported):
            run_program(program, lambda: None, ends.append)
        if self._has_torch:
            self._source.stop()
            self._clock.stop()
        if ends[0].exit_code:
            raise CaptureError(f"the second run of the program ended with exit code {ends[0].exit_code}")
        return self._clock.read()

    def _torch_imported(self, torch: ModuleType) -> None:
        self._has_torch = True
        self._clock.start()
        self._source.watch(self._step)

    def _step(self) -> None:
        self._step_count += 1
        self._clock.mark(self._step_count)


def time_second_run(
    script: str, arguments: Sequence[str], *, steps: str, is_module: bool
) -> tuple[UnrecordedStep, ...]:
    """Run a program in a process of its own, and the samples of its steps.

    Args:
        script: What to run, as `opscope run` takes it.
        arguments: Of the script.
        steps: What ends a step, as `step_source` takes it.
        is_module: The script is the name of a module.

    Raises:
        CaptureError: It failed.
    """
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        output = Path(folder) / "steps.json"
        command = [sys.executable, "-m", __name__, str(output), steps, "-m" if is_module else "-"]
        done = subprocess.run(
            [*command, script, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        if not output.exists():
            said = done.stderr.strip().splitlines()
            raise CaptureError(
                f"the second run of the program failed with exit code {done.returncode}"
                + (f" ({said[-1]})" if said else "")
            )
        return msgspec.json.decode(output.read_bytes(), type=tuple[UnrecordedStep, ...])


def main(arguments: Sequence[str]) -> int:
    """The other end of `time_second_run`."""
    output, steps, kind, script, *rest = arguments
    # Before the program may change the working folder.
    target = Path(output).absolute()
    source = step_source(steps)
    assert source is not None
    program, source = program_of(script, tuple(rest), source, is_module=kind == "-m")
    assert source is not None
    samples = ProgramTimer(source).run(program)
    write_text(target, msgspec.json.encode(samples).decode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
