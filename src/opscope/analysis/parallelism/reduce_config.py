"""The launch configuration ATen gives a reduction, worked out from shape, strides and reduced dimensions.

Dimensions are ordered and merged as TensorIterator does, then divided over lanes, warps, blocks and outputs
as setReduceConfig does. Sources: ATen/native/cuda/Reduce.cuh of PyTorch 2.6.0, 2.11.0 and 2.14.1;
aten/src/ATen/TensorIterator.cpp of 2.6.0 (reorder_dimensions, coalesce_dimensions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from opscope.analysis.occupancy import WARP_SIZE
from opscope.analysis.parallelism.facts import Shape
from opscope.analysis.parallelism.wording import ceil_div

__all__ = ["ReduceConfig", "ReduceTraits", "ReducedDimension", "reduce_config", "reduced_dimensions"]

_MAX_THREADS = 512  # mnt_wrapper<T>; 256 for complex double, whose name says so
_MIN_VALUES_PER_THREAD = 16
_MAX_VALUES_PER_THREAD = 256
_VECTORIZE_FROM = 128


@dataclass(frozen=True)
class ReducedDimension:
    """One merged dimension of the iteration; strides count elements of the input."""

    size: int
    stride: int
    is_reduced: bool


@dataclass(frozen=True)
class ReduceTraits:
    """What the kernel's name fixes. `input_vector` is None in names of releases that fix it at 4."""

    output_vector: int
    accumulators: int
    input_vector: int | None = None
    max_threads: int = _MAX_THREADS


