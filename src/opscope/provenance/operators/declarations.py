"""native_functions.yaml → native functions, with torchgen's defaults filled in.

Source: aten/src/ATen/native/README.md; torchgen/model.py, `NativeFunction.from_yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opscope.errors import InputError
from opscope.provenance.operators.native_function import NativeFunction
from opscope.provenance.operators.schema import Schema, parse_schema
from opscope.provenance.operators.yaml_document import LINE, read_mappings, text_of, words

__all__ = [
    "COMPOSITE_IMPLICIT",
    "UFUNC_KEYS",
    "automatic_tags",
    "declared_functions",
    "kernel_name",
    "known_tags",
]

COMPOSITE_IMPLICIT = "CompositeImplicitAutograd"
UFUNC_KEYS = ("CPU", "CUDA")
_NAMESPACE = "aten"


def known_tags(tags: Path) -> set[str]:
    """The tags a tags.yaml defines.

    Raises:
        InputError: It is missing or something else.
    """
    return {str(item.get("tag")) for item in read_mappings(tags)}


def declared_functions(native_functions: Path, tags: set[str]) -> list[NativeFunction]:
    """The entries of a native_functions.yaml in its order.

    Args:
        native_functions: The file.
        tags: The tags this release knows.

    Raises:
        InputError: The file is missing or not what it should be.
    """
    functions = []
    for item in read_mappings(native_functions):
        try:
            functions.append(_function(item, tags))
        except ValueError as error:
            raise InputError(f"line {item[LINE]}: {error}", source=native_functions) from error
    if not functions:
        raise InputError("no entries", source=native_functions)
    return functions


def kernel_name(schema: Schema) -> str:
    """The C++ name of a function that names no implementation."""
    return f"{schema.name.name}_out" if schema.out else schema.name.name


def automatic_tags(schema: Schema, tags: set[str]) -> set[str]:
    """Tags that torchgen adds by the form of a schema, in the releases that have them."""
    added = {"out"} if schema.out else set()
    added |= {"inplace"} if schema.name.is_inplace else set()
    return added & tags


def _function(item: Mapping[str, Any], tags: set[str]) -> NativeFunction:
    text = text_of(item, "func")
    if text is None:
        raise ValueError("an entry without 'func'")
    head, separator, rest = text.partition("(")[0].partition("::")
    namespace, text = (head, text[len(head) + 2 :]) if separator and rest else (_NAMESPACE, text)
    schema = parse_schema(text)
    delegate = text_of(item, "structured_delegate")
    is_structured = bool(item.get("structured", False))
    return NativeFunction(
        name=f"{namespace}::{schema.name.name}",
        overload=schema.name.overload,
        schema=text,
        dispatch=_dispatch(item, schema, has_structured_kernel=is_structured or delegate is not None),
        structured=is_structured,
        structured_delegate=delegate,
        autogen=words(item.get("autogen")),
        tags=tuple(sorted({*words(item.get("tags")), *automatic_tags(schema, tags)})),
        variants=words(item.get("variants")) or ("function",),
        python_module=text_of(item, "python_module"),
        ufunc=bool(item.get("ufunc_inner_loop")),
        has_manual_binding=bool(item.get("manual_cpp_binding", False)),
        yaml_line=item[LINE],
    )


def _dispatch(item: Mapping[str, Any], schema: Schema, *, has_structured_kernel: bool) -> dict[str, str]:
    if item.get("dispatch") is None and not has_structured_kernel:
        return {COMPOSITE_IMPLICIT: kernel_name(schema)}
    declared = item.get("dispatch") or {}
    if not isinstance(declared, dict):
        raise ValueError(f"'dispatch' is not a mapping: {declared!r}")  # noqa: TRY004  (of the file)
    dispatch: dict[str, str] = {}
    for keys in declared:
        function = None if keys == LINE else text_of(declared, keys)
        if function is not None:
            dispatch.update((key, function) for key in words(keys))
    if item.get("ufunc_inner_loop"):
        dispatch.update({key: f"ufunc_{schema.name.name}_{key}" for key in UFUNC_KEYS})
    return dispatch
