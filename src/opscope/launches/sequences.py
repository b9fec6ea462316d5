"""Sorts, selections, scans, transforms, CUB's algorithms and Triton programs: sequences and rows in parallel.

Sources: aten/src/ATen/native/cuda/Sort.cu, SortUtils.cuh, SortingCommon.cuh, TensorTopK.cu of PyTorch 2.6.0
(the kernels into which later releases divide radixFindKthValues are known from recorded launches);
ATen/native/cuda/ScanUtils.cuh of 2.6.0 and 2.11.0; torch/_inductor/codegen/triton.py and
torch/_inductor/runtime/triton_heuristics.py of 2.6.0 (grid: one program per XBLOCK, YBLOCK). What each kernel
of CUB does is its documentation; its items per thread come from tuning policies that names do not state: they
are worked out from the recorded grid. cuFFT is not documented.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

from opscope.launches.facts import Extent, LaunchFacts, Shape
from opscope.launches.prediction import (
    Expected,
    Prediction,
    blocks_over,
    ceil_div,
    ceiling,
    plural,
    shape_text,
)
from opscope.operators.element_types import item_size_bytes

if TYPE_CHECKING:
    from opscope.operators.arguments import CallArguments

__all__ = [
    "collective",
    "device_algorithm",
    "fourier",
    "inner_scan",
    "multi_block_select",
    "outer_scan",
    "single_block_select",
    "slice_sort",
    "small_slice_sort",
    "triton",
]

_MAX_GRID = 65535  # Source: SortingCommon.cuh, MAX_GRID_SIZE
_WARP = 32
# Source: TensorTopK.cu, namespace mbtopk.
_SELECT_THREADS = 256
_REGISTERS_PER_THREAD = 40
_FEWEST_ITEMS, _MOST_ITEMS = 4, 64
_FILL_THREADS = 512
# Kernels of mbtopk that run over all blocks of all slices; others run over the slices.
_OVER_BLOCKS = frozenset(
    ("computeBlockDigitCounts", "computeBlockwiseWithinKCounts", "radixFindKthValues", "gatherTopK")
)
_PER_SLICE = frozenset(("computeDigitCumSum", "computeBlockwiseKthCounts"))
_SCAN_THREADS = 512  # Source: ScanUtils.cuh, scan_innermost_dim and scan_outer_dim
_SCANS = frozenset(
    f"aten::{name}"
    for name in ("cumsum", "cumprod", "_cummax_helper", "_cummin_helper", "_logcumsumexp", "logcumsumexp")
)
_MOST_TILE_ITEMS = 64
_RADIX_BITS = 8  # Source: cub radix sort policies, RADIX_BITS of Onesweep
_KEY_TYPE = re.compile(r"policy_hub<([^,<>]+),")
_ON_THE_FIRST_ARGUMENT = frozenset(
    ("_unique2", "unique_dim", "unique_consecutive", "nonzero", "masked_select", "sort", "argsort", "cumsum",
     "randperm")
)  # fmt: skip
_TRANSFORM = re.compile(
    r"(?:vector|regular)_fft(?:_symm)?(?:_[rc]2[rc])?"
    r"<(?P<length>\d+)u?,\s*EPT<(?P<each>\d+)u?>,\s*(?P<together>\d+)u?"
)
_AXES = ("X", "Y", "Z")


def slice_sort(launch: LaunchFacts) -> Prediction:
    """`radixSortKVInPlace<A, -1, block_size, items_per_thread, ...>`: one block per slice of up to 4,096."""
    slices, threads, items = _slices(launch), launch.template_integer(2), launch.template_integer(3)
    key = item_size_bytes(launch.template_argument(4))
    values = {**_slice_values(slices), "key_bits": key * 8 if key else None}
    if not threads or not items:
        return Prediction(values)
    values.update(threads=threads, items=items, per_block=threads * items)
    return Prediction(values, [_block_per_slice(slices, threads)] if slices is not None else [])


def small_slice_sort(launch: LaunchFacts) -> Prediction:
    """`bitonicSortKVInPlace<A, -1, block_x, ...>` and `warpMergeSortKVInPlace<A, -1, sort_size, ...>`."""
    slices, block, size = _slices(launch), launch.block, launch.template_integer(2)
    is_bitonic = launch.function_name.startswith("bitonic")
    values = {**_slice_values(slices), "is_bitonic": is_bitonic}
    if block is None or not size:
        return Prediction(values)
    values.update(together=block[1], held=2 * size if is_bitonic else size, sharing=block[0])
    if slices is None:
        return Prediction(values)
    grid = _grid_of(ceil_div(slices[0], block[1]))
    return Prediction(values, [Expected(f"{ceiling(slices[0], block[1])} blocks", grid)])


def single_block_select(launch: LaunchFacts) -> Prediction:
    """`sbtopk::gatherTopK`, `gatherKthValue`, `gatherMedian`: one block per slice."""
    slices = _slices(launch)
    if slices is None:
        return Prediction()
    threads = min(ceil_div(slices[1], _WARP) * _WARP, 1024)
    return Prediction({**_slice_values(slices), "threads": threads}, [_block_per_slice(slices, threads)])


def multi_block_select(launch: LaunchFacts) -> Prediction:
    """Kernels of `mbtopk`: several blocks per slice and a launch per step and digit."""
    slices, name = _slices(launch), launch.function_name
    values = {**_slice_values(slices), "is_fill": name == "fill"}
    if slices is None:
        return Prediction(values)
    count, length = slices
    if name == "fill":
        return Prediction(values, [blocks_over(count, _FILL_THREADS, _FILL_THREADS)])
    if not launch.sm_count or name not in _OVER_BLOCKS | _PER_SLICE:
        return Prediction(values)
    if name in _OVER_BLOCKS:
        items = _items_per_thread(launch, count * length, launch.sm_count)
        per_slice = ceil_div(length, items * _SELECT_THREADS)
        values.update(
            threads=_SELECT_THREADS, items=items, per_block=items * _SELECT_THREADS, per_slice=per_slice
        )
        formula = f"{count:,} slices × {plural(per_slice, 'block')}"
        return Prediction(values, [Expected(formula, _grid_of(count * per_slice), (_SELECT_THREADS, 1, 1))])
    expected = [
        _block_per_slice(slices, _SELECT_THREADS),
        blocks_over(count, _SELECT_THREADS, _SELECT_THREADS, "blocks, one thread per slice"),
    ]
    return Prediction(values, expected[::-1] if name == "computeBlockwiseKthCounts" else expected)


def outer_scan(launch: LaunchFacts) -> Prediction:
    """`tensor_kernel_scan_outer_dim[_with_indices]`: the scanned dimension is not the last."""
    found = _scanned(launch)
    if found is None:
        return Prediction()
    shape, at = found
    outer, inner = prod(shape[:at]), prod(shape[at + 1 :])
    threads = min(_SCAN_THREADS, inner)
    values = {
        "columns": outer * inner,
        "length": shape[at],
        "shape": shape_text(shape),
        "dimension": at,
        "threads": threads,
    }
    formula = f"{plural(outer, 'outer slice')} × {ceiling(inner, threads)} blocks"
    grid = (min(_MAX_GRID, outer), min(_MAX_GRID, ceil_div(inner, threads)), 1)
    return Prediction(values, [Expected(formula, grid, (threads, 1, 1))])


def inner_scan(launch: LaunchFacts) -> Prediction:
    """`tensor_kernel_scan_innermost_dim[_with_indices]`: the scanned dimension is the last."""
    found = _scanned(launch)
    if found is None:
        return Prediction()
    shape, at = found
    length, rows = shape[at], prod(shape) // shape[at]
    # Source: ScanUtils.cuh, get_log_num_threads_x_inner_scan, in its unsigned 32-bit arithmetic.
    difference = (length - 1).bit_length() - (rows - 1).bit_length()
    along = 1 << min(max(((9 + difference) % 2**32) // 2, 4), 9)
    height = _SCAN_THREADS // along
    values = {
        "rows": rows,
        "length": length,
        "shape": shape_text(shape),
        "along": along,
        "height": height,
        "per_step": 2 * along,
        "steps": ceil_div(length, 2 * along),
    }
    grid = (ceil_div(rows, height), 1, 1)
    return Prediction(values, [Expected(f"{ceiling(rows, height)} blocks", grid, (along, height, 1))])


def device_algorithm(launch: LaunchFacts) -> Prediction:
    """One kernel of CUB, or Thrust's parallel loop (`_kernel_agent`)."""
    count, name, held = _sequence_length(launch), launch.function_name, launch.active
    kernel = launch.kernel.name
    is_loop = (
        name == "_kernel_agent" and count is not None and ("ParallelFor" in kernel or "for_each" in kernel)
    )
    values: dict[str, Any] = {"count": count, **({"tiled": True, "is_loop": True} if is_loop else {})}
    if name == "DeviceRadixSortExclusiveSumKernel":
        values.update(_digit_values(launch))
    if count is not None:
        values.update(_tile_values(launch, count))
    if name != "DeviceRadixSortHistogramKernel" or held is None or not launch.sm_count:
        return Prediction(values)
    if launch.block_count != held.blocks_per_sm * launch.sm_count:
        return Prediction(values)
    # As many blocks as fit at once loop over the tiles.
    formula = f"{launch.sm_count} multiprocessors × {held.blocks_per_sm} resident blocks"
    return Prediction({**values, "is_resident": True}, [Expected(formula, launch.grid)])


