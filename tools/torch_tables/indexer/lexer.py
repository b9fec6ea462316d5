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
from functools import cached_property, lru_cache

from opscope.provenance.packaged import lazy_pattern

# What a condition comes to: only the few macros are known that tell a CUDA build for Linux from others (ROCm,
# a build without cuDNN); all else is undecided, and both branches count as code. Those that begin with AT_
# are of the ATen/Config.h and ATen/cuda/CUDAConfig.h in the wheels for x86-64.
_TRUE = """
    AT_CUDNN_ENABLED AT_MAGMA_ENABLED AT_MKL_ENABLED AT_MKLDNN_ENABLED AT_NNPACK_ENABLED
    AT_CUSPARSELT_ENABLED AT_BUILD_WITH_BLAS AT_BUILD_WITH_LAPACK AT_USE_JITERATOR USE_CUDA
    USE_LINALG_SOLVER USE_FLASH_ATTENTION USE_MEM_EFF_ATTENTION USE_FBGEMM USE_C10D_NCCL
"""
_FALSE = """
    USE_ROCM USE_ROCM_CK_GEMM USE_ROCM_CK_SDPA __HIPCC__ __HIP_PLATFORM_AMD__ __HIP_PLATFORM_HCC__
    __HIP_DEVICE_COMPILE__ AT_ROCM_ENABLED AT_MKLDNN_ACL_ENABLED AT_POCKETFFT_ENABLED _WIN32
    _MSC_VER __APPLE__ C10_MOBILE FBCODE_CAFFE2 __ANDROID__
"""
_KNOWN = {**dict.fromkeys(_TRUE.split(), True), **dict.fromkeys(_FALSE.split(), False)}
# Tested by value, never by `#ifdef`: whether they are defined says nothing.
_CALLED = frozenset(name for name in _KNOWN if name.startswith("AT_"))
_TOKEN = lazy_pattern(r"[A-Za-z_]\w*|\d[\w.']*|&&|\|\||[!=<>]=|[()!<>]|\S")
_COMPARISONS = frozenset(("==", "!=", "<", ">", "<=", ">=", "+", "-", "*", "/", "%", "?", ":", "&", "|"))
_MAXIMAL_DEPTH = 40


@lru_cache(maxsize=4096)
def evaluate(condition: str) -> bool | None:
    """The value of the text after `#if`, or None if it depends on the build or cannot be read."""
    tokens = _TOKEN.findall(condition)
    if not tokens:
        return None
    value, position = _either(tokens, 0, 0)
    return value if position == len(tokens) else None


def _either(tokens: list[str], position: int, depth: int) -> tuple[bool | None, int]:
    value, position = _both(tokens, position, depth)
    while position < len(tokens) and tokens[position] == "||":
        other, position = _both(tokens, position + 1, depth)
        value = True if value or other else None if None in (value, other) else False
    return value, position


def _both(tokens: list[str], position: int, depth: int) -> tuple[bool | None, int]:
    value, position = _compared(tokens, position, depth)
    while position < len(tokens) and tokens[position] == "&&":
        other, position = _compared(tokens, position + 1, depth)
        value = False if False in (value, other) else None if None in (value, other) else True
    return value, position


def _compared(tokens: list[str], position: int, depth: int) -> tuple[bool | None, int]:
    """A term; comparisons and arithmetic are not computed."""
    value, position = _term(tokens, position, depth)
    while position < len(tokens) and tokens[position] in _COMPARISONS:
        _, position = _term(tokens, position + 1, depth)
        value = None
    return value, position


def _term(tokens: list[str], position: int, depth: int) -> tuple[bool | None, int]:
    if position >= len(tokens) or depth > _MAXIMAL_DEPTH:
        return None, len(tokens) + 1
    token = tokens[position]
    if token == "!":
        value, position = _term(tokens, position + 1, depth + 1)
        return (None if value is None else not value), position
    if token == "(":
        value, position = _either(tokens, position + 1, depth + 1)
        closed = position < len(tokens) and tokens[position] == ")"
        return value, position + 1 if closed else len(tokens) + 1
    if token == "defined":
        is_bracketed = tokens[position + 1 : position + 2] == ["("]
        name = "".join(tokens[position + 1 + is_bracketed : position + 2 + is_bracketed])
        return None if name in _CALLED else _KNOWN.get(name), position + 2 + 2 * is_bracketed
    if token[0].isdigit():
        return _number(token), position + 1
    value = _KNOWN.get(token)
    if token in ("true", "false"):
        value = token == "true"
    elif tokens[position + 1 : position + 3] == ["(", ")"]:
        position += 2
    elif tokens[position + 1 : position + 2] == ["("]:  # of a call with arguments nothing is known
        value = None
        brackets, position = 1, position + 1
        while position + 1 < len(tokens) and brackets:
            position += 1
            brackets += {"(": 1, ")": -1}.get(tokens[position], 0)
    return value, position + 1


def _number(token: str) -> bool | None:
    return token.rstrip("uUlL") != "0" if token.rstrip("uUlL").isdigit() else None


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
_LITERALS = lazy_pattern(_LITERAL, re.VERBOSE)
_TOKENS = lazy_pattern(_LITERAL + _LOGICAL_LINE, re.VERBOSE)
_NOT_NEWLINE = lazy_pattern(r"[^\n]+")
_KEYWORD = lazy_pattern(r"#\s*(\w*)")
_CONTINUATION = lazy_pattern(r"\\\n")
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
        found = _KEYWORD.match(token)
        keyword, rest = (found.group(1), token[found.end() :]) if found else ("", "")
        line = _CONTINUATION.sub("  ", rest if keyword == "include" else blank_literals(rest))
        directives.append(Directive(match.start(), keyword, line))
        mark = "#" if keyword in _CONDITIONAL else " "
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
