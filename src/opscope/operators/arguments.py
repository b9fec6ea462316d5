"""The recorded arguments of one operator call, checked: what costs are computed from.

The recorder writes shapes, types, strides and scalars as JSON, by position; the packaged schemas say what
stands where. Nothing is guessed here: a call whose recording is missing, contradictory or absurd carries its
defect instead of arguments, and one that no schema fits has arguments without names. Element types are named
as the compiler of torch prints C++ types: `long int` and `long` are one. Imports no torch.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from math import gcd, prod
from typing import Any, TypeAlias

import msgspec

from opscope.hardware.devices import DataType
from opscope.model.session import Session
from opscope.model.sidecar import GivenTensor
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.native_functions import Schema, out_of_place, signature
from opscope.text_enum import TextEnum

# More than any device addresses: a recorded size beyond it is no size.
_ABSURD_BYTES = 1 << 48
# The recorder of torch before 2.0 names scalars by their type, without values.
_SCALAR_TYPES = frozenset(
    {"Scalar", "ScalarList", "Int", "Double", "Bool", "ComplexDouble", "GenericList", "IntList", "DoubleList"}
)
_NUMBER_TYPES = frozenset({"float64", "int64", "bool", "complex128"})


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    result: list[int] = []
    for shape in shapes:
        reversed_shape = shape[::-1]
        for position, size in enumerate(reversed_shape):
            if position == len(result):
                result.append(size)
            elif result[position] == 1:
                result[position] = size
            elif size not in (1, result[position]):
                return None
    return tuple(reversed(result))


class TensorArgument(msgspec.Struct, frozen=True):
    """One tensor given to an operator. Strides count elements; None if they were not recorded."""

    shape: tuple[int, ...]
    type_name: str | None = None
    strides: tuple[int, ...] | None = None
    seen: GivenTensor | None = None  # in a watched step, in its place

    @property
    def element_count(self) -> int:
        return prod(self.shape)


class TensorListArgument(msgspec.Struct, frozen=True):
    """A list of tensors. Members have no element type: the recorder leaves it out."""

    # None where the recorder wrote no members: there are none, or more than 30
    tensors: tuple[TensorArgument, ...] | None
    missing: tuple[int, ...] = ()  # places among them that were seen to have no tensor


class ScalarArgument(msgspec.Struct, frozen=True, dict=True):
    """A number, truth value, or list of them, as text; None where its value was not recorded."""

    text: str | None
    recorded_type: str = "Scalar"

    @cached_property
    def value(self) -> Any:
        try:
            return None if self.text is None else ast.literal_eval(self.text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None


# None: absent, or of a kind that is not recorded (strings, devices, generators).
Argument: TypeAlias = TensorArgument | TensorListArgument | ScalarArgument | None


class CallArguments(msgspec.Struct, frozen=True, dict=True):
    name: str  # with namespace: `"aten::mm"`
    overload: str | None = None  # None where the trace does not record it
    # In the order of the schema, keyword-only ones after the others; empty if there is a defect
    arguments: tuple[Argument, ...] = ()
    # Whether scalars have values; if not, an argument that seems absent may be a list of numbers
    values_recorded: bool = True
    defect: str | None = None  # why the recording cannot be used, in one phrase
    given_names: tuple[str, ...] | None = None  # what the arguments are called where no schema says it
    is_seen: bool = False  # all arguments, those that are not recorded too, are those of a watched step

    @cached_property
    def stem(self) -> str | None:
        """`"add"` of `"aten::add"` and of `"aten::add_"`; None of an operator of another library."""
        namespace, _, operator = self.name.partition("::")
        return out_of_place(operator) if namespace == "aten" and operator else None

    @cached_property
    def schema(self) -> Schema | None:
        """What the call's arguments fit of what packaged releases declare; None if nothing."""
        if self.defect is not None or self.stem is None:
            return None
        return signature(self.name, self.overload, tuple(map(_kind, self.arguments)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the arguments are called, in order; empty if unknown."""
        if self.given_names is not None:
            return self.given_names
        return () if self.schema is None else tuple(one.name for one in self.schema.arguments)

    @cached_property
    def _by_name(self) -> dict[str, Argument]:
        return dict(zip(self.names, self.arguments, strict=False))  # older releases have fewer arguments

    def has(self, name: str) -> bool:
        """Whether the overload has an argument of this name, given or not."""
        return name in self._by_name

    def at(self, *names: str) -> Argument:
        """The first argument that has one of these names; None if there is none."""
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    def tensor(self, *names: str) -> TensorArgument | None:
        argument = self.at(*names)
        return argument if isinstance(argument, TensorArgument) else None

    def tensor_list(self, *names: str) -> tuple[TensorArgument, ...] | None:
        """Members of the list of a name; None if there is no list, or its members were not recorded."""
        argument = self.at(*names)
        return argument.tensors if isinstance(argument, TensorListArgument) else None

    def members(self, name: str) -> tuple[TensorArgument, ...]:
        """The tensor of a name, or those of its list, as far as recorded."""
        return _tensors(self.at(name))

    def value(self, *names: str) -> Any:
        argument = self.at(*names)
        return argument.value if isinstance(argument, ScalarArgument) else None

    def number(self, *names: str) -> float | None:
        value = self.value(*names)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def integer(self, *names: str) -> int | None:
        value = self.value(*names)
        return value if type(value) is int else None  # a truth value is none

    def boolean(self, *names: str) -> bool | None:
        value = self.value(*names)
        return value if isinstance(value, bool) else None

    def integers(self, *names: str) -> tuple[int, ...] | None:
        """The integer list (or one integer) of a name."""
        value = self.value(*names)
        items = value if isinstance(value, list) else [value]
        return tuple(items) if all(type(item) is int for item in items) else None

    def switches(self, name: str, count: int) -> tuple[bool, ...] | None:
        """So many truth values; None if they were not recorded, or are others."""
        value = self.value(name)
        is_known = isinstance(value, list) and len(value) == count
        return tuple(map(bool, value)) if is_known else None

    def is_omitted(self, name: str) -> bool:
        """Whether nothing was given for a name, so that its default holds."""
        return self.at(name) is None and (self.values_recorded or not self.has(name))

    @cached_property
    def tensors(self) -> tuple[TensorArgument, ...]:
        """All tensors in order, members of lists among them."""
        return tuple(chain.from_iterable(map(_tensors, self.arguments)))

    @cached_property
    def list_positions(self) -> list[int]:
        given = enumerate(self.arguments)
        return [position for position, argument in given if isinstance(argument, TensorListArgument)]

    @property
    def has_unrecorded_list(self) -> bool:
        return TensorListArgument(None) in self.arguments


def _kind(argument: Argument) -> str:
    if isinstance(argument, ScalarArgument):
        return argument.recorded_type
    if isinstance(argument, TensorListArgument):
        return "TensorList"
    return "" if argument is None else argument.type_name or "float"


def parse_arguments(
    name: str,
    *,
    overload: str | None = None,
    shapes: Any = None,
    types: Any = None,
    strides: Any = None,
    concrete: Any = None,
) -> CallArguments:
    """A call from its recorded arguments, each JSON text or the value parsed from it; None: not recorded."""
    try:
        columns = [_items(column) for column in (shapes, types, strides, concrete)]
        return CallArguments(name, overload, _arguments(*columns), values_recorded=columns[3] is not None)
    except _DefectError as error:
        return CallArguments(name, overload, defect=str(error))


def with_list_types(call: CallArguments, types: Mapping[int, str]) -> CallArguments:
    """The call, members of the lists at some positions being of an element type (that a kernel names)."""
    typed = {
        position: msgspec.structs.replace(
            argument,
            tensors=tuple(msgspec.structs.replace(one, type_name=type_name) for one in argument.tensors),
        )
        for position, type_name in types.items()
        if isinstance(argument := call.arguments[position], TensorListArgument)
        and argument.tensors is not None
    }
    return with_arguments(call, typed)


def with_arguments(call: CallArguments, changed: Mapping[int, Argument]) -> CallArguments:
    given = enumerate(call.arguments)
    return msgspec.structs.replace(
        call, arguments=tuple(changed.get(position, argument) for position, argument in given)
    )


def type_of(tensor: TensorArgument | None) -> ElementType | None:
    return None if tensor is None else element_type(tensor.type_name)


def is_number(tensor: TensorArgument) -> bool:
    """Whether a tensor is such as a Python number becomes where an operator takes tensors only.

    A tensor of no dimensions of the widest type looks the same. Besides other tensors it is taken as a
    number: it stays on the host, and its type does not widen theirs within a kind.
    """
    known = type_of(tensor)
    return not tensor.shape and known is not None and known.name in _NUMBER_TYPES


def distinct_elements(tensor: TensorArgument) -> int:
    """Elements of different addresses, an expanded dimension (stride 0) counting once.

    Without strides all count as different; of strides that overlap and leave holes, whatever lies between.
    """
    if 0 in tensor.shape or tensor.strides is None:
        return tensor.element_count
    pairs = zip(tensor.shape, tensor.strides, strict=True)
    spread = [(size, abs(stride)) for size, stride in pairs if size > 1 and stride]
    unit = gcd(*(stride for _, stride in spread)) or 1
    reached = 1 + sum((size - 1) * stride for size, stride in spread) // unit
    return min(prod(size for size, _ in spread), reached)


def distinct_bytes(tensor: TensorArgument) -> int | None:
    """Bytes of different addresses; None if the element type is unknown."""
    known = type_of(tensor)
    return None if known is None else distinct_elements(tensor) * known.size_bytes


class _DefectError(Exception):
    """A recording that cannot be used; its text is the reason."""


def _tensors(argument: Argument) -> tuple[TensorArgument, ...]:
    if isinstance(argument, TensorArgument):
        return (argument,)
    return (argument.tensors or ()) if isinstance(argument, TensorListArgument) else ()


def _sound(holds: object) -> None:
    if not holds:
        raise _DefectError("the recorded arguments are damaged")


def _items(column: Any) -> Sequence[Any] | None:
    try:
        parsed = json.loads(column) if isinstance(column, str) else column
    except (ValueError, RecursionError):
        parsed = {}
    _sound(parsed is None or isinstance(parsed, list | tuple))
    return parsed  # type: ignore[no-any-return]


def _arguments(
    shapes: Sequence[Any] | None, types: Sequence[Any] | None, *optional: Sequence[Any] | None
) -> tuple[Argument, ...]:
    if shapes is None:
        raise _DefectError("no argument shapes were recorded")
    if types is None:
        raise _DefectError("shapes were recorded without the element types of the arguments")
    columns = [shapes, types, *([None] * len(shapes) if one is None else one for one in optional)]
    _sound(len(set(map(len, columns))) == 1)
    return tuple(map(_argument, *columns))


def _argument(shape: Any, type_name: Any, strides: Any, text: Any) -> Argument:
    _sound(isinstance(type_name, str))
    if type_name == "TensorList":
        _sound(isinstance(shape, list))
        is_whole = isinstance(strides, list) and len(strides) == len(shape)
        steps = strides if is_whole else [None] * len(shape)
        return TensorListArgument(tuple(map(_tensor, shape, repeat(None), steps)) or None)
    if type_name in _SCALAR_TYPES:
        return ScalarArgument(text if isinstance(text, str) and text else None, type_name)
    if element_type(type_name) is not None:
        return _tensor(shape, type_name, strides)
    if shape:
        raise _DefectError(f"element type {type_name or 'not recorded'} is unknown")
    return None  # an absent tensor, or a value of a kind that is not recorded


def _tensor(shape: Any, type_name: str | None, strides: Any) -> TensorArgument:
    sizes, steps = _integers(shape), None if strides is None else _integers(strides)
    if sizes and steps == ():
        raise _DefectError("a tensor is sparse, of which no values are recorded")
    _sound(min(sizes, default=0) >= 0 and (steps is None or len(steps) == len(sizes)))
    tensor = TensorArgument(sizes, type_name, steps)
    elements = prod(size for size, step in zip(sizes, steps or (1,) * len(sizes), strict=True) if step)
    known = element_type(type_name)
    if elements * (1 if known is None else known.size_bytes) > _ABSURD_BYTES:
        raise _DefectError(f"no device holds a tensor of sizes {list(sizes)}")
    return tensor


def _integers(value: Any) -> tuple[int, ...]:
    _sound(isinstance(value, list) and all(type(item) is int for item in value))
    return tuple(value)


# What the recorder leaves out of lists of tensors: their element types, and lists of more than 30 members.
#
# Types come from the kernel of the call. The members of an optimizer's lists are shaped like the gradients of
# the step, and one block of a multi-tensor kernel takes 65536 elements of one tensor: only if the gradients
# of a step need exactly as many blocks as the call launched are they taken for its lists.

# Source: PyTorch 2.11.0, ATen/native/cuda/MultiTensorApply.cuh, kChunkSize.
CHUNK_ELEMENTS = 65536
_MULTI_TENSOR = "multi_tensor_apply_kernel"
# Steps are counted in fp32, whatever the type of the parameters (torch/optim/adam.py, adagrad.py).
_STEPS, _STEP_TYPE = "state_steps", "float"
_FUNCTOR_TYPE = re.compile(r"Functor<\s*((?:[\w:]|\s(?=\w))+(?:<[\w:\s]+>)?)\s*[,>]")
_COPIED_TYPES = re.compile(r"::Copy<\s*([^,]+?)\s*,\s*([^,]+?)\s*>$")
_OPAQUE_TYPE = re.compile(r"OpaqueType<(\d+)u?>$")
# Stand-ins of a size, for kernels that move elements without looking at them.
_TYPE_OF_SIZE = {1: "unsigned char", 2: "short int", 4: "int", 8: "long int", 16: "c10::complex<double>"}
_METADATA_DEPTH = re.compile(r"Metadata<(?:.*,\s*)?(\d+)>$")

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]

_GRADIENTS_SQL = """
SELECT trace_id, step, input_shapes::VARCHAR AS shapes, input_types::VARCHAR AS types, list(operator_id)
FROM operators WHERE name = 'torch::autograd::AccumulateGrad' AND input_shapes IS NOT NULL GROUP BY ALL"""


# Shapes of all gradients that a step accumulated, by element type, the last first, as parameters lie.
Gradients: TypeAlias = frozenset[tuple[tuple[str, _Shapes], ...]]


def read_gradients(session: Session) -> Gradients:
    steps: dict[tuple[int, int | None], dict[str, list[tuple[int, tuple[int, ...]]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for trace_id, step, shapes, types, operators in session.query(_GRADIENTS_SQL):
        for gradient in parse_arguments("", shapes=shapes, types=types).tensors[:1]:
            if gradient.type_name is not None:
                steps[trace_id, step][gradient.type_name] += [(-one, gradient.shape) for one in operators]
    return frozenset(
        tuple((name, tuple(shape for _, shape in sorted(every))) for name, every in sorted(by_type.items()))
        for by_type in steps.values()
    )


def with_kernel_types(call: CallArguments, kernel: str | None) -> CallArguments:
    """The call, its lists of tensors having the element types that its kernel's name tells."""
    if kernel is None or not call.list_positions:
        return call
    return with_list_types(call, _list_types(call, kernel))


def with_list_members(
    call: CallArguments, kernel: str | None, block_count: int | None, gradients: Gradients
) -> CallArguments | None:
    """The call, its unrecorded lists being those of the gradients; None unless that is certain."""
    if kernel is None or block_count is None:
        return None
    decoded = decode(kernel)
    if not (decoded.function or "").endswith(_MULTI_TENSOR) or not decoded.template_arguments:
        return None
    lists, types = call.list_positions, _list_types(call, kernel)
    found = _METADATA_DEPTH.search(decoded.template_arguments[0])
    # Optimizer kernels take the first lists, the rest being empty; others all, and one of results if need be.
    depth = len(lists) + 1 if found is None else int(found[1])
    is_optimizer = call.name.rpartition("::")[2].startswith("_fused_")
    filled = lists[:depth] if is_optimizer else lists
    is_told = depth <= len(lists) if is_optimizer else len(lists) in (depth, depth - 1)
    if found is None or not is_told or not types.keys() >= set(filled):
        return None
    # The only set of gradients that needs so many blocks: all of a step, or all of one type.
    fitting: dict[_Shapes, _Shapes] = {}  # in whatever order
    for of_step in gradients:
        of_type = (every for name, every in of_step if element_type(name) == element_type(types[lists[0]]))
        everything = tuple(shape for _, every in of_step for shape in every)
        fitting |= {
            tuple(sorted(shapes)): shapes
            for shapes in (*of_type, everything)
            if sum(-(-prod(shape) // CHUNK_ELEMENTS) for shape in shapes) == block_count
            # As many blocks as gradients may be the optimizer's counts of steps.
            and (is_optimizer or block_count > len(shapes))
        }
    if len(fitting) != 1:
        return None
    (shapes,) = fitting.values()
    members = {
        position: TensorListArgument(tuple(TensorArgument(shape, types[position]) for shape in shapes))
        for position in filled
    }
    if call.has(_STEPS):
        step = TensorArgument((), _STEP_TYPE, ())
        members[call.names.index(_STEPS)] = TensorListArgument((step,) * len(shapes))
    empty = {position: TensorListArgument(()) for position in lists if position not in members}
    return with_arguments(call, {**members, **empty})


def _list_types(call: CallArguments, kernel: str) -> dict[int, str]:
    """Element type of each list of tensors, by position; without those that are not known."""
    lists = call.list_positions
    arguments = decode(kernel).template_arguments
    copied, functor = (
        next(filter(None, map(pattern.search, arguments)), None) for pattern in (_COPIED_TYPES, _FUNCTOR_TYPE)
    )
    opaque = _OPAQUE_TYPE.search(arguments[0]) if arguments else None
    common = arguments[0] if arguments and functor is None else functor and functor[1]
    if copied is not None and len(lists) == 2:
        names = [copied[1], copied[2]]
    else:
        names = [(_TYPE_OF_SIZE.get(int(opaque[1])) if opaque else common) or ""] * len(lists)
    types = dict(zip(lists, names, strict=True))
    if call.has(_STEPS):
        types[call.names.index(_STEPS)] = _STEP_TYPE
    return {position: type_name for position, type_name in types.items() if element_type(type_name)}


class ElementKind(TextEnum):
    """What its values are, in the order in which types promote. A closed set."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    COMPLEX = "complex"

    @property
    def rank(self) -> int:
        """Position in the order of promotion: a higher kind wins."""
        return list(ElementKind).index(self)


class ElementType(msgspec.Struct, frozen=True):
    name: str  # as torch names it: `"float32"`
    recorded_name: str  # as recorders write it: `"float"`
    size_bytes: int  # bytes of one element
    kind: ElementKind  # what its values are
    # Peak of matrix products with such operands; None where no peak of it is kept
    operand_type: DataType | None
    code: int  # by which calls pass it
    scalar_name: str  # of c10::ScalarType, toString
    digits: int | None = None  # binary ones of the significand, the hidden one counted; None of integers

    @property
    def is_float(self) -> bool:
        return self.kind is ElementKind.FLOAT

    @property
    def compute_type(self) -> DataType | None:
        """Peak of elementwise arithmetic and sums on it; None for integers, booleans.

        CUDA kernels of ATen take fp16, bf16 and fp8 elements to fp32, compute, and round the result.

        Source: PyTorch 2.11.0, ATen/OpMathType.h.
        """
        if self.kind.rank < ElementKind.FLOAT.rank:
            return None
        return DataType.FP64 if self.name in ("float64", "complex128") else DataType.FP32


_FLOAT, _INTEGER, _COMPLEX = ElementKind.FLOAT, ElementKind.INTEGER, ElementKind.COMPLEX
# Recorded names are those of TypeMeta::name (c10/util/typeid.h) as GCC prints them; _OTHER_NAMES has others'.
# Source of codes and scalar names: PyTorch 2.11.0, c10/core/ScalarType.h.
ELEMENT_TYPES = (
    ElementType("float64", "double", 8, _FLOAT, DataType.FP64, 7, "Double", 53),
    ElementType("float32", "float", 4, _FLOAT, DataType.FP32, 6, "Float", 24),
    ElementType("float16", "c10::Half", 2, _FLOAT, DataType.FP16, 5, "Half", 11),
    ElementType("bfloat16", "c10::BFloat16", 2, _FLOAT, DataType.BF16, 15, "BFloat16", 8),
    ElementType("float8_e4m3fn", "c10::Float8_e4m3fn", 1, _FLOAT, DataType.FP8, 24, "Float8_e4m3fn", 4),
    ElementType("float8_e5m2", "c10::Float8_e5m2", 1, _FLOAT, DataType.FP8, 23, "Float8_e5m2", 3),
    ElementType("float8_e4m3fnuz", "c10::Float8_e4m3fnuz", 1, _FLOAT, DataType.FP8, 26, "Float8_e4m3fnuz", 4),
    ElementType("float8_e5m2fnuz", "c10::Float8_e5m2fnuz", 1, _FLOAT, DataType.FP8, 25, "Float8_e5m2fnuz", 3),
    ElementType("int64", "long int", 8, _INTEGER, None, 4, "Long"),
    ElementType("int32", "int", 4, _INTEGER, None, 3, "Int"),
    ElementType("int16", "short int", 2, _INTEGER, None, 2, "Short"),
    ElementType("int8", "signed char", 1, _INTEGER, DataType.INT8, 1, "Char"),
    ElementType("uint8", "unsigned char", 1, _INTEGER, DataType.INT8, 0, "Byte"),
    ElementType("uint16", "unsigned short", 2, _INTEGER, None, 27, "UInt16"),
    ElementType("uint32", "unsigned int", 4, _INTEGER, None, 28, "UInt32"),
    ElementType("uint64", "unsigned long", 8, _INTEGER, None, 29, "UInt64"),
    ElementType("bool", "bool", 1, ElementKind.BOOLEAN, None, 11, "Bool"),
    ElementType("complex128", "c10::complex<double>", 16, _COMPLEX, DataType.FP64, 10, "ComplexDouble", 53),
    ElementType("complex64", "c10::complex<float>", 8, _COMPLEX, DataType.FP32, 9, "ComplexFloat", 24),
    ElementType("complex32", "c10::complex<c10::Half>", 4, _COMPLEX, DataType.FP16, 8, "ComplexHalf", 11),
)
_OTHER_NAMES = {
    "long": "int64", "long long": "int64", "short": "int16", "char": "int8", "__half": "float16",
    "__nv_bfloat16": "bfloat16", "short unsigned int": "uint16", "long unsigned int": "uint64",
}  # fmt: skip
_BY_NAME = {known.name: known for known in ELEMENT_TYPES}
_BY_RECORDED_NAME = {known.recorded_name: known for known in ELEMENT_TYPES} | {
    recorded: _BY_NAME[name] for recorded, name in _OTHER_NAMES.items()
}
_BY_CODE = {known.code: known for known in ELEMENT_TYPES}
_BY_SCALAR_NAME = {known.scalar_name: known for known in ELEMENT_TYPES}


def element_type(name: str | None) -> ElementType | None:
    """The element type of a recorded name (`"c10::Half"`) or of torch's (`"float16"`); None if unknown."""
    return _BY_RECORDED_NAME.get(name or "") or _BY_NAME.get(name or "")


def item_size_bytes(type_name: str | None) -> int | None:
    """Bytes of one element of a type as C++ or the recorder names it."""
    known = _BY_RECORDED_NAME.get((type_name or "").removeprefix("const ").removesuffix(" const").strip())
    return None if known is None else known.size_bytes


def element_type_of_code(code: int) -> ElementType | None:
    """The element type that a recorded `dtype` argument means; None if unknown."""
    return _BY_CODE.get(code)


def element_type_of_scalar(name: str | None) -> ElementType | None:
    """The element type that c10::ScalarType calls so, as `record_param_comms` does; None if unknown."""
    return _BY_SCALAR_NAME.get(name or "")
