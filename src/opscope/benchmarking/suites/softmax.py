"""Softmax of rows: what fusing a chain of reductions and pointwise operators is worth."""

from __future__ import annotations

import functools
from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suite import (
    HAND_WRITTEN,
    ROWWISE_SMALL_SHAPE,
    Settings,
    Suite,
    by_torch,
    compiled,
    problem_of,
    rowwise,
)
from opscope.workloads.runtime import require_torch


def _make(settings: Settings) -> Problem:
    by_operator = functools.partial(require_torch().softmax, dim=-1)
    return problem_of(
        "softmax",
        settings,
        (
            by_torch("naive", _naive, "largest, difference, exp, sum, quotient"),
            by_torch("torch", by_operator, "torch.softmax(x, dim=-1)"),
            *rowwise(settings, "softmax"),
            compiled(settings, _naive),
        ),
        expected=_naive,
        small_shape=ROWWISE_SMALL_SHAPE,
    )


def _naive(x: Any) -> Any:
    exponentials = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


SUITE = Suite(name="softmax", implementations=("naive", "torch", *HAND_WRITTEN, "compile"), make=_make)
