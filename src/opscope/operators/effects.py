"""What one call takes and gives: its tensors without data, from a replay or from shape rules.

Operations and bytes are worked out from this alone, so that both ways of knowing the results count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, TensorArgument, is_number, type_of
from opscope.operators.call_cost import FlopSource
from opscope.operators.element_types import ElementKind, ElementType

__all__ = [
    "UNKNOWN_FLOPS",
    "CallEffects",
    "ContradictionError",
    "FlopCount",
    "FlopDefinition",
    "Formula",
    "Rule",
    "Shape",
    "defined",
    "dimension_of",
    "dimensions_of",
    "effects_of",
    "element_of",
    "made",
    "nothing",
    "operator_stem",
    "per_element",
    "registered",
    "result",
    "shape_text",
    "written_out",
]


@dataclass(frozen=True)
class CallEffects:
    """One call with its results.

    Attributes:
        call: As recorded.
        inputs: Its tensors, those it is only given to write into (`out=`) left out, in order.
        outputs: Its results in the order of the schema, those of a list one by one. What it wrote in place is
            among them with its own strides; views of inputs are not.
    """

    call: CallArguments
    inputs: tuple[TensorArgument, ...]
    outputs: tuple[TensorArgument, ...]

    @cached_property
    def stem(self) -> str | None:
        """The operator without namespace and without the mark of in-place variants; None outside aten."""
        return operator_stem(self.call.name)

    @cached_property
    def is_in_place(self) -> bool:
        """Whether the name says that the first argument is overwritten."""
        return self.stem is not None and not self.call.name.endswith(self.stem)

    @cached_property
    def device_inputs(self) -> tuple[TensorArgument, ...]:
        """Inputs but for Python numbers, which stay on the host."""
        if all(is_number(tensor) for tensor in self.inputs):
            return self.inputs
        return tuple(tensor for tensor in self.inputs if not is_number(tensor))

    @cached_property
    def output(self) -> TensorArgument | None:
        """The first result."""
        return self.outputs[0] if self.outputs else None

    @cached_property
    def output_kind(self) -> ElementKind | None:
        """Kind of elements of the first result; None if unknown."""
        return _kind(self.outputs[:1])

    @cached_property
    def output_elements(self) -> int:
        """Elements of the first result."""
        return self.outputs[0].element_count if self.outputs else 0


def operator_stem(name: str) -> str | None:
    """`"add"` of `"aten::add"` and of `"aten::add_"`; None of an operator of another library."""
    namespace, separator, operator = name.partition("::")
    if namespace != "aten" or not separator:
        return None
    is_in_place = operator.endswith("_") and not operator.endswith("__")
    return operator[:-1] if is_in_place else operator


def _kind(tensors: Sequence[TensorArgument]) -> ElementKind | None:
    known = type_of(tensors[0]) if tensors else None
    return None if known is None else known.kind


Formula: TypeAlias = Callable[[CallEffects], "int | None"]


@dataclass(frozen=True)
class FlopCount:
    """Operations of one call, and how they were counted; a reason where they are unknown."""

    count: int | None = None
    source: FlopSource | None = None
    reason: str | None = None


UNKNOWN_FLOPS = FlopCount(reason="no formula for its operations")


@dataclass(frozen=True)
class FlopDefinition:
    """A formula and what it stands on.

    Attributes:
        formula: None: it computes nothing.
        source: Of its counts.
        complex_factor: Real operations that one of its operations is on complex numbers; None if they differ.
        needs_floats: Whether operations on anything but floating-point numbers do not count.
    """

    formula: Formula | None
    source: FlopSource = FlopSource.DEFINITION
    complex_factor: int | None = None
    needs_floats: bool = True


def nothing() -> FlopDefinition:
    """No operations."""
    return FlopDefinition(None, FlopSource.NONE)


def registered(formula: Formula) -> FlopDefinition:
    """A formula that torch has too: for any element type, complex ones as real ones."""
    return FlopDefinition(formula, FlopSource.REGISTRY, needs_floats=False)


def defined(formula: Formula, *, complex_factor: int | None = None) -> FlopDefinition:
    """A formula of our own."""
    return FlopDefinition(formula, complex_factor=complex_factor)


def per_element(operations: int, *, complex_factor: int | None = None) -> FlopDefinition:
    """So many operations for each element of the first result."""
    return defined(lambda effects: operations * effects.output_elements, complex_factor=complex_factor)


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