def fourier(launch: LaunchFacts) -> Prediction:
    """`vector_fft<length, EPT<elements per thread>, transforms, ...>` and relatives."""
    match, tensor = _TRANSFORM.search(launch.kernel.name), launch.tensor(0)
    dimensions = None if launch.call is None else launch.call.integers(1)
    if match is None or tensor is None or not dimensions or len(dimensions) != 1 or not tensor.shape:
        return Prediction()
    length = tensor.shape[dimensions[0] % len(tensor.shape)]
    if length != int(match["length"]) or not tensor.element_count:
        return Prediction()
    count, together = tensor.element_count // length, int(match["together"]) or 1
    values = {"transforms": count, "length": length, "together": together, "each": match["each"]}
    return Prediction(values, [blocks_over(count, together)])


def collective(launch: LaunchFacts) -> Prediction:
    """`ncclDevKernel_<Collective>_...`: one block per channel.

    Source: NVIDIA/nccl, src/enqueue.cc. Algorithm and protocol in a kernel's name are those it was compiled
    for, not the call's: nothing is read from them.
    """
    name, blocks = launch.kernel.collective, launch.block_count
    if name is None:
        return Prediction()
    is_reducing = name in ("AllReduce", "Reduce", "ReduceScatter")
    occupied = min(blocks, launch.sm_count) if blocks and launch.thread_count and launch.sm_count else None
    return Prediction({"is_known": True, "is_reducing": is_reducing, "occupied": occupied})


