"""CUB's and Thrust's device-wide algorithms: tiles of a sequence in parallel, single-pass where they scan.

What each kernel does is CUB's documentation (cub::DeviceRadixSort, cub::DeviceScan, cub::DeviceSelect). Items
per thread come from tuning policies that the names do not state: they are worked out from the recorded grid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import LaunchFacts, item_size_bytes
from opscope.analysis.parallelism.filling import resident_blocks
from opscope.analysis.parallelism.wording import algorithm, ceil_div, computes, over, plural, synchronization
from opscope.model.evidence import Grade

__all__ = ["device_algorithm"]

_MOST_ITEMS = 64
_RADIX_BITS = 8  # Source: cub radix sort policies, RADIX_BITS of Onesweep
_LOOK_BACK = (
    "Single pass: a block publishes its tile's total and looks back at those before it through global "
    "memory (decoupled look-back), instead of a second launch."
)
_ALONE = "None: threads share nothing."
_IN_BLOCK = "__syncthreads() inside the block."


@dataclass(frozen=True)
class _Kernel:
    """What a kernel does, what orders its threads and blocks, and whether equal tiles cover the sequence."""

    step: str
    waiting: str = _LOOK_BACK
    is_tiled: bool = True


_KERNELS = {
    "DeviceRadixSortHistogramKernel": _Kernel(
        "Counts the digits of all keys for every digit place in one reading.",
        "Counts gather in shared memory, then by atomics in global memory.",
        is_tiled=False,
    ),
    "DeviceRadixSortExclusiveSumKernel": _Kernel(
        "Turns the digit counts of each place into starting positions.",
        "Prefix sum inside a block; one block per digit place.",
        is_tiled=False,
    ),
    "DeviceRadixSortOnesweepKernel": _Kernel(
        "Sorts by one digit place: ranks the keys of a tile, then writes them to their places."
    ),
    "DeviceRadixSortUpsweepKernel": _Kernel(
        "Counts the digits of one place per block.", _IN_BLOCK, is_tiled=False
    ),
    "DeviceRadixSortDownsweepKernel": _Kernel(
        "Writes keys to their places for one digit place.",
        "It follows the prefix sum of the counts.",
        is_tiled=False,
    ),
    "DeviceRadixSortSingleTileKernel": _Kernel(
        "Sorts the whole sequence in one block, all digit places in one launch.", _IN_BLOCK, is_tiled=False
    ),
    "DeviceScanInitKernel": _Kernel(
        "Resets the tile states of the scan that follows.", _ALONE, is_tiled=False
    ),
    "DeviceScanKernel": _Kernel("Scans one tile per block."),
    "DeviceScanByKeyInitKernel": _Kernel(
        "Resets the tile states of the scan by key that follows.", _ALONE, is_tiled=False
    ),
    "DeviceScanByKeyKernel": _Kernel("Scans runs of equal keys, one tile per block."),
    "DeviceCompactInitKernel": _Kernel(
        "Resets the tile states of the selection that follows.", _ALONE, is_tiled=False
    ),
    "DeviceSelectSweepKernel": _Kernel("Keeps the selected items of one tile per block, in order."),
    "DeviceUniqueByKeySweepKernel": _Kernel(
        "Keeps the first item of each run of equal keys, a tile per block."
    ),
    "DeviceReduceByKeyKernel": _Kernel("Reduces runs of equal keys, one tile per block."),
    "DeviceReduceKernel": _Kernel(
        "Reduces the sequence to one value per block.",
        "A second launch of one block combines them.",
        is_tiled=False,
    ),
    "DeviceReduceSingleTileKernel": _Kernel(
        "Reduces the whole sequence, or the blocks' results, in one block.", _IN_BLOCK, is_tiled=False
    ),
    "DeviceMergeSortBlockSortKernel": _Kernel(
        "Sorts each tile inside a block.", "Later launches merge the tiles."
    ),
    "DeviceMergeSortMergeKernel": _Kernel(
        "Merges pairs of sorted tiles.", "One launch per doubling of the sorted length."
    ),
}
_KEY_TYPE = re.compile(r"policy_hub<([^,<>]+),")


def device_algorithm(launch: LaunchFacts) -> Iterator[Note]:
    """One kernel of CUB, or Thrust's parallel loop."""
    known = _KERNELS.get(launch.function_name)
    count = _sequence_length(launch)
    if count is not None:
        yield over(f"The {count:,} items are cut into tiles that blocks handle in parallel.")
    if known is not None:
        yield algorithm(known.step)
        yield synchronization(known.waiting)
        if known.is_tiled and count is not None:
            yield from _tiles(launch, count)
        elif launch.function_name == "DeviceRadixSortExclusiveSumKernel":
            yield from _digit_places(launch)
        elif launch.function_name == "DeviceRadixSortHistogramKernel":
            yield from _resident_grid(launch)
    elif count is not None and _is_loop(launch):
        yield from _tiles(launch, count)
        yield synchronization(_ALONE)


