"""Kernels with one thread per place of an image: pooling, resizing, depthwise convolution, im2col, sampling.

Sources: aten/src/ATen/native/cuda of PyTorch 2.6.0: DilatedMaxPool2d.cu, AveragePool2d.cu,
AdaptiveAveragePooling.cu, UpSampleNearest2d.cu, UpSampleBilinear2d.cu, UpSampleBicubic2d.cu,
DepthwiseConv2d.cu, im2col.cuh, GridSampler.cu.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import Extent, LaunchFacts, OperatorCall, Shape
from opscope.analysis.parallelism.wording import (
    ceil_div,
    ceiling,
    computes,
    memory,
    over,
    plural,
    shape_text,
    synchronization,
)

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
    "window_size",
]

_UPSAMPLE_THREADS = 512  # Source: UpSampleNearest2d.cu, MAX_THREADS
_PLANES_PER_THREAD = 4
# Source: DilatedMaxPool2d.cu, BLOCK_THREADS, CUDA_MAX_THREADS, BLOCK_STRIDE.
_POOL_THREADS = 256
_POOL_MAX_THREADS = 1024
_STEPS_PER_SIDE = 2
_WARP = 32
_IMAGE_RANK = 4  # batch, channels, height, width
_SIDES = 2
_WEIGHT_THREADS = 256  # Source: DepthwiseConv2d.cu, getGradParamsNumThreads
# Operator: positions of kernel size, stride, padding, dilation (None: 1) and ceil_mode.
_POOLS = {
    "aten::max_pool2d_with_indices": (1, 2, 3, 4, 5),
    "aten::avg_pool2d": (1, 2, 3, None, 4),
}


# Operator: positions of kernel size, stride, padding, dilation (None: 1).
_UNFOLDS: dict[str, tuple[int, int, int, int | None]] = {
    "aten::im2col": (1, 4, 3, 2),
    "aten::_slow_conv2d_forward": (2, 4, 5, None),
    "aten::_slow_conv2d_backward": (3, 4, 5, None),
}


def pool(launch: LaunchFacts) -> Iterator[Note]:
    """`max_pool_forward_nchw`, `avg_pool2d_[backward_]out_cuda_frame[_nhwc]`: one thread per result."""
    is_backward = "backward" in launch.function_name
    what = "input gradient" if is_backward else "output"
    if is_backward:
        shape = _gradient_shape(launch.call) if launch.call is not None else None
    else:
        shape = None if launch.call is None else _pooled_shape(launch.call)
    if shape is not None:
        yield over(
            f"All {prod(shape):,} {what}s ({shape_text(shape)}) are independent: each reads its own window."
        )
        yield from _one_thread_each(launch, prod(shape), what, (256, 512, 1024))
    yield memory(
        "Neighboring threads compute neighboring outputs, so their windows are neighbors or overlap; the "
        "overlap comes from cache."
    )
    yield synchronization("None: a thread walks its window alone.")


def pool_channels_last(launch: LaunchFacts) -> Iterator[Note]:
    """`max_pool_forward_nhwc`, `max_pool_backward_nhwc`: channels along x, columns along y, rows along z."""
    call = launch.call
    is_backward = "backward" in launch.function_name
    shape: Shape | None = None
    if call is not None:
        data = call.tensor(1)
        shape = (None if data is None else data.shape) if is_backward else _pooled_shape(call)
    if shape is not None and len(shape) == _IMAGE_RANK and shape.count(0) == 0:
        what = "input gradients" if is_backward else "outputs"
        yield over(f"All {prod(shape):,} {what} ({shape_text(shape)}) are independent.")
        grid, block = _channels_last_launch(shape)
        yield computes(
            f"A block of {block[0]}×{block[1]}×{block[2]} threads takes channels, columns and rows of one "
            f"image, {_STEPS_PER_SIDE} steps along columns and rows."
        )
        formula = f"{grid[0]} over images and channels × {grid[1]} over columns × {grid[2]} over rows"
        yield from checked(launch, [Expected(formula, grid, block)])
    yield memory("Channels are contiguous: neighboring threads along x take neighboring channels, coalesced.")
    yield synchronization("Results are gathered in shared memory; a thread touches its own part.")


def pool_gradient(launch: LaunchFacts) -> Iterator[Note]:
    """`max_pool_backward_nchw`: one thread per input place, images along y, channels along z."""
    call = launch.call
    data = None if call is None or "max_pool" not in call.name else call.tensor(1)
    if data is not None and len(data.shape) == 4 and data.element_count:
        batch, channels, places = data.shape[0], data.shape[1], prod(data.shape[2:])
        yield over(f"All {data.element_count:,} input gradients ({shape_text(data.shape)}) are independent.")
        yield computes(
            f"A block of {_POOL_THREADS} threads computes as many places of one channel, one per thread."
        )
        grid = (ceil_div(places, _POOL_THREADS), min(batch, 65535), min(channels, 65535))
        formula = f"{ceiling(places, _POOL_THREADS)} × {batch:,} images × {channels:,} channels"
        yield from checked(launch, [Expected(formula, grid, (_POOL_THREADS, 1, 1))])
    yield synchronization("None: a thread adds up the windows that chose its place, so no atomics.")


def im2col(launch: LaunchFacts) -> Iterator[Note]:
    """`im2col_kernel`: one thread per window and channel, of one image."""
    sizes = None if launch.call is None else _unfolded(launch.call)
    if sizes is not None:
        channels, windows, each = sizes
        yield over(
            f"{channels * windows:,} pairs of channel and window ({channels} × {windows:,}) of one image are "
            "independent."
        )
        yield from _one_thread_each(launch, channels * windows, "window", (1024,))
        yield memory(f"A thread copies the {each} elements of its window, each to another row of the matrix.")
    yield synchronization("None: every element of the matrix is written once.")


def adaptive_average_pool(launch: LaunchFacts) -> Iterator[Note]:
    """`adaptive_average_pool`: planes along x, output rows along y."""
    tensor = launch.tensor(0)
    if tensor is not None and len(tensor.shape) in (3, 4) and tensor.element_count:
        planes = prod(tensor.shape[:-2])
        channels = tensor.shape[-3]
        yield over(
            f"{plural(planes, 'plane')} ({shape_text(tensor.shape)}) and the outputs of each are independent."
        )
        grid = (planes, max(16 // channels, 1), 1)
        yield computes(
            "A block of 32×8 threads computes outputs of one plane, each thread averaging its own window."
        )
        yield from checked(launch, [Expected(f"{planes:,} planes × {grid[1]}", grid, (32, 8, 1))])
    yield synchronization("None: a thread walks its window alone.")


def nearest_upsample(launch: LaunchFacts) -> Iterator[Note]:
    """`upsample_nearest2d_out_frame`: a 3-D grid over width, height and planes."""
    sizes = _resized(launch.call)
    if sizes is not None:
        shape, (height, width) = sizes
        planes = shape[0] * shape[1]
        yield over(
            f"All {planes * height * width:,} outputs ({shape_text((*shape[:2], height, width))}) are "
            "independent."
        )
        along = min(_last_power_of_two(width), _UPSAMPLE_THREADS)
        down = min(_last_power_of_two(height), _UPSAMPLE_THREADS // along)
        deep = min(planes, _UPSAMPLE_THREADS // along // down)
        grid = (ceil_div(width, along), ceil_div(height, down), ceil_div(planes, deep * _PLANES_PER_THREAD))
        yield computes(
            f"A block of {along}×{down}×{deep} threads copies as many places, each over several planes."
        )
        over_planes = ceiling(planes, deep * _PLANES_PER_THREAD)
        formula = f"{ceiling(width, along)} × {ceiling(height, down)} × {over_planes} blocks"
        yield from checked(launch, [Expected(formula, grid, (along, down, deep))])
    yield memory(
        "Neighboring threads write neighboring outputs: coalesced; the source place of each is worked out "
        "from the scale."
    )
    yield synchronization("None: every output is written once.")


def resize(launch: LaunchFacts) -> Iterator[Note]:
    """`upsample_bilinear2d_out_frame`, `upsample_bicubic2d_out_frame`, and their channels-last forms."""
    sizes = _resized(launch.call)
    if sizes is not None:
        shape, (height, width) = sizes
        planes = shape[0] * shape[1]
        yield over(
            f"All {planes * height * width:,} outputs ({shape_text((*shape[:2], height, width))}) are "
            "independent."
        )
        is_flat = "nhwc" in launch.function_name
        count = height * width * (planes if is_flat else 1)
        yield from _one_thread_each(launch, count, "output" if is_flat else "place", (256, 512, 1024))
        if not is_flat:
            yield computes(
                f"Each thread computes its place in all {plural(planes, 'plane')}, one after the other."
            )
    yield synchronization("None: every output is written once.")


def depthwise_convolution(launch: LaunchFacts) -> Iterator[Note]:
    """`conv_depthwise2d_forward_kernel` and `..._backward_kernel`: one thread per output or input."""
    call = launch.call
    is_backward = "backward" in launch.function_name
    shape = None
    if call is not None:
        shape = _gradient_shape(call) if is_backward else _depthwise_shape(call)
    what = "input gradient" if is_backward else "output"
    if shape is not None:
        yield over(
            f"All {prod(shape):,} {what}s ({shape_text(shape)}) are independent: each sums over its own "
            "filter window."
        )
        yield from _one_thread_each(launch, prod(shape), what, (1024,))
    yield memory(
        "Neighboring threads compute neighboring places of a row and read neighboring or overlapping windows."
    )
    yield synchronization("None: a thread walks its window alone.")


def depthwise_weight_gradient(launch: LaunchFacts) -> Iterator[Note]:
    """`conv_depthwise2d_grad_weight_kernel`: one block per filter weight."""
    call = launch.call
    weight = None if call is None else call.tensor(2)
    gradient = None if call is None else call.tensor(0)
    if weight is not None and gradient is not None and weight.element_count and gradient.shape:
        yield over(
            f"{plural(weight.element_count, 'filter weight')} ({shape_text(weight.shape)}) are independent "
            "sums."
        )
        threads = min(gradient.shape[0] * _WARP, _WEIGHT_THREADS)
        yield computes(f"A block of {threads} threads computes the gradient of one weight.")
        expected = Expected("one block per weight", (weight.element_count, 1, 1), (threads, 1, 1))
        yield from checked(launch, [expected])
    yield synchronization(
        "Warp shuffles, then one value per warp through shared memory with __syncthreads()."
    )


def grid_sample(launch: LaunchFacts) -> Iterator[Note]:
    """`grid_sampler_2d_kernel` and relatives: one thread per place of the grid."""
    call = launch.call
    grid = None
    if call is not None and call.name.startswith("aten::grid_sampler"):
        grid = call.tensor(2 if "backward" in call.name else 1)
    if grid is not None and grid.element_count:
        count = prod(grid.shape[:-1])
        yield over(
            f"All {plural(count, 'sampled place')} are independent; each is computed for all channels."
        )
        yield from _one_thread_each(launch, count, "place", (256, 512))
    if "backward" in launch.function_name:
        yield synchronization(
            "Gradients of the input meet where places share pixels: atomics in global memory."
        )
    else:
        yield synchronization("None: every output is written once.")


def window_size(
    size: int, kernel: int, stride: int, padding: int, dilation: int, *, rounds_up: bool = False
) -> int:
    """Windows along one side. Source: aten/src/ATen/native/Pool.h, pooling_output_shape."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (ceil_div(reach, stride) if rounds_up else reach // stride) + 1
    if rounds_up and (count - 1) * stride >= size + padding:
        count -= 1
    return max(count, 0)