def triton(launch: LaunchFacts) -> Prediction:
    """`triton_poi_…`, `triton_red_…`, `triton_per_…` of torch.compile: pointwise, looped or persistent.

    Block sizes come from the recorded compile-time arguments (`XBLOCK=1024`), element counts from the call's
    last integer arguments.
    """
    kind = launch.function_name.split("_")[1]
    is_reduction = kind in ("red", "per")
    blocks, integers = _axis_blocks(launch), _integers(launch.call)
    reduced = integers[-1] if is_reduction and integers and integers[-1] > 0 else None
    sizes = _axis_sizes(integers[:-1] if is_reduction else integers, len(blocks))
    threads, fused = launch.thread_count, launch.kernel.fused_operators
    values: dict[str, Any] = {
        "is_pointwise": kind == "poi",
        "is_persistent": kind == "per",
        "is_looped": kind == "red",
        "is_one_warp": is_reduction and threads == _WARP,
        "has_warps": is_reduction and bool(threads) and threads != _WARP,
        "fused": ", ".join(fused) if fused else None,
    }
    if sizes and is_reduction == (reduced is not None):
        values["rows" if is_reduction else "count"] = prod(sizes)
        values["reduced"] = reduced
    if blocks and threads:
        values.update(_program_values(launch, blocks, threads, kind, reduced))
    if not sizes or not blocks:
        return Prediction(values)
    pairs = list(zip(sizes, blocks, strict=True))
    counts = [ceil_div(*pair) for pair in pairs] + [1, 1]
    formula = " × ".join(ceiling(*pair) for pair in pairs)
    return Prediction(values, [Expected(f"{formula} programs", (counts[0], counts[1], counts[2]))])


def _slices(launch: LaunchFacts) -> tuple[int, int] | None:
    """Slices along the sorted dimension, and the length of one."""
    call = launch.call
    if call is None or call.name.removeprefix("aten::") not in (
        "sort",
        "topk",
        "kthvalue",
        "median",
        "argsort",
    ):
        return None
    # topk(self, k, dim), kthvalue(self, k, dim); sort(self, [stable,] dim): the first integer that is no
    # flag.
    tensor, integers = call.tensor(0), _integers(call)
    at = 1 if call.name in ("aten::topk", "aten::kthvalue") else 0
    if tensor is None or not tensor.element_count or len(integers) <= at:
        return None
    shape = tensor.shape or (1,)
    if not -len(shape) <= integers[at] < len(shape):
        return None
    length = shape[integers[at]]
    return tensor.element_count // length, length


def _slice_values(slices: tuple[int, int] | None) -> dict[str, Any]:
    return {} if slices is None else {"slices": slices[0], "length": slices[1]}


def _block_per_slice(slices: tuple[int, int], threads: int) -> Expected:
    return Expected(f"one block per slice: {slices[0]:,}", _grid_of(slices[0]), (threads, 1, 1))


def _grid_of(count: int) -> Extent:
    """Source: SortingCommon.cuh, getGridFromTiles."""
    extents = []
    for _ in range(3):
        extents.append(min(count, _MAX_GRID))
        count = ceil_div(count, _MAX_GRID) if count > _MAX_GRID else 1
    return (extents[0], extents[1], extents[2])


