"""What one call takes and gives, and the row of its operator: results, operations, least bytes.

A family's table has one row per operator. Its in-place and `out=` variants need none of their own: the schema
of a call says what it writes. Operations and bytes are worked out from a call's effects alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from opscope.operators.arguments import CallArguments, TensorArgument, is_number, type_of
from opscope.operators.call_cost import FlopSource
from opscope.operators.element_types import ElementKind, ElementType
from opscope.provenance.operators.schema import Kind


@dataclass(frozen=True)
class CallEffects:
    """One call with its results."""

    call: CallArguments
    # Its tensors, those it is only given to write into (`out=`) left out, in order
    inputs: tuple[TensorArgument, ...]
    # Its results in the order of the schema, those of a list one by one. What it wrote in place is among them
    # with its own strides; views of inputs are not
    outputs: tuple[TensorArgument, ...]

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
    """A formula and what it stands on."""

    formula: Formula | None  # None: it computes nothing
    source: FlopSource = FlopSource.DEFINITION  # of its counts
    # Real operations that one of its operations is on complex numbers; None if they differ
    complex_factor: int | None = None
    needs_floats: bool = True  # whether operations on anything but floating-point numbers do not count


def nothing() -> FlopDefinition:
    """No operations."""
    return FlopDefinition(None, FlopSource.NONE)


def registered(formula: Formula) -> FlopDefinition:
    """A formula that torch has too: for any element type, complex ones as real ones."""
    return FlopDefinition(formula, FlopSource.REGISTRY, needs_floats=False)


def defined(
    formula: Formula, *, complex_factor: int | None = None, needs_floats: bool = True
) -> FlopDefinition:
    """A formula of our own."""
    return FlopDefinition(formula, complex_factor=complex_factor, needs_floats=needs_floats)


def per_element(operations: int, *, complex_factor: int | None = None) -> FlopDefinition:
    """So many operations for each element of the first result."""
    return defined(lambda effects: operations * effects.output_elements, complex_factor=complex_factor)


Shape: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[CallArguments], "CallEffects | None"]
TrafficRule: TypeAlias = Callable[[CallEffects], "tuple[int, int]"]
Operand: TypeAlias = "tuple[str, ...]"


@dataclass(frozen=True)
class Operator:
    """What is known of one operator, all its variants alike."""

    # What a call gives; None: unknown, or nothing but its arguments' own children give
    results: Rule | None = None
    flops: FlopDefinition | None = None  # None: no formula is known
    # Bytes read and written where that is not all inputs and all results, each once
    traffic: TrafficRule | None = None
    # Names of the argument whose type decides the peak; empty where the widest type does
    operand: Operand = ()


def counting(counts: Mapping[str, int | FlopDefinition], results: Rule | None = None) -> dict[str, Operator]:
    """Operators by name, each with its operations for each element of the first result."""
    return {
        name: Operator(results, count if isinstance(count, FlopDefinition) else per_element(count))
        for name, count in counts.items()
    }


def alike(count: int | FlopDefinition, names: str) -> dict[str, int | FlopDefinition]:
    """The same operations for operators named in one text."""
    return dict.fromkeys(names.split(), count)


class ContradictionError(Exception):
    """Arguments that no operator takes together; the text names the contradiction."""


def element_of(tensor: TensorArgument | None) -> ElementType | None:
    """The element type of a tensor that may be missing."""
    return None if tensor is None else type_of(tensor)


def effects_of(call: CallArguments, outputs: Sequence[TensorArgument]) -> CallEffects:
    """Effects of a call that reads all its tensors but those only given to write into."""
    for output in outputs:
        if any(size < 0 for size in output.shape):
            raise ContradictionError(f"a result of {shape_text(output.shape)}")
    outs = () if call.schema is None else tuple(one.name for one in call.schema.out)
    inputs = [tensor for name in call.names if name not in outs for tensor in call.members(name)]
    return CallEffects(call, tuple(inputs), tuple(outputs))


def results(call: CallArguments, *found: tuple[Shape, ElementType | None]) -> CallEffects | None:
    """Effects of a call with results of these shapes and types: in place, in those given for it, or new.

    None if a type that matters is unknown, or a tensor given for a result cannot hold it.
    """
    schema = call.schema
    if schema is not None and schema.kind is Kind.INPLACE:
        return _in_place(call, found[0][0])
    known = [(shape, element) for shape, element in found if element is not None]
    if len(known) < len(found):
        return None
    if schema is None or not schema.out:
        return effects_of(call, [TensorArgument(shape, element.recorded_name) for shape, element in known])
    outs = [call.tensor(one.name) for one in schema.out]
    if len(outs) != len(known):
        return None
    written = [_written(shape, element, out) for (shape, element), out in zip(known, outs, strict=True)]
    given = [one for one in written if one is not None]
    return effects_of(call, given) if len(given) == len(written) else None


def result(call: CallArguments, shape: Shape | None, element: ElementType | None) -> CallEffects | None:
    """Effects of a call with one result; None if its shape is unknown."""
    return None if shape is None else results(call, (shape, element))


def like(*names: str) -> Rule:
    """One result of the shape and type of an argument."""

    def rule(call: CallArguments) -> CallEffects | None:
        data = call.tensor(*names)
        return None if data is None else result(call, data.shape, type_of(data))

    return rule


def _in_place(call: CallArguments, shape: Shape) -> CallEffects | None:
    own = call.tensor("self")
    if own is None or type_of(own) is None:
        return None
    if own.shape != shape:
        raise ContradictionError(f"a result of {shape_text(shape)} in place of {shape_text(own.shape)}")
    return effects_of(call, (own,))


def _written(shape: Shape, element: ElementType, out: TensorArgument | None) -> TensorArgument | None:
    """The tensor given for a result, resized to fit; None if it cannot hold one of such a type."""
    known = element_of(out)
    if out is None or known is None:
        return None
    if element.kind.rank > known.kind.rank and element.kind is not ElementKind.INTEGER:
        return None
    return out if out.shape == shape else TensorArgument(shape, out.type_name)


def dimension_of(shape: Shape, dimension: int) -> int:
    """The dimension from 0, counted from the end if negative."""
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
