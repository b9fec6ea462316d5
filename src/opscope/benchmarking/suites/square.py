"""x² three ways in torch, beside hand-written kernels: torch.square, x * x, x ** 2."""

from __future__ import annotations

import math
from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suite import (
    ELEMENTWISE_SMALL_SHAPE,
    HAND_WRITTEN,
    Settings,
    Suite,
    by_torch,
    elementwise,
    problem_of,
)
from opscope.workloads.runtime import require_torch


def _make(settings: Settings) -> Problem:
    return problem_of(
        "square",
        settings,
        (
            by_torch("torch", require_torch().square, "torch.square(x)"),
            by_torch("multiply", _multiply, "x * x"),
            by_torch("power", _power, "x ** 2"),
            *elementwise(settings, "square"),
        ),
        expected=_multiply,
        small_shape=ELEMENTWISE_SMALL_SHAPE,
        flop_count=math.prod(settings.shape),
    )


def _multiply(x: Any) -> Any:
    return x * x


def _power(x: Any) -> Any:
    return x**2


SUITE = Suite(name="square", implementations=("torch", "multiply", "power", *HAND_WRITTEN), make=_make)
