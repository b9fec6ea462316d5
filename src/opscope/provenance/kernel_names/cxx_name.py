"""Grammar of C++ kernel names as a profiler prints them.

A demangled name is `[return type] qualified::function<template arguments>(parameters)`; the arguments hold
nested names, lambdas (`f(int)::{lambda(float)#1}`), casts (`(bool)1`) and operators. Names are read in one
pass with an explicit stack: cost is linear in the length, and text that is no such name gives None or an
empty tuple, never an exception. Mangled names are left to `mangled_name`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from opscope.provenance.kernel_names.cxx_tokens import ANONYMOUS, LAMBDA, NAME, OPERATOR, SMALL_GROUP
from opscope.provenance.kernel_names.mangled_name import is_mangled, mangled_function

__all__ = ["CxxName", "function_of", "last_part", "parse", "template_arguments", "without_module"]

_PLAIN_HEAD = re.compile(rf"(?:void )?((?:{NAME})(?:::(?:{NAME}))*)(?!::)")
# What matters outside of all brackets, and inside a bracket group.
_OUTER_TOKEN = re.compile(rf"\(anonymous namespace\)|{OPERATOR}|{LAMBDA}|[<({{\s]")
_BRACKET = re.compile(rf"{SMALL_GROUP}|<|>|\(|\)|\{{|\}}|->|{OPERATOR}")
_BRACKET_OR_COMMA = re.compile(rf"{SMALL_GROUP}|<|>|\(|\)|,|\{{|\}}|->|{OPERATOR}")
_OPENING = {">": "<", ")": "(", "}": "{"}
_CLOSING = {opening: closing for closing, opening in _OPENING.items()}
# After the parameters of an enclosing function the name goes on: `f(int) const::{lambda(int)#1}::operator()`.
_CONTINUATION = re.compile(r"(?:\[abi:\w+\]|\s+const|\s+volatile|\s*&)*::")
_FUNCTION = re.compile(r"(?:::)?(?:[A-Za-z_~$]|\(anonymous |\{)[\w:~$(){} #<>=!+*/%^&|\[\]',-]*")
_ABI_TAG = re.compile(r"\[abi:\w+\]")
_MICROSOFT_WORD = re.compile(r"\b(?:__cdecl|__stdcall|__vectorcall|class|struct|enum)\s+")
_MICROSOFT_ANONYMOUS = re.compile(r"`anonymous[ -]namespace'")
# nvcc makes up a namespace for what is local to a file.
_MODULE_NAMESPACE = re.compile(
    r"(?:\(anonymous namespace\)::)?\b(?:_INTERNAL|_GLOBAL__N_)_\w+?_cu_[0-9a-f]{8}(?:_\d+)?\b"
    r"(?:::\(anonymous namespace\))?"
)


@dataclass(frozen=True)
class CxxName:
    """One function name taken apart.

    Attributes:
        function: Qualified name without template arguments; None if the text is no function name.
        template_arguments: Text of each template argument of the function itself.
        parameters: Text from the function's opening parenthesis to the last closing one, both left out.
    """

    function: str | None
    template_arguments: tuple[str, ...] = ()
    parameters: str = ""


def function_of(name: str) -> str | None:
    """Qualified function without template arguments, `at::native::reduce_kernel`; None if there is none."""
    return parse(name).function


def template_arguments(name: str) -> tuple[str, ...]:
    """Template arguments of the function, as they are printed."""
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
    if is_mangled(text):
        return CxxName(mangled_function(text))
    if "<unnamed>" in text:
        text = text.replace("<unnamed>", ANONYMOUS)
    if "`anonymous" in text or "__cdecl" in text:
        text = _MICROSOFT_WORD.sub("", _MICROSOFT_ANONYMOUS.sub(ANONYMOUS, text))
    return _plain(text) or _Reader(text).read()


def _plain(text: str) -> CxxName | None:
    """The common shape, `void f<…>(…)`; None for any other."""
    head = _PLAIN_HEAD.match(text)
    if head is None:
        return None
    function, opening = head.group(1), head.end()
    after = text[opening : opening + 1]
    if after == "":
        return CxxName(function)
    arguments: tuple[str, ...] = ()
    if after == "<":
        end, commas = _group(text, opening)
        if text[end : end + 1] != "(":
            return None
        arguments = _between(text, (opening, *commas, end - 1))
        opening = end
    elif after != "(":
        return None
    return CxxName(function, arguments, text[opening + 1 : -1]) if text.endswith(")") else None


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
                self._read_arguments(start)
            elif token == "(":
                if not self._read_parentheses(start):
                    parameters = text[start + 1 : -1] if text.endswith(")") else text[start + 1 :]
                    return self._named(text[self.piece_start : start], parameters)
            elif token.isspace():
                self._begin(match.end())
            elif token.startswith(("{", "'")):
                self._read_lambda(start, match.end() - 1 if token.endswith("(") else start)
        if self.words > 1 and not self.is_bracketed:
            return CxxName(None)  # prose
        return self._named(text[self.piece_start :].removesuffix(".kd"), "")

    def _begin(self, position: int) -> None:
        """What was read so far is the return type."""
        self.piece_start = position
        self.pieces.clear()
        self.arguments = ()
        self.words += 1

    def _read_arguments(self, opening: int) -> None:
        end, commas = _group(self.text, opening)
        self.pieces.append(self.text[self.piece_start : opening])
        self.arguments = _between(self.text, (opening, *commas, end - 1))
        self.is_bracketed = True
        self.position = self.piece_start = end

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

    def _read_lambda(self, start: int, opening: int) -> None:
        end, _ = _group(self.text, start if self.text[start] == "{" else opening)
        word = "{lambda}" if opening != start else self.text[start:end]
        self.pieces.append(self.text[self.piece_start : start] + word)
        self.position = self.piece_start = end

    def _named(self, last_piece: str, parameters: str) -> CxxName:
        function = _ABI_TAG.sub("", "".join((*self.pieces, last_piece)))
        if not _FUNCTION.fullmatch(function):
            return CxxName(None)
        return CxxName(function, self.arguments, parameters)


def _group(text: str, opening: int) -> tuple[int, list[int]]:
    """End of the bracket group that opens at `opening`, and the positions of its own commas.

    The end of an unbalanced group is one past the text, as if the missing bracket stood there.
    """
    closing = _CLOSING[text[opening]]
    commas: list[int] = []
    position = opening + 1
    while match := _BRACKET_OR_COMMA.search(text, position):
        token, start, position = match.group(), match.start(), match.end()
        if token == ",":
            commas.append(start)
        elif token == closing:
            return position, commas
        elif token in _CLOSING and not _is_less_than(text, start):
            position = _end_of_group(text, start)
    return len(text) + 1, commas


def _end_of_group(text: str, opening: int) -> int:
    """End of a bracket group whatever it holds; one past the text if it does not end.

    `<` after `)` and `>` inside parentheses are operators; a closing bracket without its partner is text.
    """
    stack = [text[opening]]
    open_counts = {"<": 0, "(": 0, "{": 0}
    open_counts[text[opening]] = 1
    for match in _BRACKET.finditer(text, opening + 1):
        token = match.group()
        if token in open_counts:
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
                return match.end()
    return len(text) + 1


def _is_less_than(text: str, start: int) -> bool:
    """A `<` after `)` compares, unless that is the end of `operator()`."""
    return text[start] == "<" and text[start - 1] == ")" and not text.endswith("operator()", 0, start)
