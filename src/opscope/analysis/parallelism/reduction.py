"""ATen's general reduction: `reduce_kernel<max_threads, output_vec_size, ReduceOp<...>>`.

Source: ATen/native/cuda/Reduce.cuh of PyTorch 2.6.0, 2.11.0 and 2.14.1 (reduce_kernel, ReduceOp,
ReduceConfig).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opscope.analysis.parallelism.account import Expected, Note, Statement, checked, extent_text
from opscope.analysis.parallelism.facts import (
    LaunchFacts,
    OperatorCall,
    Shape,
    TensorArgument,
    item_size_bytes,
)
from opscope.analysis.parallelism.reduce_config import (
    ReduceConfig,
    ReduceTraits,
    reduce_config,
    reduced_dimensions,
)
from opscope.analysis.parallelism.wording import (
    algorithm,
    computes,
    memory,
    over,
    plural,
    shape_text,
    synchronization,
)
from opscope.provenance.kernel_names import template_arguments

__all__ = ["reduction"]

_WARP = 32
_INT32_MAX = 2**31 - 1
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


@dataclass(frozen=True)
class _Reduced:
    """What one call reduces."""

    tensor: TensorArgument
    dimensions: tuple[int, ...]

    @property
    def output_shape(self) -> Shape:
        return tuple(size for at, size in enumerate(self.tensor.shape) if at not in self.dimensions)


def reduction(launch: LaunchFacts) -> Iterator[Note]:
    """Outputs in parallel, and each output's inputs divided over lanes, warps and blocks."""
    reduced = None if launch.call is None else _reduced(launch.call)
    traits = _traits(launch)
    config = None
    if reduced is not None and traits is not None:
        config = _config(launch, reduced, traits)
    if reduced is not None:
        yield from _parallel(reduced)
    if config is not None:
        for check in checked(launch, [Expected(_formula(config), config.grid, config.block)]):
            if check.is_explained:
                yield from _block_work(config)
                yield from _access(config, traits)
                yield from _combining(config)
            yield check
    else:
        yield from _from_geometry(launch)
    yield from _steps(launch, traits)


def _reduced(call: OperatorCall) -> _Reduced | None:
    name = call.name.removeprefix("aten::")
    tensor = call.tensor(0)
    if name not in _DIMENSIONS_AT or tensor is None or not tensor.element_count:
        return None
    rank = len(tensor.shape)
    given = None
    if len(call.shapes) >= _LEAST_ARGUMENTS_WITH_DIMENSIONS:
        if not call.concrete:
            return None  # which dimensions was not recorded
        given = call.integers(_DIMENSIONS_AT[name])
    if not given:  # no dimensions, or an empty list of them, mean all
        return _Reduced(tensor, tuple(range(rank)))
    dimensions = tuple(sorted({at % rank for at in given})) if rank else ()
    return _Reduced(tensor, dimensions)


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


def _config(launch: LaunchFacts, reduced: _Reduced, traits: ReduceTraits) -> ReduceConfig | None:
    strides = reduced.tensor.strides
    size = item_size_bytes(reduced.tensor.type_name) or 8
    if reduced.tensor.element_count * size > _INT32_MAX:
        return None  # launched in several parts that 32-bit offsets reach
    if strides is None or not launch.sm_count or not launch.max_threads_per_sm:
        return None
    dimensions = reduced_dimensions(reduced.tensor.shape, strides, reduced.dimensions)
    return reduce_config(
        dimensions, traits, sm_count=launch.sm_count, max_threads_per_sm=launch.max_threads_per_sm
    )


def _formula(config: ReduceConfig) -> str:
    outputs = f"ceil({plural(config.output_count, 'output')} / {config.outputs_per_block:,} per block)"
    inputs = plural(config.input_count, "input")
    if config.blocks_per_output == 1:
        return f"{outputs} blocks, one pass over {inputs} each"
    return f"{outputs} × {config.blocks_per_output} blocks that share {inputs} each"


