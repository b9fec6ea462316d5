"""What one call takes, gives and costs, and the row of its operator: results, operations, least bytes.

A family's table has one row per operator. Its in-place and `out=` variants need none of their own: the schema
of a call says what it writes. Operations and bytes are worked out from a call's effects alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import TypeAlias, TypeVar

import msgspec

from opscope.hardware.devices import DataType
from opscope.operators.arguments import (
    CallArguments,
    ElementKind,
    ElementType,
    ScalarArgument,
    TensorArgument,
    distinct_elements,
    element_type,
    element_type_of_code,
    is_number,
    type_of,
)
from opscope.text_enum import MeaningEnum


class CostEvidence(MeaningEnum):
    """How the bytes of a call are known, strongest first. A closed set."""

    SHAPE_RULES = "shape_rules", "by packaged rules from the recorded arguments"
    RECORDED = "recorded", "as the recorder or the compiler wrote it on the event"
    GRADIENTS = (
        "gradients",
        "its lists of tensors are not recorded, but the gradients of the step need just the blocks launched",
    )
    KERNEL_ARGUMENTS = (
        "kernel_arguments",
        "from the tensors given to a generated kernel, in the order in which its compiler passes them",
    )
    ENGINE_STEP = "engine_step", "from its arguments and the counts in the serving engine's annotation"
    MATCHED = "matched", "that of the recorded call whose kernel, geometry and duration it has"


class FlopSource(MeaningEnum):
    """How the operations of a call are counted. A closed set."""

    REGISTRY = "registry", "of products, as torch counts them: a multiplication and an addition are 2"
    DEFINITION = "definition", "so many for each element, each elementary function counted as one"
    RECORDED = "recorded", "as the compiler wrote it"
    FUSED_NAMES = (
        "fused_names",
        "by definition of the operators that a generated kernel's name lists, once each",
    )
    NONE = "none", "no floating-point arithmetic: copies, fills, gathers, comparisons, integers"


class CallCost(msgspec.Struct, frozen=True):
    """What one call of an operator must do by itself, children left out.

    Zero is a fact (a copy computes nothing); unknown is None and has a reason.
    """

    flop_count: int | None = None  # floating-point operations; 0 where it computes none, None where unknown
    flop_source: FlopSource | None = None  # how they were counted; None where unknown
    # Distinct bytes of its inputs; what an in-place call overwrites unread does not count
    read_bytes: int | None = None
    written_bytes: int | None = None  # distinct bytes of its outputs; a view writes nothing
    # Type whose peak limits its operations: of the operands of a product, else the one it computes in, which
    # is fp32 for 16-bit inputs
    data_type: DataType | None = None
    evidence: CostEvidence | None = None  # how the bytes are known; None where unknown
    reason: str | None = None  # why something is unknown, in one phrase

    @property
    def min_bytes(self) -> int | None:
        """Least bytes moved between device memory and the chip: each byte once."""
        if self.read_bytes is None or self.written_bytes is None:
            return None
        return self.read_bytes + self.written_bytes


Shape: TypeAlias = tuple[int, ...]
_Kind: TypeAlias = "tuple[Shape, ElementType | None]"
_Value = TypeVar("_Value")


class CallEffects(msgspec.Struct, frozen=True, dict=True):
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
        return self.outputs[0] if self.outputs else None

    @property
    def output_elements(self) -> int:
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


class Operator(msgspec.Struct, frozen=True):
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


def rows(
    results: Rule | None,
    operations: Mapping[int, str] | Mapping[str, str],
    traffic: TrafficRule | None = None,
) -> dict[str, Operator]:
    """Operators with like results, those named in one text with as many operations for each element."""
    found = ((int(count), name) for count, names in operations.items() for name in names.split())
    return {name: Operator(results, count, traffic) for count, name in found}


def each_of(*names: str) -> Formula:
    """One operation for each element of an argument."""
    return lambda effects: known(effects.call.tensor(*names)).element_count


class ContradictionError(Exception):
    """Arguments that no operator takes together."""


_UNRECORDED = "what it follows from was not recorded"


class UnrecordedError(Exception):
    """What a rule needs was not recorded, or is of a kind that it says nothing of; the text says what."""

    def __init__(self, reason: str = _UNRECORDED) -> None:
        super().__init__(reason)


def known(value: _Value | None) -> _Value:
    """An argument, or a type, that a rule needs."""
    if value is None:
        raise UnrecordedError
    return value


def require(holds: object, reason: str = _UNRECORDED) -> None:
    """What a rule says nothing without."""
    if not holds:
        raise UnrecordedError(reason)


def agree(holds: object) -> None:
    """What is so of the arguments of every call."""
    if not holds:
        raise ContradictionError


def wanted_type(call: CallArguments, name: str, natural: ElementType | None) -> ElementType | None:
    """The type that an argument asks for, else the natural one; None if it was not recorded."""
    return natural if call.is_omitted(name) else element_type_of_code(known(call.integer(name)))


def effects_of(call: CallArguments, outputs: Sequence[TensorArgument]) -> CallEffects:
    """Effects of a call that reads all its tensors but those only given to write into."""
    agree(all(size >= 0 for output in outputs for size in output.shape))
    outs = () if call.schema is None else tuple(one.name for one in call.schema.out)
    inputs = [tensor for name in call.names if name not in outs for tensor in call.members(name)]
    return CallEffects(call, tuple(inputs), tuple(outputs))


def results(call: CallArguments, *found: _Kind) -> CallEffects:
    """Effects of a call with results of these shapes and types: in place, in those given for it, or new."""
    schema = call.schema
    if schema is not None and schema.is_inplace:
        own, shape = known(call.tensor("self")), found[0][0]
        known(type_of(own))
        agree(own.shape == shape)
        return effects_of(call, (own,))
    typed = [(shape, known(element)) for shape, element in found]
    if schema is None or not schema.out:
        return effects_of(call, [TensorArgument(shape, element.recorded_name) for shape, element in typed])
    require(len(schema.out) == len(typed))
    written = []  # the tensors given for results, resized to fit
    for (shape, element), declared in zip(typed, schema.out, strict=True):
        out = known(call.tensor(declared.name))
        # Else it cannot hold one of such a type.
        require(element.kind.rank <= known(type_of(out)).kind.rank or element.kind is ElementKind.INTEGER)
        written.append(out if out.shape == shape else TensorArgument(shape, out.type_name))
    return effects_of(call, written)


def like(
    *names: str, beside: Callable[[TensorArgument], tuple[Shape, ElementType | None]] | None = None
) -> Rule:
    """A result of the shape and type of an argument, and perhaps one more."""

    def rule(call: CallArguments) -> CallEffects:
        data = known(call.tensor(*names))
        return results(call, (data.shape, type_of(data)), *(() if beside is None else (beside(data),)))

    return rule


def wanted_gradients(call: CallArguments, count: int) -> tuple[bool, ...]:
    """Which of so many are; operators without a mask give all."""
    return known(call.switches("output_mask", count)) if call.has("output_mask") else (True,) * count


def dimension_of(shape: Shape, dimension: int) -> int:
    """The dimension from 0, counted from the end if negative."""
    count = max(1, len(shape))
    agree(-count <= dimension < count)
    return dimension % count


# Least bytes of a call: each byte of its inputs read once, each byte of its results written once.
#
# What an operator overwrites unread, what only lends its sizes, gathers and scatters that touch part of a
# tensor: its row names one of the rules here, or its family's own. What children of the operator do (the
# zeros a gradient is added to, the copy a scatter writes into) is theirs. Python numbers stay on the host
# and count nothing.


def all_bytes(effects: CallEffects) -> tuple[int, int]:
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
    element = type_of(tensor)
    if element is None:  # parsed arguments have types that are known
        raise UnrecordedError("the element type of its list of tensors was not recorded")
    return element.size_bytes


def computing_type(tensors: Iterable[TensorArgument]) -> DataType | None:
    """The widest type that is computed in; elements of 16 and 8 bits are computed with in fp32."""
    types = {element.compute_type for tensor in tensors if (element := type_of(tensor)) is not None}
    return next((one for one in (DataType.FP64, DataType.FP32) if one in types), None)


# Element types of results, by torch's rules of type promotion.
#
# Tensors with dimensions decide; tensors of none, then numbers, change the result only if they are of a
# higher kind. Numbers take the default types float32 and complex64.
#
# Source: PyTorch 2.11.0, aten/src/ATen/native/TypeProperties.cpp (result_type), c10/core/ScalarType.cpp
# (promoteTypes).


def _known(name: str) -> ElementType:
    found = element_type(name)
    assert found is not None, name
    return found


BOOL, INT64, FLOAT32 = _known("bool"), _known("int64"), _known("float32")
_DEFAULTS = {
    ElementKind.BOOLEAN: BOOL,
    ElementKind.INTEGER: INT64,
    ElementKind.FLOAT: FLOAT32,
    ElementKind.COMPLEX: _known("complex64"),
}
_KINDS = dict(zip((bool, int, float, complex), _DEFAULTS, strict=True))
_COMPLEX_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_COMPLEX_OF = {part: name for name, part in _COMPLEX_PARTS.items()} | {"bfloat16": "complex64"}
_WIDE_UNSIGNED = ("uint16", "uint32", "uint64")


@cache
def promote(one: ElementType, other: ElementType) -> ElementType | None:
    """The type that holds both; None where torch has none (float8), or only newer releases have one."""
    if one == other:
        return one
    if any(element.name.startswith("float8") for element in (one, other)):
        return None
    low, high = sorted((one, other), key=lambda element: element.kind.rank)
    if any(element.name in _WIDE_UNSIGNED for element in (one, other)):
        return high if high.is_float else None
    if high.kind is ElementKind.COMPLEX and low.kind.rank >= ElementKind.FLOAT.rank:
        common = promote(_known(_COMPLEX_PARTS.get(low.name, low.name)), _known(_COMPLEX_PARTS[high.name]))
        return None if common is None else _known(_COMPLEX_OF.get(common.name, "complex64"))
    if low.kind is not high.kind or low.size_bytes != high.size_bytes:
        return max(low, high, key=lambda element: (element.kind.rank, element.size_bytes))
    return FLOAT32 if low.is_float else _known("int16")  # of float16 and bfloat16; of int8 and uint8


def promoted_type(operands: Sequence[TensorArgument | ScalarArgument]) -> ElementType | None:
    """The type an elementwise function computes with; None if a type is unknown or none holds all."""
    tensors = [operand for operand in operands if isinstance(operand, TensorArgument)]
    has_numbers = not all(map(is_number, tensors))
    with_dimensions: list[ElementType | None] = []
    without: list[ElementType | None] = []
    numbers: list[ElementType | None] = []
    for operand in operands:
        if isinstance(operand, ScalarArgument):
            is_special = operand.text in ("inf", "-inf", "nan")
            kind = ElementKind.FLOAT if is_special else _KINDS.get(type(operand.value))
            numbers.append(None if kind is None else _DEFAULTS[kind])
        elif has_numbers and is_number(operand):
            known = type_of(operand)
            numbers.append(None if known is None else _DEFAULTS[known.kind])
        else:
            (with_dimensions if operand.shape else without).append(type_of(operand))
    # In the order of their weight: a later group counts only if its kind is higher. An unknown type is a
    # number without a value: it does not matter unless all else are integers.
    total: ElementType | None = None
    for group in (with_dimensions, without, numbers):
        promoted: ElementType | None = None
        for element in group:
            if element is None:
                if total is None or total.kind.rank < ElementKind.FLOAT.rank:
                    return None
            elif (promoted := element if promoted is None else promote(promoted, element)) is None:
                return None
        if total is None:
            total = promoted
        elif promoted is not None and promoted.kind.rank > total.kind.rank:
            is_part = promoted.kind is ElementKind.COMPLEX and total.is_float
            total = _known(_COMPLEX_OF.get(total.name, promoted.name)) if is_part else promoted
    return total


def to_float(element: ElementType | None) -> ElementType | None:
    """The type of functions whose results are no integers: float32 of integers and truth values."""
    return element if element is None or element.kind.rank >= ElementKind.FLOAT.rank else FLOAT32


def complex_of(element: ElementType) -> ElementType | None:
    return element_type(_COMPLEX_OF.get(element.name))


def real_part(element: ElementType | None) -> ElementType | None:
    """The type of absolute values and norms: of complex numbers that of their parts."""
    if element is None or element.kind is not ElementKind.COMPLEX:
        return element
    return _known(_COMPLEX_PARTS[element.name])


def summed_type(element: ElementType | None) -> ElementType | None:
    """The type of sums and products: int64 of integers and truth values."""
    return element if element is None or element.kind.rank >= ElementKind.FLOAT.rank else INT64
