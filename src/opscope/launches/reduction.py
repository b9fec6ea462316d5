"""Reductions of ATen: the general one, worked out from shape and strides; losses, distances and histograms.

The general one's dimensions are ordered and merged as TensorIterator does, then divided over lanes, warps,
blocks and outputs as setReduceConfig does. Sources: ATen/native/cuda/Reduce.cuh of PyTorch 2.6.0, 2.11.0 and
2.14.1; aten/src/ATen/TensorIterator.cpp (reorder_dimensions, coalesce_dimensions) and
aten/src/ATen/native/cuda/Loss.cu, NLLLoss2d.cu, DistanceKernel.cu and SummaryOps.cu of 2.6.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from opscope.hardware.occupancy import WARP_SIZE
from opscope.launches.facts import LaunchFacts, Shape
from opscope.launches.prediction import (
    Expected,
    Prediction,
    blocks_over,
    ceil_div,
    extent_text,
    last_power_of_two,
    plural,
    shape_text,
)
from opscope.operators.arguments import TensorArgument
from opscope.operators.element_types import item_size_bytes
from opscope.provenance.kernel_names import template_arguments

if TYPE_CHECKING:
    from opscope.operators.arguments import CallArguments

__all__ = [
    "ReduceConfig",
    "ReduceTraits",
    "ReducedDimension",
    "distances",
    "histogram",
    "nll_loss_each",
    "nll_loss_image",
    "nll_loss_sum",
    "reduce_config",
    "reduced_dimensions",
    "reduction",
]

_INT32_MAX = 2**31 - 1
_MAX_THREADS = 512  # mnt_wrapper<T>; 256 for complex double, whose name says so
_MIN_VALUES_PER_THREAD = 16
_MAX_VALUES_PER_THREAD = 256
_VECTORIZE_FROM = 128
# Position of the reduced dimensions in the arguments of the overloads that take them.
_DIMENSIONS_AT = {
    **dict.fromkeys(
        ("sum", "nansum", "mean", "prod", "amax", "amin", "max", "min", "all", "any", "argmax", "argmin",
         "std", "var", "std_mean", "var_mean"), 1
    ),
    "norm": 2,
    "linalg_vector_norm": 2,
}  # fmt: skip
# Overloads with fewer arguments reduce everything; their second argument is a type or a flag, not dimensions.
_LEAST_ARGUMENTS_WITH_DIMENSIONS = 3
_LOSS_THREADS = 1024  # Source: KernelUtils.h, CUDA_NUM_THREADS
_DISTANCE_THREADS = 256  # Source: DistanceKernel.cu, kCUDANumThreads
_HISTOGRAM_GUARD_BYTES = 8  # Source: SummaryOps.cu, CUDA_tensor_histogram


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
    expected = Expected(_formula(config), config.grid, config.block)
    if expected.matches(launch.grid, launch.block):
        values.update(_division(config, traits))
    return Prediction(values, [expected])


def nll_loss_sum(launch: LaunchFacts) -> Prediction:
    """`nll_loss_forward|backward_reduce_cuda_kernel_1d/2d`: one block takes all rows."""
    is_backward = "backward" in launch.function_name
    tensor, threads = launch.tensor(2 if is_backward else 0), launch.thread_count
    if tensor is None or not threads or not (tensor.element_count if is_backward else len(tensor.shape) == 2):
        return Prediction()
    rows = tensor.element_count if is_backward else tensor.shape[0]
    values = {"rows": rows, "shape": shape_text(tensor.shape), "each": ceil_div(rows, threads)}
    return Prediction(values, [Expected("one block, whatever the number of rows", (1, 1, 1))])


def nll_loss_each(launch: LaunchFacts) -> Prediction:
    """`nll_loss_forward_no_reduce_cuda_kernel` and its backward: one thread per row."""
    target = _target(launch)
    rows = target.element_count if target is not None else 0
    return Prediction(
        {"threads": _LOSS_THREADS, "rows": rows or None},
        [blocks_over(rows, _LOSS_THREADS, _LOSS_THREADS)] if rows else [],
    )


def nll_loss_image(launch: LaunchFacts) -> Prediction:
    """`nll_loss2d_forward_kernel`, `nll_loss2d_backward_kernel`: blocks over the places of each image."""
    target, is_backward = _target(launch), "backward" in launch.function_name
    values: dict[str, Any] = {"is_forward": "forward" in launch.function_name}
    if target is None or len(target.shape) != 3 or not target.element_count:
        return Prediction(values)
    batch, places = target.shape[0], prod(target.shape[1:])
    per_image = max(ceil_div(places, _LOSS_THREADS) // 128, 1)
    values.update(
        count=batch * places,
        shape=shape_text(target.shape),
        sums="" if is_backward else "; their sum is associative",
        threads=_LOSS_THREADS,
        per_image=per_image,
    )
    formula = f"{batch} images × {plural(per_image, 'block')}"
    return Prediction(values, [Expected(formula, (per_image * batch, 1, 1), (_LOSS_THREADS, 1, 1))])


def distances(launch: LaunchFacts) -> Prediction:
    """`cdist_kernel_cuda_impl`, `pdist_kernel_cuda_impl`: one block per pair of vectors."""
    first, second = launch.tensor(0), launch.tensor(1)
    if launch.call is None or first is None or len(first.shape) < 2:
        return Prediction()
    if launch.call.name == "aten::_pdist_forward":
        pairs, described = first.shape[0] * (first.shape[0] - 1) // 2, f"all of {first.shape[0]:,}"
    elif launch.call.name == "aten::_cdist_forward" and second is not None and len(second.shape) >= 2:
        sizes = (prod(first.shape[:-2]), first.shape[-2], second.shape[-2])
        pairs, described = prod(sizes), " × ".join(f"{size:,}" for size in sizes)
    else:
        return Prediction()
    if not pairs:
        return Prediction()
    values = {
        "pairs": pairs,
        "described": described,
        "threads": _DISTANCE_THREADS,
        "coordinates": first.shape[-1],
        "each": ceil_div(first.shape[-1], _DISTANCE_THREADS),
    }
    return Prediction(values, [Expected("one block per pair", (pairs, 1, 1), (_DISTANCE_THREADS, 1, 1))])


def histogram(launch: LaunchFacts) -> Prediction:
    """`kernelHistogram1D<out, in, index, 1, 2, -1, memory type, ...>`."""
    tensor, threads, blocks = launch.tensor(0), launch.thread_count, launch.block_count
    values: dict[str, Any] = {"is_shared": launch.template_integer(6) == 0}
    if tensor is not None and tensor.element_count:
        values["count"] = tensor.element_count
        values["each"] = ceil_div(tensor.element_count, threads * blocks) if threads and blocks else None
    bins = launch.call.integer(1) if launch.call is not None and launch.call.name == "aten::histc" else None
    counters = (launch.geometry.shared_memory_bytes or 0) - _HISTOGRAM_GUARD_BYTES
    if bins and launch.geometry.shared_memory_bytes and counters % bins == 0:
        values.update(bins=bins, bin_bytes=counters // bins, guard_bytes=_HISTOGRAM_GUARD_BYTES)
    return Prediction(values)


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
        ReduceConfig(
            input_count=inputs,
            output_count=outputs,
            block_width=block_width,
            block_height=block_height,
            output_vector=traits.output_vector,
            is_input_vectorized=is_vectorized,
            lanes_reduce=lanes_reduce,
        ),
        sm_count * (max_threads_per_sm // (block_width * block_height)),
    )


def _vectorizes(traits: ReduceTraits, width: int, reduced_dimension_count: int) -> bool:
    if reduced_dimension_count != 1:
        return False
    if traits.input_vector is None:  # as in 2.6.0
        return width > _VECTORIZE_FROM and traits.accumulators >= 4
    return width >= _VECTORIZE_FROM


def _block(width: int, height: int, max_threads: int) -> tuple[int, int]:
    """Source: Reduce.cuh, ReduceConfig::set_block_dimension."""
    width_power = last_power_of_two(width) if width < max_threads else max_threads
    height_power = last_power_of_two(height) if height < max_threads else max_threads
    block_width = min(width_power, WARP_SIZE)
    block_height = min(height_power, max_threads // block_width)
    return min(width_power, max_threads // block_height), block_height


def _divided(config: ReduceConfig, device_blocks: int) -> ReduceConfig:
    """The configuration with its inputs divided, for a device that holds so many of its blocks.

    Source: Reduce.cuh, setReduceConfig from split_input on.
    """
    step_input = config.block_width if config.lanes_reduce else 1
    step_output = 1 if config.lanes_reduce else config.block_width
    threshold = min(config.block_height * _MIN_VALUES_PER_THREAD, _MAX_VALUES_PER_THREAD)
    warps_reduce = ceil_div(config.input_count, step_input) >= threshold
    if warps_reduce:
        step_input *= config.block_height
    else:
        step_output *= config.block_height
    values = ceil_div(config.input_count, step_input)
    grid_x = ceil_div(config.output_count // config.output_vector, step_output)
    blocks = 1
    if warps_reduce and values >= _MAX_VALUES_PER_THREAD and grid_x <= device_blocks:
        most, least = ceil_div(values, _MIN_VALUES_PER_THREAD), ceil_div(values, _MAX_VALUES_PER_THREAD)
        blocks = max(min(ceil_div(device_blocks, grid_x), most), least)
    return replace(
        config,
        warps_reduce=warps_reduce and config.block_height > 1,
        blocks_per_output=blocks,
        outputs_per_block=step_output * config.output_vector,
        values_per_thread=ceil_div(values, blocks),
    )


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


def _reduced(call: CallArguments) -> tuple[TensorArgument, tuple[int, ...]] | None:
    """The tensor that a call reduces, and the dimensions."""
    name = call.name.removeprefix("aten::")
    tensor = call.tensor(0)
    if name not in _DIMENSIONS_AT or tensor is None or not tensor.element_count:
        return None
    rank, given = len(tensor.shape), None
    if len(call) >= _LEAST_ARGUMENTS_WITH_DIMENSIONS:
        if not call.values_recorded:
            return None  # which dimensions was not recorded
        given = call.integers(_DIMENSIONS_AT[name])
    if not given:  # no dimensions, or an empty list of them, mean all
        return tensor, tuple(range(rank))
    return tensor, tuple(sorted({at % rank for at in given})) if rank else ()


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


def _formula(config: ReduceConfig) -> str:
    outputs = f"ceil({plural(config.output_count, 'output')} / {config.outputs_per_block:,} per block)"
    inputs = plural(config.input_count, "input")
    if config.blocks_per_output == 1:
        return f"{outputs} blocks, one pass over {inputs} each"
    return f"{outputs} × {config.blocks_per_output} blocks that share {inputs} each"


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


def _target(launch: LaunchFacts) -> TensorArgument | None:
    """The target classes of a negative log likelihood."""
    if launch.call is None:
        return None
    return launch.call.tensor(2 if "backward" in launch.call.name else 1)
