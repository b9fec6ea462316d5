"""x + y: the smallest kernel there is, in torch, CUDA C++ and Triton."""

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
        name="add",
        device=settings.device,
        make_inputs=normal_inputs(settings, settings.shape, settings.shape),
        small_inputs=normal_inputs(settings, _SMALL, _SMALL),
        implementations=(
            by_torch("torch", torch.add, "torch.add(x, y)"),
            cuda(settings, "add", "CUDA C++, 16-byte accesses"),
            cuda(settings, "add", "CUDA C++, one element per thread", teaching=True),
            triton(settings, "add", "Triton, autotuned", module="elementwise"),
            triton(settings, "add", "Triton, one element per thread", module="elementwise", teaching=True),
        ),
        reference="torch",
        expected=_sum,
        shape=settings.shape,
        dtype=settings.dtype,
        min_bytes=3 * math.prod(settings.shape) * element_bytes(settings.dtype),
        flop_count=math.prod(settings.shape),
    )


def _sum(x: Any, y: Any) -> Any:
    return x + y


SUITE = Suite(
    name="add",
    summary=SUITES["add"],
    shape_names=("rows", "columns"),
    cuda_shape=(8192, 8192),
    cpu_shape=(1024, 1024),
    implementations=("torch", "cuda", "cuda_teaching", "triton", "triton_teaching"),
    make=_make,
)
