"""From recorded arguments to the values an overload takes: tensors without data, numbers, torch's constants.

Tensors are of the device "meta": they have sizes, strides and a type, and no memory. Numbers that were not
recorded and decide no shape get a stand-in; anything else that is missing is an error. Imports torch.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any

import torch

from opscope.analysis.cost.arguments import (
    Argument,
    CallArguments,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    is_number,
    type_of,
)

__all__ = ["Bound", "UnfitError", "bind", "fits", "numbers_are_decisive"]

# c10/core/ScalarType.h: the numbers that stand for element types where one is an argument.
_SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8_e5m2",
    24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz", 27: "uint16", 28: "uint32",
    29: "uint64",
}  # fmt: skip
# c10/core/MemoryFormat.h
_MEMORY_FORMATS = {0: "contiguous_format", 1: "preserve_format", 2: "channels_last", 3: "channels_last_3d"}
_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
# Truth values that decide no shape.
_SHAPELESS = frozenset(
    ("non_blocking", "deterministic", "allow_tf32", "benchmark", "cudnn_enabled", "check_errors", "sorted")
)
_SHAPELESS_OPTIONS = frozenset(("Optional[number]", "Optional[float]", "Optional[str]"))
# Texts are not recorded; these are required, and any of their values gives the same shapes.
_TEXTS = {
    ("scatter_reduce", "reduce"): "sum", ("scatter", "reduce"): "add", ("index_reduce", "reduce"): "mean",
    ("linalg_eigh", "UPLO"): "L", ("_linalg_eigh", "UPLO"): "L", ("meshgrid", "indexing"): "ij",
}  # fmt: skip
# Numbers that decide shapes, though the schema does not say so.
_RANGES = frozenset(("aten::arange", "aten::range", "aten::linspace", "aten::logspace"))
_NUMBERS = {"float64": 1.0, "int64": 1, "bool": True, "complex128": 1j}
_TENSOR_TYPES = frozenset(("Tensor", "Optional[Tensor]"))
_TENSOR_LIST_TYPES = frozenset(("List[Tensor]", "List[Optional[Tensor]]"))


class UnfitError(Exception):
    """The recorded arguments are not those of this overload, or too little of them was recorded."""


@dataclass(frozen=True)
class Bound:
    """The values of one call.

    Attributes:
        positional: In the order of the schema.
        named: Keyword-only ones.
        tensors: By position in the schema, the recorded tensors of each argument that holds any.
    """

    positional: tuple[Any, ...]
    named: dict[str, Any]
    tensors: dict[int, tuple[TensorArgument, ...]]

    def value(self, position: int, schema: Any) -> Any:
        """What the argument at a position of the schema was given."""
        if position < len(self.positional):
            return self.positional[position]
        return self.named[schema.arguments[position].name]


def fits(call: CallArguments, schema: Any) -> bool:
    """Whether an overload takes arguments of the recorded kinds."""
    arguments = schema.arguments
    return len(arguments) == len(call) and all(
        _is_kind(recorded, str(declared.type))
        for recorded, declared in zip(call.arguments, arguments, strict=True)
    )


def bind(call: CallArguments, schema: Any, *, passes_numbers: bool = True) -> Bound:
    """The values of a call that fits.

    Args:
        call: As recorded.
        schema: Of the overload.
        passes_numbers: Pass Python's numbers as such where they were recorded as tensors. Not all operators
            take them so.

    Raises:
        UnfitError: A value is missing, or not of the declared type.
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    tensors: dict[int, tuple[TensorArgument, ...]] = {}
    passes_numbers = passes_numbers and not all(map(is_number, call.tensors))
    for position, (recorded, declared) in enumerate(zip(call.arguments, schema.arguments, strict=True)):
        value = _host_number(recorded, declared) if passes_numbers else None
        if value is None:
            value = _value(recorded, declared, call)
        if isinstance(recorded, TensorArgument):
            tensors[position] = (recorded,)
        elif isinstance(recorded, TensorListArgument):
            tensors[position] = recorded.tensors or ()
        if declared.kwarg_only:
            named[declared.name] = value
        else:
            positional.append(value)
    return Bound(tuple(positional), named, tensors)


def numbers_are_decisive(call: CallArguments) -> bool:
    """Whether Python's numbers among the tensors would widen the result if they were tensors."""
    kinds: dict[bool, list[int]] = {True: [], False: []}
    for tensor in call.tensors:
        known = type_of(tensor)
        if known is not None:
            kinds[is_number(tensor)].append(known.kind.rank)
    has_dimensions = any(tensor.shape for tensor in call.tensors if not is_number(tensor))
    widest = max(kinds[False], default=-1)
    return not has_dimensions or any(rank > widest for rank in kinds[True])


