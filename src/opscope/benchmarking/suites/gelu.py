"""GELU five ways: the guides' example of one kernel against many."""

from __future__ import annotations

import functools
import math
from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suite import (
    ELEMENTWISE_SMALL_SHAPE,
    HAND_WRITTEN,
    Parameter,
    Settings,
    Suite,
    by_torch,
    compiled,
    elementwise,
    problem_of,
)
from opscope.workloads.runtime import require_torch


def _make(settings: Settings) -> Problem:
    approximate = settings.parameters["approximate"]
    naive = _naive_tanh if approximate == "tanh" else _naive_erf
    by_operator = functools.partial(require_torch().nn.functional.gelu, approximate=approximate)
    return problem_of(
        "gelu",
        settings,
        (
            by_torch("naive", naive, "the formula, one operator after another"),
            by_torch("torch", by_operator, "torch.nn.functional.gelu"),
            *elementwise(settings, "gelu", approximate=approximate),
            compiled(settings, naive),
        ),
        expected=naive,
        small_shape=ELEMENTWISE_SMALL_SHAPE,
    )


def _naive_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh())


def _naive_erf(x: Any) -> Any:
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


SUITE = Suite(
    name="gelu",
    implementations=("naive", "torch", *HAND_WRITTEN, "compile"),
    make=_make,
    parameters={
        "approximate": Parameter(("tanh", "none"), "tanh form, or exact by erf", aliases={"erf": "none"})
    },
)
