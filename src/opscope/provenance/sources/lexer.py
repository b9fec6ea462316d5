"""C++ and CUDA text in which everything that is not code is blanked, and the directives that were in it.

Comments, the insides of literals, and directives become spaces, so every offset and line stays where it was.
Of a conditional directive one `#` remains: there a branch begins or ends. Branches that no CUDA build for
Linux compiles are blanked too. Never raises, whatever the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from opscope.provenance.sources.conditions import evaluate

__all__ = ["Directive", "LexedSource", "blank_literals", "lex"]

# Each alternative starts with a literal character, which lets the expression skip quickly to the next one.
# Each that may miss its end accepts the end of the text or line instead, which keeps the time linear.
_LITERAL = r"""
    //(?:\\\n|[^\n])*
  | /\*(?s:.*?)(?:\*/|\Z)
  | R"(?<![A-Za-z0-9_]R")(?P<fence>[^()\\\s]{0,16})\((?s:.*?)(?:\)(?P=fence)"|\Z)
  | "(?:\\(?s:.)|[^"\\\n])*"?
  | '(?<=[0-9a-fA-F]')(?=[0-9a-fA-F])
  | '(?:\\(?s:.)|[^'\\\n])*'?
"""
_LOGICAL_LINE = r"""
  | \#(?:\\\n|//(?:\\\n|[^\n])*|/\*(?s:.*?)(?:\*/|\Z)|"(?:\\(?s:.)|[^"\\\n])*"?|[^\n])*
"""
_LITERALS = re.compile(_LITERAL, re.VERBOSE)
_TOKENS = re.compile(_LITERAL + _LOGICAL_LINE, re.VERBOSE)
_NOT_NEWLINE = re.compile(r"[^\n]+")
_KEYWORD = re.compile(r"#\s*(\w*)")
_CONTINUATION = re.compile(r"\\\n")
_OPENING = frozenset(("if", "ifdef", "ifndef"))
_TURNING = frozenset(("elif", "elifdef", "elifndef", "else"))
_CONDITIONAL = _OPENING | _TURNING | {"endif"}


@dataclass(frozen=True)
class Directive:
    """One preprocessor line: `text` follows the keyword, continued lines joined.

    Comments and literals are blanked but for the file name of an `include`.

    `is_dead` holds for a conditional directive that opens a branch which is never compiled.
    """

    offset: int
    keyword: str
    text: str
    is_dead: bool = False


@dataclass(frozen=True)
class LexedSource:
    """A text and its blanked code, whose `#` characters are the `conditionals`, in order."""

    text: str
    code: str
    conditionals: tuple[Directive, ...]
    others: tuple[Directive, ...]

    @cached_property
    def _newlines(self) -> list[int]:
        return [match.start() for match in re.finditer(r"\n", self.code)]

    def line_of(self, offset: int) -> int:
        """Line of an offset, the first line is 1."""
        return bisect_right(self._newlines, offset - 1) + 1


def lex(text: str) -> LexedSource:
    """The code of a text whose lines end in a newline character."""
    directives: list[Directive] = []

    def replacement(match: re.Match[str]) -> str:
        token = match.group()
        if token[0] != "#":
            return _blanked(token)
        directives.append(_directive(match.start(), token))
        mark = "#" if directives[-1].keyword in _CONDITIONAL else " "
        return mark + _spaces(token[1:])

    return _without_dead_branches(text, _TOKENS.sub(replacement, text), directives)


def blank_literals(text: str) -> str:
    """The text with comments and the insides of literals blanked, directives kept."""
    return _LITERALS.sub(lambda match: _blanked(match.group()), text)


def _blanked(token: str) -> str:
    """A literal keeps its quotes, so that it can be told from nothing; a digit separator stays."""
    if token[0] == '"' and len(token) > 1:
        return '"' + _spaces(token[1:-1]) + token[-1] if token[-1] == '"' else '"' + _spaces(token[1:])
    if token == "'":
        return " "
    return _spaces(token)


def _spaces(text: str) -> str:
    if "\n" not in text:
        return " " * len(text)
    return _NOT_NEWLINE.sub(lambda match: " " * len(match.group()), text)


def _directive(offset: int, token: str) -> Directive:
    match = _KEYWORD.match(token)
    keyword = match.group(1) if match else ""
    rest = token[match.end() :] if match else ""
    text = rest if keyword == "include" else blank_literals(rest)
    return Directive(offset, keyword, _CONTINUATION.sub("  ", text))


@dataclass
class _Branch:
    """An open conditional: what is known of the branches so far, and whether it lies in a dead branch."""

    is_nested_in_dead: bool
    is_decided: bool = False
    is_dead: bool = False


def _without_dead_branches(text: str, code: str, directives: list[Directive]) -> LexedSource:
    conditionals: list[Directive] = []
    others: list[Directive] = []
    pieces: list[str] = []
    position = 0
    dead_start: int | None = None
    for directive, is_dead, is_hidden in _judged(directives):
        if is_hidden:
            continue
        if directive.keyword not in _CONDITIONAL:
            others.append(directive)
            continue
        if dead_start is not None:
            pieces += (code[position:dead_start], _spaces(code[dead_start : directive.offset]))
            position, dead_start = directive.offset, None
        if is_dead:
            dead_start = directive.offset + 1
        conditionals.append(Directive(directive.offset, directive.keyword, directive.text, is_dead))
    if dead_start is not None:
        pieces += (code[position:dead_start], _spaces(code[dead_start:]))
        position = len(code)
    pieces.append(code[position:])
    return LexedSource(text, "".join(pieces), tuple(conditionals), tuple(others))


def _judged(directives: list[Directive]) -> Iterator[tuple[Directive, bool, bool]]:
    """Each directive, whether the branch it opens is dead, and whether it lies in a dead branch itself."""
    open_branches: list[_Branch] = []
    for directive in directives:
        inside = bool(open_branches) and (open_branches[-1].is_dead or open_branches[-1].is_nested_in_dead)
        if directive.keyword in _OPENING:
            value = _condition(directive)
            open_branches.append(_Branch(inside, is_decided=value is True, is_dead=value is False))
            yield directive, value is False, inside
        elif directive.keyword in _TURNING and open_branches:
            branch = open_branches[-1]
            value = _condition(directive)
            branch.is_dead = branch.is_decided or value is False
            branch.is_decided = branch.is_decided or value is True
            yield directive, branch.is_dead, branch.is_nested_in_dead
        elif directive.keyword == "endif" and open_branches:
            yield directive, False, open_branches.pop().is_nested_in_dead
        else:
            yield directive, False, inside


def _condition(directive: Directive) -> bool | None:
    if directive.keyword == "else":
        return None
    if directive.keyword in ("ifdef", "elifdef"):
        return evaluate(f"defined({directive.text.strip()})")
    if directive.keyword in ("ifndef", "elifndef"):
        return evaluate(f"!defined({directive.text.strip()})")
    return evaluate(directive.text)
