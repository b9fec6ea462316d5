"""Reductions of ATen, worked out from shape and strides.

Dimensions are ordered and merged as TensorIterator does, then divided over lanes, warps,
blocks and outputs as setReduceConfig does. Sources: ATen/native/cuda/Reduce.cuh of PyTorch 2.6.0, 2.11.0 and
2.14.1; aten/src/ATen/TensorIterator.cpp (reorder_dimensions, coalesce_dimensions) of 2.6.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from opscope.hardware.architectures import WARP_SIZE
from opscope.launches.facts import LaunchFacts, Shape
from opscope.launches.prediction import (
    Expected,
    Prediction,
    ceil_div,
    extent_text,
    last_power_of_two,
    shape_text,
)
from opscope.operators.arguments import TensorArgument
from opscope.operators.effects import ContradictionError
from opscope.operators.element_types import item_size_bytes
from opscope.operators.reductions import OPERATORS
from opscope.operators.reductions import reduced_dimensions as dimensions_of_reduction
from opscope.provenance.kernel_names import template_arguments
from opscope.units import counted

if TYPE_CHECKING:
    from opscope.operators.arguments import CallArguments

__all__ = [
    "ReduceConfig",
    "ReduceTraits",
    "ReducedDimension",
    "reduce_config",
    "reduced_dimensions",
    "reduction",
]

_INT32_MAX = 2**31 - 1
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
    warps_reduce: bool = False
    blocks_per_output: int = 1
    outputs_per_block: int = 1
    values_per_thread: int = 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return (ceil_div(self.output_count, self.outputs_per_block), self.blocks_per_output, 1)

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads."""
        return (self.block_width, self.block_height, 1)


def reduction(launch: LaunchFacts) -> Prediction:
    """`reduce_kernel<max_threads, output_vec_size, ReduceOp<...>>`: outputs in parallel, inputs divided."""
    reduced, traits = None if launch.call is None else _reduced(launch.call), _traits(launch)
    operation = launch.template_argument(2) or ""
    values: dict[str, Any] = {
        "accumulators": None if traits is None else traits.accumulators,
        "is_welford": "WelfordOps" in operation,
        "is_pair": "ArgMaxOps" in operation or "ArgMinOps" in operation,
        "is_mean": "MeanOps" in operation,
    }
    config = None
    if reduced is not None:
        tensor, dimensions = reduced
        kept = tuple(size for at, size in enumerate(tensor.shape) if at not in dimensions)
        values.update(
            outputs=prod(kept),
            is_one=prod(kept) <= 1,
            inputs=tensor.element_count // max(prod(kept), 1),
            shape=shape_text(tensor.shape),
            kept=shape_text(kept),
        )
        config = None if traits is None else _config(launch, tensor, dimensions, traits)
    if config is None:  # the grid alone shows it: its y counts the blocks that share an output
        shares = launch.grid is not None and launch.grid[1] > 1
        return Prediction({**values, "sharing_blocks": launch.grid[1] if shares and launch.grid else None})
    outputs = f"ceil({counted(config.output_count, 'output')} / {config.outputs_per_block:,} per block)"
    each = counted(config.input_count, "input")
    if config.blocks_per_output == 1:
        formula = f"{outputs} blocks, one pass over {each} each"
    else:
        formula = f"{outputs} × {config.blocks_per_output} blocks that share {each} each"
    expected = Expected(formula, config.grid, config.block)
    if expected.matches(launch.grid, launch.block):
        values.update(_division(config, traits))
    return Prediction(values, [expected])