def _parallel(reduced: _Reduced) -> Iterator[Statement]:
    outputs = 1
    for size in reduced.output_shape:
        outputs *= size
    inputs = reduced.tensor.element_count // max(outputs, 1)
    shape = shape_text(reduced.tensor.shape)
    if outputs > 1:
        yield over(
            f"{plural(outputs, 'output')} of {shape} reduced to {shape_text(reduced.output_shape)} are "
            f"independent; the {inputs:,} inputs of each are combined by an associative operation, so in any "
            "grouping."
        )
    else:
        yield over(
            f"One output from {inputs:,} inputs ({shape}): parallel because the operation is associative, so "
            "threads combine parts of the input in any grouping."
        )


def _block_work(config: ReduceConfig) -> Iterator[Statement]:
    threads = config.block_width * config.block_height
    sharing = config.block_width if config.lanes_reduce else 1
    sharing *= config.block_height if config.warps_reduce else 1
    yield computes(
        f"A block of {extent_text(config.block)} threads works on "
        f"{plural(config.outputs_per_block, 'output')}: {plural(sharing, 'thread')} of {threads} share each, "
        f"reading up to {plural(config.values_per_thread, 'input')} per thread"
        + (f" for each of {config.output_vector} outputs" if config.output_vector > 1 else "")
        + "."
    )
    if config.blocks_per_output > 1:
        yield computes(
            f"The inputs of each output are divided over {config.blocks_per_output} blocks (grid.y)."
        )


def _access(config: ReduceConfig, traits: ReduceTraits | None) -> Iterator[Statement]:
    if config.is_input_vectorized and traits is not None:
        width = traits.input_vector or 4
        yield memory(
            f"The reduced dimension is contiguous: a thread loads vectors of {width} inputs, neighboring "
            "lanes neighboring vectors: coalesced."
        )
    elif config.output_vector > 1:
        yield memory(
            f"The kept dimension is contiguous: a thread loads {config.output_vector} neighboring inputs of "
            "as many outputs at a time, neighboring lanes neighboring outputs: coalesced."
        )
    elif config.lanes_reduce:
        yield memory("Lanes follow the reduced dimension; inputs are loaded one by one.")
    else:
        yield memory("Lanes follow the kept dimension: neighboring lanes read inputs of neighboring outputs.")


def _combining(config: ReduceConfig) -> Iterator[Statement]:
    if config.lanes_reduce and config.block_width > _WARP:
        yield synchronization(
            f"The {config.block_width} lanes of an output combine in shared memory, halving with "
            f"__syncthreads() down to {_WARP}, then by warp shuffles."
        )
    elif config.lanes_reduce and config.block_width > 1:
        yield synchronization(f"The {config.block_width} lanes of an output combine by warp shuffles.")
    if config.warps_reduce:
        yield synchronization(
            f"The {config.block_height} rows of a block combine in shared memory, halving with "
            "__syncthreads()."
        )
    if config.blocks_per_output > 1:
        yield synchronization(_across_blocks(config.blocks_per_output))
    elif not (config.lanes_reduce and config.block_width > 1) and not config.warps_reduce:
        yield synchronization("None: each thread reduces its own outputs alone.")


def _across_blocks(blocks: int) -> str:
    return (
        f"Across blocks: each of the {blocks} blocks of an output writes its partial result to global memory "
        "and counts itself in with an atomic; the last to arrive combines them, so no second launch."
    )


def _from_geometry(launch: LaunchFacts) -> Iterator[Statement]:
    """What the grid alone shows: its y counts the blocks that share an output."""
    if launch.grid is not None and launch.grid[1] > 1:
        yield computes(f"The inputs of each output are divided over {launch.grid[1]} blocks (grid.y).")
        yield synchronization(_across_blocks(launch.grid[1]))


def _steps(launch: LaunchFacts, traits: ReduceTraits | None) -> Iterator[Statement]:
    operation = launch.template_argument(2) or ""
    if traits is not None:
        yield algorithm(
            f"Each thread keeps {traits.accumulators} accumulators, so that loads overlap, then merges them "
            "before threads combine."
        )
    if "WelfordOps" in operation:
        yield algorithm("Mean and sum of squared deviations are updated together in one pass (Welford).")
    elif "ArgMaxOps" in operation or "ArgMinOps" in operation:
        yield algorithm("Value and index travel together as a pair.")
    elif "MeanOps" in operation:
        yield algorithm("Inputs are summed; the last step multiplies the sum by 1/count.")
