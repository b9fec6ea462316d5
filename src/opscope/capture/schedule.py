"""The schedule of a recording: which steps are skipped, warmed up, recorded. Pure; imports nothing of torch.

One cycle is `wait` steps without the profiler, `warmup` steps with it attached but not recording, and
`active` recorded steps; it runs `repeat` times.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from opscope.errors import InputError

__all__ = ["Phase", "Position", "Schedule"]


class Phase(Enum):
    """What happens to a step."""

    WAIT = "wait"
    WARMUP = "warmup"
    ACTIVE = "active"
    DONE = "done"


@dataclass(frozen=True)
class Position:
    """A cycle, counted from 0, and the phase within it."""

    cycle: int
    phase: Phase


@dataclass(frozen=True)
class Schedule:
    """Steps per phase and number of cycles.

    Raises:
        InputError: A negative count, no active step or no cycle.
    """

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
    def steps_per_cycle(self) -> int:
        """Steps from one cycle's start to the next one's."""
        return self.wait + self.warmup + self.active

    @property
    def total_steps(self) -> int:
        """Steps until nothing more is recorded."""
        return self.repeat * self.steps_per_cycle

    def position(self, step: int) -> Position:
        """Where a step, counted from 0, lies."""
        cycle, offset = divmod(step, self.steps_per_cycle)
        if cycle >= self.repeat:
            return Position(self.repeat, Phase.DONE)
        if offset < self.wait:
            return Position(cycle, Phase.WAIT)
        return Position(cycle, Phase.WARMUP if offset < self.wait + self.warmup else Phase.ACTIVE)
