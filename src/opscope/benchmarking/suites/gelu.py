"""GELU five ways: the guides' example of one kernel against many."""

from __future__ import annotations

import functools
import math
from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suites import SUITES
from opscope.benchmarking.suites.suite import (
    Parameter,
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

_SMALL = (33, 129)  # one full program and a part of one


def _make(settings: Settings) -> Problem:
    torch = require_torch()
    approximate = settings.parameters["approximate"]
    naive = _naive_tanh if approximate == "tanh" else _naive_erf
    kernel = functools.partial(triton, settings, "gelu", module="elementwise", approximate=approximate)
    reference = functools.partial(torch.nn.functional.gelu, approximate=approximate)
    return Problem(
        name="gelu",
        device=settings.device,
        make_inputs=normal_inputs(settings, settings.shape),
        small_inputs=normal_inputs(settings, _SMALL),
        implementations=(
            by_torch("naive", naive, "the formula, one operator after another"),
            by_torch("torch", reference, "torch.nn.functional.gelu"),
            cuda(settings, "gelu", "CUDA C++, 16-byte accesses", approximate=approximate),
            cuda(
                settings,
                "gelu",
                "CUDA C++, one element per thread",
                teaching=True,
                approximate=approximate,
            ),
            kernel("Triton, autotuned"),
            kernel("Triton, one element per thread", teaching=True),
            compiled(settings, naive),
        ),
        reference="torch",
        expected=naive,
        shape=settings.shape,
        dtype=settings.dtype,
        parameters=settings.parameters,
        min_bytes=2 * math.prod(settings.shape) * element_bytes(settings.dtype),
    )


def _naive_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh())


def _naive_erf(x: Any) -> Any:
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


SUITE = Suite(
    name="gelu",
    summary=SUITES["gelu"],
    shape_names=("rows", "columns"),
    cuda_shape=(8192, 8192),
    cpu_shape=(1024, 1024),
    implementations=("naive", "torch", "cuda", "cuda_teaching", "triton", "triton_teaching", "compile"),
    make=_make,
    parameters={
        "approximate": Parameter(("tanh", "none"), "tanh form, or exact by erf", aliases={"erf": "none"})
    },
)
