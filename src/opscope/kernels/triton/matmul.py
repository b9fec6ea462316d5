"""Matrix product of two row-major matrices, M×K times K×N.

Every element of the inputs is needed N or M times, so the work is to have it in fast memory when it is: a
program computes a BM×BN tile of the result and walks along K, reading a BM×BK and a BK×BN tile at each step,
which the tensor cores multiply. Sums are kept in float32.
"""

# Kernels are Triton's language, not Python's: constants are upper-case there, arguments have no types.
# ruff: noqa: N803, PLR0917
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from opscope.errors import InputError
from opscope.kernels.triton.launching import autotuned, check_arguments, launched


def _tiles(rows: int, columns: int, depth: int) -> dict[str, int]:
    return {"BM": rows, "BN": columns, "BK": depth, "GROUP": 8}


# 16-bit operands on tensor cores. A 128×256 tile on 8 warps keeps 128 float32 sums in each thread.
CONFIGS = [
    triton.Config(_tiles(128, 256, 64), num_warps=8, num_stages=3),
    triton.Config(_tiles(128, 128, 64), num_warps=8, num_stages=4),
    triton.Config(_tiles(128, 128, 64), num_warps=4, num_stages=4),
    triton.Config(_tiles(256, 128, 64), num_warps=8, num_stages=3),
    triton.Config(_tiles(128, 128, 32), num_warps=4, num_stages=4),
    triton.Config(_tiles(64, 64, 32), num_warps=4, num_stages=4),
]

# float32 needs twice the shared memory; without TF32 it runs on the ordinary cores, from registers.
FLOAT32_CONFIGS = [
    triton.Config(_tiles(128, 256, 32), num_warps=8, num_stages=3),
    triton.Config(_tiles(128, 128, 32), num_warps=4, num_stages=3),
    triton.Config(_tiles(128, 128, 32), num_warps=8, num_stages=3),
    triton.Config(_tiles(64, 64, 32), num_warps=4, num_stages=4),
    triton.Config(_tiles(128, 128, 16), num_warps=8, num_stages=3),
    triton.Config(_tiles(64, 64, 16), num_warps=4, num_stages=3),
]


@triton.jit
def tile_place(tile, tiles_down, tiles_across, GROUP: tl.constexpr):
    """Row and column of a tile in the result, so that neighbors in time share operands in the L2 cache.

    Tiles are counted down columns of GROUP rows: programs that run together then read few rows of a and few
    columns of b, not one row and all columns.
    """
    tiles_in_group = GROUP * tiles_across
    first_down = (tile // tiles_in_group) * GROUP
    rows_in_group = tl.minimum(tiles_down - first_down, GROUP)
    within = tile % tiles_in_group
    return first_down + within % rows_in_group, within // rows_in_group


@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BK"] == 0})
@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Each program computes one BM×BN tile, reading through pointers: works for any M, N, K and GPU."""
    down, across = tile_place(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rows = down * BM + tl.arange(0, BM)[:, None]
    columns = across * BN + tl.arange(0, BN)[None, :]
    depth = tl.arange(0, BK)
    # 64-bit: a matrix may have more than 2**31 elements.
    a_ptrs = a_ptr + rows.to(tl.int64) * K + depth[None, :]
    b_ptrs = b_ptr + depth[:, None].to(tl.int64) * N + columns
    b_step = N.to(tl.int64) * BK
    sums = tl.full([BM, BN], 0.0, tl.float32)
    for start in range(0, K, BK):
        a_mask = rows < M
        b_mask = columns < N
        if not EVEN_K:
            a_mask = a_mask & (depth[None, :] < K - start)
            b_mask = b_mask & (depth[:, None] < K - start)
        a = tl.load(a_ptrs, mask=a_mask, other=0.0)
        b = tl.load(b_ptrs, mask=b_mask, other=0.0)
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
        a_ptrs += BK
        b_ptrs += b_step
    c_ptrs = c_ptr + rows.to(tl.int64) * N + columns
    tl.store(c_ptrs, sums.to(c_ptr.dtype.element_ty), mask=(rows < M) & (columns < N))


_key = ["M", "N", "K"]
_tuned_matmul = autotuned(matmul_kernel, CONFIGS, key=_key)
_tuned_float32_matmul = autotuned(matmul_kernel, FLOAT32_CONFIGS, key=[*_key, "PRECISION"])


def matmul(a: torch.Tensor, b: torch.Tensor, precision: str = "ieee") -> torch.Tensor:
    """Product of two matrices.

    The precision is of float32 products: `"ieee"`, or `"tf32"` for the tensor cores' 10-bit mantissa.
    """
    check_arguments(a=a, b=b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise InputError(f"a matrix of {tuple(a.shape)} cannot be multiplied by one of {tuple(b.shape)}")
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    kernel = _tuned_float32_matmul if a.dtype is torch.float32 else _tuned_matmul

    def grid(meta: Mapping[str, Any]) -> tuple[int]:
        return (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)  # a program for each tile

    return launched(out, kernel, grid, a, b, out, m, n, k, PRECISION=precision)
