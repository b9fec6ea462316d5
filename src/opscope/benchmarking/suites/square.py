"""x² three ways in torch, beside hand-written kernels: torch.square, x * x, x ** 2."""

from __future__ import annotations

import math
from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suite import (
    HAND_WRITTEN,
    Settings,
    Suite,
    by_torch,
    hand_written,
    problem_of,
)
from opscope.workloads.runtime import require_torch

__all__ = ["SUITE"]


def _make(settings: Settings) -> Problem:
    return problem_of(
        "square",
        settings,
        (
            by_torch("torch", require_torch().square, "torch.square(x)"),
            by_torch("multiply", _multiply, "x * x"),
            by_torch("power", _power, "x ** 2"),
            *hand_written(
                settings,
                "square",
                "CUDA C++, 16-byte accesses",
                "CUDA C++, one element per thread",
                "Triton, autotuned",
                "Triton, one element per thread",
                module="elementwise",
            ),
        ),
        expected=_multiply,
        small_shape=(33, 129),  # one full program and a part of one
        flop_count=math.prod(settings.shape),
    )


def _multiply(x: Any) -> Any:
    return x * x


def _power(x: Any) -> Any:
    return x**2


SUITE = Suite(name="square", implementations=("torch", "multiply", "power", *HAND_WRITTEN), make=_make)
