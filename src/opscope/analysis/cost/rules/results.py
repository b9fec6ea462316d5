"""How rules state results: new dense tensors, arguments written in place, tensors given as `out`.

A rule gives the effects of a call; None where it does not apply or what it needs was not recorded. Arguments
that contradict each other raise `ContradictionError`, whose text is the reason for people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from opscope.analysis.cost.arguments import CallArguments, TensorArgument, type_of
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.element_types import ElementType

__all__ = [
    "ContradictionError",
    "Rule",
    "Shape",
    "dimension_of",
    "dimensions_of",
    "effects_of",
    "element_of",
    "made",
    "result",
    "shape_text",
    "written_out",
]

Shape: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[CallArguments], "CallEffects | None"]


class ContradictionError(Exception):
    """Arguments that no operator takes together; the text names the contradiction."""


def made(shape: Sequence[int], element: ElementType) -> TensorArgument:
    """A new dense tensor."""
    return TensorArgument(tuple(shape), element.recorded_name)


def element_of(tensor: TensorArgument | None) -> ElementType | None:
    """The element type of a tensor that may be missing."""
    return None if tensor is None else type_of(tensor)


def written_out(shape: Shape, element: ElementType, out: TensorArgument | None) -> TensorArgument:
    """A result: new, or in the tensor given for it, which is resized to fit."""
    if out is None:
        return made(shape, element)
    if out.shape == shape:
        return out
    return TensorArgument(shape, out.type_name)


def effects_of(
    call: CallArguments,
    outputs: Sequence[TensorArgument],
    out_positions: Sequence[int] = (),
) -> CallEffects:
    """Effects of a call that reads all its tensors but those at some positions.

    Raises:
        ContradictionError: A result would have a negative size.
    """
    for output in outputs:
        if any(size < 0 for size in output.shape):
            raise ContradictionError(f"a result of {shape_text(output.shape)}")
    unread = {position for position in out_positions if call.tensor(position) is not None}
    inputs: list[TensorArgument] = []
    for position in range(len(call)):
        if position in unread:
            continue
        tensor = call.tensor(position)
        inputs.extend((call.tensor_list(position) or ()) if tensor is None else (tensor,))
    return CallEffects(call, tuple(inputs), tuple(outputs))


def result(
    call: CallArguments, shape: Shape, element: ElementType | None, out_position: int | None = None
) -> CallEffects | None:
    """Effects of a call with one result, new or at the position of its `out`."""
    out = None if out_position is None else call.tensor(out_position)
    if element is None or (out is not None and type_of(out) is None):
        return None
    return effects_of(
        call,
        (written_out(shape, element, out),),
        () if out_position is None else (out_position,),
    )


def dimension_of(shape: Shape, dimension: int) -> int:
    """The dimension from 0, counted from the end if negative.

    Raises:
        ContradictionError: There is no such dimension.
    """
    count = max(1, len(shape))
    if not -count <= dimension < count:
        raise ContradictionError(f"dimension {dimension} of sizes {shape_text(shape)}")
    return dimension % count


def dimensions_of(shape: Shape, dimensions: Sequence[int] | None) -> set[int]:
    """Dimensions from 0; all of them for none named."""
    if not dimensions:
        return set(range(len(shape)))
    return {dimension_of(shape, dimension) for dimension in dimensions}


def shape_text(shape: Sequence[int]) -> str:
    """Sizes for people: `"8×128"`."""
    return "×".join(map(str, shape)) or "()"