def _one_thread_each(
    launch: LaunchFacts, count: int, what: str, block_sizes: Sequence[int]
) -> Iterator[Note]:
    """A flat grid, one thread per item, in blocks of one of the documented sizes."""
    threads = launch.thread_count
    if count < 1 or threads is None or threads not in block_sizes:
        return
    yield computes(f"A block of {threads} threads computes {threads:,} {what}s, one per thread.")
    formula = f"{ceiling(count, threads)} blocks, one thread per {what}"
    yield from checked(launch, [Expected(formula, (ceil_div(count, threads), 1, 1))])


def _pooled_shape(call: OperatorCall) -> Shape | None:
    positions = _POOLS.get(call.name)
    tensor = call.tensor(0)
    if positions is None or tensor is None:
        return None
    kernel = _per_side(call, positions[0])
    if kernel is None or len(tensor.shape) <= _SIDES:
        return None
    stride = _per_side(call, positions[1]) or kernel
    padding = _per_side(call, positions[2])
    dilation = (1, 1) if positions[3] is None else _per_side(call, positions[3])
    if padding is None or dilation is None or not all(stride):
        return None
    rounds_up = positions[4] < len(call.concrete) and call.concrete[positions[4]] == "True"
    sides = tuple(
        window_size(*one, rounds_up=rounds_up)
        for one in zip(tensor.shape[-_SIDES:], kernel, stride, padding, dilation, strict=True)
    )
    shape = (*tensor.shape[:-_SIDES], *sides)
    return shape if prod(shape) else None


