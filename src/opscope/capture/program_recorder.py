"""Recording a program that knows nothing of it, by the steps a source recognizes.

The program's start and its first step come before the schedule: models are built, kernels compiled and CUDA
started there, by the program itself and in its own order. Nothing here may end the program: what goes wrong
is kept and told afterwards. A profiler of the program's own always wins. Importing this module does not
import torch.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from opscope.capture.cycle import Cycle
from opscope.capture.import_hook import after_import
from opscope.capture.profiler import Profiler
from opscope.capture.program import Program, ProgramEnd, run_program
from opscope.capture.step_sources import FunctionSteps, StepSource
from opscope.errors import CaptureError
from opscope.workloads.runtime import require_torch

__all__ = ["ProgramRecorder"]

# Through these every profiler of torch starts.
_TORCH_STARTS = ("_prepare_profiler", "_enable_profiler")


class ProgramRecorder:
    """Runs one program and records it.

    Args:
        profiler: What records, not yet entered; made with `keep_on_error`.
        source: What ends a step; None records the whole run as one step.

    Attributes:
        step_count: Steps recognized before the recording was over.
        notes: What a user should know of the recording, in order.
    """

    def __init__(self, profiler: Profiler, source: StepSource | None) -> None:
        self.step_count = 0
        self.notes: list[str] = []
        self._profiler = profiler
        self._source = source
        self._process = os.getpid()
        self._is_entered = False
        self._is_over = False
        self._is_own = False
        self._has_torch = False
        self._originals: dict[str, Any] = {}
        profiler.give_way = self._give_way

    @property
    def cycles(self) -> list[Cycle]:
        """The cycles recorded."""
        return self._profiler.cycles

    @property
    def is_child(self) -> bool:
        """Whether this is a process that the program forked off, which has nothing recorded."""
        return os.getpid() != self._process

    def run(self, program: Program) -> ProgramEnd:
        """Run the program to its end and write what was recorded.

        Raises:
            InputError: It cannot be run; or, without a source, a file is in the way.
            CaptureError: Without a source, a profiler is running already.
        """
        callbacks: dict[str, Callable[[ModuleType], None]] = {"torch": self._torch_imported}
        if isinstance(self._source, FunctionSteps) and self._source.module != "__main__":
            callbacks[self._source.module] = self._source.wrap_in
        try:
            with after_import(callbacks):
                return run_program(program, self._start, self._end)
        finally:
            self._unwatch()

    def require_cycles(self) -> None:
        """Return if anything was recorded.

        Raises:
            CaptureError: Nothing was; says why.
        """
        if self.cycles:
            return
        if self.notes:
            raise CaptureError(f"nothing was recorded: {self.notes[-1]}")
        if not self._has_torch:
            raise CaptureError("nothing was recorded: the program did not import torch")
        assert self._source is not None
        schedule = self._profiler.schedule
        before = 1 + schedule.wait + schedule.warmup
        made = "no step was" if not self.step_count else f"{_steps(self.step_count)} only"
        raise CaptureError(
            f"nothing was recorded: {made} recognized ({self._source.what}), and recording starts after "
            f"{_steps(before)}",
            hint=self._source.hint if not self.step_count else "Use fewer --wait and --warmup steps",
        )

    def _torch_imported(self, torch: ModuleType) -> None:
        self._has_torch = True
        starts = importlib.import_module("torch.autograd.profiler")
        for name in _TORCH_STARTS:
            if hasattr(starts, name):
                self._originals[name] = getattr(starts, name)
                setattr(starts, name, self._giving_way(self._originals[name]))
        if self._source is not None:
            self._source.watch(self._step)

    def _giving_way(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def start_foreign(*args: Any, **kwargs: Any) -> Any:
            if not self._is_own:
                self._give_way()
            return start(*args, **kwargs)

        return start_foreign

    def _give_way(self) -> None:
        """End the recording because the program starts one of its own."""
        if self.is_child or self._is_over:
            return
        self.notes.append(
            "the program started a profiler of its own, so recording ended there; analyze the trace it writes"
        )
        self._finish(None)

    def _step(self) -> None:
        if self.is_child or self._is_over:
            return
        self.step_count += 1
        with self._own():
            if not self._is_entered:
                self._enter()
                return
            self._profiler.step()
        # Leave at once: the program may want a profiler of its own, and needs to be watched no longer.
        if not self._is_over and self.step_count > self._profiler.total_steps:
            self._finish(None)

    def _start(self) -> None:
        """Without a source, start with the program's first line; what is in the way ends it before that."""
        if self._source is None:
            self._is_own = True
            require_torch()
            self._enter()
            self._is_own = False

    def _enter(self) -> None:
        self._profiler.__enter__()
        self._is_entered = True

    def _end(self, end: ProgramEnd) -> None:
        if self.is_child or self._is_over:
            return
        self._finish(end.error)
        if self._profiler.lost is not None:
            self.notes.append(f"the open window could not be saved ({self._profiler.lost})")

    def _finish(self, error: BaseException | None) -> None:
        self._is_over = True
        if self._is_entered:
            with self._own():
                self._leave(error)
        self._unwatch()

    def _unwatch(self) -> None:
        """Leave torch as it was."""
        if self._source is not None and self._has_torch:
            self._source.stop()
        originals, self._originals = self._originals, {}
        for name, original in originals.items():
            setattr(importlib.import_module("torch.autograd.profiler"), name, original)

    def _leave(self, error: BaseException | None) -> None:
        if error is None and not self.cycles and not self._profiler.is_recording:
            # Having recorded nothing is told by `require_cycles`, with what can be done about it.
            error = CaptureError("nothing was recorded")
        self._profiler.__exit__(None if error is None else type(error), error, None)

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Inside the block a start of torch's profiler is ours; an error becomes a note and ends it all."""
        self._is_own = True
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it must not end the program it records
            self.notes.append(str(error) or repr(error))
            if not self._is_over:
                self._finish(error)
        finally:
            self._is_own = False


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"
