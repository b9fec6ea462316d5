"""Kernels with one thread per place of an image: pooling, resizing, depthwise convolution, im2col, sampling.

Sources: aten/src/ATen/native/cuda of PyTorch 2.6.0: DilatedMaxPool2d.cu, AveragePool2d.cu,
AdaptiveAveragePooling.cu, UpSampleNearest2d.cu, UpSampleBilinear2d.cu, UpSampleBicubic2d.cu,
DepthwiseConv2d.cu, im2col.cuh, GridSampler.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from opscope.launches.facts import LaunchFacts, Shape
from opscope.launches.prediction import (
    Expected,
    Prediction,
    blocks_over,
    ceil_div,
    ceiling,
    last_power_of_two,
    shape_text,
)

if TYPE_CHECKING:
    from opscope.operators.arguments import CallArguments

__all__ = [
    "adaptive_average_pool",
    "depthwise_convolution",
    "depthwise_weight_gradient",
    "grid_sample",
    "im2col",
    "nearest_upsample",
    "pool",
    "pool_channels_last",
    "pool_gradient",
    "resize",
    "window_sizes",
]

_UPSAMPLE_THREADS = 512  # Source: UpSampleNearest2d.cu, MAX_THREADS
_PLANES_PER_THREAD = 4
# Source: DilatedMaxPool2d.cu, BLOCK_THREADS, CUDA_MAX_THREADS, BLOCK_STRIDE.
_POOL_THREADS = 256
_POOL_MAX_THREADS = 1024
_STEPS_PER_SIDE = 2
_WARP = 32
_MAX_GRID = 65535
_IMAGE_RANK = 4  # batch, channels, height, width
_SIDES = 2
_WEIGHT_THREADS = 256  # Source: DepthwiseConv2d.cu, getGradParamsNumThreads
# Operator: positions of kernel size, stride, padding, dilation (None: 1) and ceil_mode.
_POOLS: dict[str, tuple[int, int, int, int | None, int]] = {
    "aten::max_pool2d_with_indices": (1, 2, 3, 4, 5),
    "aten::avg_pool2d": (1, 2, 3, None, 4),
}
# Operator: positions of kernel size, stride, padding, dilation (None: 1).
_UNFOLDS: dict[str, tuple[int, int, int, int | None]] = {
    "aten::im2col": (1, 4, 3, 2),
    "aten::_slow_conv2d_forward": (2, 4, 5, None),
    "aten::_slow_conv2d_backward": (3, 4, 5, None),
}
_DEPTHWISE_AT = (
    2,
    4,
    5,
    6,
)  # of _conv_depthwise2d(self, weight, kernel_size, bias, stride, padding, dilation)


def pool(launch: LaunchFacts) -> Prediction:
    """`max_pool_forward_nchw`, `avg_pool2d_[backward_]out_cuda_frame[_nhwc]`: one thread per result."""
    if "backward" in launch.function_name:
        return _one_thread_each(launch, _gradient_shape(launch.call), "input gradient", (256, 512, 1024))
    return _one_thread_each(launch, _pooled_shape(launch.call), "output", (256, 512, 1024))


def pool_channels_last(launch: LaunchFacts) -> Prediction:
    """`max_pool_forward_nhwc`, `max_pool_backward_nhwc`: channels along x, columns along y, rows along z."""
    is_backward, data = "backward" in launch.function_name, launch.tensor(1)
    given = None if data is None else data.shape
    shape = given if is_backward else _pooled_shape(launch.call)
    if shape is None or len(shape) != _IMAGE_RANK or shape.count(0):
        return Prediction()
    # Source: DilatedMaxPool2d.cu, the channels-last cases.
    batch, channels, height, width = shape
    along = min(last_power_of_two(channels), _WARP)
    across = min(last_power_of_two(width), _POOL_MAX_THREADS // along)
    down = min(last_power_of_two(height), _POOL_MAX_THREADS // along // across)
    along = min(last_power_of_two(channels), _POOL_MAX_THREADS // across // down)
    grid = (
        batch * ceil_div(channels, along * 4),
        min(ceil_div(width, across * _STEPS_PER_SIDE), _MAX_GRID),
        min(ceil_div(height, down * _STEPS_PER_SIDE), _MAX_GRID),
    )
    values = {
        "count": prod(shape),
        "shape": shape_text(shape),
        "what": "input gradient" if is_backward else "output",
        "along": along,
        "across": across,
        "down": down,
        "steps": _STEPS_PER_SIDE,
    }
    formula = f"{grid[0]} over images and channels × {grid[1]} over columns × {grid[2]} over rows"
    return Prediction(values, [Expected(formula, grid, (along, across, down))])


def pool_gradient(launch: LaunchFacts) -> Prediction:
    """`max_pool_backward_nchw`: one thread per input place, images along y, channels along z."""
    data = launch.tensor(1)
    if launch.call is None or "max_pool" not in launch.call.name or data is None:
        return Prediction()
    if len(data.shape) != _IMAGE_RANK or not data.element_count:
        return Prediction()
    batch, channels, places = data.shape[0], data.shape[1], prod(data.shape[2:])
    values = {"count": data.element_count, "shape": shape_text(data.shape), "threads": _POOL_THREADS}
    grid = (ceil_div(places, _POOL_THREADS), min(batch, _MAX_GRID), min(channels, _MAX_GRID))
    formula = f"{ceiling(places, _POOL_THREADS)} × {batch:,} images × {channels:,} channels"
    return Prediction(values, [Expected(formula, grid, (_POOL_THREADS, 1, 1))])


def im2col(launch: LaunchFacts) -> Prediction:
    """`im2col_kernel`: one thread per window and channel, of one image."""
    call = launch.call
    tensor = None if call is None else call.tensor(1 if call.name.endswith("backward") else 0)
    positions = None if call is None else _UNFOLDS.get(call.name)
    if call is None or tensor is None or positions is None or len(tensor.shape) < 3:
        return Prediction()
    kernel, stride, padding, dilation = _windows(call, positions)
    sides = window_sizes(tensor.shape[-_SIDES:], kernel, stride, padding, dilation)
    if kernel is None or sides is None or not prod(sides):
        return Prediction()
    channels, windows = tensor.shape[-3], prod(sides)
    found = _one_thread_each(launch, (channels, windows), "window", (1024,))
    values = {**found.values, "channels": channels, "windows": windows, "per_window": prod(kernel)}
    return Prediction(values, found.expected)


def adaptive_average_pool(launch: LaunchFacts) -> Prediction:
    """`adaptive_average_pool`: planes along x, output rows along y."""
    tensor = launch.tensor(0)
    if tensor is None or len(tensor.shape) not in (3, 4) or not tensor.element_count:
        return Prediction()
    planes, down = prod(tensor.shape[:-2]), max(16 // tensor.shape[-3], 1)
    expected = Expected(f"{planes:,} planes × {down}", (planes, down, 1), (32, 8, 1))
    return Prediction({"planes": planes, "shape": shape_text(tensor.shape)}, [expected])


def nearest_upsample(launch: LaunchFacts) -> Prediction:
    """`upsample_nearest2d_out_frame`: a 3-D grid over width, height and planes."""
    shape = _resized(launch.call)
    if shape is None:
        return Prediction()
    planes, height, width = shape[0] * shape[1], shape[2], shape[3]
    along = min(last_power_of_two(width), _UPSAMPLE_THREADS)
    down = min(last_power_of_two(height), _UPSAMPLE_THREADS // along)
    deep = min(planes, _UPSAMPLE_THREADS // along // down)
    per_block = (along, down, deep * _PLANES_PER_THREAD)
    sides = list(zip((width, height, planes), per_block, strict=True))
    values = {"count": prod(shape), "shape": shape_text(shape), "along": along, "down": down, "deep": deep}
    formula = " × ".join(ceiling(*side) for side in sides) + " blocks"
    grid = (ceil_div(*sides[0]), ceil_div(*sides[1]), ceil_div(*sides[2]))
    return Prediction(values, [Expected(formula, grid, (along, down, deep))])


def resize(launch: LaunchFacts) -> Prediction:
    """`upsample_bilinear2d_out_frame`, `upsample_bicubic2d_out_frame`, and their channels-last forms."""
    shape = _resized(launch.call)
    if shape is None:
        return Prediction()
    if "nhwc" in launch.function_name:
        return _one_thread_each(launch, shape, "output", (256, 512, 1024))
    found = _one_thread_each(launch, shape[2:], "place", (256, 512, 1024))
    planes = shape[0] * shape[1]
    return Prediction(
        {**found.values, "count": prod(shape), "shape": shape_text(shape), "planes": planes}, found.expected
    )


def depthwise_convolution(launch: LaunchFacts) -> Prediction:
    """`conv_depthwise2d_forward_kernel` and `..._backward_kernel`: one thread per output or input."""
    if "backward" in launch.function_name:
        return _one_thread_each(launch, _gradient_shape(launch.call), "input gradient", (1024,))
    shape, data, weight = None, launch.tensor(0), launch.tensor(1)
    is_depthwise = launch.call is not None and launch.call.name == "aten::_conv_depthwise2d"
    if is_depthwise and data is not None and weight is not None and len(data.shape) == _IMAGE_RANK:
        sides = window_sizes(data.shape[2:], *_windows(launch.call, _DEPTHWISE_AT))
        shape = None if sides is None else (data.shape[0], weight.shape[0], *sides)
    return _one_thread_each(launch, shape, "output", (1024,))


def depthwise_weight_gradient(launch: LaunchFacts) -> Prediction:
    """`conv_depthwise2d_grad_weight_kernel`: one block per filter weight."""
    gradient, weight = launch.tensor(0), launch.tensor(2)
    if weight is None or gradient is None or not weight.element_count or not gradient.shape:
        return Prediction()
    count, threads = weight.element_count, min(gradient.shape[0] * _WARP, _WEIGHT_THREADS)
    values = {"weights": count, "shape": shape_text(weight.shape), "threads": threads}
    return Prediction(values, [Expected("one block per weight", (count, 1, 1), (threads, 1, 1))])


def grid_sample(launch: LaunchFacts) -> Prediction:
    """`grid_sampler_2d_kernel` and relatives: one thread per place of the grid."""
    call, is_backward = launch.call, "backward" in launch.function_name
    grid = None
    if call is not None and call.name.startswith("aten::grid_sampler"):
        grid = call.tensor(2 if "backward" in call.name else 1)
    shape = grid.shape[:-1] if grid is not None and grid.element_count else None
    found = _one_thread_each(launch, shape, "place", (256, 512))
    return Prediction({**found.values, "is_backward": is_backward}, found.expected)


def window_sizes(
    sizes: Sequence[int],
    kernel: Sequence[int] | None,
    stride: Sequence[int] | None,
    padding: Sequence[int] | None,
    dilation: Sequence[int] | None,
    *,
    rounds_up: bool = False,
) -> tuple[int, ...] | None:
    """Windows along each side; None where an argument is unknown or does not fit.

    Source: aten/src/ATen/native/Pool.h, pooling_output_shape.
    """
    if kernel is None or stride is None or padding is None or dilation is None or not all(stride):
        return None
    if not len(kernel) == len(stride) == len(padding) == len(dilation) == len(sizes) > 0:
        return None
    found = []
    for size, extent, step, padded, spread in zip(sizes, kernel, stride, padding, dilation, strict=True):
        reach = size + 2 * padded - spread * (extent - 1) - 1
        count = (ceil_div(reach, step) if rounds_up else reach // step) + 1
        if rounds_up and (count - 1) * step >= size + padded:
            count -= 1
        found.append(max(count, 0))
    return tuple(found)


def _one_thread_each(
    launch: LaunchFacts, shape: Shape | None, what: str, block_sizes: Sequence[int]
) -> Prediction:
    """A flat grid, one thread per item of the shape, in blocks of one of the documented sizes."""
    if shape is None or not prod(shape):
        return Prediction()
    count, threads = prod(shape), launch.thread_count
    values: dict[str, Any] = {"count": count, "shape": shape_text(shape), "what": what}
    if threads is None or threads not in block_sizes:
        return Prediction(values)
    return Prediction(
        {**values, "each_threads": threads},
        [blocks_over(count, threads, what=f"blocks, one thread per {what}")],
    )


def _pooled_shape(call: CallArguments | None) -> Shape | None:
    positions = None if call is None else _POOLS.get(call.name)
    tensor = None if call is None else call.tensor(0)
    if call is None or positions is None or tensor is None or len(tensor.shape) <= _SIDES:
        return None
    kernel, stride, padding, dilation = _windows(call, positions[:4])
    sides = window_sizes(
        tensor.shape[-_SIDES:],
        kernel,
        stride or kernel,
        padding,
        dilation,
        rounds_up=call.boolean(positions[4]) is True,
    )
    if sides is None or not tensor.element_count or 0 in sides:
        return None
    return (*tensor.shape[:-_SIDES], *sides)


def _windows(
    call: CallArguments | None, positions: Sequence[int | None]
) -> tuple[tuple[int, ...] | None, ...]:
    """Kernel size, stride, padding and dilation of a window, per side; 1 where an operator has none."""
    return tuple((1,) * _SIDES if at is None else _per_side(call, at) for at in positions)


def _per_side(call: CallArguments | None, position: int) -> tuple[int, ...] | None:
    values = None if call is None else call.integers(position)
    if not values:
        return None
    return values * _SIDES if len(values) == 1 else values if len(values) == _SIDES else None


def _resized(call: CallArguments | None) -> Shape | None:
    """The output of an upsampling."""
    if call is None or not call.name.startswith("aten::upsample_") or "backward" in call.name:
        return None
    tensor, size = call.tensor(0), call.integers(1)
    if tensor is None or size is None or len(tensor.shape) != _IMAGE_RANK or len(size) != _SIDES:
        return None
    return (*tensor.shape[:2], *size) if tensor.element_count and min(size) > 0 else None


def _gradient_shape(call: CallArguments | None) -> Shape | None:
    """Shape of the input whose gradient is computed: of any convolution backward, its second argument."""
    data = None if call is None or "backward" not in call.name else call.tensor(1)
    return data.shape if data is not None and len(data.shape) == _IMAGE_RANK else None
