"""x² three ways in torch, beside hand-written kernels: torch.square, x * x, x ** 2."""

from __future__ import annotations

import math
from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suites import SUITES
from opscope.benchmarking.suites.suite import (
    Settings,
    Suite,
    by_torch,
    cuda,
    element_bytes,
    normal_inputs,
    triton,
)
from opscope.workloads.runtime import require_torch

__all__ = ["SUITE"]

_SMALL = (33, 129)  # one full program and a part of one


def _make(settings: Settings) -> Problem:
    torch = require_torch()
    return Problem(
        name="square",
        device=settings.device,
        make_inputs=normal_inputs(settings, settings.shape),
        small_inputs=normal_inputs(settings, _SMALL),
        implementations=(
            by_torch("torch", torch.square, "torch.square(x)"),
            by_torch("multiply", _multiply, "x * x"),
            by_torch("power", _power, "x ** 2"),
            cuda(settings, "square", "CUDA C++, 16-byte accesses"),
            cuda(settings, "square", "CUDA C++, one element per thread", teaching=True),
            triton(settings, "square", "Triton, autotuned", module="elementwise"),
            triton(settings, "square", "Triton, one element per thread", module="elementwise", teaching=True),
        ),
        reference="torch",
        expected=_multiply,
        shape=settings.shape,
        dtype=settings.dtype,
        min_bytes=2 * math.prod(settings.shape) * element_bytes(settings.dtype),
        flop_count=math.prod(settings.shape),
    )


def _multiply(x: Any) -> Any:
    return x * x


def _power(x: Any) -> Any:
    return x**2


SUITE = Suite(
    name="square",
    summary=SUITES["square"],
    shape_names=("rows", "columns"),
    cuda_shape=(8192, 8192),
    cpu_shape=(1024, 1024),
    implementations=("torch", "multiply", "power", "cuda", "cuda_teaching", "triton", "triton_teaching"),
    make=_make,
)
