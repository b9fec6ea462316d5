"""The ncu command that would tell of a recorded kernel what a recording cannot.

Coalescing, bank conflicts, divergence, achieved occupancy and stall reasons are counters; reports print this
command beside what launch data say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from opscope.analysis.queries import sql
from opscope.model.session import Session
from opscope.provenance.kernel_names import decode
from opscope.toolchain.ncu.command import (
    TOPICS,
    KernelFilter,
    filter_of_functions,
    shell_text,
    suggested_command,
)

__all__ = ["kernel_filter", "launch_index", "suggest_command"]

# Element types, numbers and flags are shorter.
_TELLING = 16


def kernel_filter(names: Iterable[str]) -> KernelFilter:
    """The filter of ncu for kernels as a recording names them.

    It matches by function and functor, so kernels that differ in types alone pass too.
    """
    return filter_of_functions(map(_function, names))


def _function(name: str) -> tuple[str, str | None]:
    decoded = decode(name)
    if decoded.function is None:
        return name, None
    functor = (decoded.functor or "").rpartition("::")[2] or _telling_argument(decoded.template_arguments)
    return decoded.function.rpartition("::")[2], functor


def _telling_argument(arguments: Sequence[str]) -> str | None:
    """A template argument that names what a generic kernel runs, `cutlass_80_simt_sgemm_64x64_8x5_nn`."""
    return next((one for one in arguments if len(one) >= _TELLING and re.fullmatch(r"\w+", one)), None)


def launch_index(session: Session, kernel_name: str, operator: str | None = None) -> int | None:
    """Place of a kernel's longest launch among the recorded launches that its filter matches, from 0.

    A program under ncu counts from its start, a recording from its window: launches before that come on top.

    Args:
        session: The recording.
        kernel_name: As recorded.
        operator: Launches of this operator alone; of any if None.
    """
    matches = kernel_filter([kernel_name])
    names = session.query("SELECT name FROM kernel_names WHERE kind = 'kernel'")
    alike = [name for (name,) in names if matches.covers(name)]
    index = session.scalar(sql("launch_index"), [alike, kernel_name, operator, operator])
    return None if index is None else int(index)


def suggest_command(
    kernel_name: str,
    launch_index: int = 0,
    *,
    topics: Iterable[str] = TOPICS,
    compute_capability: str | None = None,
    program: Sequence[str] = ("python", "script.py"),
) -> str:
    """The command as one line for a shell.

    Args:
        kernel_name: As recorded.
        launch_index: Which of the launches its filter matches, from 0.
        topics: Keys of `toolchain.ncu.command.TOPICS`; all by default.
        compute_capability: Of the device, as `"9.0"`.
        program: The command to profile.
    """
    return shell_text(
        suggested_command(
            kernel_filter([kernel_name]),
            launch_index,
            topics=topics,
            compute_capability=compute_capability,
            program=program,
        )
    )
