"""Reads C++ kernel names as a profiler prints them; text that is no such name gives None or an empty tuple.

A demangled name is `[return type] qualified::function<template arguments>(parameters)`; the arguments hold
nested names, lambdas (`f(int)::{lambda(float)#1}`), casts (`(bool)1`) and operators. Of a mangled name, which
a profiler prints where demangling failed or was not tried, only the qualified function is read. Nothing here
raises, and every cost is linear in the length of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opscope.provenance.kernel_names.vocabulary import words
from opscope.provenance.packaged import lazy_pattern

# Patterns of the pieces of a demangled name. Where one is searched for, each of its alternatives begins with
# a literal character: then the search skips over text without trying them one by one.
ANONYMOUS = "(anonymous namespace)"
# `operator()` and the other operators with a bracket in them.
OPERATOR = r"o(?<!\wo)perator\s*(?:\(\)|\[\]|->\*?|<=>|<<=?|>>=?|[<>]=?)"
LAMBDA = r"\{lambda\(|'lambda\d*'\("
NAME = r"(?:\(anonymous namespace\)|[A-Za-z_~$][\w$]*)"
# Groups of one or two levels (`<float, 2>`, `(std::array<char*, 2ul>)`, `{lambda(int)#1}`) are one token:
# most brackets stand in such. Each is unrolled, so that a failed match costs no more than its length.
_TEXT = r"[^<>(){}]*"
_NESTED = rf"{_TEXT}(?:<{_TEXT}(?<!-)>{_TEXT})*"
LAMBDA_GROUP = rf"\{{lambda\({_NESTED}\)#\d+\}}"
PARENTHESES = rf"\({_NESTED}\)"
SMALL_GROUP = rf"<{_NESTED}(?<!-)>|{LAMBDA_GROUP}|{PARENTHESES}"


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

# What matters outside of all brackets, and inside a bracket group.
_OUTER_TOKEN = lazy_pattern(rf"\(anonymous namespace\)|{OPERATOR}|{LAMBDA}|[<({{\s]")
_BRACKET_OR_COMMA = lazy_pattern(rf"{SMALL_GROUP}|<|>|\(|\)|,|\{{|\}}|->|{OPERATOR}")
_OPENING = {">": "<", ")": "(", "}": "{"}
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
    # Text from the function's opening parenthesis to the last closing one, both left out
    parameters: str = ""


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
    return _Reader(text).read()


def _between(text: str, edges: tuple[int, ...]) -> tuple[str, ...]:
    """The text between successive positions, those left out."""
    return tuple([text[edges[at] + 1 : edges[at + 1]].strip() for at in range(len(edges) - 1)])


class _Reader:
    """Reads the text outside of brackets; steps over groups in brackets, keeps the template arguments."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.piece_start = 0  # of the piece of the qualified name that is being read
        self.pieces: list[str] = []
        self.arguments: tuple[str, ...] = ()
        self.is_bracketed = False
        self.words = 1

    def read(self) -> CxxName:
        text = self.text
        while match := _OUTER_TOKEN.search(text, self.position):
            token, start, self.position = match.group(), match.start(), match.end()
            if token == "<":
                end, commas = _group(text, start)
                self.pieces.append(text[self.piece_start : start])
                self.arguments = _between(text, (start, *commas, end - 1))
                self.is_bracketed = True
                self.position = self.piece_start = end
            elif token == "(":
                if not self._read_parentheses(start):
                    parameters = text[start + 1 : -1] if text.endswith(")") else text[start + 1 :]
                    return self._named(text[self.piece_start : start], parameters)
            elif token.isspace():
                self.piece_start = match.end()  # what was read so far is the return type
                self.pieces.clear()
                self.arguments = ()
                self.words += 1
            elif token.startswith(("{", "'")):
                opening = match.end() - 1 if token.endswith("(") else start
                end, _ = _group(text, start if token[0] == "{" else opening)
                word = "{lambda}" if opening != start else text[start:end]
                self.pieces.append(text[self.piece_start : start] + word)
                self.position = self.piece_start = end
        if self.words > 1 and not self.is_bracketed:
            return CxxName(None)  # prose
        return self._named(text[self.piece_start :].removesuffix(".kd"), "")

    def _read_parentheses(self, opening: int) -> bool:
        """Steps over parentheses within the name; False where they are the parameters of the kernel."""
        text = self.text
        is_type = text.startswith("decltype", self.piece_start)
        # A kernel is no member of a function's local class: only odd text goes on after parentheses.
        if not is_type and text.endswith(")"):
            return False
        end, _ = _group(text, opening)
        goes_on = _CONTINUATION.match(text, end)
        if goes_on is None:
            self.position = end
            return is_type
        self.pieces.append(text[self.piece_start : opening])
        self.arguments = ()
        self.is_bracketed = True
        self.piece_start = goes_on.end() - 2
        self.position = goes_on.end()
        return True

    def _named(self, last_piece: str, parameters: str) -> CxxName:
        function = _ABI_TAG.sub("", "".join((*self.pieces, last_piece)))
        if not _FUNCTION.fullmatch(function):
            return CxxName(None)
        return CxxName(function, self.arguments, parameters)


