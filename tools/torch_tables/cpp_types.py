"""Arguments split at their commas, and types of parameters in one coarse spelling.

`const at::Tensor & self`, `Tensor(a!) self` and `Tensor` are all "Tensor"; `c10::optional<int64_t>` and
`SymInt?` are both "int?". Coarse on purpose: it tells overloads apart however a type is passed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from opscope.provenance.packaged import lazy_pattern

_PARTNERS = {")": "(", "]": "[", "}": "{"}
# Arrows and comparisons that hold an angle are passed over.
_BRACKET_OR_COMMA = lazy_pattern(r"[()\[\]{},]|->|[<>]=|<<(?=\s)|<|>")


def split_arguments(text: str) -> list[str]:
    """The parts of a list between commas at its top level; brackets of all four kinds nest."""
    parts: list[str] = []
    open_brackets: list[str] = []
    start = 0
    for match in _BRACKET_OR_COMMA.finditer(text):
        character = match.group()
        if character == ",":
            if not open_brackets:
                parts.append(text[start : match.start()].strip())
                start = match.end()
        elif character in "([{<":
            open_brackets.append(character)
        elif character == ">":
            if open_brackets and open_brackets[-1] == "<":
                open_brackets.pop()
        elif character in ")]}":
            _close(open_brackets, _PARTNERS[character])
    parts.append(text[start:].strip())
    return parts if parts != [""] else []


def _close(open_brackets: list[str], opener: str) -> None:
    """Close a bracket, and what was taken for one of a list's `<` inside it."""
    while open_brackets and open_brackets[-1] == "<":
        open_brackets.pop()
    if open_brackets and open_brackets[-1] == opener:
        open_brackets.pop()


_QUALIFIERS = lazy_pattern(
    r"\b(?:const|volatile|typename|struct|class|constexpr|__restrict__|__restrict|C10_UNUSED|__grid_constant__)\b"
    r"|\[\[[^\]]*\]\]"
)
_NAMESPACES = lazy_pattern(r"(?<![\w>])(?:::)?(?:at|c10|std|torch|native|caffe2)\s*::\s*(?=[A-Za-z_])")
_PASSING = lazy_pattern(r"\s*&&?\s*")
_SPACE = lazy_pattern(r"\s+")
_WRAPPED = lazy_pattern(r"(\w+)\s*<(.*)>$", re.DOTALL)
_SCHEMA_SUFFIX = lazy_pattern(r"(.*?)\s*(\?|\[\d*\])$", re.DOTALL)
_ALIAS_MARK = lazy_pattern(r"\([a-z](?:\|[a-z])*!?(?:\s*->\s*[*a-z|!]+)?\)")
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
def coarse_type(parameter: str) -> str:
    text = _NAMESPACES.sub("", _QUALIFIERS.sub(" ", _ALIAS_MARK.sub("", parameter[:_LONGEST])))
    return _spelled(_SPACE.sub(" ", _PASSING.sub(" ", text)).strip()).replace(" ", "")


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


def signature_distance(types: str, wanted: Sequence[str]) -> int | None:
    """How far a definition's coarse `types` are from those wanted, which may be C++ or schema types.

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
