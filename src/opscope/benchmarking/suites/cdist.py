"""Distances of all pairs of points: ‖x - y‖² = ‖x‖² + ‖y‖² - 2 xᵀy turns them into a matrix product."""

from __future__ import annotations

from typing import Any

from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suite import Settings, Suite, by_torch, problem_of
from opscope.workloads.runtime import require_torch

_CHUNK_ELEMENTS = 1 << 25  # of differences held at once: 256 MB in float64


def _make(settings: Settings) -> Problem:
    m, n, features = settings.shape
    return problem_of(
        "cdist",
        settings,
        (
            by_torch("torch", require_torch().cdist, "torch.cdist(x, y)"),
            by_torch("expanded", _expanded, "‖x‖² + ‖y‖² - 2xᵀy, by a matrix product"),
            by_torch("naive", _naive, "all differences at once: M·N·features elements"),
        ),
        expected=_row_by_row,
        shapes=lambda m, n, features: ((m, features), (n, features)),
        output_shape=(m, n),
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
    implementations=("torch", "expanded", "naive"),
    make=_make,
    shape_names=("M", "N", "features"),
    cuda_shape=(4096, 4096, 128),
    cpu_shape=(512, 512, 64),
    dtypes=("float32",),  # torch.cdist has no 16-bit kernels
)
