"""How programs share out the rows of a matrix: how many each takes, how long a row registers can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton

from opscope.errors import InputError
from opscope.hardware.architectures import WARP_SIZE

# 1024 threads share 65536 registers, 64 each: with 32 elements in every thread, half of them are left for
# addresses and temporaries. Longer rows would spill.
_MOST_COLUMNS = 32 * 1024

_LEAST_PER_THREAD, _MOST_PER_THREAD = 4, 32


# Elements that a program holds at a time (one long row, or several short ones), and its warps.
ROW_CONFIGS = [
    triton.Config({"TILE": tile}, num_warps=warps)
    for tile, warps in (
        (8192, 16),
        (8192, 8),
        (4096, 4),
        (4096, 8),
        (16384, 16),
        (16384, 32),
        (32768, 32),
    )
]


def as_rows(x: torch.Tensor) -> tuple[int, int]:
    """Rows and columns of a tensor seen as a matrix: its last dimension are the columns.

    Raises:
        InputError: It has no dimension.
    """
    if x.dim() == 0:
        raise InputError("a single number has no rows", hint="Pass a tensor of at least one dimension")
    column_count = x.shape[-1]
    return (x.numel() // column_count if column_count else 0), column_count


def columns_of(column_count: int) -> int | None:
    """Elements a program holds of a row: the next power of two; None if the row is too long for registers."""
    columns: int = triton.next_power_of_2(max(column_count, 1))
    return columns if columns <= _MOST_COLUMNS else None


def row_grid(row_count: int, columns: int) -> Callable[[Mapping[str, Any]], tuple[int]]:
    """Grid of a kernel over rows: a program for each tile of its configuration."""

    def grid(meta: Mapping[str, Any]) -> tuple[int]:
        return (triton.cdiv(row_count, meta["TILE"] // columns),)

    return grid


def fitting_configs(
    configs: list[triton.Config], named_args: Mapping[str, Any], **constants: Any
) -> list[triton.Config]:
    """Those configurations whose tile holds a row and few more, in neither too few nor too many threads."""
    columns = constants["COLUMNS"]
    largest = max(8192, 2 * columns)
    return [
        config
        for config in configs
        if columns <= config.kwargs["TILE"] <= largest
        and _LEAST_PER_THREAD <= config.kwargs["TILE"] // (WARP_SIZE * config.num_warps) <= _MOST_PER_THREAD
    ]
