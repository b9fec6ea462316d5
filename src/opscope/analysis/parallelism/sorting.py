"""Sorts and selections of ATen along one dimension: slices in parallel, a block or several per slice.

Sources: aten/src/ATen/native/cuda/Sort.cu, SortUtils.cuh, SortingCommon.cuh, TensorTopK.cu of PyTorch 2.6.0;
the kernels into which later releases divide radixFindKthValues are known from recorded launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opscope.analysis.parallelism.account import Expected, Note, Statement, checked
from opscope.analysis.parallelism.facts import Extent, LaunchFacts, item_size_bytes
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    independent,
    memory,
    over,
    plural,
    synchronization,
)

__all__ = ["multi_block_select", "single_block_select", "slice_sort", "small_slice_sort"]

_MAX_GRID = 65535  # Source: SortingCommon.cuh, MAX_GRID_SIZE
_WARP = 32
# Source: TensorTopK.cu, namespace mbtopk.
_THREADS = 256
_RADIX_BITS = 8
_REGISTERS_PER_THREAD = 40
_FEWEST_ITEMS, _MOST_ITEMS = 4, 64
_FILL_THREADS = 512
# Kernels of mbtopk: what one does, and whether it runs over all blocks or over slices.
_STEPS = {
    "computeBlockDigitCounts": ("counts the current digit of every candidate, per block", True),
    "computeDigitCumSum": (
        "sums the counts over a slice's blocks and picks the digit of the k-th value",
        False,
    ),
    "computeBlockwiseWithinKCounts": ("counts, per block, the values that are surely among the k", True),
    "computeBlockwiseKthCounts": ("counts, per block, the values equal to the k-th", False),
    "radixFindKthValues": (
        "counts the current digit; the last block of a slice picks the digit of the k-th value",
        True,
    ),
    "gatherTopK": (
        "writes the values beyond the k-th, and as many equal ones as are missing, to their places",
        True,
    ),
}


@dataclass(frozen=True)
class _Slices:
    """Slices along the sorted dimension."""

    count: int
    length: int


def slice_sort(launch: LaunchFacts) -> Iterator[Note]:
    """`radixSortKVInPlace<A, -1, block_size, items_per_thread, ...>`: one block per slice of up to 4,096."""
    slices = _slices(launch)
    threads, items = launch.template_integer(2), launch.template_integer(3)
    yield from _parallel(slices)
    if threads and items:
        yield computes(
            f"A block of {threads} threads sorts one slice of up to {threads * items:,} pairs, {items} per "
            "thread."
        )
        if slices is not None:
            expected = Expected(
                f"one block per slice: {slices.count:,}", _tiles(slices.count), (threads, 1, 1)
            )
            yield from checked(launch, [expected])
        yield memory(
            "Keys and values of the slice are loaded once, sorted in registers and shared memory, and "
            "stored once."
        )
    key = item_size_bytes(launch.template_argument(4))
    if key:
        yield algorithm(f"Radix sort inside the block over keys of {key * 8} bits, values carried along.")
    yield synchronization("__syncthreads() between the passes over digits; blocks are independent.")


def small_slice_sort(launch: LaunchFacts) -> Iterator[Note]:
    """`bitonicSortKVInPlace<A, -1, block_x, ...>` and `warpMergeSortKVInPlace<A, -1, sort_size, ...>`."""
    slices = _slices(launch)
    is_bitonic = launch.function_name.startswith("bitonic")
    size = launch.template_integer(2)
    yield from _parallel(slices)
    block = launch.block
    if block is not None and size:
        holds = 2 * size if is_bitonic else size
        yield computes(
            f"A block sorts {plural(block[1], 'slice')} of up to {holds} pairs, {block[0]} threads each."
        )
        if slices is not None:
            formula = f"{ceiling(slices.count, block[1])} blocks"
            yield from checked(launch, [Expected(formula, _tiles(ceil_div(slices.count, block[1])))])
    if is_bitonic:
        yield memory("Keys, values and validity flags of the slices lie in shared memory.")
        yield synchronization("__syncthreads() after every stage of compare and exchange.")
        yield algorithm("Bitonic sort: a fixed network of comparisons, the same for all data.")
    else:
        yield synchronization("Inside one warp per slice; no __syncthreads() across slices.")
        yield algorithm("Merge sort by one warp.")


def single_block_select(launch: LaunchFacts) -> Iterator[Note]:
    """`sbtopk::gatherTopK`, `gatherKthValue`, `gatherMedian`: one block per slice."""
    slices = _slices(launch)
    yield from _parallel(slices)
    if slices is not None:
        threads = min(ceil_div(slices.length, _WARP) * _WARP, 1024)
        yield computes(f"A block of {threads:,} threads selects in one slice of {slices.length:,} values.")
        expected = Expected(f"one block per slice: {slices.count:,}", _tiles(slices.count), (threads, 1, 1))
        yield from checked(launch, [expected])
    yield memory(
        "Neighboring threads read neighboring values; the slice is read once per digit place, and again to "
        "gather."
    )
    yield synchronization(
        "Counts of a digit are summed over the block in shared memory with __syncthreads()."
    )
    yield algorithm(
        "Radix selection: from the highest digits down, counts narrow the k-th value; no full sort."
    )


def multi_block_select(launch: LaunchFacts) -> Iterator[Note]:
    """Kernels of `mbtopk`: several blocks per slice and a launch per step and digit."""
    slices = _slices(launch)
    name = launch.function_name
    yield from _parallel(slices)
    if name == "fill":
        if slices is not None:
            formula = f"{ceiling(slices.count, _FILL_THREADS)} blocks"
            expected = Expected(formula, (ceil_div(slices.count, _FILL_THREADS), 1, 1), (_FILL_THREADS, 1, 1))
            yield from checked(launch, [expected])
        yield algorithm("Sets the rank that is looked for in each slice, before the passes over digits.")
        return
    step, is_over_blocks = _STEPS.get(name, (None, False))
    if step is None:
        return
    if slices is not None and launch.sm_count:
        yield from _step_launch(launch, slices, launch.sm_count, is_over_blocks=is_over_blocks)
    yield algorithm(f"Radix selection, {_RADIX_BITS} bits a pass, highest first. This launch {step}.")
    yield synchronization("Inside a block by __syncthreads(); across blocks by the order of launches.")


def _step_launch(
    launch: LaunchFacts, slices: _Slices, sm_count: int, *, is_over_blocks: bool
) -> Iterator[Note]:
    items = _items_per_thread(launch, slices, sm_count)
    per_slice = ceil_div(slices.length, items * _THREADS)
    if is_over_blocks:
        yield computes(
            f"A block of {_THREADS} threads takes up to {items * _THREADS:,} values of one slice, {items} "
            f"per thread: {plural(per_slice, 'block')} per slice of {slices.length:,}."
        )
        formula = f"{slices.count:,} slices × {plural(per_slice, 'block')}"
        yield from checked(launch, [Expected(formula, _tiles(slices.count * per_slice), (_THREADS, 1, 1))])
        return
    grids = [
        Expected(f"one block per slice: {slices.count:,}", _tiles(slices.count), (_THREADS, 1, 1)),
        Expected(f"{ceiling(slices.count, _THREADS)} blocks, one thread per slice",
                 (ceil_div(slices.count, _THREADS), 1, 1), (_THREADS, 1, 1)),
    ]  # fmt: skip
    is_per_thread = launch.function_name == "computeBlockwiseKthCounts"
    yield from checked(launch, grids[::-1] if is_per_thread else grids)


def _items_per_thread(launch: LaunchFacts, slices: _Slices, sm_count: int) -> int:
    """Source: TensorTopK.cu, get_items_per_thread."""
    limits = launch.device.limits if launch.device is not None else None
    registers, most_blocks = (limits.registers, limits.blocks) if limits is not None else (65536, 32)
    blocks_per_sm = min(registers // (_REGISTERS_PER_THREAD * _THREADS), most_blocks)
    items = ceil_div(slices.length * slices.count, sm_count * blocks_per_sm * _THREADS)
    return max(_FEWEST_ITEMS, min(items, _MOST_ITEMS))


def _slices(launch: LaunchFacts) -> _Slices | None:
    call = launch.call
    if call is None or call.name not in (
        "aten::sort",
        "aten::topk",
        "aten::kthvalue",
        "aten::median",
        "aten::argsort",
    ):
        return None
    tensor = call.tensor(0)
    # topk(self, k, dim), kthvalue(self, k, dim); sort(self, [stable,] dim): the first integer that is no
    # flag.
    integers = call.scalars()
    at = 1 if call.name in ("aten::topk", "aten::kthvalue") else 0
    if tensor is None or not tensor.element_count or len(integers) <= at:
        return None
    shape = tensor.shape or (1,)
    if not -len(shape) <= integers[at] < len(shape):
        return None
    length = shape[integers[at]]
    return _Slices(tensor.element_count // length, length)


def _parallel(slices: _Slices | None) -> Iterator[Statement]:
    if slices is not None:
        yield over(
            f"{plural(slices.count, 'slice')} of {slices.length:,} values {independent(slices.count)}."
        )


def _tiles(count: int) -> Extent:
    """Source: SortingCommon.cuh, getGridFromTiles."""
    extents = []
    for _ in range(3):
        extents.append(min(count, _MAX_GRID))
        count = ceil_div(count, _MAX_GRID) if count > _MAX_GRID else 1
    return (extents[0], extents[1], extents[2])
