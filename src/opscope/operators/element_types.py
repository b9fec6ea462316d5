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
        return _KIND_ORDER.index(self)


_KIND_ORDER = (ElementKind.BOOLEAN, ElementKind.INTEGER, ElementKind.FLOAT, ElementKind.COMPLEX)


class ElementType(msgspec.Struct, frozen=True):
    """One element type."""

    name: str  # as torch names it: `"float32"`
    recorded_name: str  # as recorders write it: `"float"`
    size_bytes: int  # bytes of one element
    kind: ElementKind  # what its values are
    # Peak of matrix products with such operands; None where no peak of it is kept
    operand_type: DataType | None = None

    @property
    def is_float(self) -> bool:
        """Real floating point."""
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
ELEMENT_TYPES = (
    ElementType("float64", "double", 8, _FLOAT, DataType.FP64),
    ElementType("float32", "float", 4, _FLOAT, DataType.FP32),
    ElementType("float16", "c10::Half", 2, _FLOAT, DataType.FP16),
    ElementType("bfloat16", "c10::BFloat16", 2, _FLOAT, DataType.BF16),
    ElementType("float8_e4m3fn", "c10::Float8_e4m3fn", 1, _FLOAT, DataType.FP8),
    ElementType("float8_e5m2", "c10::Float8_e5m2", 1, _FLOAT, DataType.FP8),
    ElementType("float8_e4m3fnuz", "c10::Float8_e4m3fnuz", 1, _FLOAT, DataType.FP8),
    ElementType("float8_e5m2fnuz", "c10::Float8_e5m2fnuz", 1, _FLOAT, DataType.FP8),
    ElementType("int64", "long int", 8, _INTEGER),
    ElementType("int32", "int", 4, _INTEGER),
    ElementType("int16", "short int", 2, _INTEGER),
    ElementType("int8", "signed char", 1, _INTEGER, DataType.INT8),
    ElementType("uint8", "unsigned char", 1, _INTEGER, DataType.INT8),
    ElementType("uint16", "unsigned short", 2, _INTEGER),
    ElementType("uint32", "unsigned int", 4, _INTEGER),
    ElementType("uint64", "unsigned long", 8, _INTEGER),
    ElementType("bool", "bool", 1, ElementKind.BOOLEAN),
    ElementType("complex128", "c10::complex<double>", 16, _COMPLEX, DataType.FP64),
    ElementType("complex64", "c10::complex<float>", 8, _COMPLEX, DataType.FP32),
    ElementType("complex32", "c10::complex<c10::Half>", 4, _COMPLEX, DataType.FP16),
)
_OTHER_NAMES = {
    "long": "int64", "long long": "int64", "short": "int16", "char": "int8", "__half": "float16",
    "__nv_bfloat16": "bfloat16", "short unsigned int": "uint16", "long unsigned int": "uint64",
}  # fmt: skip
# Source: PyTorch 2.11.0, c10/core/ScalarType.h: the numbers by which calls pass element types.
_CODES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8_e5m2",
    24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz", 27: "uint16", 28: "uint32",
    29: "uint64",
}  # fmt: skip
_BY_NAME = {known.name: known for known in ELEMENT_TYPES}
_BY_RECORDED_NAME = {known.recorded_name: known for known in ELEMENT_TYPES} | {
    recorded: _BY_NAME[name] for recorded, name in _OTHER_NAMES.items()
}


def element_type(name: str | None) -> ElementType | None:
    """The element type of a recorded name (`"c10::Half"`) or of torch's (`"float16"`); None if unknown."""
    if name is None:
        return None
    return _BY_RECORDED_NAME.get(name) or _BY_NAME.get(name)


def item_size_bytes(type_name: str | None) -> int | None:
    """Bytes of one element of a type as C++ or the recorder names it."""
    plain = (type_name or "").removeprefix("const ").removesuffix(" const").strip()
    known = _BY_RECORDED_NAME.get(plain)
    return None if known is None else known.size_bytes


def element_type_of_code(code: int) -> ElementType | None:
    """The element type that a recorded `dtype` argument means; None if unknown."""
    name = _CODES.get(code)
    return None if name is None else _BY_NAME[name]
