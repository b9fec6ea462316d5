"""Layer norm of rows: two reductions of the same data, and a pass that uses both."""

from __future__ import annotations

import functools
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
_EPS = 1e-5


def _make(settings: Settings) -> Problem:
    torch = require_torch()
    rows, columns = settings.shape

    def by_operator(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, _EPS)

    naive = functools.partial(_naive, eps=_EPS)
    small_rows, small_columns = _SMALL
    return Problem(
        name="layer_norm",
        device=settings.device,
        make_inputs=normal_inputs(settings, (rows, columns), (columns,), (columns,)),
        small_inputs=normal_inputs(settings, (small_rows, small_columns), (small_columns,), (small_columns,)),
        implementations=(
            by_torch("naive", naive, "mean, variance, scale, one operator after another"),
            by_torch("torch", by_operator, "torch.nn.functional.layer_norm"),
            cuda(settings, "layer_norm", "CUDA C++, rows in registers", eps=_EPS),
            cuda(settings, "layer_norm", "CUDA C++, textbook form", teaching=True, eps=_EPS),
            triton(settings, "layer_norm", "Triton, rows in registers, autotuned", eps=_EPS),
            triton(settings, "layer_norm", "Triton, each row read three times", teaching=True, eps=_EPS),
            compiled(settings, naive),
        ),
        reference="torch",
        expected=naive,
        shape=settings.shape,
        dtype=settings.dtype,
        min_bytes=(2 * rows * columns + 2 * columns) * element_bytes(settings.dtype),
    )


def _naive(x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    centered = x - x.mean(dim=-1, keepdim=True)
    variance = (centered * centered).mean(dim=-1, keepdim=True)
    return centered / (variance + eps).sqrt() * weight + bias


SUITE = Suite(
    name="layer_norm",
    summary=SUITES["layer_norm"],
    shape_names=("rows", "columns"),
    cuda_shape=(8192, 8192),
    cpu_shape=(1024, 1024),
    implementations=("naive", "torch", "cuda", "cuda_teaching", "triton", "triton_teaching", "compile"),
    make=_make,
)