_ON_THE_FIRST_ARGUMENT = frozenset(
    ("_unique2", "unique_dim", "unique_consecutive", "nonzero", "masked_select", "sort", "argsort", "cumsum",
     "randperm")
)  # fmt: skip


def _sequence_length(launch: LaunchFacts) -> int | None:
    """Items of the operator's sequence; None where it works on several or on another one."""
    call = launch.call
    if call is None:
        return None
    if call.name == "aten::embedding_dense_backward":
        tensor = call.tensor(1)
    elif call.name.removeprefix("aten::") in _ON_THE_FIRST_ARGUMENT:
        tensor = call.tensor(0)
    else:
        return None
    if tensor is None or not tensor.element_count:
        return None
    if call.name in ("aten::cumsum", "aten::sort", "aten::argsort") and prod(tensor.shape) != max(
        tensor.shape, default=1
    ):
        return None  # several rows: CUB sees segments
    return tensor.element_count


def _tiles(launch: LaunchFacts, count: int) -> Iterator[Note]:
    """Items per thread, where equal tiles of exactly one size give the grid.

    It is read from the grid, so it checks nothing.
    """
    threads, blocks = launch.thread_count, launch.block_count
    if not threads or not blocks or launch.grid != (blocks, 1, 1):
        return
    fitting = [items for items in range(1, _MOST_ITEMS + 1) if ceil_div(count, threads * items) == blocks]
    if len(fitting) == 1:
        tile = threads * fitting[0]
        text = f"A block of {threads} threads handles a tile of {tile:,} items, {fitting[0]} per thread"
        yield computes(f"{text}: the only tile that cuts {count:,} items into {blocks:,}.", Grade.INFERRED)
    elif fitting:
        each = plural(ceil_div(count, blocks * threads), "item")
        yield computes(
            f"{plural(blocks, 'block')} of {threads} threads: at least {each} per thread.", Grade.INFERRED
        )


def _digit_places(launch: LaunchFacts) -> Iterator[Note]:
    """One block per digit place that is sorted by, which may be fewer than the key has."""
    key = _KEY_TYPE.search(launch.kernel.name)
    size = item_size_bytes(key[1]) if key is not None else None
    places = launch.block_count
    if places and launch.grid == (places, 1, 1) and size and places * _RADIX_BITS <= size * 8:
        yield computes(
            f"{plural(places, 'block')}, one per digit place of {_RADIX_BITS} bits: {places * _RADIX_BITS} "
            f"of the keys' {size * 8} bits are sorted by.",
            Grade.INFERRED,
        )


def _resident_grid(launch: LaunchFacts) -> Iterator[Note]:
    """As many blocks as fit at once, which loop over the tiles."""
    held = resident_blocks(launch)
    if held is None or not launch.sm_count or launch.block_count is None:
        return
    most = held.blocks_per_sm * launch.sm_count
    if launch.block_count == most:
        formula = f"{launch.sm_count} multiprocessors × {held.blocks_per_sm} resident blocks"
        yield from checked(launch, [Expected(formula, launch.grid)], Grade.INFERRED)
        yield computes("As many blocks as fit at once loop over the keys.", Grade.INFERRED)


def _is_loop(launch: LaunchFacts) -> bool:
    return "ParallelFor" in launch.kernel.name or "for_each" in launch.kernel.name