def _channels_last_launch(shape: Shape) -> tuple[Extent, Extent]:
    """Source: DilatedMaxPool2d.cu, the channels-last cases."""
    batch, channels, height, width = shape
    along = min(_last_power_of_two(channels), _WARP)
    across = min(_last_power_of_two(width), _POOL_MAX_THREADS // along)
    down = min(_last_power_of_two(height), _POOL_MAX_THREADS // along // across)
    along = min(_last_power_of_two(channels), _POOL_MAX_THREADS // across // down)
    pieces = ceil_div(channels, along * 4)
    grid = (
        batch * pieces,
        min(ceil_div(width, across * _STEPS_PER_SIDE), 65535),
        min(ceil_div(height, down * _STEPS_PER_SIDE), 65535),
    )
    return grid, (along, across, down)


def _unfolded(call: OperatorCall) -> tuple[int, int, int] | None:
    """Channels, windows and window size of `im2col(self, kernel, dilation, padding, stride)`."""
    positions = _UNFOLDS.get(call.name)
    tensor = call.tensor(1 if call.name.endswith("backward") else 0)
    if positions is None or tensor is None or len(tensor.shape) < 3:
        return None
    kernel, stride, padding, dilation = (
        (1, 1) if position is None else _per_side(call, position) for position in positions
    )
    if kernel is None or stride is None or padding is None or dilation is None or not all(stride):
        return None
    sides = [
        window_size(*one) for one in zip(tensor.shape[-2:], kernel, stride, padding, dilation, strict=True)
    ]
    return (tensor.shape[-3], prod(sides), prod(kernel)) if prod(sides) else None


def _per_side(call: OperatorCall, position: int) -> tuple[int, ...] | None:
    values = call.integers(position)
    if not values:
        return None
    return values * _SIDES if len(values) == 1 else values if len(values) == _SIDES else None


def _resized(call: OperatorCall | None) -> tuple[Shape, tuple[int, int]] | None:
    if call is None or not call.name.startswith("aten::upsample_") or "backward" in call.name:
        return None
    tensor, size = call.tensor(0), call.integers(1)
    if tensor is None or size is None or len(tensor.shape) != 4 or len(size) != 2 or not tensor.element_count:
        return None
    return (tensor.shape, (size[0], size[1])) if size[0] > 0 and size[1] > 0 else None


def _depthwise_shape(call: OperatorCall) -> Shape | None:
    """Output of `aten::_conv_depthwise2d(self, weight, kernel_size, bias, stride, padding, dilation)`."""
    if call.name != "aten::_conv_depthwise2d":
        return None
    data, weight = call.tensor(0), call.tensor(1)
    kernel, stride, padding, dilation = (_per_side(call, position) for position in (2, 4, 5, 6))
    if (
        data is None
        or weight is None
        or kernel is None
        or stride is None
        or padding is None
        or dilation is None
    ):
        return None
    if len(data.shape) != 4 or not all(stride):
        return None
    sides = (window_size(*one) for one in zip(data.shape[2:], kernel, stride, padding, dilation, strict=True))
    shape = (data.shape[0], weight.shape[0], *sides)
    return shape if prod(shape) else None


def _gradient_shape(call: OperatorCall) -> Shape | None:
    """Shape of the input whose gradient is computed: of any convolution backward, its second argument."""
    if "backward" not in call.name:
        return None
    data = call.tensor(1)
    return data.shape if data is not None and len(data.shape) == 4 and data.element_count else None


def _last_power_of_two(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)
