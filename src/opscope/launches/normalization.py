"""Softmax and normalization: a warp or a block per row, a block per channel or group, columns for weights.

Sources: ATen/native/cuda/PersistentSoftmax.cuh and Normalization.cuh of PyTorch 2.6.0 and 2.11.0;
aten/src/ATen/native/cuda/SoftMax.cu, layer_norm_kernel.cu and group_norm_kernel.cu of 2.6.0, and of later
releases for cunn_SoftMaxForwardReg, GammaBetaBackwardCUDAKernelTemplate and the rms_norm template argument.
cuDNN's kernels are not documented: of them only what the grid shows is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from opscope.hardware.architectures import WARP_SIZE
from opscope.launches.facts import Extent, LaunchFacts, Shape
from opscope.launches.prediction import (
    Expected,
    Prediction,
    blocks_over,
    ceil_div,
    ceiling,
    extent_text,
    last_power_of_two,
    shape_text,
)
from opscope.operators.effects import ContradictionError
from opscope.operators.element_types import item_size_bytes
from opscope.operators.normalization import normalized_rows
from opscope.operators.reductions import Rows, rows_along
from opscope.units import counted, format_fraction

__all__ = [
    "block_softmax",
    "channel_statistics",
    "channels_last",
    "column_sums",
    "cudnn_batch_norm",
    "group_moments",
    "group_parameters",
    "layer_norm_rows",
    "spatial_softmax",
    "transform",
    "warp_softmax",
]

_WARP_SOFTMAX_THREADS = 128  # Source: PersistentSoftmax.cuh, threads_per_block
_SOFTMAX = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
_MAX_THREADS = 1024  # Source: SoftMax.cu, max_threads
# Source: layer_norm_kernel.cu: vec_size; blocks of num_threads() (thread_constants.h), of kCUDANumThreads and
# of kCUDABlockReduceNumThreads (block_reduce.cuh); LaunchGammaBetaBackwardCUDAKernel.
_VECTOR = 4
_ROW_BLOCKS: dict[str, Extent] = {
    "vectorized_layer_norm_kernel": (32, 4, 1),
    "RowwiseMomentsCUDAKernel": (512, 1, 1),
    "LayerNormForwardCUDAKernel": (256, 1, 1),
    "layer_norm_grad_input_kernel": (128, 1, 1),
    "layer_norm_grad_input_kernel_vectorized": (128, 1, 1),
}
_WIDE_ROWS = 64 * 1024
_MOST_COLUMN_BLOCKS = 64 * 1024 // 2
# Source: layer_norm_kernel.cu 2.6.0, LayerNormBackwardKernelImplInternal: block of each of its column
# kernels.
_OLD_COLUMN_BLOCKS = {
    "GammaBetaBackwardSimpleCUDAKernel": (256, 1),
    "GammaBetaBackwardCUDAKernel_32x32": (32, 32),
    "GammaBetaBackwardCUDAKernel": (16, 32),
}
# Source: Normalization.cuh: MAX_BLOCK_SIZE, getNumThreads, flexible_launch_configs.
_CHANNEL_MAX_THREADS = 512
_THREAD_SIZES = (32, 64, 128, 256, 512)
_TRANSFORM_BLOCKS = 256 * 1024
_VALUES_PER_THREAD = 16
_TILE_WIDTH = 32
_MOST_BLOCKS_DOWN = 128
_FEWEST_BLOCKS_DOWN = 8
_MAX_GRID = 65535
_GROUP_THREADS = 512  # Source: block_reduce.cuh, kCUDABlockReduceNumThreads
_PARAMETER_THREADS = 256  # Source: group_norm_kernel.cu, kCUDANumThreads


@dataclass(frozen=True)
class _Image:
    """The input as batch × channels × the rest."""

    shape: Shape
    batch: int
    channels: int
    rest: int

    @property
    def values(self) -> dict[str, Any]:
        return {
            "images": self.batch,
            "channels": self.channels,
            "per_image": self.rest,
            "values": self.batch * self.rest,
            "count": self.batch * self.channels * self.rest,
            "shape": shape_text(self.shape),
        }


def warp_softmax(launch: LaunchFacts) -> Prediction:
    """`softmax_warp_forward/backward<in, out, acc, log2_elements, is_log_softmax, is_masked>`."""
    rows, log2_elements = _softmax(launch), launch.template_integer(3)
    is_backward, is_log = "backward" in launch.function_name, launch.template_integer(4) == 1
    values: dict[str, Any] = {
        "is_masked": launch.template_integer(5) == 1,
        "is_backward": is_backward,
        "is_log": is_log,
        "combined": "one sum" if is_backward else "maximum, then sum",
        **_row_values(rows),
    }
    if log2_elements is None:
        return Prediction(values)
    padded = 1 << log2_elements
    lanes, rows_per_group = min(padded, WARP_SIZE), 2 if padded <= 128 else 1
    groups = _WARP_SOFTMAX_THREADS // lanes
    per_block = groups * rows_per_group
    values.update(
        threads=_WARP_SOFTMAX_THREADS,
        per_block=per_block,
        groups=groups,
        lanes=lanes,
        rows_per_group=rows_per_group,
        per_thread=padded // lanes * rows_per_group,
        padded=padded,
        item_bytes=item_size_bytes(launch.template_argument(0)),
        exchanges=max(lanes.bit_length() - 1, 0),
    )
    if rows is None:
        return Prediction(values)
    if rows.length < padded:
        values["idle"] = format_fraction(1 - rows.length / padded)
    grid = (ceil_div(rows.outer, per_block), 1, 1)
    expected = Expected(f"{ceiling(rows.outer, per_block)} blocks", grid, (lanes, groups, 1))
    return Prediction(values, [expected] if rows.inner == 1 else [])


def block_softmax(launch: LaunchFacts) -> Prediction:
    """`cunn_SoftMaxForward[Reg|Smem]` and `cunn_SoftMaxBackward`: one block per row."""
    rows, name, threads = _softmax(launch), launch.function_name, launch.thread_count
    is_backward = "Backward" in name
    values: dict[str, Any] = {"is_backward": is_backward, **_row_values(rows)}
    if name.endswith("Reg"):
        values["held"] = launch.template_integer(-1) or None
    elif width := launch.template_integer(0):
        size = item_size_bytes(launch.template_argument(1))
        in_shared = name.endswith("Smem")
        values["from_shared" if in_shared else "passes"] = "twice" if is_backward else "three times"
        values.update(width=width, vector_bytes=width * size if size else None)
    if rows is None or rows.inner != 1:
        return Prediction(values)
    values["each"] = ceil_div(rows.length, threads) if threads else None
    grid, formula = (rows.outer, 1, 1), f"one block for each of {counted(rows.outer, 'row')}"
    if is_backward:
        block = (_backward_threads(rows.length, launch.template_integer(0) or 1), 1, 1)
        return Prediction(values, [Expected(formula, grid, block), Expected(formula, grid)])
    block = (ceil_div(min(rows.length, _MAX_THREADS), WARP_SIZE) * WARP_SIZE, 1, 1)
    return Prediction(values, [Expected(formula, grid, block)])


def spatial_softmax(launch: LaunchFacts) -> Prediction:
    """`cunn_SpatialSoftMaxForward/Backward`: the softmax dimension is not the last."""
    rows, block = _softmax(launch), launch.block
    values: dict[str, Any] = _row_values(rows)
    if block is not None:
        values.update(sharing=block[0], is_shared=block[0] > 1, is_alone=block[0] == 1)
    if block is None or rows is None or rows.inner == 1:
        return Prediction(values)
    # Source: SoftMax.cu, SpatialSoftMax_getBlockSize; the grid depends on the kernel's occupancy.
    inner, along = min(rows.inner, _MAX_THREADS), 1
    if inner <= 64 <= rows.length:
        while inner * along <= _MAX_THREADS and along <= rows.length:
            along *= 2
        along //= 2
    formula = f"blocks of {along}×{inner:,} threads for an inner size of {rows.inner:,}"
    values.update(columns=block[1], block=extent_text(block))
    return Prediction(values, [Expected(formula, None, (along, inner, 1))])


def layer_norm_rows(launch: LaunchFacts) -> Prediction:
    """Kernels of layer and RMS normalization with one block per row: statistics, results, input gradients."""
    rows, block = _layer_norm(launch), _ROW_BLOCKS[launch.function_name]
    vector = _VECTOR if "vectorized" in launch.function_name else 1
    is_rms = launch.template_integer(2) == 1 and launch.function_name.startswith("vectorized")
    size = item_size_bytes(launch.template_argument(0))
    values: dict[str, Any] = {
        "is_rms": is_rms,
        "is_vectorized": vector > 1,
        "vector_bytes": vector * size if size else None,
        "statistic": "mean square" if is_rms else "mean and variance",
    }
    if rows is None:
        return Prediction(values)
    count, length = rows.count, rows.length
    threads, unit, vectors = prod(block), "vector" if vector > 1 else "element", length // vector
    values.update(
        rows=count,
        length=length,
        count=count * length,
        shape=shape_text(rows.shape),
        threads=threads,
        each=counted(ceil_div(vectors, threads), unit) + (f" of {vector} elements" if vector > 1 else ""),
        units=counted(vectors, unit) if vectors < threads else None,
        without=threads - vectors,
    )
    formula = f"one block for each of {counted(count, 'row')}"
    return Prediction(values, [Expected(formula, (count, 1, 1), block)])


def column_sums(launch: LaunchFacts) -> Prediction:
    """`GammaBetaBackwardCUDAKernelTemplate<T, T_ACC, bx, by, rows_per_block, partial, ...>`, older ones."""
    rows, tall, is_partial = _layer_norm(launch), None, False
    if launch.function_name in _OLD_COLUMN_BLOCKS:
        width, height = _OLD_COLUMN_BLOCKS[launch.function_name]
    else:
        width, height, tall = (launch.template_integer(position) or 0 for position in (2, 3, 4))
        is_partial = launch.template_integer(5) == 1
    values: dict[str, Any] = {}
    if rows is not None:
        values.update(columns=rows.length, rows=rows.count, shape=shape_text(rows.shape))
    if not width or not height or tall == 0:
        return Prediction(values)
    values.update(
        width=width,
        height=height,
        tall=tall,
        rows_per_thread=None if tall is None else tall // height,
        is_partial=is_partial,
        is_transposed=tall is not None and not is_partial,
        shares_columns=tall is None and height > 1,
        runs_down=tall is None and height == 1,
    )
    if rows is None:
        return Prediction(values)
    count, length = rows.count, rows.length
    columns, block = ceil_div(length, width), (width, height, 1)
    formula = f"{ceiling(length, width)} blocks over the columns"
    expected = [Expected(formula, (columns, 1, 1), block)]
    if tall is not None and count > _WIDE_ROWS:
        down = min(_MOST_COLUMN_BLOCKS // columns, ceil_div(count, tall))
        expected.append(Expected(f"{formula} × {down:,} over the rows", (columns, down, 1), block))
    return Prediction(values, expected)


def channel_statistics(launch: LaunchFacts) -> Prediction:
    """`batch_norm_collect_statistics_kernel`, `batch_norm_backward[_reduce]_kernel`."""
    image = _image(launch)
    values = {"collects": "collect_statistics" in launch.function_name}
    if image is None:
        return Prediction(values)
    width = _threads_for(image.rest)
    if launch.function_name.endswith("reduce_kernel"):
        height = min(last_power_of_two(image.batch), _CHANNEL_MAX_THREADS // 32)
        block = (min(max(width, 32), _CHANNEL_MAX_THREADS // height), height, 1)
    else:
        block = (width, max(1, _CHANNEL_MAX_THREADS // width), 1)
    expected = Expected("one block per channel", (image.channels, 1, 1), block)
    return Prediction({**image.values, **values}, [expected])


def transform(launch: LaunchFacts) -> Prediction:
    """`batch_norm_transform_input_kernel` and `batch_norm_backward_elemt_kernel`."""
    image = _image(launch)
    if image is None:
        return Prediction()
    width = max(_threads_for(image.rest // 4), min(_threads_for(image.rest), 64))
    height = max(64 // width, 1)
    down = min(max(1, min(_TRANSFORM_BLOCKS // image.channels, ceil_div(image.batch, height))), _MAX_GRID)
    formula = f"{image.channels:,} channels × {down:,} blocks over {counted(image.batch, 'image')}"
    expected = Expected(formula, (image.channels, down, 1), (width, height, 1))
    return Prediction({**image.values, "width": width, "height": height}, [expected])


def channels_last(launch: LaunchFacts) -> Prediction:
    """The `batch_norm_..._channels_last_kernel`s: channels along x, batch and image along y."""
    image, grid = _image(launch), launch.grid
    is_elementwise = "transform" in launch.function_name or "elemt" in launch.function_name
    sharing = grid[1] if grid is not None and grid[1] > 1 and not is_elementwise else None
    values: dict[str, Any] = {
        "is_elementwise": is_elementwise,
        "sharing": sharing,
        "is_alone": not is_elementwise and sharing is None,
    }
    if image is None:
        return Prediction(values)
    positions = image.batch * image.rest
    width = min(last_power_of_two(image.channels), _TILE_WIDTH)
    height = min(last_power_of_two(ceil_div(positions, _VALUES_PER_THREAD)), _CHANNEL_MAX_THREADS // width)
    if width * height != _CHANNEL_MAX_THREADS:
        width = min(last_power_of_two(image.channels), _CHANNEL_MAX_THREADS // height)
    down = min(ceil_div(positions, height * _VALUES_PER_THREAD), _MOST_BLOCKS_DOWN)
    if not is_elementwise and down < _FEWEST_BLOCKS_DOWN:
        down = 1
    formula = f"{ceiling(image.channels, width)} blocks over channels × {down} over batch and image"
    expected = Expected(formula, (ceil_div(image.channels, width), down, 1), (width, height, 1))
    return Prediction({**image.values, **values, "width": width, "height": height}, [expected])


def cudnn_batch_norm(launch: LaunchFacts) -> Prediction:
    """`cudnn::bn_...`: said only where the grid is the number of channels."""
    image = _image(launch)
    if image is None or launch.grid != (image.channels, 1, 1):
        return Prediction()
    return Prediction(image.values, [Expected("one block per channel", launch.grid)])


def group_moments(launch: LaunchFacts) -> Prediction:
    """`RowwiseMomentsCUDAKernel` under group normalization."""
    sizes = _group_norm(launch)
    if sizes is None:
        return Prediction()
    batch, channels, rest, groups = sizes
    length = channels // groups * rest
    threads = _GROUP_THREADS if length >= _GROUP_THREADS else 32
    values = {
        "count": batch * groups,
        "batch": batch,
        "groups": groups,
        "length": length,
        "threads": threads,
        "each": ceil_div(length, threads),
    }
    return Prediction(
        values, [Expected("one block per image and group", (batch * groups, 1, 1), (threads, 1, 1))]
    )


def group_parameters(launch: LaunchFacts) -> Prediction:
    """`ComputeFusedParamsCUDAKernel`: scale and shift of each channel."""
    sizes = _group_norm(launch)
    if sizes is None:
        return Prediction({"threads": _PARAMETER_THREADS})
    count = sizes[0] * sizes[1]
    return Prediction(
        {"threads": _PARAMETER_THREADS, "count": count},
        [blocks_over(count, _PARAMETER_THREADS, _PARAMETER_THREADS)],
    )


def _softmax(launch: LaunchFacts) -> Rows | None:
    call = launch.call
    if call is None or call.stem not in _SOFTMAX:
        return None
    data = call.tensor("self", "output")
    return rows_along(data, call.integer("dim")) if data is not None and data.element_count else None


def _row_values(rows: Rows | None) -> dict[str, Any]:
    if rows is None:
        return {}
    return {"rows": rows.count, "length": rows.length, "shape": shape_text(rows.shape)}


def _backward_threads(length: int, vector: int) -> int:
    """Source: SoftMax.cu, SoftMax_getBlockSize."""
    most = min(length // vector, _MAX_THREADS) // (2 if vector > 1 else 1)
    return max(1 << (most - 1).bit_length() if most > 1 else 1, WARP_SIZE)


def _layer_norm(launch: LaunchFacts) -> Rows | None:
    try:
        rows = None if launch.call is None else normalized_rows(launch.call)
    except ContradictionError:
        return None
    return rows if rows is not None and rows.count and rows.length else None


def _image(launch: LaunchFacts) -> _Image | None:
    tensor = launch.tensor("input", "grad_out")
    if launch.call is None or "batch_norm" not in launch.call.name or tensor is None:
        return None
    shape = tensor.shape
    if len(shape) < 2 or not tensor.element_count:
        return None
    return _Image(shape, shape[0], shape[1], prod(shape[2:]))


def _group_norm(launch: LaunchFacts) -> tuple[int, int, int, int] | None:
    """Batch, channels, image size and groups of `aten::native_group_norm`."""
    if launch.call is None or launch.call.name != "aten::native_group_norm":
        return None
    batch, channels, rest, groups = (launch.call.integer(name) for name in ("N", "C", "HxW", "group"))
    if not batch or not channels or not rest or not groups:
        return None
    return batch, channels, rest, groups


def _threads_for(size: int) -> int:
    return next((threads for threads in _THREAD_SIZES if size <= threads), _CHANNEL_MAX_THREADS)
