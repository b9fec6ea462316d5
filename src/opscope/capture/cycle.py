"""A finished cycle and what may be called with it. Imports nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from opscope.model.sidecar import Sidecar

__all__ = ["Cycle", "CycleHandler"]


@dataclass(frozen=True)
class Cycle:
    """One recorded cycle; both files are whole.

    Args:
        index: Cycle of the schedule, from 0.
        trace_path: Kineto trace.
        sidecar_path: Sidecar beside it.
        sidecar: The sidecar's content.
    """

    index: int
    trace_path: Path
    sidecar_path: Path
    sidecar: Sidecar


class CycleHandler(Protocol):
    """Called after each cycle, while nothing is being recorded; any function of one Cycle is one."""

    def __call__(self, cycle: Cycle, /) -> object:
        """Use a finished cycle; the result is ignored."""
        ...
