"""Softmax of rows: what fusing a chain of reductions and pointwise operators is worth."""

from __future__ import annotations

import functools
from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suite import (
    HAND_WRITTEN,
    Settings,
    Suite,
    by_torch,
    compiled,
    hand_written,
    problem_of,
)
from opscope.workloads.runtime import require_torch

__all__ = ["SUITE"]


def _make(settings: Settings) -> Problem:
    by_operator = functools.partial(require_torch().softmax, dim=-1)
    return problem_of(
        "softmax",
        settings,
        (
            by_torch("naive", _naive, "largest, difference, exp, sum, quotient"),
            by_torch("torch", by_operator, "torch.softmax(x, dim=-1)"),
            *hand_written(
                settings,
                "softmax",
                "CUDA C++, rows in registers",
                "CUDA C++, textbook form",
                "Triton, rows in registers, autotuned",
                "Triton, each row read three times",
            ),
            compiled(settings, _naive),
        ),
        expected=_naive,
        small_shape=(9, 300),  # rows that are no power of two, and more than one program takes at a time
    )


def _naive(x: Any) -> Any:
    exponentials = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


SUITE = Suite(name="softmax", implementations=("naive", "torch", *HAND_WRITTEN, "compile"), make=_make)
