"""Element types of tensors as the recorder names them: size, kind, and the peak that limits their arithmetic.

Recorded names are C++ type names as the compiler of torch prints them: `long int` and `long` are one type.
Imports no torch.
"""

from __future__ import annotations

import msgspec

from opscope.hardware.devices import DataType
from opscope.text_enum import TextEnum


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