@dataclass(frozen=True)
class ReduceConfig:
    """How one reduction is divided. A value per thread is one input element it reads."""

    input_count: int
    output_count: int
    block_width: int
    block_height: int
    output_vector: int
    is_input_vectorized: bool
    lanes_reduce: bool
    warps_reduce: bool
    blocks_per_output: int
    outputs_per_block: int
    values_per_thread: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return (ceil_div(self.output_count, self.outputs_per_block), self.blocks_per_output, 1)

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads."""
        return (self.block_width, self.block_height, 1)


def reduced_dimensions(shape: Shape, strides: Shape, reduced: Sequence[int]) -> tuple[ReducedDimension, ...]:
    """Dimensions in iteration order, reduced ones first, the fastest of each kind first, neighbors merged."""
    if not shape:
        return (ReducedDimension(1, 1, is_reduced=True),)
    kept = [dimension for dimension in range(len(shape)) if dimension not in reduced]
    output_strides = _output_strides(shape, kept)
    order = _ordered(shape, strides, output_strides)
    merged: list[tuple[int, int, int]] = []  # size, output stride, input stride
    for dimension in order:
        size, output, source = shape[dimension], output_strides[dimension], strides[dimension]
        if merged and (combined := _merged(merged[-1], (size, output, source))) is not None:
            merged[-1] = combined
        else:
            merged.append((size, output, source))
    return tuple(ReducedDimension(size, source, output == 0) for size, output, source in merged)


def reduce_config(
    dimensions: Sequence[ReducedDimension], traits: ReduceTraits, *, sm_count: int, max_threads_per_sm: int
) -> ReduceConfig | None:
    """The configuration for merged dimensions; None where the name's traits do not fit them."""
    reduced = [dimension for dimension in dimensions if dimension.is_reduced]
    kept = [dimension for dimension in dimensions if not dimension.is_reduced]
    inputs = prod(dimension.size for dimension in reduced)
    outputs = prod(dimension.size for dimension in kept)
    lanes_reduce = not kept or (bool(reduced) and reduced[0].stride < kept[0].stride)
    fastest = (reduced or kept)[0] if lanes_reduce else kept[0]
    width, height = (inputs, outputs) if lanes_reduce else (outputs, inputs)
    is_vectorized = fastest.stride == 1 and lanes_reduce and _vectorizes(traits, width, len(reduced))
    if is_vectorized:
        width //= traits.input_vector or 4
    elif not lanes_reduce:
        width //= traits.output_vector
    if traits.output_vector != 1 and (lanes_reduce or outputs % traits.output_vector):
        return None
    block_width, block_height = _block(width, height, traits.max_threads // traits.output_vector)
    return _divided(
        _Division(inputs, outputs, block_width, block_height, lanes_reduce, is_vectorized),
        traits,
        sm_count,
        max_threads_per_sm,
    )


@dataclass(frozen=True)
class _Division:
    inputs: int
    outputs: int
    block_width: int
    block_height: int
    lanes_reduce: bool
    is_vectorized: bool


def _vectorizes(traits: ReduceTraits, width: int, reduced_dimension_count: int) -> bool:
    if reduced_dimension_count != 1:
        return False
    if traits.input_vector is None:  # as in 2.6.0
        return width > _VECTORIZE_FROM and traits.accumulators >= 4
    return width >= _VECTORIZE_FROM


def _block(width: int, height: int, max_threads: int) -> tuple[int, int]:
    """Source: Reduce.cuh, ReduceConfig::set_block_dimension."""
    width_power = _last_power_of_two(width) if width < max_threads else max_threads
    height_power = _last_power_of_two(height) if height < max_threads else max_threads
    block_width = min(width_power, WARP_SIZE)
    block_height = min(height_power, max_threads // block_width)
    return min(width_power, max_threads // block_height), block_height


def _divided(
    division: _Division, traits: ReduceTraits, sm_count: int, max_threads_per_sm: int
) -> ReduceConfig:
    """Source: Reduce.cuh, setReduceConfig from split_input on."""
    step_input = division.block_width if division.lanes_reduce else 1
    step_output = 1 if division.lanes_reduce else division.block_width
    threshold = min(division.block_height * _MIN_VALUES_PER_THREAD, _MAX_VALUES_PER_THREAD)
    warps_reduce = ceil_div(division.inputs, step_input) >= threshold
    if warps_reduce:
        step_input *= division.block_height
    else:
        step_output *= division.block_height
    values = ceil_div(division.inputs, step_input)
    grid_x = ceil_div(division.outputs // traits.output_vector, step_output)
    threads = division.block_width * division.block_height
    target = sm_count * (max_threads_per_sm // threads)
    blocks = 1
    if warps_reduce and values >= _MAX_VALUES_PER_THREAD and grid_x <= target:
        blocks = _blocks_per_output(values, target, grid_x)
    return ReduceConfig(
        input_count=division.inputs,
        output_count=division.outputs,
        block_width=division.block_width,
        block_height=division.block_height,
        output_vector=traits.output_vector,
        is_input_vectorized=division.is_vectorized,
        lanes_reduce=division.lanes_reduce,
        warps_reduce=warps_reduce and division.block_height > 1,
        blocks_per_output=blocks,
        outputs_per_block=step_output * traits.output_vector,
        values_per_thread=ceil_div(values, blocks),
    )


def _blocks_per_output(values: int, target: int, grid_x: int) -> int:
    by_device = ceil_div(target, grid_x)
    most = ceil_div(values, _MIN_VALUES_PER_THREAD)
    least = ceil_div(values, _MAX_VALUES_PER_THREAD)
    return max(min(by_device, most), least)


def _last_power_of_two(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)


def _output_strides(shape: Shape, kept: Sequence[int]) -> list[int]:
    """Strides of the contiguous result seen with all dimensions: 0 where it is reduced."""
    strides = [0] * len(shape)
    step = 1
    for dimension in reversed(kept):
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return strides


def _ordered(shape: Shape, strides: Shape, output_strides: Sequence[int]) -> list[int]:
    """Insertion sort with TensorIterator's comparison, which is no total order."""
    order = list(range(len(shape)))[::-1]
    for start in range(1, len(order)):
        right = start
        for left in range(start - 1, -1, -1):
            comparison = _comes_after(order[left], order[right], shape, strides, output_strides)
            if comparison > 0:
                order[left], order[right] = order[right], order[left]
                right = left
            elif comparison < 0:
                break
    return order


def _comes_after(first: int, second: int, shape: Shape, strides: Shape, output_strides: Sequence[int]) -> int:
    left, right = output_strides[first], output_strides[second]
    if (left == 0) != (right == 0):
        return 1 if right == 0 else -1
    for one, other in ((left, right), (strides[first], strides[second])):
        if one == 0 or other == 0:
            continue
        if one != other:
            return -1 if one < other else 1
        if shape[first] > shape[second]:
            return 1
    return 0


def _merged(left: tuple[int, int, int], right: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Two neighboring dimensions as one; None where their elements do not follow each other."""
    (left_size, left_output, left_input), (right_size, right_output, right_input) = left, right
    if left_size == 1:
        return right
    if right_size == 1 or (left_size * left_output == right_output and left_size * left_input == right_input):
        return (left_size * right_size, left_output, left_input)
    return None
