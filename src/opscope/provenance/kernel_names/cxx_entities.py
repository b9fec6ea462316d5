"""Named work inside template arguments: functors, and functions or classes that own a lambda.

What is in parentheses or braces there are parameter types, and element types, layouts and accessors are data:
none of these is work. Cost is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opscope.provenance.kernel_names.cxx_name import last_part, parse, without_module
from opscope.provenance.kernel_names.cxx_tokens import LAMBDA, LAMBDA_GROUP, NAME, OPERATOR, PARENTHESES

__all__ = ["Entity", "entities", "owners"]

_TOKEN = re.compile(
    rf"{OPERATOR}|(?<!\w)({NAME}(?:::{NAME})*)|{LAMBDA_GROUP}|{PARENTHESES}|{LAMBDA}|->|[<>(){{}},]"
)
_OPENING = {")": "(", "}": "{"}
_QUALIFIERS = frozenset(("const", "volatile"))
# What template arguments name besides work: data, layouts, iterators, accessors, metadata.
_DATA_TYPES = frozenset(
    (
        *("void", "bool", "char", "short", "int", "long", "float", "double", "auto", "unsigned"),
        *("signed", "half", "__half", "__half2", "__nv_bfloat16", "__nv_fp8_e4m3", "__nv_fp8_e5m2"),
        *("nullptr_t", "nullptr", "true", "false", "const", "volatile", "typename", "decltype"),
        *("size_t", "int64_t", "int32_t", "int16_t", "int8_t", "uint64_t", "uint32_t", "uint16_t"),
        *("uint8_t", "float2", "float4", "double2", "int2", "int4", "uint2", "uint4", "ulonglong2"),
        *("cuComplex", "cuDoubleComplex", "pair", "tuple", "array", "Array", "optional", "string"),
        *("vector", "BFloat16", "Half", "complex", "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz"),
        *("Float8_e5m2fnuz", "Float8_e8m0fnu", "Float4_e2m1fn_x2", "qint8", "quint8", "qint32"),
        *("OpaqueType", "Tensor", "TensorBase", "TensorIterator", "TensorIteratorBase", "Scalar"),
        *("ArrayRef", "IntArrayRef", "integral_constant", "integer_sequence", "type", "value_type"),
        *("data_type", "TensorInfo", "OffsetCalculator", "TrivialOffsetCalculator", "LoadWithCast"),
        *("StoreWithCast", "LoadWithoutCast", "StoreWithoutCast", "TensorListMetadata"),
        *("TensorListScalarListMetadata", "PhiloxCudaState", "FusedOptimizerTensorListMetadata"),
        *("PhiloxState", "TensorAccessor", "PackedTensorAccessor", "PackedTensorAccessor32"),
        *("PackedTensorAccessor64", "GenericPackedTensorAccessor", "DefaultPtrTraits"),
        *("RestrictPtrTraits", "AccumulateType", "NullType", "counting_iterator", "transform_iterator"),
        *("CountingInputIterator", "TransformInputIterator", "ScanTileState"),
        *("ReduceByKeyScanTileState"),
    )
)  # fmt: skip


@dataclass
class Entity:
    """A name inside template arguments: a type, or a function whose lambda is meant.

    Attributes:
        name: Qualified name without template arguments, up to its first lambda.
        owns_lambda: A lambda of this function (or of this class's call operator) is named.
    """

    name: str
    owns_lambda: bool = False

    @property
    def is_data(self) -> bool:
        """It names data, not work."""
        return not self.owns_lambda and last_part(self.name) in _DATA_TYPES


def owners(name: str) -> tuple[str, ...]:
    """Functors, and functions or classes that own a lambda, in the template arguments, outer to inner."""
    found = entities(parse(name).template_arguments)
    return tuple(dict.fromkeys(without_module(entity.name) for entity in found))


def entities(arguments: Sequence[str]) -> list[Entity]:
    """Named work inside template arguments, outer to inner; data types are left out."""
    return [
        entity
        for argument in arguments
        if not argument.isdigit()
        for entity in _EntityReader(argument).read()
        if not entity.is_data
    ]


class _EntityReader:
    """Collects the names of one template argument that stand outside of parentheses and braces."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Entity] = []
        self.current: list[Entity | None] = [None]  # by depth of angle brackets: the name being read
        self.hidden: list[str] = []  # open parentheses and braces, and angle brackets inside them

    def read(self) -> list[Entity]:
        for match in _TOKEN.finditer(self.text):
            token = match.group()
            if match.group(1):
                if not self.hidden:
                    self._take_name(token, match.start())
            elif token[0] in "{'(":
                self._open(token)
            elif token in _OPENING:
                while self.hidden and self.hidden.pop() != _OPENING[token]:
                    pass
            elif self.hidden:
                self._pass_hidden(token)
            else:
                self._pass(token)
        return self.found

    def _take_name(self, name: str, start: int) -> None:
        if name in _QUALIFIERS:
            return
        owner = self.current[-1]
        if owner is not None and start > 1 and self.text.startswith("::", start - 2):
            if not owner.owns_lambda:
                owner.name = f"{owner.name}::{name}"
            return
        entity = Entity(name)
        self.current[-1] = entity
        self.found.append(entity)

    def _open(self, token: str) -> None:
        owner = self.current[-1]
        if token[0] != "(" and len(token) > 1 and not self.hidden and owner is not None:
            owner.owns_lambda = True
        if token[-1] in ")}":
            return  # a whole group in one token
        self.hidden.append("{" if token[0] == "{" else "(")
        if token.startswith("{lambda"):
            self.hidden.append("(")

    def _pass_hidden(self, token: str) -> None:
        if token == "<":
            self.hidden.append(token)
        elif token == ">" and self.hidden[-1] == "<":
            self.hidden.pop()

    def _pass(self, token: str) -> None:
        if token == "<":
            self.current.append(None)
        elif token == ">" and len(self.current) > 1:
            self.current.pop()
        elif token == ",":
            self.current[-1] = None
