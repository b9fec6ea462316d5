"""Layer norm of the rows of a matrix: (x - mean) / sqrt(variance + eps) · weight + bias.

Like softmax, it needs a row more than once (mean, variance, result), so a program keeps it in registers.
"""

# Kernels are Triton's language, not Python's: constants are upper-case there, arguments have no types.
# ruff: noqa: N803, N806, PLR0917
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from opscope.errors import InputError
from opscope.kernels.triton.launching import check_arguments, launched_by_rows, tuned_by_rows


@triton.jit
def layer_norm_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    row_count,
    column_count,
    eps,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Each program holds a TILE of whole rows in its registers: one read, one write.

    Weight and bias are the same for all rows, and every program finds them in a cache. (Asking the caches to
    drop x first costs 5 % on an H200.)
    """
    ROWS: tl.constexpr = TILE // COLUMNS
    columns = tl.arange(0, COLUMNS)[None, :]
    in_row = columns < column_count
    # Past the last row, a tile repeats it: the same values are written twice.
    rows = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], row_count - 1)
    # 64-bit: a matrix may have more than 2**31 elements.
    offsets = rows.to(tl.int64) * column_count + columns
    x = tl.load(x_ptr + offsets, mask=in_row, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1) / column_count
    # The variance of the differences, not E[x²] - mean²: that cancels where the mean is large.
    centered = tl.where(in_row, x - mean[:, None], 0.0)
    variance = tl.sum(centered * centered, axis=1) / column_count
    scale = 1.0 / tl.sqrt(variance + eps)
    weight = tl.load(weight_ptr + columns, mask=in_row, other=0.0)
    bias = tl.load(bias_ptr + columns, mask=in_row, other=0.0)
    y = centered * scale[:, None] * weight.to(tl.float32) + bias.to(tl.float32)
    tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), mask=in_row)


@triton.jit
def layer_norm_teaching_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, column_count, eps, BLOCK: tl.constexpr):
    """Each program takes one row in three loops, as the formula is written: three reads, one write."""
    start_of_row = tl.program_id(0).to(tl.int64) * column_count
    lanes = tl.arange(0, BLOCK)

    total = tl.full([BLOCK], 0.0, tl.float32)
    for start in range(0, column_count, BLOCK):
        columns = start + lanes
        x = tl.load(x_ptr + start_of_row + columns, mask=columns < column_count, other=0.0)
        total += x.to(tl.float32)
    mean = tl.sum(total, axis=0) / column_count

    squares = tl.full([BLOCK], 0.0, tl.float32)
    for start in range(0, column_count, BLOCK):
        columns = start + lanes
        inside = columns < column_count
        x = tl.load(x_ptr + start_of_row + columns, mask=inside, other=0.0).to(tl.float32)
        centered = tl.where(inside, x - mean, 0.0)
        squares += centered * centered
    variance = tl.sum(squares, axis=0) / column_count
    scale = 1.0 / tl.sqrt(variance + eps)

    for start in range(0, column_count, BLOCK):
        columns = start + lanes
        inside = columns < column_count
        x = tl.load(x_ptr + start_of_row + columns, mask=inside).to(tl.float32)
        weight = tl.load(weight_ptr + columns, mask=inside).to(tl.float32)
        bias = tl.load(bias_ptr + columns, mask=inside).to(tl.float32)
        y = (x - mean) * scale * weight + bias
        tl.store(out_ptr + start_of_row + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


_tuned_layer_norm = tuned_by_rows(layer_norm_kernel)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5, *, teaching: bool = False
) -> torch.Tensor:
    """Layer norm over the last dimension."""
    check_arguments(x=x, weight=weight, bias=bias)
    if weight.shape != x.shape[-1:] or bias.shape != x.shape[-1:]:
        raise InputError(
            f"rows have {x.shape[-1]} elements, weight and bias {tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    # No model has rows too long for the registers; they are read three times.
    kernels = (_tuned_layer_norm, layer_norm_teaching_kernel, layer_norm_teaching_kernel)
    return launched_by_rows(kernels, x, weight, bias, sizes=(eps,), teaching=teaching)


# Reading each row three times.
layer_norm_teaching = partial(layer_norm, teaching=True)