def reduced_dimensions(shape: Shape, strides: Shape, reduced: Sequence[int]) -> tuple[ReducedDimension, ...]:
    """Dimensions in iteration order, reduced ones first, the fastest of each kind first, neighbors merged."""
    if not shape:
        return (ReducedDimension(1, 1, is_reduced=True),)
    kept = [dimension for dimension in range(len(shape)) if dimension not in reduced]
    # Strides of the contiguous result seen with all dimensions: 0 where it is reduced.
    output_strides, step = [0] * len(shape), 1
    for dimension in reversed(kept):
        output_strides[dimension] = step
        step *= max(shape[dimension], 1)
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
    is_vectorized = fastest.stride == 1 and lanes_reduce and len(reduced) == 1 and width >= _VECTORIZE_FROM
    if traits.input_vector is None:  # as in 2.6.0
        is_vectorized = is_vectorized and width > _VECTORIZE_FROM and traits.accumulators >= 4
    if is_vectorized:
        width //= traits.input_vector or 4
    elif not lanes_reduce:
        width //= traits.output_vector
    if traits.output_vector != 1 and (lanes_reduce or outputs % traits.output_vector):
        return None
    block_width, block_height = _block(width, height, traits.max_threads // traits.output_vector)
    # Source: Reduce.cuh, setReduceConfig from split_input on.
    step_input, step_output = (block_width, 1) if lanes_reduce else (1, block_width)
    threshold = min(block_height * _MIN_VALUES_PER_THREAD, _MAX_VALUES_PER_THREAD)
    warps_reduce = ceil_div(inputs, step_input) >= threshold
    if warps_reduce:
        step_input *= block_height
    else:
        step_output *= block_height
    values = ceil_div(inputs, step_input)
    grid_x = ceil_div(outputs // traits.output_vector, step_output)
    device_blocks = sm_count * (max_threads_per_sm // (block_width * block_height))
    blocks = 1
    if warps_reduce and values >= _MAX_VALUES_PER_THREAD and grid_x <= device_blocks:
        most, least = ceil_div(values, _MIN_VALUES_PER_THREAD), ceil_div(values, _MAX_VALUES_PER_THREAD)
        blocks = max(min(ceil_div(device_blocks, grid_x), most), least)
    return ReduceConfig(
        input_count=inputs,
        output_count=outputs,
        block_width=block_width,
        block_height=block_height,
        output_vector=traits.output_vector,
        is_input_vectorized=is_vectorized,
        lanes_reduce=lanes_reduce,
        warps_reduce=warps_reduce and block_height > 1,
        blocks_per_output=blocks,
        outputs_per_block=step_output * traits.output_vector,
        values_per_thread=ceil_div(values, blocks),
    )


def _block(width: int, height: int, max_threads: int) -> tuple[int, int]:
    """Source: Reduce.cuh, ReduceConfig::set_block_dimension."""
    width_power = last_power_of_two(width) if width < max_threads else max_threads
    height_power = last_power_of_two(height) if height < max_threads else max_threads
    block_width = min(width_power, WARP_SIZE)
    block_height = min(height_power, max_threads // block_width)
    return min(width_power, max_threads // block_height), block_height


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


def _reduced(call: CallArguments) -> tuple[TensorArgument, tuple[int, ...]] | None:
    """The tensor that a call reduces, and the dimensions."""
    tensor, keeps_dimensions = call.tensor("self"), call.has("dim") and not call.has("keepdim")
    if tensor is None or not tensor.element_count or call.stem not in OPERATORS or keeps_dimensions:
        return None
    try:
        dimensions = dimensions_of_reduction(call)
    except ContradictionError:
        return None
    return None if dimensions is None else (tensor, tuple(sorted(dimensions)))


def _traits(launch: LaunchFacts) -> ReduceTraits | None:
    threads, output_vector = launch.template_integer(0), launch.template_integer(1)
    arguments = template_arguments(launch.template_argument(2) or "")
    # ReduceOp<scalar_t, ops_t, index_t, out_scalar_t, vt0>, and since 2.11 or before a sixth: the input
    # vector.
    numbers = [int(text) for text in arguments[4:6] if text.isdecimal()]
    if not threads or not output_vector or not numbers:
        return None
    input_vector = numbers[1] if len(numbers) > 1 else None
    return ReduceTraits(output_vector, numbers[0], input_vector, threads * output_vector)


def _config(
    launch: LaunchFacts, tensor: TensorArgument, reduced: tuple[int, ...], traits: ReduceTraits
) -> ReduceConfig | None:
    if tensor.element_count * (item_size_bytes(tensor.type_name) or 8) > _INT32_MAX:
        return None  # launched in several parts that 32-bit offsets reach
    if tensor.strides is None or not launch.sm_count or not launch.max_threads_per_sm:
        return None
    return reduce_config(
        reduced_dimensions(tensor.shape, tensor.strides, reduced),
        traits,
        sm_count=launch.sm_count,
        max_threads_per_sm=launch.max_threads_per_sm,
    )


def _division(config: ReduceConfig, traits: ReduceTraits | None) -> dict[str, Any]:
    """How a block divides its outputs, reads their inputs and combines them."""
    lanes = config.block_width if config.lanes_reduce else 1
    rows = config.block_height if config.warps_reduce else 1
    is_shared = config.blocks_per_output > 1
    is_vectorized = config.is_input_vectorized and traits is not None
    has_output_vector = config.output_vector > 1 and not is_vectorized
    return {
        "block": extent_text(config.block),
        "outputs_per_block": config.outputs_per_block,
        "sharing": lanes * rows,
        "threads": config.block_width * config.block_height,
        "values_per_thread": config.values_per_thread,
        "output_vector": config.output_vector if config.output_vector > 1 else None,
        "sharing_blocks": config.blocks_per_output if is_shared else None,
        "input_vector": (traits.input_vector or 4) if is_vectorized and traits is not None else None,
        "vector_outputs": config.output_vector if has_output_vector else None,
        "lanes_one_by_one": config.lanes_reduce and not is_vectorized and not has_output_vector,
        "lanes_kept": not config.lanes_reduce and not is_vectorized and not has_output_vector,
        "many_lanes": lanes if lanes > WARP_SIZE else None,
        "warp": WARP_SIZE,
        "few_lanes": lanes if 1 < lanes <= WARP_SIZE else None,
        "block_rows": config.block_height if config.warps_reduce else None,
        "is_alone": not is_shared and lanes == 1 and not config.warps_reduce,
    }
