"""Element types of results: torch's rules of type promotion.

Tensors with dimensions decide; tensors of none, then numbers, change the result only if they are of a higher
kind. Numbers take the default types float32 and complex64.

Source: PyTorch 2.11.0, aten/src/ATen/native/TypeProperties.cpp (result_type), c10/core/ScalarType.cpp
(promoteTypes).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from opscope.operators.arguments import ScalarArgument, TensorArgument, is_number, type_of
from opscope.operators.element_types import ElementKind, ElementType, element_type


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
_COMPLEX_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_COMPLEX_OF = {part: name for name, part in _COMPLEX_PARTS.items()} | {"bfloat16": "complex64"}
_WIDE_UNSIGNED = ("uint16", "uint32", "uint64")
_SIGNED = ("int8", "int16", "int32", "int64")


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
    if low.kind is not high.kind:
        return high
    return _promote_alike(low, high)


def promoted_type(operands: Sequence[TensorArgument | ScalarArgument]) -> ElementType | None:
    """The type an elementwise function computes with; None if a type is unknown or none holds all."""
    tensors = [operand for operand in operands if isinstance(operand, TensorArgument)]
    has_numbers = not all(map(is_number, tensors))
    with_dimensions: list[ElementType | None] = []
    without: list[ElementType | None] = []
    numbers: list[ElementType | None] = []
    for operand in operands:
        if isinstance(operand, ScalarArgument):
            kinds = {
                bool: ElementKind.BOOLEAN,
                int: ElementKind.INTEGER,
                float: ElementKind.FLOAT,
                complex: ElementKind.COMPLEX,
            }
            is_special = operand.text in ("inf", "-inf", "nan")
            kind = ElementKind.FLOAT if is_special else kinds.get(type(operand.value))
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
    if element is None or element.kind.rank >= ElementKind.FLOAT.rank:
        return element
    return FLOAT32


def complex_of(element: ElementType) -> ElementType | None:
    """The complex type with parts of a type."""
    return element_type(_COMPLEX_OF.get(element.name))


def real_part(element: ElementType | None) -> ElementType | None:
    """The type of absolute values and norms: of complex numbers that of their parts."""
    if element is None or element.kind is not ElementKind.COMPLEX:
        return element
    return _known(_COMPLEX_PARTS[element.name])


def summed_type(element: ElementType | None) -> ElementType | None:
    """The type of sums and products: int64 of integers and truth values."""
    if element is None or element.kind.rank >= ElementKind.FLOAT.rank:
        return element
    return INT64


def _promote_alike(one: ElementType, other: ElementType) -> ElementType | None:
    """Of two integers, or two numbers with fractions."""
    if one.is_float:
        is_mixed = one.size_bytes == other.size_bytes  # float16 and bfloat16
        return FLOAT32 if is_mixed else max(one, other, key=lambda element: element.size_bytes)
    names = (one.name, other.name)
    if all(name in _SIGNED for name in names):
        return max(one, other, key=lambda element: element.size_bytes)
    if "uint8" in names and any(name in _SIGNED for name in names):
        signed = next(element for element in (one, other) if element.name in _SIGNED)
        return _known("int16") if signed.name == "int8" else signed
    return None
