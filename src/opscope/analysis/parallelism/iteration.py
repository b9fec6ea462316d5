"""What an elementwise launch iterates over: the broadcast shape, its parts, and how neighbors lie in memory.

Follows TensorIterator: operands broadcast to one shape; what 32-bit offsets cannot reach is launched in
halves. Source: aten/src/ATen/TensorIterator.cpp (can_use_32bit_indexing, with_32bit_indexing), PyTorch 2.6.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from opscope.analysis.parallelism.account import Expected, Statement
from opscope.analysis.parallelism.facts import (
    LaunchFacts,
    OperatorCall,
    Shape,
    TensorArgument,
    broadcast,
    item_size_bytes,
)
from opscope.analysis.parallelism.wording import (
    ceil_div,
    ceiling,
    every,
    independent,
    memory,
    over,
    shape_text,
)
from opscope.provenance.categories import category_of

__all__ = [
    "IterationSpace",
    "confirmed",
    "copy_operands",
    "expected_grids",
    "independent_elements",
    "iteration_space",
    "stride_statements",
]

_INT32_MAX = 2**31 - 1
_MOST_HALVINGS = 6


# Operators of these categories launch elementwise kernels on the side, over shapes that are not their
# arguments'.
_OTHER_WORK = frozenset(
    ("matrix", "attention", "convolution", "normalization", "reduction", "sort_scan", "pooling", "optimizer")
)


@dataclass(frozen=True)
class IterationSpace:
    """Elements an operator computes one by one.

    Attributes:
        shape: The operands' common shape.
        element_count: Its elements.
        is_split: They may be launched in several parts.
        is_assumed: The operator is no elementwise one: the launch may work on something else.
    """

    shape: Shape
    element_count: int
    is_split: bool
    is_assumed: bool


def iteration_space(launch: LaunchFacts) -> IterationSpace | None:
    """The broadcast shape of an ATen operator's tensors; None if they have none, or none were recorded.

    Other ranges (a compiled region, a node of autograd) hold arguments that are not those of the kernel.
    """
    if launch.call is None or not launch.call.name.startswith("aten::"):
        return None
    tensors = launch.call.tensors
    # An `out` argument is recorded before it is resized: empty beside operands that are not.
    filled = [tensor for tensor in tensors if tensor.element_count] or list(tensors)
    shape = broadcast(tensor.shape for tensor in filled)
    if not filled or shape is None:
        return None
    count = 1
    for size in shape:
        count *= size
    if count == 0:
        return None
    widest = max((item_size_bytes(tensor.type_name) or 0 for tensor in filled), default=0) or 8
    is_assumed = category_of(launch.call.name) in _OTHER_WORK
    return IterationSpace(shape, count, count * widest > _INT32_MAX, is_assumed)


def confirmed(
    launch: LaunchFacts, space: IterationSpace | None, expected: Iterable[Expected]
) -> IterationSpace | None:
    """The space, or None where it was assumed and the launch is not one of those it would give."""
    if space is None or not space.is_assumed:
        return space
    grid = launch.grid
    return space if grid is not None and any(one.matches(grid, launch.block) for one in expected) else None


def independent_elements(space: IterationSpace | None, *, reads: bool = True) -> Iterator[Statement]:
    """Why elementwise work is parallel, with this call's count; `reads`: it has operands."""
    if space is not None:
        why = "computed from the operands' elements at its own position" if reads else "written alone"
        yield over(
            f"{every(space.element_count, 'output element')} ({shape_text(space.shape)}) "
            f"{independent(space.element_count)}: each is {why}."
        )


def expected_grids(
    space: IterationSpace, per_block: int, threads: int, configuration: str
) -> Iterator[Expected]:
    """One block per `per_block` elements, of the whole or of one of its 32-bit parts."""
    block = (threads, 1, 1)
    whole = ceil_div(space.element_count, per_block)
    formula = f"{ceiling(space.element_count, per_block)} blocks"
    yield Expected(formula, (whole, 1, 1), block, configuration)
    if not space.is_split:
        return
    for halvings in range(1, _MOST_HALVINGS + 1):
        part, rest = divmod(space.element_count, 2**halvings)
        if rest:
            return
        formula = (
            f"{ceiling(part, per_block)} blocks for one of {2**halvings} parts that 32-bit offsets reach"
        )
        yield Expected(formula, (ceil_div(part, per_block), 1, 1), block, configuration)


def copy_operands(call: OperatorCall | None) -> tuple[TensorArgument, TensorArgument] | None:
    """Destination and source of `aten::copy_`."""
    if call is None or call.name != "aten::copy_":
        return None
    destination, source = call.tensor(0), call.tensor(1)
    return None if destination is None or source is None else (destination, source)


def stride_statements(launch: LaunchFacts) -> Iterator[Statement]:
    """How far apart neighboring threads of a strided copy read and write, from the recorded strides."""
    operands = copy_operands(launch.call)
    if operands is None:
        return
    destination, source = operands
    steps = _steps_along_fastest(destination, source)
    if steps is None:
        return
    size, written, read = steps
    if written == 1 and read == 1:
        yield memory(
            f"Along the fastest dimension ({size:,}) neighboring threads read and write neighboring "
            "elements: coalesced."
        )
    elif written == 1 and read == 0:
        yield memory(
            f"Neighboring threads write neighboring elements; along the fastest dimension ({size:,}) all "
            "read one element (an expanded source)."
        )
    else:
        item = item_size_bytes(source.type_name)
        apart = f"{read:,} elements" + (f" ({read * item:,} B)" if item else "")
        yield memory(
            f"Along the fastest dimension of the destination ({size:,}) neighboring threads write "
            f"{written:,} and read {apart} apart: the reads are not coalesced."
        )


def _steps_along_fastest(destination: TensorArgument, source: TensorArgument) -> tuple[int, int, int] | None:
    """Size of the destination's fastest dimension, and both strides along it."""
    if destination.strides is None or source.strides is None:
        return None
    missing = len(destination.shape) - len(source.shape)
    if missing < 0:
        return None
    shape = (1,) * missing + source.shape
    strides = (0,) * missing + source.strides
    dimensions = [
        (written, size, 0 if source_size == 1 else read)
        for written, size, source_size, read in zip(
            destination.strides, destination.shape, shape, strides, strict=True
        )
        if size > 1 and written > 0
    ]
    if not dimensions:
        return None
    written, size, read = min(dimensions)
    return size, written, read
