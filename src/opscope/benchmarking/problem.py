"""What is benchmarked: a problem at one size, the implementations that solve it, and how one may fail.

A suite makes problems of its own, and so does a user's file; the run knows nothing else. Importing this
module does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opscope.errors import DependencyError, MeasurementError, OpscopeError
from opscope.model.benchmark import Engine, Status
from opscope.workloads.runtime import is_out_of_memory

Inputs = tuple[Any, ...]
Values = Mapping[str, tuple[Any, ...]]  # of parameters that are swept over


@dataclass(frozen=True)
class Implementation:
    name: str  # unique within the problem
    # Makes the function, which takes the problem's inputs and returns its output: a tensor or a tuple of
    # tensors. Compiling an extension happens here; torch.compile and autotuning at the first call. Raises
    # DependencyError or MeasurementError where this machine cannot run it: the row becomes `unavailable`,
    # with that error's text.
    build: Callable[[], Callable[..., Any]]
    engine: Engine = Engine.TORCH  # what it is written in
    teaching: bool = False  # the simple version, kept beside the good one
    note: str = ""  # what it is, in a few words
    # Of its check, where it computes in lower precision by design (TF32); the problem's if None.
    tolerance: float | None = None
    matrix_ceiling: str | None = None  # name of the matrix ceiling that applies to it; the problem's if None
    is_interpreted: bool = False  # runs in Triton's interpreter: it is checked on `small_inputs`, not timed


@dataclass(frozen=True)
class Problem:
    """Implementations of one thing at one size on one device."""

    name: str  # of the suite, or of the user's functions
    device: str  # `"cpu"` or `"cuda:N"`
    make_inputs: Callable[[int], Inputs]  # fresh ones on the device; the same for the same seed
    implementations: tuple[Implementation, ...]  # in the order they are reported
    reference: str  # name of the implementation that ratios refer to
    # The right answer, given the inputs with floating-point tensors upcast to float64. If None, the reference
    # implementation is called with those.
    expected: Callable[..., Any] | None = None
    shape: tuple[int, ...] | None = None  # sizes, if they are declared
    dtype: str | None = None  # full name (`"float32"`), if it is declared
    parameters: Mapping[str, Any] = field(default_factory=dict)  # further parameters, for the report
    tolerance: float | None = None  # largest `max_relative_error` of a right answer; by dtype if None
    min_bytes: int | None = None  # least bytes a call moves; counted from inputs and outputs if None
    flop_count: int | None = None  # of one call; counted by torch's flop counter if None
    matrix_ceiling: str | None = None  # e.g. `"matrix_bfloat16"`; None if it does no matrix products
    # Like `make_inputs`, of a size that Triton's interpreter finishes in about a second.
    small_inputs: Callable[[int], Inputs] | None = None


_LONGEST_REASON = 300

# How generators of code say that this machine has no compiler for it, and what to install.
_MISSING_TOOLS = (
    ("No working C++ compiler found", "torch.compile needs a C++ compiler. Install g++"),
    ("InvalidCxxCompiler", "torch.compile needs a C++ compiler. Install g++"),
    ("Failed to find C compiler", "Triton needs a C compiler. Install gcc"),
    ("working triton installation", "torch.compile needs Triton. pip install 'opscope[triton]'"),
    ("0 active drivers", "Triton finds no GPU that it can use. Check the NVIDIA driver"),
)


def failure_of(error: BaseException, stage: str, *, may_be_unavailable: bool = False) -> tuple[Status, str]:
    """What an error says of its implementation, e.g. `"at its first call"`: its status, and the reason.

    A DependencyError says that this machine cannot run it; a MeasurementError only where it
    `may_be_unavailable`, as it is built.
    """
    if is_out_of_memory(error):
        return Status.OUT_OF_MEMORY, f"out of memory {stage}: {first_line(error)}"
    if isinstance(error, DependencyError) or (may_be_unavailable and isinstance(error, MeasurementError)):
        return Status.UNAVAILABLE, str(error)
    for text, advice in _MISSING_TOOLS:
        if text in str(error):
            return Status.UNAVAILABLE, advice
    if isinstance(error, OpscopeError):
        return Status.FAILED, f"{error} ({stage})"
    return Status.FAILED, f"{type(error).__name__} {stage}: {first_line(error)}"


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
