"""What a rule works out of one launch: values for the sentences about it, and the launches that would follow.

The sentences are data (`launch_explanations.toml`); a sentence whose values are unknown is not said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from opscope.launches.facts import Extent


class Expected(msgspec.Struct, frozen=True):
    """The launch one documented configuration gives for the recorded arguments; None: left open."""

    formula: str
    grid: Extent
    block: Extent | None = None

    def matches(self, grid: Extent | None, block: Extent | None) -> bool:
        """Whether the recorded launch is this one; a grid that is unknown never is."""
        return self.grid == grid and (self.block is None or block is None or self.block == block)


class Prediction(msgspec.Struct, frozen=True):
    """Values for the sentences (None: unknown) and the launches expected, the likeliest first."""

    values: Mapping[str, Any] = msgspec.field(default_factory=dict)
    expected: Sequence[Expected] = ()


def ceil_div(value: int, divisor: int) -> int:
    """The quotient rounded up."""
    return -(-value // divisor)


def ceiling(value: int, divisor: int) -> str:
    """`ceil(1,000 / 512)`."""
    return f"ceil({value:,} / {divisor:,})"


def shape_text(shape: Sequence[int]) -> str:
    """`16×256×768`; a tensor without dimensions is a scalar."""
    return "×".join(f"{size:,}" for size in shape) if shape else "scalar"


def extent_text(extent: Extent | None) -> str:
    """`132×2` for (132, 2, 1): trailing ones are left out."""
    if extent is None:
        return "unknown"
    shown = 3 if extent[2] != 1 else 2 if extent[1] != 1 else 1
    return shape_text(extent[:shown])


def extents(text: str | None) -> tuple[int, ...]:
    """`128x64x8`, as names have it, as numbers; empty if it is something else."""
    parts = (text or "").split("x")
    return tuple(map(int, parts)) if all(part.isdecimal() and int(part) > 0 for part in parts) else ()
