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
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from opscope.errors import InputError
from opscope.kernels.triton.launching import (
    autotuned,
    check_arguments,
    is_compiled,
    launched,
    multiprocessors,
)

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # Triton before 3.4
    TensorDescriptor = None

_DESCRIPTOR_ALIGNMENT = 16  # bytes: rows of a tensor descriptor begin at multiples of it


def set_block_shapes(arguments: Mapping[str, Any]) -> None:
    """Give the descriptors the tile sizes of the configuration that is about to be launched."""
    rows, columns, depth = arguments["BM"], arguments["BN"], arguments["BK"]
    arguments["a_desc"].block_shape = [rows, depth]
    arguments["b_desc"].block_shape = [depth, columns]
    arguments["c_desc"].block_shape = [rows, columns // 2 if arguments["HALVES"] else columns]


def _tiles(rows: int, columns: int, depth: int, **others: Any) -> dict[str, Any]:
    return {"BM": rows, "BN": columns, "BK": depth, "GROUP": 8, **others}


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

DESCRIPTOR_CONFIGS = [
    triton.Config(
        _tiles(*tile, FLATTEN=True, HALVES=halves),
        num_warps=warps,
        num_stages=stages,
        pre_hook=set_block_shapes,
    )
    for tile, warps, stages, halves in (
        ((128, 256, 64), 8, 3, False),
        ((128, 256, 64), 8, 4, True),
        ((128, 128, 64), 4, 3, True),
        ((128, 128, 64), 4, 4, True),
        ((64, 64, 64), 4, 4, False),
    )
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


@triton.jit
def matmul_descriptor_kernel(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
    HALVES: tl.constexpr,
):
    """Each program stays on its multiprocessor and computes one tile after another (a persistent kernel).

    Tensor descriptors let the copy engine of Hopper and later (TMA) move whole tiles: one thread asks for a
    tile, no thread computes addresses or masks, and what lies outside a matrix reads as 0 and is not written.
    FLATTEN makes one loop of tiles and K, so that reads for the next tile start while one is finished. HALVES
    writes a tile in two parts, which leaves shared memory for one more stage of reads.
    """
    tiles_down = tl.cdiv(M, BM)
    tiles_across = tl.cdiv(N, BN)
    tiles = tiles_down * tiles_across
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        down, across = tile_place(tile, tiles_down, tiles_across, GROUP)
        sums = tl.full([BM, BN], 0.0, tl.float32)
        for step in range(tl.cdiv(K, BK)):
            a = a_desc.load([down * BM, step * BK])
            b = b_desc.load([step * BK, across * BN])
            sums = tl.dot(a, b, sums)
        if HALVES:
            left, right = tl.split(tl.permute(tl.reshape(sums, [BM, 2, BN // 2]), [0, 2, 1]))
            c_desc.store([down * BM, across * BN], left.to(c_desc.dtype))
            c_desc.store([down * BM, across * BN + BN // 2], right.to(c_desc.dtype))
        else:
            c_desc.store([down * BM, across * BN], sums.to(c_desc.dtype))


_key = ["M", "N", "K"]
_tuned_matmul = autotuned(matmul_kernel, CONFIGS, key=_key)
_tuned_float32_matmul = autotuned(matmul_kernel, FLOAT32_CONFIGS, key=[*_key, "PRECISION"])
_tuned_descriptor_matmul = autotuned(matmul_descriptor_kernel, DESCRIPTOR_CONFIGS, key=_key)


def matmul(a: torch.Tensor, b: torch.Tensor, precision: str = "ieee") -> torch.Tensor:
    """Product of two matrices: by tensor descriptors where they can be used, by pointers elsewhere.

    The precision is of float32 products: `"ieee"`, or `"tf32"` for the tensor cores' 10-bit mantissa.
    """
    if takes_descriptors(a, b):
        return matmul_by_tensor_descriptors(a, b)
    return matmul_by_pointers(a, b, precision)


def takes_descriptors(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the kernel with tensor descriptors can multiply these: 16-bit, aligned, on Hopper or later."""
    if TensorDescriptor is None or a.element_size() != 2 or not a.is_cuda or 0 in (*a.shape, *b.shape):
        return False
    if not (is_compiled(matmul_descriptor_kernel) and _has_copy_engine(a.get_device())):
        return False
    places = (place for one in (a, b) for place in (one.data_ptr(), 2 * one.shape[-1]))
    return all(place % _DESCRIPTOR_ALIGNMENT == 0 for place in places)


def matmul_by_pointers(a: torch.Tensor, b: torch.Tensor, precision: str = "ieee") -> torch.Tensor:
    """Like `matmul`, never by tensor descriptors."""
    sizes, out = _sizes_and_output(a, b)
    kernel = _tuned_float32_matmul if a.dtype is torch.float32 else _tuned_matmul
    return launched(out, kernel, _one_tile_each(sizes), a, b, out, *sizes, PRECISION=precision)


def matmul_by_tensor_descriptors(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Like `matmul`, always by tensor descriptors; see `takes_descriptors`."""
    sizes, out = _sizes_and_output(a, b)
    # The configuration sets the real tile sizes, just before the launch.
    descriptors = [TensorDescriptor.from_tensor(tensor, [1, 1]) for tensor in (a, b, out)]
    grid = _one_tile_each(sizes, most=multiprocessors(out.device))
    return launched(out, _tuned_descriptor_matmul, grid, *descriptors, *sizes)


def _sizes_and_output(a: torch.Tensor, b: torch.Tensor) -> tuple[tuple[int, int, int], torch.Tensor]:
    check_arguments(a=a, b=b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise InputError(f"a matrix of {tuple(a.shape)} cannot be multiplied by one of {tuple(b.shape)}")
    (m, k), n = a.shape, b.shape[1]
    return (m, n, k), torch.empty((m, n), dtype=a.dtype, device=a.device)


def _one_tile_each(sizes: tuple[int, int, int], most: int = 1 << 30) -> Any:
    m, n, _ = sizes
    return lambda meta: (min(most, triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"])),)


@cache
def _has_copy_engine(device: int) -> bool:
    return bool(torch.cuda.get_device_capability(device) >= (9, 0))
