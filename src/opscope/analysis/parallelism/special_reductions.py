"""Reductions with kernels of their own: negative log likelihood, distances between vectors, histograms.

Sources: aten/src/ATen/native/cuda/Loss.cu, NLLLoss2d.cu, DistanceKernel.cu and SummaryOps.cu of PyTorch
2.6.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import LaunchFacts, OperatorCall
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
    "distances",
    "histogram",
    "nll_loss_each",
    "nll_loss_image",
    "nll_loss_sum",
    "nll_loss_sum_gradient",
]

_THREADS = 1024  # Source: KernelUtils.h, CUDA_NUM_THREADS
_DISTANCE_THREADS = 256  # Source: DistanceKernel.cu, kCUDANumThreads
_HISTOGRAM_GUARD_BYTES = 8  # Source: SummaryOps.cu, CUDA_tensor_histogram


def nll_loss_sum(launch: LaunchFacts) -> Iterator[Note]:
    """`nll_loss_forward_reduce_cuda_kernel_1d/2d`: one block sums all rows."""
    tensor = launch.tensor(0)
    if tensor is not None and len(tensor.shape) == 2 and launch.thread_count:
        rows, threads = tensor.shape[0], launch.thread_count
        yield over(
            f"{plural(rows, 'row')} ({shape_text(tensor.shape)}) each pick one value; their weighted sum is "
            "associative."
        )
        yield computes(
            f"One block of {threads} threads sums all {rows:,} rows: {ceil_div(rows, threads)} per thread."
        )
        yield from checked(launch, [Expected("one block, whatever the number of rows", (1, 1, 1))])
    yield memory(
        "Each row's value is read where its target points: one element a row, so loads are not coalesced."
    )
    yield synchronization(
        "Partial sums pass through shared memory with __syncthreads(); a single block, so no other."
    )


def nll_loss_sum_gradient(launch: LaunchFacts) -> Iterator[Note]:
    """`nll_loss_backward_reduce_cuda_kernel_1d/2d`: one block writes one gradient per row."""
    target = launch.tensor(2)
    if target is not None and target.element_count and launch.thread_count:
        rows = target.element_count
        yield over(f"{plural(rows, 'row')} {independent(rows)}: each has one gradient that is not zero.")
        each = ceil_div(rows, launch.thread_count)
        yield computes(
            f"One block of {launch.thread_count} threads writes {rows:,} values: {each} per thread."
        )
        yield from checked(launch, [Expected("one block, whatever the number of rows", (1, 1, 1))])
    yield synchronization("None: rows are independent.")


def nll_loss_each(launch: LaunchFacts) -> Iterator[Note]:
    """`nll_loss_forward_no_reduce_cuda_kernel` and its backward: one thread per row."""
    call = launch.call
    target = None if call is None else call.tensor(2 if "backward" in call.name else 1)
    if target is not None and target.element_count:
        rows = target.element_count
        yield over(f"{plural(rows, 'row')} {independent(rows)}.")
        expected = Expected(
            f"{ceiling(rows, _THREADS)} blocks", (ceil_div(rows, _THREADS), 1, 1), (_THREADS, 1, 1)
        )
        yield from checked(launch, [expected])
    yield computes(f"A block of {_THREADS:,} threads handles as many rows, one per thread.")
    yield synchronization("None: rows are independent.")


def nll_loss_image(launch: LaunchFacts) -> Iterator[Note]:
    """`nll_loss2d_forward_kernel`, `nll_loss2d_backward_kernel`: blocks over the places of each image."""
    call = launch.call
    target = None if call is None else call.tensor(2 if "backward" in call.name else 1)
    if target is not None and len(target.shape) == 3 and target.element_count:
        batch, places = target.shape[0], prod(target.shape[1:])
        per_image = max(ceil_div(places, _THREADS) // 128, 1)
        yield over(
            f"{batch * places:,} places ({shape_text(target.shape)}) are independent"
            + ("." if "backward" in launch.function_name else "; their sum is associative.")
        )
        grid = (per_image * batch, 1, 1)
        yield computes(
            f"A block of {_THREADS:,} threads takes places of one image, {plural(per_image, 'block')} per "
            "image."
        )
        expected = Expected(f"{batch} images × {plural(per_image, 'block')}", grid, (_THREADS, 1, 1))
        yield from checked(launch, [expected])
    if "forward" in launch.function_name:
        yield synchronization(
            "Two block-wide sums with warp shuffles and shared memory, then an atomic per block and sum."
        )


def distances(launch: LaunchFacts) -> Iterator[Note]:
    """`cdist_kernel_cuda_impl`, `pdist_kernel_cuda_impl`: one block per pair of vectors."""
    pairs, described = _pairs(launch.call)
    first = launch.tensor(0)
    if first is not None and pairs:
        yield over(f"{plural(pairs, 'pair')} of vectors ({described}) {independent(pairs)}.")
        yield computes(
            f"A block of {_DISTANCE_THREADS} threads computes one distance over {first.shape[-1]:,} "
            f"coordinates, up to {ceil_div(first.shape[-1], _DISTANCE_THREADS)} per thread."
        )
        expected = Expected("one block per pair", (pairs, 1, 1), (_DISTANCE_THREADS, 1, 1))
        yield from checked(launch, [expected])
    yield memory("Neighboring threads read neighboring coordinates of both vectors: coalesced.")
    yield synchronization(
        "Warp shuffles, then one value per warp through shared memory with __syncthreads()."
    )


def histogram(launch: LaunchFacts) -> Iterator[Note]:
    """`kernelHistogram1D<out, in, index, 1, 2, -1, memory type, ...>`."""
    tensor = launch.tensor(0)
    if tensor is not None and tensor.element_count:
        yield over(
            f"All {tensor.element_count:,} values are counted independently; counts add up in any order."
        )
        if launch.thread_count and launch.block_count:
            each = ceil_div(tensor.element_count, launch.thread_count * launch.block_count)
            yield computes(f"A thread counts up to {plural(each, 'value')}, in a grid-stride loop.")
    bins = launch.call.integer(1) if launch.call is not None and launch.call.name == "aten::histc" else None
    shared = launch.geometry.shared_memory_bytes
    if launch.template_integer(6) == 0:
        if bins and shared and (shared - _HISTOGRAM_GUARD_BYTES) % bins == 0:
            size = (shared - _HISTOGRAM_GUARD_BYTES) // bins
            yield memory(
                f"Each block has its own histogram in shared memory: {bins} bins × {size} B + "
                f"{_HISTOGRAM_GUARD_BYTES} B."
            )
        yield synchronization(
            "Atomics in shared memory, __syncthreads(), then one atomic per bin and block in global memory."
        )
    yield algorithm("Each value is mapped to its bin by the range and the number of bins.")


def _pairs(call: OperatorCall | None) -> tuple[int, str]:
    """Pairs of vectors that `_cdist_forward(x1, x2, ...)` or `_pdist_forward(self, p)` compares, in words."""
    first = None if call is None else call.tensor(0)
    if call is None or first is None or len(first.shape) < 2:
        return 0, ""
    if call.name == "aten::_pdist_forward":
        count = first.shape[0]
        return count * (count - 1) // 2, f"all of {count:,}"
    second = call.tensor(1)
    if call.name != "aten::_cdist_forward" or second is None or len(second.shape) < 2:
        return 0, ""
    batch, rows, columns = prod(first.shape[:-2]), first.shape[-2], second.shape[-2]
    return batch * rows * columns, f"{batch:,} × {rows:,} × {columns:,}"