def _group(text: str, opening: int) -> tuple[int, list[int]]:
    """End of the bracket group that opens at `opening`, and the positions of its own commas.

    The end of an unbalanced group is one past the text, as if the missing bracket stood there. `<` after `)`
    and `>` inside parentheses are operators; a closing bracket without its partner is text.
    """
    stack, commas = [text[opening]], []
    open_counts = {"<": 0, "(": 0, "{": 0}
    open_counts[text[opening]] = 1
    for match in _BRACKET_OR_COMMA.finditer(text, opening + 1):
        token = match.group()
        if token == ",":
            if len(stack) == 1:
                commas.append(match.start())
        elif token in open_counts:
            if not _is_less_than(text, match.start()):
                stack.append(token)
                open_counts[token] += 1
        elif token in _OPENING:
            partner = _OPENING[token]
            if not open_counts[partner] or (token == ">" and stack[-1] != "<"):
                continue
            while (popped := stack.pop()) != partner:  # a `<` left open inside was an operator
                open_counts[popped] -= 1
            open_counts[partner] -= 1
            if not stack:
                return match.end(), commas
    return len(text) + 1, commas


def _is_less_than(text: str, start: int) -> bool:
    """A `<` after `)` compares, unless that is the end of `operator()`."""
    return text[start] == "<" and text[start - 1] == ")" and not text.endswith("operator()", 0, start)


# Named work inside template arguments: functors, and functions or classes that own a lambda. What is in
# parentheses or braces there are parameter types, and element types, layouts and accessors are data: no work.

_TOKEN = lazy_pattern(
    rf"{OPERATOR}|(?<!\w)({NAME}(?:::(?!{OPERATOR}){NAME})*)|{LAMBDA_GROUP}|{PARENTHESES}|{LAMBDA}|->|[<>(){{}},]"
)
_OPENING_OF = {")": "(", "}": "{"}
_QUALIFIERS = frozenset(("const", "volatile"))


class Entity(msgspec.Struct):
    """A name inside template arguments: a type, or a function whose lambda is meant."""

    name: str  # qualified name without template arguments, up to its first lambda or operator
    depth: int  # angle brackets around it
    owns_lambda: bool = False  # a lambda of this function (or of this class's call operator) is named
    operator: str | None = None  # `operator()` behind the name

    @property
    def is_data(self) -> bool:
        """It names data, not work."""
        return not self.owns_lambda and last_part(self.name) in words("data")


def entities(arguments: Sequence[str]) -> list[Entity]:
    """Named work inside template arguments, outer to inner; data types are left out."""
    return [
        entity
        for argument in arguments
        if not argument.isdigit()
        for entity in names_in(argument)[0]
        if not entity.is_data
    ]


def names_in(text: str) -> tuple[list[Entity], bool]:
    """All names outside of parentheses and braces, outer to inner; and whether every bracket is closed."""
    reader = _EntityReader(text)
    return reader.read(), not reader.hidden and len(reader.current) == 1


class _EntityReader:
    """Collects the names of a text that stand outside of parentheses and braces."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Entity] = []
        self.current: list[Entity | None] = [None]  # by depth of angle brackets: the name being read
        self.hidden: list[str] = []  # open parentheses and braces, and angle brackets inside them

    def read(self) -> list[Entity]:
        for match in _TOKEN.finditer(self.text):
            token, start = match.group(), match.start()
            owner = self.current[-1] if start > 1 and self.text.startswith("::", start - 2) else None
            if match.group(1):
                if self.hidden or token in _QUALIFIERS:
                    continue
                if owner is None:
                    self.current[-1] = entity = Entity(token, len(self.current) - 1)
                    self.found.append(entity)
                elif not owner.owns_lambda:
                    owner.name = f"{owner.name}::{token}"
            elif token.startswith("operator"):
                if owner is not None and not self.hidden and not owner.owns_lambda:
                    owner.operator = token
            elif token[0] in "{'(":
                self._open(token)
            elif token in _OPENING_OF:
                while self.hidden and self.hidden.pop() != _OPENING_OF[token]:
                    pass
            else:
                self._pass(token)
        return self.found

    def _open(self, token: str) -> None:
        owner = self.current[-1]
        if token[0] != "(" and len(token) > 1 and not self.hidden and owner is not None:
            owner.owns_lambda = True
        if token[-1] in ")}":
            return  # a whole group in one token
        self.hidden.append("{" if token[0] == "{" else "(")
        if token.startswith("{lambda"):
            self.hidden.append("(")

    def _pass(self, token: str) -> None:
        if self.hidden:
            if token == "<":
                self.hidden.append(token)
            elif token == ">" and self.hidden[-1] == "<":
                self.hidden.pop()
        elif token == "<":
            self.current.append(None)
        elif token == ">" and len(self.current) > 1:
            self.current.pop()
        elif token == ",":
            self.current[-1] = None
