"""Random inputs of the suites: normally distributed, by seed, made on the device they are used on.

Never zeros: on constant data a GPU draws less power and keeps higher clocks than on real data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opscope.benchmarking.problem import Inputs
from opscope.benchmarking.suites.suite import Settings
from opscope.workloads.runtime import require_torch

__all__ = ["element_bytes", "normal_inputs"]

_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def normal_inputs(settings: Settings, *shapes: Sequence[int]) -> Callable[[int], Inputs]:
    """A function of a seed that makes tensors of these shapes from a standard normal distribution."""

    def make(seed: int) -> Inputs:
        torch = require_torch()
        generator = torch.Generator(settings.device).manual_seed(seed)
        dtype = getattr(torch, settings.dtype)
        return tuple(
            torch.randn(tuple(shape), generator=generator, dtype=dtype, device=settings.device)
            for shape in shapes
        )

    return make


def element_bytes(dtype: str) -> int:
    """Size of an element in bytes, by the dtype's full name."""
    return _ELEMENT_BYTES[dtype]
