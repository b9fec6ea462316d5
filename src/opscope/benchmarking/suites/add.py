"""x + y: the smallest kernel there is, in torch, CUDA C++ and Triton."""

from __future__ import annotations

import math
import operator

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
        "add",
        settings,
        (
            by_torch("torch", require_torch().add, "torch.add(x, y)"),
            *hand_written(
                settings,
                "add",
                "CUDA C++, 16-byte accesses",
                "CUDA C++, one element per thread",
                "Triton, autotuned",
                "Triton, one element per thread",
                module="elementwise",
            ),
        ),
        expected=operator.add,
        shapes=lambda *shape: (shape, shape),
        small_shape=(33, 129),  # one full program and a part of one
        flop_count=math.prod(settings.shape),
    )


SUITE = Suite(name="add", implementations=("torch", *HAND_WRITTEN), make=_make)
