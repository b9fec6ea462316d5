"""Macros that define functions, classes, kernels or registrations, and what a use of one stands for.

A macro matters here if its body holds braces, registers a dispatch stub, or uses a macro that does. Expansion
is textual, as the preprocessor's: parameters, `##`, `__VA_ARGS__`, and macro names passed as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from opscope.provenance.packaged import lazy_pattern
from torch_tables.cpp_types import split_arguments
from torch_tables.indexer.lexer import LexedSource

_DEFINE = lazy_pattern(r"\s*([A-Za-z_]\w*)(?:\(([^()]*)\))?")
_CALL = lazy_pattern(r"\b([A-Za-z_]\w*)\s*\(")
_CALL_OR_BRACKET = lazy_pattern(r"\b([A-Za-z_]\w*)\s*\(|[()]")
_DEFINING = lazy_pattern(
    r"\{|\bTORCH_IMPL_FUNC\b|\b(?:DEFINE|DECLARE)_DISPATCH\b|\bREGISTER_\w*DISPATCH\b|\b__global__\b"
)
# These are read as they stand, and never by their own definitions.
_BUILT_IN = lazy_pattern(
    r"(?:TORCH_(?:IMPL|META|PRECOMPUTE_META)_FUNC2?|(?:DEFINE|DECLARE)_DISPATCH|(?:ALSO_)?REGISTER_\w*DISPATCH)$"
)
_PASTE = lazy_pattern(r"\s*##\s*")
_WORD = lazy_pattern(r"[A-Za-z_]\w*")
_MAXIMAL_DEPTH = 8
_MAXIMAL_LENGTH = 200_000
_MOST_USES = 2000


@dataclass(frozen=True)
class Macro:
    """A macro with parameters, as one file defines it."""

    name: str
    parameters: tuple[str, ...]
    body: str
    file: str


@dataclass(frozen=True)
class MacroUse:
    """`NAME(arguments)` in a text, from `start` to `end`."""

    name: str
    arguments: tuple[str, ...]
    start: int
    end: int


def macros_of(file: str, source: LexedSource) -> Iterator[Macro]:
    """The macros with parameters that a file defines."""
    for directive in source.others:
        match = _DEFINE.match(directive.text) if directive.keyword == "define" else None
        if match and match.group(2) is not None:
            parameters = tuple(part.strip() for part in match.group(2).split(","))
            yield Macro(match.group(1), parameters, directive.text[match.end() :], file)


def uses(text: str) -> list[MacroUse]:
    """Calls in a text whose brackets close, in order; those inside another one are left out."""
    open_calls: list[tuple[str, int, int]] = []
    closed: list[tuple[str, int, int, int]] = []
    for match in _CALL_OR_BRACKET.finditer(text):
        if match.group() != ")":
            open_calls.append((match.group(1) or "", match.start(), match.end()))
        elif open_calls:
            name, start, inside = open_calls.pop()
            while closed and closed[-1][1] > start:
                closed.pop()
            closed.append((name, start, inside, match.end()))
    return [
        MacroUse(name, tuple(split_arguments(text[inside : end - 1])), start, end)
        for name, start, inside, end in closed
        if name
    ]


class MacroTable:
    """All macros of a tree of files, reduced to those whose use can define something.

    `includes`, for each file the base names of the files it includes, decides between namesakes.
    """

    def __init__(self, macros: Iterable[Macro], includes: Mapping[str, Sequence[str]] | None = None) -> None:
        self._includes = includes or {}
        every: dict[str, list[Macro]] = {}
        for macro in macros:
            if not _BUILT_IN.match(macro.name):
                every.setdefault(macro.name, []).append(macro)
        names = _defining_names(every)
        self._macros = {name: every[name] for name in names}
        self._forwarding = {
            name: every[name] for name in every if name not in names and _forwards(every[name])
        }

    def defines(self, use: MacroUse) -> bool:
        """Whether a use of a macro may define something."""
        if use.name in self._macros:
            return True
        return use.name in self._forwarding and any(argument in self._macros for argument in use.arguments)

    def expand(self, use: MacroUse, file: str) -> str:
        """What the use in a file stands for, fully expanded; "" if that cannot be told."""
        return self._expanded(use, file, 0, [_MOST_USES])

    def _expanded(self, use: MacroUse, file: str, depth: int, remaining: list[int]) -> str:
        """`remaining` counts down over the whole expansion, so that none takes exponential time."""
        macros = self._macros.get(use.name) or self._forwarding.get(use.name) or []
        # The file's own macro, else that of a file it includes, else the only one there is.
        candidates = [macro for macro in macros if macro.file == file][:1]
        if not candidates:
            included = set(self._includes.get(file, ()))
            candidates = [macro for macro in macros if macro.file.rpartition("/")[2] in included] or macros
        if len({macro.body for macro in candidates}) != 1 or depth > _MAXIMAL_DEPTH:
            return ""
        macro = candidates[0]
        text = _substituted(macro, use.arguments)[:_MAXIMAL_LENGTH]
        pieces: list[str] = []
        position = 0
        for inner in uses(text):
            if inner.name != use.name and self.defines(inner) and remaining[0] > 0:
                remaining[0] -= 1
                pieces += (text[position : inner.start], self._expanded(inner, file, depth + 1, remaining))
                position = inner.end
        pieces.append(text[position:])
        return "".join(pieces)[:_MAXIMAL_LENGTH]


def _defining_names(macros: Mapping[str, Sequence[Macro]]) -> set[str]:
    names = {name for name, group in macros.items() if any(_DEFINING.search(macro.body) for macro in group)}
    called = {
        name: {match.group(1) for macro in group for match in _CALL.finditer(macro.body)}
        for name, group in macros.items()
        if name not in names
    }
    while True:
        found = {name for name, calls in called.items() if name not in names and not names.isdisjoint(calls)}
        if not found:
            return names
        names |= found


def _forwards(group: Sequence[Macro]) -> bool:
    """Whether the macro calls one of its parameters, as lists of types call the macro given to them."""
    return any(match.group(1) in macro.parameters for macro in group for match in _CALL.finditer(macro.body))


def _substituted(macro: Macro, arguments: Sequence[str]) -> str:
    values = dict(zip(macro.parameters, arguments, strict=False))
    if macro.parameters and macro.parameters[-1].endswith("..."):
        name = macro.parameters[-1].removesuffix("...") or "__VA_ARGS__"
        values[name] = ", ".join(arguments[len(macro.parameters) - 1 :])
    body = _WORD.sub(lambda match: values.get(match.group(), match.group()), macro.body)
    return _PASTE.sub("", body).replace("#", " ")
