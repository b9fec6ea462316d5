"""Softmax of the rows of a matrix.

A row is needed three times: for its largest value, for the sum of exponentials, and for the result. Read
from memory three times, it costs twice what it must; so a program keeps its rows in registers between.
"""

# Kernels are Triton's language, not Python's: constants are upper-case there, arguments have no types.
# ruff: noqa: N803, N806, PLR0917
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from opscope.kernels.triton.launching import check_arguments, launched_by_rows, tuned_by_rows


@triton.jit
def softmax_kernel(x_ptr, out_ptr, row_count, column_count, COLUMNS: tl.constexpr, TILE: tl.constexpr):
    """Each program holds a TILE of whole rows in its registers: one read, one write.

    COLUMNS is the next power of two; what is past the end of a row is -inf and adds exp(-inf) = 0.
    """
    ROWS: tl.constexpr = TILE // COLUMNS
    columns = tl.arange(0, COLUMNS)[None, :]
    in_row = columns < column_count
    # Past the last row, a tile repeats it: the same values are written twice.
    rows = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], row_count - 1)
    # 64-bit: a matrix may have more than 2**31 elements.
    offsets = rows.to(tl.int64) * column_count + columns
    x = tl.load(x_ptr + offsets, mask=in_row, other=-float("inf")).to(tl.float32)
    # Without subtracting the largest value, exp overflows from x = 89 on.
    exponentials = tl.exp(x - tl.max(x, axis=1)[:, None])
    # One division for a row, then a multiplication for each element.
    scale = 1.0 / tl.sum(exponentials, axis=1)
    y = exponentials * scale[:, None]
    tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), mask=in_row)


@triton.jit
def softmax_long_kernel(x_ptr, out_ptr, column_count, BLOCK: tl.constexpr):
    """Each program takes one row too long for its registers, a BLOCK at a time: two reads, one write.

    Largest value and sum are found in one pass (online softmax): whenever the largest value grows, the sum
    so far is scaled down to it. Every lane keeps its own pair, and the pairs are merged at the end.
    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867.
    """
    start_of_row = tl.program_id(0).to(tl.int64) * column_count
    lanes = tl.arange(0, BLOCK)
    # The least finite value, not -inf: the difference of two -inf is NaN.
    largest = tl.full([BLOCK], -3.4028234663852886e38, tl.float32)
    total = tl.full([BLOCK], 0.0, tl.float32)
    for start in range(0, column_count, BLOCK):
        columns = start + lanes
        x = tl.load(x_ptr + start_of_row + columns, mask=columns < column_count, other=-float("inf"))
        x = x.to(tl.float32)
        grown = tl.maximum(largest, x)
        total = total * tl.exp(largest - grown) + tl.exp(x - grown)
        largest = grown
    row_largest = tl.max(largest, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(largest - row_largest), axis=0)
    for start in range(0, column_count, BLOCK):
        columns = start + lanes
        inside = columns < column_count
        x = tl.load(x_ptr + start_of_row + columns, mask=inside).to(tl.float32)
        y = tl.exp(x - row_largest) * scale
        tl.store(out_ptr + start_of_row + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_teaching_kernel(x_ptr, out_ptr, column_count, BLOCK: tl.constexpr):
    """Each program takes one row in three loops, as the formula is written: three reads, one write."""
    start_of_row = tl.program_id(0).to(tl.int64) * column_count
    lanes = tl.arange(0, BLOCK)

    largest = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, column_count, BLOCK):
        columns = start + lanes
        x = tl.load(x_ptr + start_of_row + columns, mask=columns < column_count, other=-float("inf"))
        largest = tl.maximum(largest, x.to(tl.float32))
    row_largest = tl.max(largest, axis=0)

    total = tl.full([BLOCK], 0.0, tl.float32)
    for start in range(0, column_count, BLOCK):
        columns = start + lanes
        x = tl.load(x_ptr + start_of_row + columns, mask=columns < column_count, other=-float("inf"))
        total += tl.exp(x.to(tl.float32) - row_largest)
    row_total = tl.sum(total, axis=0)

    for start in range(0, column_count, BLOCK):
        columns = start + lanes
        inside = columns < column_count
        x = tl.load(x_ptr + start_of_row + columns, mask=inside).to(tl.float32)
        y = tl.exp(x - row_largest) / row_total
        tl.store(out_ptr + start_of_row + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


_tuned_softmax = tuned_by_rows(softmax_kernel)


def softmax(x: torch.Tensor, *, teaching: bool = False) -> torch.Tensor:
    """Softmax over the last dimension."""
    check_arguments(x=x)
    kernels = (_tuned_softmax, softmax_long_kernel, softmax_teaching_kernel)
    return launched_by_rows(kernels, x, teaching=teaching)


# Reading each row three times.
softmax_teaching = partial(softmax, teaching=True)
