"""What one call takes and gives, and the row of its operator: results, operations, least bytes.

A family's table has one row per operator. Its in-place and `out=` variants need none of their own: the schema
of a call says what it writes. Operations and bytes are worked out from a call's effects alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

from opscope.operators.arguments import CallArguments, TensorArgument, distinct_elements, is_number, type_of
from opscope.operators.element_types import ElementKind, ElementType
from opscope.provenance.operators.schema import Kind

Shape: TypeAlias = tuple[int, ...]
_Value = TypeVar("_Value")


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

    @property
    def output_elements(self) -> int:
        """Elements of the first result."""
        return self.outputs[0].element_count if self.outputs else 0

    @property
    def worked_elements(self) -> int:
        """Elements it works on: of its data (all of a list), or of the first result where these are more."""
        data = self.call.tensor("self", "input", "grad_output", "grad_out")
        members = self.call.tensor_list("self") or (() if data is None else (data,))
        return max(sum(tensor.element_count for tensor in members), self.output_elements)


Rule: TypeAlias = Callable[[CallArguments], CallEffects]
Formula: TypeAlias = Callable[[CallEffects], int]
TrafficRule: TypeAlias = Callable[[CallEffects], "tuple[int, int]"]


@dataclass(frozen=True)
class Operator:
    """What is known of one operator, all its variants alike.

    Rules and formulas raise an UnrecordedError where the recorded arguments do not decide.
    """

    # What a call gives; None: unknown, or nothing but its arguments' own children give
    results: Rule | None = None
    # Floating-point operations: so many for each element it works on, each elementary function being one; a
    # formula where they can limit a call; None: not known
    operations: int | Formula | None = None
    # Bytes read and written where that is not all inputs and all results, each once
    traffic: TrafficRule | None = None
    # Names of the argument whose type decides the peak, of products; empty where the widest type does
    operand: tuple[str, ...] = ()


def rows(results: Rule | None, operations: Mapping[int, str]) -> dict[str, Operator]:
    """Operators with like results, those named in one text with as many operations for each element."""
    return {name: Operator(results, count) for count, names in operations.items() for name in names.split()}


def each_of(*names: str) -> Formula:
    """One operation for each element of an argument."""
    return lambda effects: known(effects.call.tensor(*names)).element_count


class ContradictionError(Exception):
    """Arguments that no operator takes together; the text names the contradiction."""


class UnrecordedError(Exception):
    """What a rule needs was not recorded, or is of a kind that it says nothing of; the text says what."""

    def __init__(self, reason: str = "what it follows from was not recorded") -> None:
        super().__init__(reason)


def known(value: _Value | None) -> _Value:
    """An argument, or a type, that a rule needs."""
    if value is None:
        raise UnrecordedError
    return value


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


def results(call: CallArguments, *found: tuple[Shape, ElementType | None]) -> CallEffects:
    """Effects of a call with results of these shapes and types: in place, in those given for it, or new."""
    schema = call.schema
    if schema is not None and schema.kind is Kind.INPLACE:
        own, shape = known(call.tensor("self")), found[0][0]
        known(type_of(own))
        if own.shape != shape:
            raise ContradictionError(f"a result of {shape_text(shape)} in place of {shape_text(own.shape)}")
        return effects_of(call, (own,))
    typed = [(shape, known(element)) for shape, element in found]
    if schema is None or not schema.out:
        return effects_of(call, [TensorArgument(shape, element.recorded_name) for shape, element in typed])
    if len(schema.out) != len(typed):
        raise UnrecordedError
    written = []  # the tensors given for results, resized to fit
    for (shape, element), declared in zip(typed, schema.out, strict=True):
        out = known(call.tensor(declared.name))
        kind = known(type_of(out)).kind
        if element.kind.rank > kind.rank and element.kind is not ElementKind.INTEGER:
            raise UnrecordedError  # it cannot hold one of such a type
        written.append(out if out.shape == shape else TensorArgument(shape, out.type_name))
    return effects_of(call, written)


def result(call: CallArguments, shape: Shape, element: ElementType | None) -> CallEffects:
    """Effects of a call with one result."""
    return results(call, (shape, element))


def like(*names: str) -> Rule:
    """One result of the shape and type of an argument."""

    def rule(call: CallArguments) -> CallEffects:
        data = known(call.tensor(*names))
        return result(call, data.shape, type_of(data))

    return rule


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


# Least bytes of a call: each byte of its inputs read once, each byte of its results written once.
#
# What an operator overwrites unread, what only lends its sizes, gathers and scatters that touch part of a
# tensor: its row names one of the rules here, or its family's own. What children of the operator do (the
# zeros a gradient is added to, the copy a scatter writes into) is theirs. Python numbers stay on the host
# and count nothing.


def all_bytes(effects: CallEffects) -> tuple[int, int]:
    """All inputs are read, all results written."""
    return bytes_of(effects.device_inputs), bytes_of(effects.outputs)


def without(*names: str) -> TrafficRule:
    """All but some arguments is read: they are overwritten, or only their sizes matter."""
    return lambda effects: (bytes_of(inputs_without(effects, *names)), bytes_of(effects.outputs))


def gathering(*names: str) -> TrafficRule:
    """Of one argument as many elements are read as there are results, at most all of it."""

    def rule(effects: CallEffects) -> tuple[int, int]:
        table, written = known(effects.call.tensor(*names)), bytes_of(effects.outputs)
        return bytes_of(inputs_without(effects, *names)) + min(written, bytes_of((table,))), written

    return rule


def scattering(*, reads_target: bool) -> TrafficRule:
    """Elements of `self` are written, one for each of the source, or of the index without one."""

    def rule(effects: CallEffects) -> tuple[int, int]:
        call, target = effects.call, known(effects.call.tensor("self"))
        index, source = known(call.tensor("index")), call.tensor("src", "source", "value")
        moved = source if source is not None and source.shape else index
        touched = min(moved.element_count * item_bytes(target), bytes_of((target,)))
        return bytes_of(inputs_without(effects, "self")) + (touched if reads_target else 0), touched

    return rule


def inputs_without(effects: CallEffects, *names: str) -> list[TensorArgument]:
    """What is read of a call's inputs besides some arguments."""
    left = list(effects.device_inputs)
    for name in names:
        for tensor in effects.call.members(name):
            if tensor in left:
                left.remove(tensor)
    return left


def bytes_of(tensors: Iterable[TensorArgument]) -> int:
    """Distinct bytes of tensors."""
    return sum(distinct_elements(tensor) * item_bytes(tensor) for tensor in tensors)


def item_bytes(tensor: TensorArgument) -> int:
    """Bytes of one element."""
    element = type_of(tensor)
    if element is None and tensor.type_name is None:
        raise UnrecordedError("the element type of its list of tensors was not recorded")
    if element is None:
        raise UnrecordedError(f"element type {tensor.type_name} is unknown")
    return element.size_bytes
