"""Batch and group normalization: channels (or groups) in parallel, the batch and the image inside a block.

Sources: ATen/native/cuda/Normalization.cuh of PyTorch 2.6.0 and 2.11.0;
aten/src/ATen/native/cuda/group_norm_kernel.cu of 2.6.0. cuDNN's kernels are not documented: of them only what
the grid shows is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, Statement, checked
from opscope.analysis.parallelism.facts import Extent, LaunchFacts, Shape
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    memory,
    over,
    plural,
    shape_text,
    synchronization,
)
from opscope.model.evidence import Grade

__all__ = [
    "channel_statistics",
    "channels_last",
    "cudnn_batch_norm",
    "group_moments",
    "group_parameters",
    "transform",
]

_MAX_THREADS = 512  # Source: Normalization.cuh, MAX_BLOCK_SIZE
_THREAD_SIZES = (32, 64, 128, 256, 512)  # Source: Normalization.cuh, getNumThreads
_TRANSFORM_BLOCKS = 256 * 1024
# Source: Normalization.cuh, flexible_launch_configs.
_VALUES_PER_THREAD = 16
_TILE_WIDTH = 32
_MOST_BLOCKS_DOWN = 128
_FEWEST_BLOCKS_DOWN = 8
_GROUP_THREADS = 512  # Source: block_reduce.cuh, kCUDABlockReduceNumThreads
_PARAMETER_THREADS = 256  # Source: group_norm_kernel.cu, kCUDANumThreads
_GROUP_NORM = "aten::native_group_norm"


@dataclass(frozen=True)
class _Image:
    """The input as batch × channels × the rest."""

    shape: Shape
    batch: int
    channels: int
    rest: int


def channel_statistics(launch: LaunchFacts) -> Iterator[Note]:
    """`batch_norm_collect_statistics_kernel`, `batch_norm_backward[_reduce]_kernel`."""
    image = _image(launch)
    yield from _parallel(image)
    if image is not None:
        yield computes(
            f"A block computes one channel: {image.batch * image.rest:,} values from "
            f"{plural(image.batch, 'image')} of {image.rest:,}."
        )
        block = (
            _reduce_block(image)
            if launch.function_name.endswith("reduce_kernel")
            else _statistics_block(image)
        )
        yield from checked(launch, [Expected("one block per channel", (image.channels, 1, 1), block)])
    yield memory("Threads along x read neighboring elements of one image, threads along y other images.")
    yield synchronization(
        "Warp shuffles, then one value per warp through shared memory with __syncthreads(); blocks are "
        "independent."
    )
    if "collect_statistics" in launch.function_name:
        yield algorithm("Mean and sum of squared deviations, updated online (Welford) and merged pairwise.")
    else:
        yield algorithm("Two sums over the channel: of the gradient, and of the gradient times (x - mean).")


def transform(launch: LaunchFacts) -> Iterator[Note]:
    """`batch_norm_transform_input_kernel` and `batch_norm_backward_elemt_kernel`."""
    image = _image(launch)
    if image is not None:
        count = image.batch * image.channels * image.rest
        yield over(
            f"All {count:,} elements ({shape_text(image.shape)}) are independent once the channels' "
            "statistics are known."
        )
        grid, block = _transform_launch(image)
        yield computes(
            f"A block of {block[0]}×{block[1]} threads computes its images of one channel, reading the "
            "channel's parameters once."
        )
        formula = f"{image.channels:,} channels × {grid[1]:,} blocks over {plural(image.batch, 'image')}"
        yield from checked(launch, [Expected(formula, grid, block)])
    yield memory("Neighboring threads take neighboring elements, one at a time: coalesced.")
    yield synchronization("None within the launch; it follows the one that computed the statistics.")


def channels_last(launch: LaunchFacts) -> Iterator[Note]:
    """The `batch_norm_..._channels_last_kernel`s: channels along x, batch and image along y."""
    image = _image(launch)
    yield from _parallel(image)
    is_elementwise = "transform" in launch.function_name or "elemt" in launch.function_name
    if image is not None:
        grid, block = _flexible(image, is_cooperative=not is_elementwise)
        yield computes(
            f"A block of {block[0]}×{block[1]} threads takes {block[0]} channels, {block[1]} positions side "
            "by side."
        )
        formula = f"{ceiling(image.channels, block[0])} blocks over channels × {grid[1]} over batch and image"
        yield from checked(launch, [Expected(formula, grid, block)])
    yield memory("Channels are contiguous: neighboring threads along x take neighboring channels, coalesced.")
    if is_elementwise:
        yield synchronization("None: elements are independent.")
    elif launch.grid is not None and launch.grid[1] > 1:
        yield synchronization(
            f"Within a block through shared memory; the {launch.grid[1]} blocks of a channel stage partial "
            "results in global memory, count themselves in with an atomic, and the last to arrive combines "
            "them."
        )
    else:
        yield synchronization("Threads along y combine through shared memory with __syncthreads().")


def group_moments(launch: LaunchFacts) -> Iterator[Note]:
    """`RowwiseMomentsCUDAKernel` under group normalization."""
    sizes = _group_sizes(launch)
    if sizes is not None:
        batch, channels, rest, groups = sizes
        length = channels // groups * rest
        yield over(
            f"{batch * groups:,} groups ({batch} images × {groups}) of {length:,} values are independent."
        )
        threads = _GROUP_THREADS if length >= _GROUP_THREADS else 32
        yield computes(
            f"A block of {threads} threads computes one group: up to {ceil_div(length, threads):,} values "
            "per thread."
        )
        expected = Expected("one block per image and group", (batch * groups, 1, 1), (threads, 1, 1))
        yield from checked(launch, [expected])
    yield memory("Neighboring threads read neighboring elements, one a load: coalesced.")
    yield synchronization(
        "Warp shuffles, then one value per warp through shared memory with __syncthreads()."
    )
    yield algorithm("Mean and sum of squared deviations, updated online (Welford).")


def group_parameters(launch: LaunchFacts) -> Iterator[Note]:
    """`ComputeFusedParamsCUDAKernel`: scale and shift of each channel."""
    sizes = _group_sizes(launch)
    if sizes is not None:
        count = sizes[0] * sizes[1]
        yield over(
            f"The {count:,} pairs of image and channel are independent: each gets one scale and one shift."
        )
        expected = Expected(
            f"{ceiling(count, _PARAMETER_THREADS)} blocks",
            (ceil_div(count, _PARAMETER_THREADS), 1, 1),
            (_PARAMETER_THREADS, 1, 1),
        )
        yield from checked(launch, [expected])
    yield computes(f"A block of {_PARAMETER_THREADS} threads computes as many pairs, one per thread.")
    yield synchronization("None: threads share nothing.")


def cudnn_batch_norm(launch: LaunchFacts) -> Iterator[Note]:
    """`cudnn::bn_...`: said only where the grid is the number of channels."""
    image = _image(launch)
    if image is None or launch.grid != (image.channels, 1, 1):
        return
    yield over(
        f"{plural(image.channels, 'channel')} of {image.batch * image.rest:,} values "
        f"({shape_text(image.shape)}) are independent.",
        Grade.INFERRED,
    )
    yield computes("A block computes one channel.", Grade.INFERRED)
    yield from checked(launch, [Expected("one block per channel", launch.grid)], Grade.INFERRED)


def _image(launch: LaunchFacts) -> _Image | None:
    if launch.call is None or "batch_norm" not in launch.call.name:
        return None
    tensor = launch.call.tensor(0)
    if tensor is None or len(tensor.shape) < 2 or not tensor.element_count:
        return None
    shape = tensor.shape
    return _Image(shape, shape[0], shape[1], prod(shape[2:]))


def _group_sizes(launch: LaunchFacts) -> tuple[int, int, int, int] | None:
    """Batch, channels, image size and groups of `aten::native_group_norm`."""
    if launch.call is None or launch.call.name != _GROUP_NORM:
        return None
    sizes = [launch.call.integer(position) for position in (3, 4, 5, 6)]
    batch, channels, rest, groups = sizes
    if not batch or not channels or not rest or not groups:
        return None
    return batch, channels, rest, groups


def _parallel(image: _Image | None) -> Iterator[Statement]:
    if image is not None:
        yield over(
            f"{plural(image.channels, 'channel')} ({shape_text(image.shape)}) are independent; the "
            f"{image.batch * image.rest:,} values of each combine from partial results."
        )


def _threads_for(size: int) -> int:
    return next((threads for threads in _THREAD_SIZES if size <= threads), _MAX_THREADS)


def _last_power_of_two(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)


def _statistics_block(image: _Image) -> Extent:
    width = _threads_for(image.rest)
    return (width, max(1, _MAX_THREADS // width), 1)


def _reduce_block(image: _Image) -> Extent:
    height = min(_last_power_of_two(image.batch), _MAX_THREADS // 32)
    return (min(max(_threads_for(image.rest), 32), _MAX_THREADS // height), height, 1)


def _transform_launch(image: _Image) -> tuple[Extent, Extent]:
    width = max(_threads_for(image.rest // 4), min(_threads_for(image.rest), 64))
    height = max(64 // width, 1)
    down = max(1, min(_TRANSFORM_BLOCKS // image.channels, ceil_div(image.batch, height)))
    return (image.channels, min(down, 65535), 1), (width, height, 1)


def _flexible(image: _Image, *, is_cooperative: bool) -> tuple[Extent, Extent]:
    reduction = image.batch * image.rest
    width = min(_last_power_of_two(image.channels), _TILE_WIDTH)
    height = min(_last_power_of_two(ceil_div(reduction, _VALUES_PER_THREAD)), _MAX_THREADS // width)
    if width * height != _MAX_THREADS:
        width = min(_last_power_of_two(image.channels), _MAX_THREADS // height)
    down = min(ceil_div(reduction, height * _VALUES_PER_THREAD), _MOST_BLOCKS_DOWN)
    if is_cooperative and down < _FEWEST_BLOCKS_DOWN:
        down = 1
    return (ceil_div(image.channels, width), down, 1), (width, height, 1)
