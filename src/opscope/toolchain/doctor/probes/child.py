"""Runs one of doctor's own programs with the user's Python and reads what it said before it ended."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opscope.toolchain.doctor.children.doctor_driver import MARK
from opscope.toolchain.doctor.probes.surroundings import Surroundings
from opscope.toolchain.programs import ProgramEnd

__all__ = ["ChildAnswer", "child_program", "read_answer", "run_child"]

_FOLDER = Path(__file__).resolve().parent.parent / "children"


@dataclass(frozen=True)
class ChildAnswer:
    """What a program said, later lines over earlier ones.

    Attributes:
        stopped: How it ended before it was done; None if it finished.
        err: Its standard error.
    """

    facts: dict[str, Any]
    stopped: str | None
    err: str


def child_program(name: str) -> str:
    """Path of one of the programs."""
    return str(_FOLDER / f"{name}.py")


def run_child(surroundings: Surroundings, name: str, *, timeout_s: float) -> ChildAnswer:
    """Run a program to its end or its time limit."""
    return read_answer(surroundings.run(surroundings.python, child_program(name), timeout_s=timeout_s))


def read_answer(end: ProgramEnd) -> ChildAnswer:
    """What a program said, whatever else was printed around it."""
    facts: dict[str, Any] = {}
    for line in end.out.splitlines():
        _, mark, content = line.partition(MARK)
        if mark:
            facts.update(_parsed(content))
    return ChildAnswer(facts, _stopped(end), end.err)


def _parsed(content: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:  # cut off in the middle
        return {}
    return value if isinstance(value, dict) else {}


def _stopped(end: ProgramEnd) -> str | None:
    """Programs end with 0 or 1; anything else was not their own doing."""
    if end.exit_code is None:
        return end.failure
    if end.exit_code < 0:
        return f"died of {_signal_name(-end.exit_code)}"
    return None if end.exit_code in (0, 1) else f"ended with exit code {end.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
