"""Layer norm of rows: two reductions of the same data, and a pass that uses both."""

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

_EPS = 1e-5


def _make(settings: Settings) -> Problem:
    torch = require_torch()

    def by_operator(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, _EPS)

    naive = functools.partial(_naive, eps=_EPS)
    return problem_of(
        "layer_norm",
        settings,
        (
            by_torch("naive", naive, "mean, variance, scale, one operator after another"),
            by_torch("torch", by_operator, "torch.nn.functional.layer_norm"),
            *rowwise(settings, "layer_norm", eps=_EPS),
            compiled(settings, naive),
        ),
        expected=naive,
        shapes=lambda rows, columns: ((rows, columns), (columns,), (columns,)),
        small_shape=ROWWISE_SMALL_SHAPE,
    )


def _naive(x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    centered = x - x.mean(dim=-1, keepdim=True)
    variance = (centered * centered).mean(dim=-1, keepdim=True)
    return centered / (variance + eps).sqrt() * weight + bias


SUITE = Suite(name="layer_norm", implementations=("naive", "torch", *HAND_WRITTEN, "compile"), make=_make)