def _is_kind(recorded: Argument, kind: str) -> bool:
    if isinstance(recorded, TensorArgument):
        return kind in _TENSOR_TYPES
    if isinstance(recorded, TensorListArgument):
        return kind in _TENSOR_LIST_TYPES
    if isinstance(recorded, ScalarArgument):
        return "Tensor" not in kind and kind not in ("str", "Device", "Generator")
    return True


def _host_number(recorded: Argument, declared: Any) -> Any:
    """A number for a tensor that is one of Python's besides other tensors: it must not widen their type."""
    if not isinstance(recorded, TensorArgument) or not is_number(recorded) or declared.alias_info is not None:
        return None
    known = type_of(recorded)
    return None if known is None else _NUMBERS.get(known.name)


def _value(recorded: Argument, declared: Any, call: CallArguments) -> Any:
    kind = str(declared.type)
    if isinstance(recorded, TensorArgument):
        return _tensor(recorded)
    if isinstance(recorded, TensorListArgument):
        if recorded.tensors is None:
            raise UnfitError("the members of a list of tensors were not recorded")
        return [_tensor(tensor) for tensor in recorded.tensors]
    if kind.endswith("Device") or kind == "Optional[Device]":
        return "meta"
    if declared.name == "pin_memory":
        return None
    if isinstance(recorded, ScalarArgument) and recorded.text is not None:
        return _number(recorded.text, kind, str(getattr(declared, "real_type", declared.type)))
    # Where no values were recorded, what looks absent may be a list of numbers.
    is_absent = recorded is None and (call.values_recorded or "List" not in kind)
    return _missing(declared, kind, call.name, is_absent)


def _missing(declared: Any, kind: str, operator: str, is_absent: bool) -> Any:
    """The value of an argument that is not recorded."""
    if kind.startswith("Optional[") and (is_absent or kind in _SHAPELESS_OPTIONS):
        return 1 if kind == "Optional[number]" and not is_absent else None
    if kind == "number" and operator not in _RANGES:
        return 1
    if kind == "float" and "upsample" not in operator:
        return 0.5
    if kind == "bool" and declared.name in _SHAPELESS:
        return False
    if kind == "str":
        return declared.default_value if declared.has_default_value() else _text(operator, declared.name)
    raise UnfitError(f"its argument {declared.name} was not recorded")


def _text(operator: str, name: str) -> str:
    key = (operator.rpartition("::")[2].rstrip("_"), name)
    if key not in _TEXTS:
        raise UnfitError(f"its argument {name} is a text, which is not recorded")
    return _TEXTS[key]


def _tensor(recorded: TensorArgument) -> Any:
    known = type_of(recorded)
    dtype = None if known is None else getattr(torch, known.name, None)
    if dtype is None:
        what = (
            "of a list of tensors was not recorded" if recorded.type_name is None else "is not in this torch"
        )
        raise UnfitError(f"the element type {recorded.type_name or ''} {what}".replace("  ", " "))
    strides = recorded.strides
    if strides is None:
        return torch.empty(recorded.shape, dtype=dtype, device="meta")
    return torch.empty_strided(recorded.shape, strides, dtype=dtype, device="meta")


def _number(text: str, kind: str, real_kind: str) -> Any:
    value = _literal(text)
    for name, constants in (("ScalarType", _SCALAR_TYPES), ("MemoryFormat", _MEMORY_FORMATS)):
        if name in real_kind:
            return _constant(value, constants, name)
    if "Layout" in real_kind:
        return None if kind.startswith("Optional[") else _constant(value, {0: "strided"}, "Layout")
    if "List[" in kind:
        items = value if isinstance(value, list) else [value]
        return [_as(item, kind.partition("List[")[2].rstrip("]")) for item in items]
    return _as(value, kind.removeprefix("Optional[").rstrip("]"))


def _literal(text: str) -> Any:
    try:
        return _WORDS[text] if text in _WORDS else ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise UnfitError("a recorded value is no number") from None


def _constant(value: Any, names: dict[int, str], kind: str) -> Any:
    found = getattr(torch, names.get(value, ""), None) if isinstance(value, int) else None
    if found is None:
        raise UnfitError(f"{kind} {value} is unknown")
    return found


def _as(value: Any, kind: str) -> Any:
    """A number as the declared type takes it."""
    if kind == "bool" and value in (0, 1):
        return bool(value)
    if kind == "int" and isinstance(value, (int, float)) and value == int(value):
        return int(value)
    if kind == "float" and isinstance(value, (int, float)):
        return float(value)
    if kind == "number" and isinstance(value, (int, float, complex)):
        return value
    raise UnfitError(f"a recorded value is no {kind}")
