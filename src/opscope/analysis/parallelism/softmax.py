"""Softmax kernels of ATen: one warp per row, one block per row, and the spatial one for an inner dimension.

Sources: ATen/native/cuda/PersistentSoftmax.cuh of PyTorch 2.6.0 and 2.11.0;
aten/src/ATen/native/cuda/SoftMax.cu of 2.6.0, and of later releases for cunn_SoftMaxForwardReg.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, Statement, checked, extent_text
from opscope.analysis.parallelism.facts import LaunchFacts, Shape, item_size_bytes
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    independent,
    memory,
    over,
    plural,
    shape_text,
    synchronization,
)
from opscope.units import format_fraction

__all__ = ["block_softmax", "spatial_softmax", "warp_softmax"]

_WARP = 32
_WARP_SOFTMAX_THREADS = 128  # Source: PersistentSoftmax.cuh, threads_per_block
_MAX_THREADS = 1024  # Source: SoftMax.cu, max_threads
# Position of the dimension in the operators' arguments.
_DIMENSION_AT = {
    "aten::_softmax": 1,
    "aten::_log_softmax": 1,
    "aten::_softmax_backward_data": 2,
    "aten::_log_softmax_backward_data": 2,
}


@dataclass(frozen=True)
class _Rows:
    """The tensor as outer × length × inner, softmax running over the length."""

    shape: Shape
    outer: int
    length: int
    inner: int


def warp_softmax(launch: LaunchFacts) -> Iterator[Note]:
    """`softmax_warp_forward/backward<in, out, acc, log2_elements, is_log_softmax, is_masked>`."""
    rows = _rows(launch)
    log2_elements = launch.template_integer(3)
    is_backward = "backward" in launch.function_name
    yield from _parallel(rows)
    if log2_elements is not None:
        padded = 1 << log2_elements
        lanes, rows_per_warp = min(padded, _WARP), 2 if padded <= 128 else 1
        warps = _WARP_SOFTMAX_THREADS // lanes
        per_block = warps * rows_per_warp
        yield computes(
            f"A block of {_WARP_SOFTMAX_THREADS} threads computes {plural(per_block, 'row')}: {warps} groups "
            f"of {lanes} lanes, {plural(rows_per_warp, 'row')} each."
        )
        if rows is not None and rows.inner == 1:
            formula = f"{ceiling(rows.outer, per_block)} blocks"
            expected = Expected(formula, (ceil_div(rows.outer, per_block), 1, 1), (lanes, warps, 1))
            yield from checked(launch, [expected])
        yield from _held_in_registers(launch, rows, padded, lanes, rows_per_warp)
        yield synchronization(
            f"No __syncthreads(), no shared memory: {'one sum' if is_backward else 'maximum, then sum'} over "
            f"a row by {max(lanes.bit_length() - 1, 0)} exchanges of warp shuffles (xor), as a row belongs "
            "to one warp."
        )
    yield from _warp_steps(launch, is_backward)


def block_softmax(launch: LaunchFacts) -> Iterator[Note]:
    """`cunn_SoftMaxForward[Reg|Smem]` and `cunn_SoftMaxBackward`: one block per row."""
    rows = _rows(launch)
    yield from _parallel(rows)
    threads = launch.thread_count
    if rows is not None and rows.inner == 1:
        if threads:
            yield computes(
                f"A block of {threads:,} threads computes one row of {rows.length:,} elements: up to "
                f"{ceil_div(rows.length, threads)} per thread."
            )
        yield from checked(launch, _row_grids(launch, rows))
    yield from _block_access(launch)
    if "Backward" in launch.function_name:
        yield synchronization("__syncthreads() around one block-wide sum; blocks are independent.")
        yield algorithm("One pass sums the row's products, a second writes the gradient of each element.")
    else:
        yield synchronization(
            "Two block-wide reductions, the maximum and the sum: warp shuffles, one value per warp through "
            "shared memory, __syncthreads(); blocks are independent."
        )
        yield algorithm("Three steps over the row: maximum; sum of exp(x - maximum); normalized result.")


def spatial_softmax(launch: LaunchFacts) -> Iterator[Note]:
    """`cunn_SpatialSoftMaxForward/Backward`: the softmax dimension is not the last."""
    rows = _rows(launch)
    yield from _parallel(rows)
    block = launch.block
    if block is not None and rows is not None and rows.inner > 1:
        yield computes(
            f"A block of {extent_text(block)} threads takes {block[1]:,} columns of one outer slice at a "
            f"time, {plural(block[0], 'thread')} for each column of {rows.length:,} elements."
        )
        yield from checked(launch, [_spatial_block(rows)])
    yield memory(
        "Threads along y read neighboring columns; along a column the elements lie a whole inner size apart."
    )
    if block is not None:
        shared = block[0] > 1
        yield synchronization(
            f"The {block[0]} threads of a column reduce in shared memory, halving with __syncthreads()."
            if shared
            else "None: one thread runs down each column."
        )


def _rows(launch: LaunchFacts) -> _Rows | None:
    call = launch.call
    if call is None or call.name not in _DIMENSION_AT:
        return None
    tensor, given = call.tensor(0), call.integer(_DIMENSION_AT[call.name])
    if tensor is None or given is None or not tensor.element_count:
        return None
    shape = tensor.shape or (1,)
    if not -len(shape) <= given < len(shape):
        return None
    at = given % len(shape)
    return _Rows(shape, prod(shape[:at]), shape[at], prod(shape[at + 1 :]))


def _parallel(rows: _Rows | None) -> Iterator[Statement]:
    if rows is not None:
        count = rows.outer * rows.inner
        yield over(
            f"{plural(count, 'row')} of {rows.length:,} elements ({shape_text(rows.shape)}) "
            f"{independent(count)}; inside a row, maximum and sum are associative, so lanes combine partial "
            "ones."
        )


def _held_in_registers(
    launch: LaunchFacts, rows: _Rows | None, padded: int, lanes: int, rows_per_warp: int
) -> Iterator[Statement]:
    per_thread = padded // lanes * rows_per_warp
    text = f"Every row is read once and kept in registers: {plural(per_thread, 'value')} per thread"
    if rows is not None and rows.length < padded:
        idle = format_fraction(1 - rows.length / padded)
        text += f", padded from {rows.length:,} to {padded:,} per row ({idle} of the lanes' slots idle)"
    yield memory(f"{text}.")
    size = item_size_bytes(launch.template_argument(0))
    each = f" of {size} B" if size else ""
    yield memory(
        f"Neighboring lanes load neighboring elements{each}, one element a load: coalesced, not vectorized."
    )


def _warp_steps(launch: LaunchFacts, is_backward: bool) -> Iterator[Statement]:
    is_log = launch.template_integer(4) == 1
    if is_backward:
        gradient = "grad - exp(output) × sum" if is_log else "grad - output × sum"
        yield algorithm(f"Load gradient and output; sum the row's gradients; write {gradient}.")
        if not is_log:
            yield algorithm("The gradient it loads was multiplied by the output before, in another launch.")
    else:
        result = "x - maximum - log(sum)" if is_log else "exp(x - maximum) / sum"
        yield algorithm(
            f"Load the row; maximum; sum of exp(x - maximum); write {result}: one pass over memory."
        )
    if launch.template_integer(5) == 1:
        yield algorithm("A mask is applied while the row is in registers.")


def _row_grids(launch: LaunchFacts, rows: _Rows) -> Iterator[Expected]:
    grid = (rows.outer, 1, 1)
    formula = f"one block for each of {plural(rows.outer, 'row')}"
    if "Backward" in launch.function_name:
        vector = launch.template_integer(0) or 1
        yield Expected(formula, grid, (_backward_threads(rows.length, vector), 1, 1))
        yield Expected(formula, grid)
    else:
        threads = ceil_div(min(rows.length, _MAX_THREADS), _WARP) * _WARP
        yield Expected(formula, grid, (threads, 1, 1))


def _backward_threads(length: int, vector: int) -> int:
    """Source: SoftMax.cu, SoftMax_getBlockSize."""
    most = min(length // vector, _MAX_THREADS)
    if vector > 1:
        most //= 2
    threads = 1
    while threads < most:
        threads *= 2
    return max(threads, _WARP)


def _block_access(launch: LaunchFacts) -> Iterator[Statement]:
    name = launch.function_name
    if name.endswith("Reg"):
        count = launch.template_integer(-1)
        if count:
            yield memory(
                f"The row is read once and kept in registers, {plural(count, 'element')} per thread; "
                "neighboring threads load neighboring elements, one a load: coalesced."
            )
        return
    width = launch.template_integer(0)
    size = item_size_bytes(launch.template_argument(1))
    if not width:
        return
    each = f" ({width * size} B)" if size else ""
    if name.endswith("Smem"):
        yield memory(
            f"The row is read once into shared memory by vectors of {width} elements{each}, and used from "
            "there."
        )
    else:
        passes = "twice" if "Backward" in name else "three times"
        yield memory(
            f"The row is read {passes} from global memory or cache, by vectors of {width} elements{each}."
        )


def _spatial_block(rows: _Rows) -> Expected:
    """Source: SoftMax.cu, SpatialSoftMax_getBlockSize; the grid depends on the kernel's occupancy."""
    inner = min(rows.inner, _MAX_THREADS)
    along = 1
    if inner <= 64 <= rows.length:
        while inner * along <= _MAX_THREADS and along <= rows.length:
            along *= 2
        along //= 2
    return Expected(
        f"blocks of {along}×{inner:,} threads for an inner size of {rows.inner:,}", None, (along, inner, 1)
    )
