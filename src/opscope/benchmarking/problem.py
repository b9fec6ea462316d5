"""What is benchmarked: a problem at one size, and the implementations that solve it.

A suite makes problems of its own, and so does a user's file; the runner knows nothing else. Importing this
module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opscope.model.benchmark import Engine

__all__ = ["Implementation", "Inputs", "Problem"]

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Implementation:
    """One way to solve a problem.

    Args:
        name: Unique within the problem.
        build: Makes the function, which takes the problem's inputs and returns its output: a tensor or a
            tuple of tensors. Compiling an extension happens here; torch.compile and autotuning at the first
            call. Raises DependencyError or MeasurementError where this machine cannot run it: the row
            becomes `unavailable`, with that error's text.
        engine: What it is written in.
        teaching: The simple version, kept beside the good one.
        note: What it is, in a few words.
        tolerance: Of its check, where it computes in lower precision by design (TF32); the problem's if None.
        matrix_ceiling: Name of the matrix ceiling that applies to it; the problem's if None.
        is_interpreted: Runs in Triton's interpreter: it is checked on `small_inputs`, not timed.
    """

    name: str
    build: Callable[[], Callable[..., Any]]
    engine: Engine = Engine.TORCH
    teaching: bool = False
    note: str = ""
    tolerance: float | None = None
    matrix_ceiling: str | None = None
    is_interpreted: bool = False


@dataclass(frozen=True)
class Problem:
    """Implementations of one thing at one size on one device.

    Args:
        name: Of the suite, or of the user's functions.
        device: `"cpu"` or `"cuda:N"`.
        make_inputs: Fresh random inputs on the device, by seed; the same seed gives the same inputs.
        implementations: In the order they are reported.
        reference: Name of the implementation that ratios refer to.
        expected: The right answer, given the inputs with floating-point tensors upcast to float64. If None,
            the reference implementation is called with those.
        shape: Sizes, if they are declared.
        dtype: Full name (`"float32"`), if it is declared.
        parameters: Further parameters, for the report.
        tolerance: Largest `max_relative_error` of a right answer; by dtype if None.
        min_bytes: Least bytes a call moves; counted from the inputs and outputs if None.
        flop_count: Of one call; counted by torch's flop counter if None.
        matrix_ceiling: Name of the matrix ceiling that applies, e.g. `"matrix_bfloat16"`; None if the problem
            does no matrix products.
        small_inputs: Like `make_inputs`, of a size that Triton's interpreter finishes in about a second.
    """

    name: str
    device: str
    make_inputs: Callable[[int], Inputs]
    implementations: tuple[Implementation, ...]
    reference: str
    expected: Callable[..., Any] | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float | None = None
    min_bytes: int | None = None
    flop_count: int | None = None
    matrix_ceiling: str | None = None
    small_inputs: Callable[[int], Inputs] | None = None
