"""What became of an implementation that raised an error: its status, and a reason in one line.

Importing this module does not import torch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from opscope.errors import DependencyError, MeasurementError, OpscopeError
from opscope.model.benchmark import Status
from opscope.workloads.runtime import is_out_of_memory

__all__ = ["Failure", "failure_of", "first_line", "lost_device"]

_LONGEST_REASON = 300

# How generators of code say that this machine has no compiler for it, and what to install.
_MISSING_TOOLS = (
    ("No working C++ compiler found", "torch.compile needs a C++ compiler. Install g++"),
    ("InvalidCxxCompiler", "torch.compile needs a C++ compiler. Install g++"),
    ("Failed to find C compiler", "Triton needs a C compiler. Install gcc"),
    (
        "Cannot find a working triton installation",
        "torch.compile needs Triton. pip install 'opscope[triton]'",
    ),
)


@dataclass(frozen=True)
class Failure:
    """How an implementation ended, if not with samples."""

    status: Status
    reason: str


def failure_of(error: BaseException, stage: str, *, may_be_unavailable: bool = False) -> Failure:
    """What an error says of its implementation.

    Args:
        error: What was raised.
        stage: What was being done, for the reason: `"at its first call"`.
        may_be_unavailable: Whether a MeasurementError says that this machine cannot run it, as it does while
            it is built. A DependencyError always does.
    """
    if is_out_of_memory(error):
        return Failure(Status.OUT_OF_MEMORY, f"out of memory {stage}: {first_line(error)}")
    if isinstance(error, DependencyError) or (may_be_unavailable and isinstance(error, MeasurementError)):
        return Failure(Status.UNAVAILABLE, str(error))
    for text, advice in _MISSING_TOOLS:
        if text in str(error):
            return Failure(Status.UNAVAILABLE, advice)
    if isinstance(error, OpscopeError):
        return Failure(Status.FAILED, f"{error} ({stage})")
    return Failure(Status.FAILED, f"{type(error).__name__} {stage}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of an error's text that is not empty, shortened; its type if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def lost_device(device: str) -> str | None:
    """Why a CUDA device can no longer be used by this process; None while it can.

    An illegal access, a failed assertion in a kernel or a hardware error ends the process's context for good:
    every later call fails with the same error.
    """
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return first_line(error)
    return None
