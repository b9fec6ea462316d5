"""x + y: the smallest kernel there is, in torch, CUDA C++ and Triton."""

from __future__ import annotations

import math
import operator

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
        "add",
        settings,
        (
            by_torch("torch", require_torch().add, "torch.add(x, y)"),
            *elementwise(settings, "add"),
        ),
        expected=operator.add,
        shapes=lambda *shape: (shape, shape),
        small_shape=ELEMENTWISE_SMALL_SHAPE,
        flop_count=math.prod(settings.shape),
    )


SUITE = Suite(name="add", implementations=("torch", *HAND_WRITTEN), make=_make)
