"""In what precision torch multiplies float32 matrices on a GPU, for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opscope.workloads.runtime import require_torch

__all__ = ["float32_products"]


@contextmanager
def float32_products(mode: str) -> Iterator[None]:
    """Float32 matrix products in a mode, `"tf32"` or `"ieee"`; the mode before is restored.

    Source: torch.backends.cuda.matmul.fp32_precision (from torch 2.9, which warns about the older name),
    allow_tf32 (before).
    """
    matmul = require_torch().backends.cuda.matmul
    attribute, value = (
        ("fp32_precision", mode) if hasattr(matmul, "fp32_precision") else ("allow_tf32", mode == "tf32")
    )
    before = getattr(matmul, attribute)
    setattr(matmul, attribute, value)
    try:
        yield
    finally:
        setattr(matmul, attribute, before)
