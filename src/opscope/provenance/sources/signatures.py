"""Parameter types of functions in one coarse spelling, whether written in C++ or in an operator schema.

`const at::Tensor & self`, `Tensor(a!) self` and `Tensor` are all "Tensor"; `c10::optional<int64_t>` and
`SymInt?` are both "int?". Coarse on purpose: it tells overloads apart however a type is passed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from opscope.provenance.sources.templates import split_arguments

__all__ = ["coarse_type", "parameter_types", "schema_parameters", "signature_distance"]

_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|typename|struct|class|constexpr|__restrict__|__restrict|C10_UNUSED|__grid_constant__)\b"
    r"|\[\[[^\]]*\]\]"
)
_NAMESPACES = re.compile(r"(?<![\w>])(?:::)?(?:at|c10|std|torch|native|caffe2)\s*::\s*(?=[A-Za-z_])")
_PASSING = re.compile(r"\s*&&?\s*")
_SPACE = re.compile(r"\s+")
_NAMED = re.compile(
    r"(.*[\w>*\])?])[\s*]+([A-Za-z_]\w*)((?:\s*\[[^\]]*\])*)$|(.*[>*])([A-Za-z_]\w*)$", re.DOTALL
)
_BUILTIN_WORDS = frozenset(("unsigned", "signed", "long", "short", "int", "char", "double", "float"))
_WRAPPED = re.compile(r"(\w+)\s*<(.*)>$", re.DOTALL)
_SCHEMA_SUFFIX = re.compile(r"(.*?)\s*(\?|\[\d*\])$", re.DOTALL)
_ALIAS_MARK = re.compile(r"\([a-z](?:\|[a-z])*!?(?:\s*->\s*[*a-z|!]+)?\)")
_SPELLINGS = {
    "int64_t": "int",
    "SymInt": "int",
    "double": "float",
    "string_view": "str",
    "string": "str",
    "IntArrayRef": "int[]",
    "SymIntArrayRef": "int[]",
    "DimVector": "int[]",
    "OptionalIntArrayRef": "int[]?",
    "OptionalSymIntArrayRef": "int[]?",
    "OptionalArrayRef<int64_t>": "int[]?",
    "TensorList": "Tensor[]",
    "ITensorListRef": "Tensor[]",
    "IOptTensorListRef": "Tensor?[]",
    "OptionalTensorRef": "Tensor?",
    "SparseTensor": "Tensor",
    "SparseCsrTensor": "Tensor",
    "OptionalScalarRef": "Scalar?",
    "DimnameList": "Dimname[]",
}
# All that a schema may say; other names in a definition are aliases.
_SCHEMA_WORDS = """
    Tensor int float bool str Scalar ScalarType Layout Device MemoryFormat Generator Dimname Storage Stream
    QScheme
"""
_SCHEMA_TYPES = frozenset(_SCHEMA_WORDS.split())
_WRAPPERS = {
    "optional": "?",
    "OptionalArrayRef": "[]?",
    "ArrayRef": "[]",
    "List": "[]",
    "vector": "[]",
    "IListRef": "[]",
    "array": "[]",
}
_DEEPEST_TYPE = 8
_LONGEST = 400


@lru_cache(maxsize=65536)
def parameter_types(text: str) -> str:
    """Coarse types of a C++ parameter list, joined by ", "."""
    if len(text) > _LONGEST * 20 or text.strip() in ("", "void"):
        return ""
    return ", ".join(coarse_type(parameter) for parameter in split_arguments(text))


@lru_cache(maxsize=65536)
def coarse_type(parameter: str) -> str:
    """The type of one parameter, C++ or schema, with or without a name and a default."""
    text = _without_default(parameter[:_LONGEST])
    text = _PASSING.sub(" ", _NAMESPACES.sub("", _QUALIFIERS.sub(" ", _ALIAS_MARK.sub("", text))))
    text = _SPACE.sub(" ", text).strip()
    named = _NAMED.match(text)
    if named and (named.group(5) or named.group(2)) not in _BUILTIN_WORDS:
        text = (
            (named.group(1) + " *" * (named.group(3) or "").count("[")) if named.group(1) else named.group(4)
        )
    return _spelled(text.strip()).replace(" ", "")


def _without_default(parameter: str) -> str:
    depth = 0
    for position, character in enumerate(parameter):
        depth += (character in "([{<") - (character in ")]}>")
        if character == "=" and depth <= 0:
            return parameter[:position]
    return parameter


def _spelled(text: str, depth: int = 0) -> str:
    text = text.strip()
    if text in _SPELLINGS or depth > _DEEPEST_TYPE:
        return _SPELLINGS.get(text, text)
    suffixed = _SCHEMA_SUFFIX.match(text)
    if suffixed:
        return _spelled(suffixed.group(1), depth + 1) + ("?" if suffixed.group(2) == "?" else "[]")
    wrapped = _WRAPPED.match(text)
    if not wrapped or wrapped.group(1) not in _WRAPPERS:
        return text
    first = next(iter(split_arguments(wrapped.group(2))), "")
    return _spelled(first, depth + 1) + _WRAPPERS[wrapped.group(1)]


def schema_parameters(schema: str) -> tuple[str, ...]:
    """Coarse parameter types of an operator's native function, from its schema.

    The order is that of native functions: arguments, then keyword arguments, out arguments last.
    """
    start, end = schema.find("("), schema.rfind(") ->")
    arguments = split_arguments(schema[start + 1 : end if end > start else schema.rfind(")")])
    return tuple(coarse_type(argument) for argument in arguments if argument != "*")


def signature_distance(types: str, wanted: Sequence[str]) -> int | None:
    """How far a definition's coarse `types` are from those wanted, which may be C++ or schema types.

    Returns:
        0 if they are the same, 1 if they may be (a type is an alias that only its file knows), else None.
    """
    mine = types.split(", ") if types else []
    theirs = [coarse_type(parameter) for parameter in wanted]
    if mine == theirs:
        return 0
    if len(mine) != len(theirs):
        return None
    may_be = all(
        left == right or left.rstrip("?[]") not in _SCHEMA_TYPES
        for left, right in zip(mine, theirs, strict=True)
    )
    return 1 if may_be else None
