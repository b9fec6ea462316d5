"""Reads C++ kernel names as a profiler prints them; text that is no such name gives None or an empty tuple.

A demangled name is `[return type] qualified::function<template arguments>(parameters)`; the arguments hold
nested names, lambdas (`f(int)::{lambda(float)#1}`), casts (`(bool)1`) and operators. Of a mangled name, which
a profiler prints where demangling failed or was not tried, only the qualified function is read. Nothing here
raises, and every cost is linear in the length of the text.

Kineto writes what `abi::__cxa_demangle` returns and keeps the mangled name where that fails. The same
function of this machine's C++ runtime is called here, so that the text is equal character by character;
without such a runtime (Windows) nothing is demangled.

Source: libkineto/src/Demangle.cpp; the Itanium C++ ABI, section 3.4, for `__cxa_demangle`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise

import msgspec

from opscope.provenance.kernel_names.vocabulary import words
from opscope.provenance.packaged import lazy_pattern

ANONYMOUS = "(anonymous namespace)"


# Mangled names: Itanium (`_ZN2at6native…`) and Microsoft (`??$kernel@…`). No kernel is a member of a class:
# its template arguments end what matters.

_PREFIX = lazy_pattern(r"_Z(N?)[rVK]*")
_IDENTIFIER = lazy_pattern(r"St|L?(\d{1,4})")  # `L`: internal linkage
_MICROSOFT = lazy_pattern(r"\?([A-Za-z_]\w*)@((?:[A-Za-z_]\w*@)*)@")
_MICROSOFT_TEMPLATE = lazy_pattern(r"\?\?\$([A-Za-z_]\w*)@")


def mangled_function(text: str) -> str | None:
    """Qualified function of a mangled name; a Microsoft template gives its unqualified name."""
    if template := _MICROSOFT_TEMPLATE.match(text):
        return template.group(1)
    if plain := _MICROSOFT.match(text):
        return "::".join([*reversed(plain.group(2).split("@")[:-1]), plain.group(1)])
    prefix = _PREFIX.match(text)
    if prefix is None:
        return None
    position, parts = prefix.end(), []
    while found := _IDENTIFIER.match(text, position):
        position = found.end() + int(found[1] or 0)
        parts.append(text[found.end() : position] if found[1] else "std")
        if not prefix[1] and found[1]:
            break
    if not parts or position > len(text) or (prefix[1] and text[position : position + 1] not in ("E", "I")):
        return None
    return "::".join(ANONYMOUS if one.startswith("_GLOBAL__N_") else one for one in parts)


# Demangled names.

# They are read in a text of the same length that shows their structure alone: whatever stands in round or
# curly brackets is hidden, as are `->` and the brackets of operators, and an anonymous namespace is a word.
# Each alternative of a pattern begins with a literal character: then a search skips over text.
_HIDDEN, _ROUND, _ROUND_END, _CURLY, _CURLY_END, _OPERATOR = "\1\2\3\4\5\6"
_OPERATORS = lazy_pattern(r"o(?<!\wo)perator\s*(?:\(\)|\[\]|->\*?|<=>|<<=?|>>=?|[<>]=?)")
_BRACKET = lazy_pattern(r"[(){}]")
# What matters outside of these brackets; a `<` after `)` compares.
_OUTER_TOKEN = lazy_pattern(
    rf"<(?<!{_ROUND_END}<)|{_ROUND}{_HIDDEN}*{_ROUND_END}|{_CURLY}{_HIDDEN}*{_CURLY_END}"
    rf"|'lambda\d*'(?:\(|{_ROUND}{_HIDDEN}*{_ROUND_END})|[>,\s({{]"
)
# After the parameters of an enclosing function the name goes on: `f(int) const::{lambda(int)#1}::operator()`.
_CONTINUATION = lazy_pattern(r"(?:\[abi:\w+\]|\s+const|\s+volatile|\s*&)*::")
_FUNCTION = lazy_pattern(r"(?:::)?(?:[A-Za-z_~$]|\(anonymous |\{)[\w:~$(){} #<>=!+*/%^&|\[\]',-]*")
_ABI_TAG = lazy_pattern(r"\[abi:\w+\]")
_MICROSOFT_WORD = lazy_pattern(r"\b(?:__cdecl|__stdcall|__vectorcall|class|struct|enum)\s+")
_MICROSOFT_ANONYMOUS = lazy_pattern(r"`anonymous[ -]namespace'")
# nvcc makes up a namespace for what is local to a file.
_MODULE_NAMESPACE = lazy_pattern(
    r"(?:\(anonymous namespace\)::)?\b(?:_INTERNAL|_GLOBAL__N_)_\w+?_cu_[0-9a-f]{8}(?:_\d+)?\b"
    r"(?:::\(anonymous namespace\))?"
)


class CxxName(msgspec.Struct, frozen=True):
    function: str | None  # qualified name without template arguments; None if the text is no function name
    template_arguments: tuple[str, ...] = ()  # text of each template argument of the function itself


def template_arguments(name: str) -> tuple[str, ...]:
    return parse(name).template_arguments


def last_part(qualified: str) -> str:
    """`reduce_kernel` of `at::native::reduce_kernel`."""
    return qualified.rpartition("::")[2]


def without_module(qualified: str) -> str:
    """A name with `(anonymous namespace)` for the namespace nvcc makes up for a file (`_INTERNAL_…_cu_…`)."""
    if "_INTERNAL_" in qualified or "_GLOBAL__N_" in qualified:
        return _MODULE_NAMESPACE.sub(ANONYMOUS, qualified)
    return qualified


def parse(name: str) -> CxxName:
    """Takes a kernel name apart; text of another kind gives `CxxName(None)`."""
    text = name.strip()
    if text.startswith(("_Z", "?")):
        return CxxName(mangled_function(text))
    if "<unnamed>" in text:
        text = text.replace("<unnamed>", ANONYMOUS)
    if "`anonymous" in text or "__cdecl" in text:
        text = _MICROSOFT_WORD.sub("", _MICROSOFT_ANONYMOUS.sub(ANONYMOUS, text))
    return _parsed(text)


def _masked(text: str) -> str:
    plain = text.replace(ANONYMOUS, "_" * len(ANONYMOUS))
    if "operator" in plain:
        plain = _OPERATORS.sub(lambda match: _OPERATOR * len(match[0]), plain)
    plain = plain.replace("->", _HIDDEN * 2)
    pieces: list[str] = []
    depth = opening = end = 0
    for match in _BRACKET.finditer(plain):
        if match[0] in "({":
            opening = opening if depth else match.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                first, last = (_ROUND, _ROUND_END) if plain[opening] == "(" else (_CURLY, _CURLY_END)
                pieces += (plain[end:opening], first, _HIDDEN * (match.start() - opening - 1), last)
                end = match.end()
    if depth:  # the text ends before its brackets do
        pieces += (plain[end : opening + 1], _HIDDEN * (len(plain) - opening - 1))
        end = len(plain)
    return "".join([*pieces, plain[end:]])


def _parsed(text: str) -> CxxName:
    masked = _masked(text)
    pieces: list[str] = []  # of the qualified name
    edges: list[int] = []  # of its last template arguments
    words, depth, piece_start, position = 1, 0, 0, 0
    is_bracketed = False
    while match := _OUTER_TOKEN.search(masked, position):
        token, start, position = match.group(), match.start(), match.end()
        if token == "<":
            if not depth:
                pieces.append(text[piece_start:start])
                edges, is_bracketed = [start], True
            depth += 1
        elif depth:  # within template arguments
            depth -= token == ">"
            if not depth or (token == "," and depth == 1):
                edges.append(start)
            piece_start = position
        elif token.isspace():
            piece_start = position  # what was read so far is the return type
            pieces, edges = [], []
            words += 1
        elif token[0] in f"({_ROUND}":
            is_type = text.startswith("decltype", piece_start)
            # A kernel is no member of a function's local class: only odd text goes on after parentheses.
            may_go_on = token != "(" and (is_type or not text.endswith(")"))
            goes_on = _CONTINUATION.match(text, position) if may_go_on else None
            if goes_on is not None:
                pieces.append(text[piece_start:start])
                edges, is_bracketed = [], True
                piece_start, position = goes_on.end() - 2, goes_on.end()
            elif not is_type:
                return _named([*pieces, text[piece_start:start]], text, edges)
        elif token not in (">", ","):
            position = position if token != "{" else len(text)
            is_lambda = text.startswith(("{lambda(", "'"), start)
            pieces.append(text[piece_start:start] + ("{lambda}" if is_lambda else text[start:position]))
            piece_start = position
    if depth:  # the text ends before its brackets do
        edges.append(len(text))
        piece_start = len(text)
    if words > 1 and not is_bracketed:
        return CxxName(None)  # prose
    return _named([*pieces, text[piece_start:].removesuffix(".kd")], text, edges)


def _named(pieces: Sequence[str], text: str, edges: Sequence[int]) -> CxxName:
    function = _ABI_TAG.sub("", "".join(pieces))
    if not _FUNCTION.fullmatch(function):
        return CxxName(None)
    return CxxName(function, tuple(text[start + 1 : end].strip() for start, end in pairwise(edges)))


# Named work inside template arguments: functors, and functions or classes that own a lambda. What is in
# parentheses or braces there are parameter types, and element types, layouts and accessors are data: no work.

_TOKEN = lazy_pattern(
    rf"(?P<name>[A-Za-z_~$](?<!\w.)[\w$]*(?:::[A-Za-z_~$][\w$]*)*)|(?P<operator>{_OPERATOR}+)"
    rf"|(?P<braces>{_CURLY}|{{)|(?P<quoted>'lambda\d*'(?=[({_ROUND}]))|[<>(,]"
)
_QUALIFIERS = frozenset(("const", "volatile"))


class Entity(msgspec.Struct):
    """A name inside template arguments: a type, or a function whose lambda is meant."""

    name: str  # qualified name without template arguments, up to its first lambda or operator
    depth: int  # angle brackets around it
    owns_lambda: bool = False  # a lambda of this function (or of this class's call operator) is named
    operator: str | None = None  # `operator()` behind the name


def entities(arguments: Sequence[str]) -> list[Entity]:
    """Named work inside template arguments, outer to inner; data types are left out."""
    return [
        entity
        for argument in arguments
        if not argument.isdigit()
        for entity in names_in(argument)[0]
        if entity.owns_lambda or last_part(entity.name) not in words("data")
    ]


def names_in(text: str) -> tuple[list[Entity], bool]:
    """All names outside of parentheses and braces, outer to inner; and whether every bracket is closed."""
    found: list[Entity] = []
    current: list[Entity | None] = [None]  # by depth of angle brackets: the name being read
    for match in _TOKEN.finditer(_masked(text)):
        kind, start, entity = match.lastgroup, match.start(), current[-1]
        token = text[start : match.end()]
        goes_on = entity is not None and text.startswith("::", max(0, start - 2))
        if kind == "name" and not goes_on and token not in _QUALIFIERS:
            found.append(Entity(token, len(current) - 1))
            current[-1] = found[-1]
        elif entity is not None and not entity.owns_lambda:
            if kind == "quoted" or (kind == "braces" and text.startswith("{lambda(", start)):
                entity.owns_lambda = True
            elif kind == "operator" and goes_on:
                entity.operator = token
            elif kind == "name" and goes_on:
                entity.name = f"{entity.name}::{token}"
        if match[0] in ("(", "{"):  # what is in it never ends
            return found, False
        if token == "<":
            current.append(None)
        elif token == ">":
            current = current[:-1] or current
        elif token == ",":
            current[-1] = None
    return found, len(current) == 1


# Kineto does not try longer names (older versions of it stopped at 1,024).
_LONGEST_MANGLED_NAME = 8192
_RUNTIMES = ("libstdc++.so.6", "libc++abi.so.1", "libc++abi.dylib", "libc++.1.dylib")
# The longest text of the 58,000 names in libtorch_cuda and libcublasLt has 9,225 characters.
_LONGEST_TEXT = 1 << 26
# Back references, and what can be mistaken for one: literals, array bounds, identifiers after their lengths.
_MANGLED = lazy_pattern(
    r"L[a-z]n?\d+E|A\d*_|(?P<length>\d{1,5})|(?P<kind>[ST])(?P<index>[0-9A-Z]{0,4})_", re.ASCII
)


def demangle(mangled: str) -> str | None:
    """The text Kineto shows for a mangled name; None where it shows the name itself.

    Names that do not begin with `_Z` are not mangled: the runtime would read them as types (`f` is `float`).
    A name of 300 characters can stand for a text that fills the memory; None for one that might.
    """
    return None if _may_explode(mangled) else demangle_all((mangled,))[0]


def demangle_all(mangled: Iterable[str]) -> list[str | None]:
    """The text of each name, in order, as `demangle` has it.

    For names that a compiler wrote: none is refused for the size of its text.
    """
    names, runtime = list(mangled), _runtime()
    if runtime is None:
        return [None] * len(names)
    function, free = runtime
    # One output buffer for many names; the runtime grows it.
    buffer, size, status = None, ctypes.c_size_t(0), ctypes.c_int(0)
    shown: list[str | None] = []
    try:
        for name in names:
            text, result = name.encode("utf-8", "replace"), None
            if text.startswith(b"_Z") and len(text) <= _LONGEST_MANGLED_NAME and b"\0" not in text:
                result = function(text, buffer, ctypes.byref(size), ctypes.byref(status))
            if result is None or status.value != 0:
                shown.append(None)
            else:
                buffer = result
                shown.append(ctypes.string_at(result).decode("utf-8", "replace"))
        return shown
    finally:
        free(buffer)


def _may_explode(mangled: str) -> bool:
    """Whether an upper bound of the text's length is beyond all names seen.

    A back reference stands for a part that was complete before it, so for no more than all text up to where
    its number first occurs. Parts that refer to parts twice each are how a text grows exponentially.
    """
    size = position = 0
    sizes: dict[str, list[int]] = {"S": [], "T": []}
    while size <= _LONGEST_TEXT and (token := _MANGLED.search(mangled, position)):
        size += token.end() - position
        position = token.end()
        if token["length"]:
            position += int(token["length"])
            size += int(token["length"])
        elif token["kind"]:
            known = sizes[token["kind"]]
            index = min(int(token["index"], 36) + 1 if token["index"] else 0, len(mangled))
            known.extend([size] * (index + 1 - len(known)))
            size += known[index]
    return size > _LONGEST_TEXT


@cache
def _runtime() -> tuple[Callable[..., int | None], Callable[[int | None], None]] | None:
    """`__cxa_demangle` and the `free` of its buffers."""
    for name in _RUNTIMES:
        try:
            library = ctypes.CDLL(name)
            function, free = library.__cxa_demangle, ctypes.CDLL(None).free
        except (OSError, AttributeError, TypeError):  # TypeError: Windows has no library named None
            continue
        function.argtypes = [
            ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int),
        ]  # fmt: skip
        function.restype = ctypes.c_void_p
        free.argtypes, free.restype = [ctypes.c_void_p], None
        return function, free
    return None
