"""Distances of all pairs of points: ‖x - y‖² = ‖x‖² + ‖y‖² - 2 xᵀy turns them into a matrix product."""

from __future__ import annotations

from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suites import SUITES
from opscope.benchmarking.suites.suite import Settings, Suite, by_torch, element_bytes, normal_inputs
from opscope.workloads.runtime import require_torch

__all__ = ["SUITE"]

_CHUNK_ELEMENTS = 1 << 25  # of differences held at once: 256 MB in float64


def _make(settings: Settings) -> Problem:
    torch = require_torch()
    m, n, features = settings.shape
    return Problem(
        name="cdist",
        device=settings.device,
        make_inputs=normal_inputs(settings, (m, features), (n, features)),
        implementations=(
            by_torch("torch", torch.cdist, "torch.cdist(x, y)"),
            by_torch("expanded", _expanded, "‖x‖² + ‖y‖² - 2xᵀy, by a matrix product"),
            by_torch("naive", _naive, "all differences at once: M·N·features elements"),
        ),
        reference="torch",
        expected=_row_by_row,
        shape=settings.shape,
        dtype=settings.dtype,
        min_bytes=(m * features + n * features + m * n) * element_bytes(settings.dtype),
        # Of the products xᵀy alone: the least that any form computes.
        flop_count=2 * m * n * features,
        matrix_ceiling=f"matrix_{settings.dtype}",
    )


def _naive(x: Any, y: Any) -> Any:
    return (x[:, None, :] - y[None, :, :]).square().sum(dim=-1).sqrt()


def _expanded(x: Any, y: Any) -> Any:
    squares = x.square().sum(dim=-1)[:, None] + y.square().sum(dim=-1)[None, :] - 2 * (x @ y.T)
    return squares.clamp_min(0).sqrt()  # rounding can leave a difference of equal points below 0


def _row_by_row(x: Any, y: Any) -> Any:
    """The differences themselves, a few rows at a time; no cancellation, and little memory."""
    rows = max(1, _CHUNK_ELEMENTS // max(1, y.numel()))
    return require_torch().cat([_naive(chunk, y) for chunk in x.split(rows)])


SUITE = Suite(
    name="cdist",
    summary=SUITES["cdist"],
    shape_names=("M", "N", "features"),
    cuda_shape=(4096, 4096, 128),
    cpu_shape=(512, 512, 64),
    implementations=("torch", "expanded", "naive"),
    make=_make,
    dtypes=("float32",),  # torch.cdist has no 16-bit kernels
)
