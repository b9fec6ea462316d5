"""Layer and RMS normalization of ATen: one block per row, columns for the weights' gradients.

Sources: aten/src/ATen/native/cuda/layer_norm_kernel.cu of PyTorch 2.6.0, and of later releases for
GammaBetaBackwardCUDAKernelTemplate and the rms_norm template argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, Statement, checked
from opscope.analysis.parallelism.facts import Extent, LaunchFacts, Shape, item_size_bytes
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

__all__ = [
    "gamma_beta_backward",
    "gamma_beta_backward_old",
    "input_gradient",
    "row_moments",
    "row_normalization",
    "vectorized_forward",
]

_VECTOR = 4  # Source: layer_norm_kernel.cu, vec_size
_THREADS = 128  # Source: thread_constants.h, num_threads()
_MOMENT_THREADS = 512  # Source: block_reduce.cuh, kCUDABlockReduceNumThreads
_ROW_THREADS = 256  # Source: layer_norm_kernel.cu, kCUDANumThreads
_WIDE_ROWS = 64 * 1024  # Source: layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel
_MOST_BLOCKS = 64 * 1024 // 2
# Source: layer_norm_kernel.cu 2.6.0, LayerNormBackwardKernelImplInternal: block of each of its column
# kernels.
_OLD_COLUMN_BLOCKS = {
    "GammaBetaBackwardSimpleCUDAKernel": (_ROW_THREADS, 1, 1),
    "GammaBetaBackwardCUDAKernel_32x32": (32, 32, 1),
    "GammaBetaBackwardCUDAKernel": (16, 32, 1),
}
# Position of (input, normalized_shape, weight) in the operators' arguments.
_ARGUMENTS_AT = {
    "aten::native_layer_norm": (0, 1, 2),
    "aten::_fused_rms_norm": (0, 1, 2),
    "aten::native_layer_norm_backward": (1, 2, 5),
    "aten::_fused_rms_norm_backward": (1, 2, 4),
}


@dataclass(frozen=True)
class _Rows:
    """Rows (M) of one length (N), as the operator sees its input."""

    shape: Shape
    count: int
    length: int


def vectorized_forward(launch: LaunchFacts) -> Iterator[Note]:
    """`vectorized_layer_norm_kernel<T, T_ACC[, rms_norm]>`: statistics and result in one launch."""
    rows = _rows(launch)
    is_rms = launch.template_integer(2) == 1
    statistic = "mean square" if is_rms else "mean and variance"
    yield from _parallel(rows, statistic)
    if rows is not None:
        yield from _one_block_per_row(launch, rows, (32, _THREADS // 32, 1), _VECTOR)
    yield from _vector_access(launch, 0)
    yield memory("The row is read twice, for the statistics and for the result; it is not kept in between.")
    yield synchronization(
        "Lanes of a warp combine by shuffles; the 4 warps combine through shared memory in 2 rounds with "
        "__syncthreads(). Blocks are independent."
    )
    if is_rms:
        yield algorithm("Pass 1: mean of squares. Pass 2: x × rsqrt(mean square + eps) × weight.")
    else:
        yield algorithm(
            "Pass 1: mean and sum of squared deviations, updated online (Welford) and merged pairwise. Pass "
            "2: (x - mean) × rsqrt(variance + eps) × weight + bias; one thread stores mean and rstd."
        )


def row_moments(launch: LaunchFacts) -> Iterator[Note]:
    """`RowwiseMomentsCUDAKernel`: the statistics of each row, where the vectorized kernel does not fit."""
    rows = _rows(launch)
    yield from _parallel(rows, "mean and variance")
    if rows is not None:
        yield from _one_block_per_row(launch, rows, (_MOMENT_THREADS, 1, 1), 1)
    yield memory("Neighboring threads read neighboring elements, one a load: coalesced.")
    yield synchronization(
        "Warp shuffles, then one value per warp through shared memory with __syncthreads()."
    )
    yield algorithm(
        "Mean and sum of squared deviations, updated online (Welford); a second launch normalizes."
    )


def row_normalization(launch: LaunchFacts) -> Iterator[Note]:
    """`LayerNormForwardCUDAKernel`: applies the statistics of the launch before."""
    rows = _rows(launch)
    if rows is not None:
        yield over(
            f"All {rows.count * rows.length:,} elements are independent once the rows' statistics are known."
        )
        yield from _one_block_per_row(launch, rows, (_ROW_THREADS, 1, 1), 1)
    yield memory("Neighboring threads read and write neighboring elements, one at a time: coalesced.")
    yield synchronization("None within the launch; it follows the one that computed the rows' statistics.")


def input_gradient(launch: LaunchFacts) -> Iterator[Note]:
    """`layer_norm_grad_input_kernel[_vectorized]<T, T_ACC[, rms_norm]>`."""
    rows = _rows(launch)
    is_vectorized = launch.function_name.endswith("vectorized")
    yield from _parallel(rows, "two sums of the gradient")
    if rows is not None:
        yield from _one_block_per_row(launch, rows, (_THREADS, 1, 1), _VECTOR if is_vectorized else 1)
    if is_vectorized:
        yield from _vector_access(launch, 0)
    yield memory("Gradient, input and weight of the row are read twice, for the sums and for the result.")
    yield synchronization(
        "Two block-wide sums: warp shuffles, then one value per warp through shared memory with "
        "__syncthreads(). Blocks are independent."
    )
    yield algorithm(
        "Pass 1: sums of dY × weight and of dY × weight × x_hat over the row. Pass 2: the gradient of each "
        "element."
    )


def gamma_beta_backward(launch: LaunchFacts) -> Iterator[Note]:
    """`GammaBetaBackwardCUDAKernelTemplate<T, T_ACC, bx, by, rows_per_block, partial, ...>`."""
    rows = _rows(launch)
    width, height, tall = (launch.template_integer(position) for position in (2, 3, 4))
    is_partial = launch.template_integer(5) == 1
    yield from _parallel_columns(rows)
    if not width or not height or not tall:
        return
    yield computes(
        f"A block of {width}×{height} threads sums {plural(width, 'column')}, {tall} rows at a time, "
        f"{tall // height} rows per thread."
    )
    if rows is not None:
        yield from checked(launch, _column_grids(rows, width, height, tall))
    yield memory(f"Lanes along x read {width} neighboring columns of a row, one element a load: coalesced.")
    if is_partial:
        yield synchronization("None within the block: partial sums are stored and added by a second launch.")
    else:
        yield synchronization(
            f"The {height} partial sums of a column pass through shared memory, transposed and padded by one "
            "element a row, then combine by warp shuffles."
        )
    yield algorithm("Both sums in one pass over gradient and input.")


def gamma_beta_backward_old(launch: LaunchFacts) -> Iterator[Note]:
    """The column kernels of 2.6 and before: one thread, or one column of threads, per column of the input."""
    rows = _rows(launch)
    block = _OLD_COLUMN_BLOCKS.get(launch.function_name)
    yield from _parallel_columns(rows)
    if block is None:
        return
    width, height, _ = block
    yield computes(
        f"A block of {width}×{height} threads sums {plural(width, 'column')}, {height} rows side by side."
    )
    if rows is not None:
        columns = ceil_div(rows.length, width)
        formula = f"{ceiling(rows.length, width)} blocks over the columns"
        yield from checked(launch, [Expected(formula, (columns, 1, 1), block)])
    yield memory(f"Lanes along x read {width} neighboring columns of a row, one element a load: coalesced.")
    if height > 1:
        yield synchronization(
            f"The {height} partial sums of a column combine through shared memory with __syncthreads()."
        )
    else:
        yield synchronization("None: one thread runs down each column.")


def _rows(launch: LaunchFacts) -> _Rows | None:
    call = launch.call
    if call is None or call.name not in _ARGUMENTS_AT:
        return None
    tensor_at, shape_at, weight_at = _ARGUMENTS_AT[call.name]
    tensor, normalized, weight = call.tensor(tensor_at), call.integers(shape_at), call.tensor(weight_at)
    if normalized is None and weight is not None:
        normalized = weight.shape  # recorders before 2.0 leave lists of integers out
    if tensor is None or not normalized or not tensor.element_count:
        return None
    length = prod(normalized)
    return _Rows(tensor.shape, tensor.element_count // length, length) if length > 0 else None


def _parallel(rows: _Rows | None, statistic: str) -> Iterator[Statement]:
    if rows is not None:
        yield over(
            f"{plural(rows.count, 'row')} of {rows.length:,} elements ({shape_text(rows.shape)}) "
            f"{independent(rows.count)}; inside a row, {statistic} combine from partial ones."
        )


def _parallel_columns(rows: _Rows | None) -> Iterator[Statement]:
    if rows is not None:
        yield over(
            f"{plural(rows.length, 'column')} are independent: the weight's gradient sums dY × x_hat, the "
            f"bias' dY, over the {rows.count:,} rows ({shape_text(rows.shape)})."
        )


def _one_block_per_row(launch: LaunchFacts, rows: _Rows, block: Extent, vector: int) -> Iterator[Note]:
    threads = prod(block)
    vectors = rows.length // vector
    each = ceil_div(vectors, threads)
    unit = plural(each, "vector" if vector > 1 else "element")
    unit += f" of {vector} elements" if vector > 1 else ""
    yield computes(f"A block of {threads} threads computes one row: up to {unit} per thread.")
    if vectors < threads:
        yield computes(
            f"The row has {plural(vectors, 'vector' if vector > 1 else 'element')}: {threads - vectors} "
            "threads get none."
        )
    yield from checked(
        launch, [Expected(f"one block for each of {plural(rows.count, 'row')}", (rows.count, 1, 1), block)]
    )


def _vector_access(launch: LaunchFacts, type_at: int) -> Iterator[Statement]:
    size = item_size_bytes(launch.template_argument(type_at))
    each = f", {_VECTOR * size} B" if size else ""
    yield memory(
        f"Loads and stores are vectors of {_VECTOR} elements{each}; neighboring threads take neighboring "
        "vectors: coalesced."
    )


def _column_grids(rows: _Rows, width: int, height: int, tall: int) -> Iterator[Expected]:
    columns = ceil_div(rows.length, width)
    block = (width, height, 1)
    yield Expected(f"{ceiling(rows.length, width)} blocks over the columns", (columns, 1, 1), block)
    if rows.count > _WIDE_ROWS:
        down = min(_MOST_BLOCKS // columns, ceil_div(rows.count, tall))
        yield Expected(
            f"{ceiling(rows.length, width)} blocks over the columns × {down:,} over the rows",
            (columns, down, 1),
            block,
        )