def _items_per_thread(launch: LaunchFacts, values: int, sm_count: int) -> int:
    """Source: TensorTopK.cu, get_items_per_thread."""
    limits = launch.device.limits if launch.device is not None else None
    registers, most_blocks = (
        (limits.registers_per_sm, limits.max_blocks_per_sm) if limits is not None else (65536, 32)
    )
    blocks_per_sm = min(registers // (_REGISTERS_PER_THREAD * _SELECT_THREADS), most_blocks)
    items = ceil_div(values, sm_count * blocks_per_sm * _SELECT_THREADS)
    return max(_FEWEST_ITEMS, min(items, _MOST_ITEMS))


def _scanned(launch: LaunchFacts) -> tuple[Shape, int] | None:
    """The shape, and the dimension that is scanned."""
    call, tensor = launch.call, launch.tensor(0)
    integers = _integers(call)
    if call is None or call.name not in _SCANS or tensor is None or not integers or not tensor.element_count:
        return None
    rank, at = len(tensor.shape), integers[0]
    return (tensor.shape, at % rank) if -rank <= at < rank else None


def _sequence_length(launch: LaunchFacts) -> int | None:
    """Items of the operator's sequence; None where it works on several or on another one."""
    call = launch.call
    if call is None:
        return None
    name = call.name.removeprefix("aten::")
    if name != "embedding_dense_backward" and name not in _ON_THE_FIRST_ARGUMENT:
        return None
    tensor = call.tensor(1 if name == "embedding_dense_backward" else 0)
    if tensor is None or not tensor.element_count:
        return None
    if name in ("cumsum", "sort", "argsort") and tensor.element_count != max(tensor.shape, default=1):
        return None  # several rows: CUB sees segments
    return tensor.element_count


def _tile_values(launch: LaunchFacts, count: int) -> dict[str, Any]:
    """Items per thread, where equal tiles of exactly one size give the grid.

    It is read from the grid, so it checks nothing.
    """
    threads, blocks = launch.thread_count, launch.block_count
    if not threads or not blocks or launch.grid != (blocks, 1, 1):
        return {}
    sizes = range(1, _MOST_TILE_ITEMS + 1)
    fitting = [items for items in sizes if ceil_div(count, threads * items) == blocks]
    if len(fitting) == 1:
        return {"tile": threads * fitting[0], "items": fitting[0]}
    return {"least": ceil_div(count, blocks * threads) if fitting else None}


def _digit_values(launch: LaunchFacts) -> dict[str, Any]:
    """One block per digit place that is sorted by, which may be fewer than the key has."""
    key, places = _KEY_TYPE.search(launch.kernel.name), launch.block_count
    size = item_size_bytes(key[1]) if key is not None else None
    if not places or launch.grid != (places, 1, 1) or not size or places * _RADIX_BITS > size * 8:
        return {}
    return {
        "places": places,
        "digit_bits": _RADIX_BITS,
        "sorted_bits": places * _RADIX_BITS,
        "key_bits": size * 8,
    }


def _integers(call: CallArguments | None) -> tuple[int, ...]:
    """Integer scalar arguments, in order."""
    found = () if call is None else (call.integer(position) for position in range(len(call)))
    return tuple(value for value in found if value is not None)


def _axis_blocks(launch: LaunchFacts) -> tuple[int, ...]:
    """XBLOCK, YBLOCK, ZBLOCK as far as they are recorded."""
    found: list[int] = []
    for axis in _AXES:
        if not (size := launch.compile_arguments.get(f"{axis}BLOCK")):
            break
        found.append(size)
    return tuple(found)


def _axis_sizes(integers: tuple[int, ...], axes: int) -> tuple[int, ...]:
    """Element counts along x, y, z: the last of the integers, written in the order znumel, ynumel, xnumel."""
    sizes = integers[-axes:][::-1] if axes and len(integers) >= axes else ()
    return sizes if all(size > 0 for size in sizes) else ()


def _program_values(
    launch: LaunchFacts, blocks: tuple[int, ...], threads: int, kind: str, reduced: int | None
) -> dict[str, Any]:
    """What one program computes."""
    tile = prod(blocks)
    shape = "×".join(f"{axis}BLOCK={size}" for axis, size in zip(_AXES, blocks, strict=False))
    values: dict[str, Any] = {"program": plural(threads, "thread"), "blocks_text": shape}
    if kind not in ("red", "per"):
        return {**values, "elements": tile, "elements_each": tile / threads}
    values["tile_rows"] = tile
    if reduced is None:
        return {**values, "has_no_length": True}
    if kind == "per":
        return {**values, "held": reduced, "held_each": tile * reduced / threads}
    piece = launch.compile_arguments.get("R0_BLOCK") or launch.compile_arguments.get("RBLOCK")
    return {
        **values,
        "walked": reduced,
        "piece": piece,
        "pieces": ceil_div(reduced, piece) if piece else None,
    }
