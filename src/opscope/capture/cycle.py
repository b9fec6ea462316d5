"""Schedules and finished cycles: which steps are skipped, warmed up and recorded, and what may be done after.

One cycle is `wait` steps without the profiler, `warmup` steps with it attached but not recording, and
`active` recorded steps; it runs `repeat` times. Handlers are passed as `on_cycle`; those here copy the trace
to where other tools look for it, and the cycle's own files stay where they are. Imports nothing of torch.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

from opscope.errors import CaptureError, InputError
from opscope.model.files import replacing
from opscope.model.sidecar import Sidecar

# Recorded steps by default: the fewest that a comparison has an interval for.
ACTIVE_STEPS = 6


@dataclass(frozen=True)
class Cycle:
    """One recorded cycle, counted from 0; both files are whole."""

    index: int
    trace_path: Path
    sidecar_path: Path
    sidecar: Sidecar


class CycleHandler(Protocol):
    """Called after each cycle, while nothing is being recorded; any function of one Cycle is one."""

    def __call__(self, cycle: Cycle, /) -> object:
        """Use a finished cycle; the result is ignored."""
        ...


class Phase(Enum):
    WAIT = "wait"
    WARMUP = "warmup"
    ACTIVE = "active"
    DONE = "done"


class Position(NamedTuple):
    """A cycle, counted from 0, and the phase within it."""

    cycle: int
    phase: Phase


@dataclass(frozen=True)
class Schedule:
    wait: int
    warmup: int
    active: int
    repeat: int

    def __post_init__(self) -> None:
        if self.wait < 0 or self.warmup < 0 or self.active < 1 or self.repeat < 1:
            raise InputError(
                f"wait={self.wait}, warmup={self.warmup}, active={self.active}, repeat={self.repeat} "
                "is no schedule",
                hint="Need wait >= 0, warmup >= 0, active >= 1 and repeat >= 1",
            )

    @property
    def total_steps(self) -> int:
        """Steps until nothing more is recorded."""
        return self.repeat * (self.wait + self.warmup + self.active)

    def recorded_from(self, step: int) -> int:
        """The step at which a wait ends in which this one lies."""
        return step + self.wait - step % (self.wait + self.warmup + self.active)

    def position(self, step: int) -> Position:
        """Where a step, counted from 0, lies."""
        cycle, offset = divmod(step, self.wait + self.warmup + self.active)
        if cycle >= self.repeat:
            return Position(self.repeat, Phase.DONE)
        if offset < self.wait:
            return Position(cycle, Phase.WAIT)
        return Position(cycle, Phase.WARMUP if offset < self.wait + self.warmup else Phase.ACTIVE)


def export_chrome_trace(
    directory: str | os.PathLike[str], pattern: str = "{name}", *, overwrite: bool = False
) -> CycleHandler:
    """A handler that copies each trace into a folder.

    Args:
        directory: Created if missing.
        pattern: File name of the copy: `{name}` is the trace's, `{stem}` the same without its ending,
            `{index}` the cycle.
        overwrite: Replace files instead of refusing.

    Raises:
        InputError: The pattern names anything else, or (from the handler) the file exists.
    """
    try:
        pattern.format(name="", stem="", index=0)
    except (KeyError, IndexError, ValueError) as error:
        raise InputError(
            f"'{pattern}' is not a pattern ({error})", hint="Use {name}, {stem} and {index}"
        ) from error

    def handle(cycle: Cycle, /) -> Path:
        name = cycle.trace_path.name
        target = Path(directory) / pattern.format(name=name, stem=name.split(".json")[0], index=cycle.index)
        if target.exists() and not overwrite:
            raise InputError(
                "the file exists", source=target, hint="Choose another pattern, or pass overwrite=True"
            )
        return _copy(cycle.trace_path, target)

    return handle


def tensorboard_trace(directory: str | os.PathLike[str], worker_name: str | None = None) -> CycleHandler:
    """A handler that copies each trace into a folder under the name TensorBoard's profiler plug-in expects.

    Source: pytorch/kineto, tb_plugin/torch_tb_profiler/consts.py, WORKER_PATTERN:
    `<worker>.<timestamp>.pt.trace.json[.gz]`.

    Args:
        directory: A log folder of TensorBoard; created if missing.
        worker_name: One per process of a distributed job; `pid<process id>` if None.
    """
    worker = worker_name or f"pid{os.getpid()}"

    def handle(cycle: Cycle, /) -> Path:
        ending = ".gz" if cycle.trace_path.name.endswith(".gz") else ""
        # Nanoseconds, as torch does: cycles of one second must not replace each other.
        return _copy(cycle.trace_path, Path(directory) / f"{worker}.{time.time_ns()}.pt.trace.json{ending}")

    return handle


def _copy(source: Path, target: Path) -> Path:
    with replacing(target, "the copy of the trace", error=CaptureError) as partial:
        shutil.copyfile(source, partial)
    return target
