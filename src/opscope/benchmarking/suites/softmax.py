"""Softmax of rows: what fusing a chain of reductions and pointwise operators is worth."""

from __future__ import annotations

import functools
import math
from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suites import SUITES
from opscope.benchmarking.suites.suite import (
    Settings,
    Suite,
    by_torch,
    compiled,
    cuda,
    element_bytes,
    normal_inputs,
    triton,
)
from opscope.workloads.runtime import require_torch

__all__ = ["SUITE"]

_SMALL = (9, 300)  # rows that are no power of two, and more than one program takes at a time


def _make(settings: Settings) -> Problem:
    torch = require_torch()
    return Problem(
        name="softmax",
        device=settings.device,
        make_inputs=normal_inputs(settings, settings.shape),
        small_inputs=normal_inputs(settings, _SMALL),
        implementations=(
            by_torch("naive", _naive, "largest, difference, exp, sum, quotient"),
            by_torch("torch", functools.partial(torch.softmax, dim=-1), "torch.softmax(x, dim=-1)"),
            cuda(settings, "softmax", "CUDA C++, rows in registers"),
            cuda(settings, "softmax", "CUDA C++, textbook form", teaching=True),
            triton(settings, "softmax", "Triton, rows in registers, autotuned"),
            triton(settings, "softmax", "Triton, each row read three times", teaching=True),
            compiled(settings, _naive),
        ),
        reference="torch",
        expected=_naive,
        shape=settings.shape,
        dtype=settings.dtype,
        min_bytes=2 * math.prod(settings.shape) * element_bytes(settings.dtype),
    )


def _naive(x: Any) -> Any:
    exponentials = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


SUITE = Suite(
    name="softmax",
    summary=SUITES["softmax"],
    shape_names=("rows", "columns"),
    cuda_shape=(8192, 8192),
    cpu_shape=(1024, 1024),
    implementations=("naive", "torch", "cuda", "cuda_teaching", "triton", "triton_teaching", "compile"),
    make=_make,
)
