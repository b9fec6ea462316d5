"""Cumulative operations of ATen along one dimension.

Source: ATen/native/cuda/ScanUtils.cuh of PyTorch 2.6.0 and 2.11.0. A one-dimensional scan is CUB's, see
device_algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import LaunchFacts, Shape
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

__all__ = ["inner_scan", "outer_scan"]

_THREADS = 512  # Source: ScanUtils.cuh, scan_innermost_dim and scan_outer_dim
_MAX_GRID = 65535
_OPERATORS = frozenset(
    f"aten::{name}"
    for name in ("cumsum", "cumprod", "_cummax_helper", "_cummin_helper", "_logcumsumexp", "logcumsumexp")
)


def outer_scan(launch: LaunchFacts) -> Iterator[Note]:
    """`tensor_kernel_scan_outer_dim[_with_indices]`: the scanned dimension is not the last."""
    found = _scanned(launch)
    if found is not None:
        shape, at = found
        outer, length, inner = prod(shape[:at]), shape[at], prod(shape[at + 1 :])
        yield over(
            f"{plural(outer * inner, 'column')} of {length:,} elements ({shape_text(shape)}, dimension {at}) "
            f"{independent(outer * inner)}; each is walked from its start to its end."
        )
        threads = min(_THREADS, inner)
        yield computes(
            f"A block of {threads} threads scans {threads} neighboring columns, one per thread, {length:,} "
            "steps each."
        )
        formula = f"{plural(outer, 'outer slice')} × {ceiling(inner, threads)} blocks"
        grid = (min(_MAX_GRID, outer), min(_MAX_GRID, ceil_div(inner, threads)), 1)
        yield from checked(launch, [Expected(formula, grid, (threads, 1, 1))])
    yield memory(
        "At every step neighboring threads read and write neighboring elements: coalesced, one element at a "
        "time."
    )
    yield synchronization("None: a thread owns its column, so nothing inside a column runs in parallel.")
    yield algorithm("Sequential scan: the running value is carried in a register.")


def inner_scan(launch: LaunchFacts) -> Iterator[Note]:
    """`tensor_kernel_scan_innermost_dim[_with_indices]`: the scanned dimension is the last."""
    found = _scanned(launch)
    if found is not None:
        shape, at = found
        length = shape[at]
        rows = prod(shape) // length
        yield over(
            f"{plural(rows, 'row')} of {length:,} elements ({shape_text(shape)}) {independent(rows)}; inside "
            "a row, prefixes combine."
        )
        along = 1 << _log2_threads(rows, length)
        height = _THREADS // along
        yield computes(
            f"A block of {along}×{height} threads scans {plural(height, 'row')} at a time, {2 * along} "
            f"elements of each a step: {plural(ceil_div(length, 2 * along), 'step')} per row."
        )
        expected = Expected(
            f"{ceiling(rows, height)} blocks", (ceil_div(rows, height), 1, 1), (along, height, 1)
        )
        yield from checked(launch, [expected])
    yield memory(
        "A piece of each row passes through shared memory; loads and stores of neighboring threads are "
        "coalesced."
    )
    yield synchronization(
        "__syncthreads() after every doubling of the scanned distance; rows are independent."
    )
    yield algorithm(
        "Parallel prefix inside a piece of the row by doubling distances; the piece's total is carried to "
        "the next."
    )


def _scanned(launch: LaunchFacts) -> tuple[Shape, int] | None:
    call = launch.call
    if call is None or call.name not in _OPERATORS:
        return None
    tensor = call.tensor(0)
    integers = call.scalars()
    if tensor is None or not integers or not tensor.shape or not tensor.element_count:
        return None
    at = integers[0]
    return (tensor.shape, at % len(tensor.shape)) if -len(tensor.shape) <= at < len(tensor.shape) else None


def _log2_threads(rows: int, length: int) -> int:
    """Source: ScanUtils.cuh, get_log_num_threads_x_inner_scan, in its unsigned 32-bit arithmetic."""
    difference = (length - 1).bit_length() - (rows - 1).bit_length()
    return min(max(((9 + difference) % 2**32) // 2, 4), 9)
