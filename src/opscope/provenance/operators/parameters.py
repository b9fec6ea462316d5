"""C++ parameter types of native functions, to tell namesakes in a source file apart.

Source: aten/src/ATen/native/README.md, section "func"; torchgen/api/native.py. A structured kernel
(`TORCH_IMPL_FUNC`) has parameters of its own; its name is unique.
"""

from __future__ import annotations

import re

from opscope.provenance.operators.schema import Argument, Schema

__all__ = ["parameter_types"]

_VALUES = {
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "str": "c10::string_view",
    "SymBool": "c10::SymBool",
    "SymFloat": "c10::SymFloat",
    "Generator": "at::Generator",
    "ScalarType": "at::ScalarType",
    "Layout": "at::Layout",
    "Device": "at::Device",
    "DeviceIndex": "at::DeviceIndex",
    "MemoryFormat": "at::MemoryFormat",
    "QScheme": "at::QScheme",
    "Storage": "at::Storage",
    "Stream": "at::Stream",
    "Dimname": "at::Dimname",
    "ConstQuantizerPtr": "at::ConstQuantizerPtr",
}
_LISTS = {
    "int": "at::IntArrayRef",
    "Tensor": "at::TensorList",
    "Tensor?": "const c10::List<::std::optional<at::Tensor>> &",
    "Scalar": "at::ArrayRef<at::Scalar>",
    "Dimname": "at::DimnameList",
    "float": "at::ArrayRef<double>",
}
_LIST = re.compile(r"(.*)\[(\d*)\]")


def parameter_types(schema: Schema, *, symbolic_sizes: bool = False) -> tuple[str, ...]:
    """C++ types of the parameters, in order.

    Args:
        schema: Of the function.
        symbolic_sizes: Of the implementation that takes SymInt (its name ends in `_symint`).
    """
    return tuple(_parameter(argument, symbolic_sizes) for argument in schema.arguments)


def _parameter(argument: Argument, symbolic_sizes: bool) -> str:
    kind = argument.type
    if kind in {"Tensor", "Tensor?"} and argument.is_written:
        return "at::Tensor &" if kind == "Tensor" else "::std::optional<at::Tensor> &"
    return _SPECIAL.get(kind) or _type(kind, symbolic_sizes)


_SPECIAL = {
    "Tensor": "const at::Tensor &",
    "Tensor?": "const ::std::optional<at::Tensor> &",
    "Scalar": "const at::Scalar &",
    "Scalar?": "const ::std::optional<at::Scalar> &",
}


def _type(kind: str, symbolic_sizes: bool) -> str:
    listed = _LIST.fullmatch(kind.removesuffix("?"))
    if listed is not None:
        return _list_type(listed[1], listed[2], kind.endswith("?"), symbolic_sizes)
    if kind.endswith("?"):
        return f"::std::optional<{_type(kind[:-1], symbolic_sizes)}>"
    if kind == "SymInt":
        return "c10::SymInt" if symbolic_sizes else "int64_t"
    return _VALUES.get(kind, kind)


def _list_type(item: str, length: str, is_optional: bool, symbolic_sizes: bool) -> str:
    is_symbolic = item == "SymInt" and symbolic_sizes
    if item in {"int", "SymInt"} and is_optional:
        return "at::OptionalSymIntArrayRef" if is_symbolic else "at::OptionalIntArrayRef"
    if is_symbolic:
        return "c10::SymIntArrayRef"
    if item == "bool":
        text = f"::std::array<bool,{length}>"
    else:
        text = _LISTS["int"] if item == "SymInt" else _LISTS.get(item, f"at::ArrayRef<{_type(item, False)}>")
    return f"::std::optional<{text}>" if is_optional else text
