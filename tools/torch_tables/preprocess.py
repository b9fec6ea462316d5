"""C++ and CUDA text as a parser without a preprocessor can read it: conditionals decided, macros expanded.

Comments, the insides of literals, and directives become spaces. Where a condition depends on the build, each
branch is in one of the texts that a file stands for. A macro is expanded where its body defines something, on
the line of its use, so every line stays where it was.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from opscope.data import packaged_toml
from opscope.model.queries import grouped

PYTORCH = packaged_toml(__package__, "pytorch.toml")
# A condition is true (1), false (0), or neither: then it depends on the build.
_OPEN = 0.5
_KNOWN = {name: int(kind == "true") for kind in ("true", "false") for name in PYTORCH["macros"][kind].split()}
_PYTHON = (
    (r"\bdefined\s+(\w+)", r"defined(\1)"),
    (r"\b(\d+)[uUlL]+\b", r"\1"),
    (r"&&", " and "),
    (r"\|\|", " or "),
    (r"!(?!=)", " not "),
)


@lru_cache(maxsize=4096)
def evaluate(condition: str) -> bool | None:
    """The value of the text after `#if`, or None if it depends on the build or cannot be read."""

    def value_of(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int(value)):
                return int(bool(value))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return 1 - value_of(operand)
            case ast.BoolOp(op=op, values=values):
                return (max if isinstance(op, ast.Or) else min)(map(value_of, values))
            case ast.Call(func=ast.Name(id="defined"), args=[ast.Name(id=name)]):
                # AT_ macros are tested by value: whether they are defined says nothing.
                return _OPEN if name.startswith("AT_") else _KNOWN.get(name, _OPEN)
            case ast.Name(id=name) | ast.Call(func=ast.Name(id=name), args=[]):
                return _KNOWN.get(name, _OPEN)
        return _OPEN

    for pattern, replacement in _PYTHON:
        condition = re.sub(pattern, replacement, condition)
    try:
        return {0: False, 1: True}.get(value_of(ast.parse(condition.strip(), mode="eval").body))
    except SyntaxError:
        return None


# Each alternative that may miss its end accepts the end of the text or line instead.
_TOKENS = re.compile(
    r"""
    //(?:\\\n|[^\n])*
  | /\*(?s:.*?)(?:\*/|\Z)
  | R"(?<![A-Za-z0-9_]R")(?P<fence>[^()\\\s]{0,16})\((?s:.*?)(?:\)(?P=fence)"|\Z)
  | "(?:\\(?s:.)|[^"\\\n])*"?
  | '(?<=[0-9a-fA-F]')(?=[0-9a-fA-F])
  | '(?:\\(?s:.)|[^'\\\n])*'?
  | ^[ \t]*\#[ \t]*(?P<keyword>\w*)(?P<rest>(?:\\\n|//(?:\\\n|[^\n])*|/\*(?s:.*?)(?:\*/|\Z)|[^\n])*)
""",
    re.VERBOSE | re.MULTILINE,
)
_DEFINE = re.compile(r"\s*([A-Za-z_]\w*)\(([^()]*)\)")
Pieces = Iterator[str | re.Match[str]]
_IF = {"else": "", "ifdef": "defined({})", "ifndef": "!defined({})"}


class Macro(NamedTuple):
    """A macro with parameters, as one file defines it."""

    name: str
    parameters: tuple[str, ...]
    body: str
    file: str


class Source:
    """A file: the texts it stands for, and its macros."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        pieces = list(_pieces(text))
        self.texts, _ = _texts(iter(pieces))
        self.macros: list[Macro] = []
        for piece in (one for one in pieces if not isinstance(one, str)):
            if piece["keyword"] == "define" and (found := _DEFINE.match(code := _code(piece["rest"]))):
                parameters = tuple(part.strip() for part in found[2].split(","))
                self.macros.append(Macro(found[1], parameters, code[found.end() :].strip(), file))


def _texts(pieces: Pieces, *, is_branch: bool = False) -> tuple[list[str], re.Match[str] | None]:
    """The texts of a branch, or of all that is left, and the directive that ends it."""
    parts: list[list[str]] = []
    end = None
    for piece in pieces:
        if isinstance(piece, str):
            parts.append([piece])
        elif is_branch and piece["keyword"].startswith(("el", "endif")):
            end = piece
            break
        elif piece["keyword"].startswith("if"):
            parts.append(_conditional(piece, pieces))
        else:
            parts.append([spaces(piece.group())])
    # Conditionals side by side show their branches at the same time, the last one of those with fewer.
    count = max(map(len, parts), default=1)
    return ["".join(part[min(number, len(part) - 1)] for part in parts) for number in range(count)], end


def _conditional(directive: re.Match[str] | None, pieces: Pieces) -> list[str]:
    """The texts from `#if` to `#endif`: each shows one of the branches that may be compiled."""
    hidden: list[str] = []
    live: list[tuple[int, str]] = []
    is_decided = False
    while directive is not None and directive["keyword"] != "endif":
        head, condition = spaces(directive.group()), _code(directive["rest"])
        value = evaluate(_IF.get(directive["keyword"], "{}").format(condition))
        texts, directive = _texts(pieces, is_branch=True)
        live += [(len(hidden), head + text) for text in texts if not is_decided and value is not False]
        is_decided = is_decided or value is True
        hidden.append(spaces(head + texts[0]))
    hidden += [] if directive is None else [spaces(directive.group())]
    return ["".join((*hidden[:at], text, *hidden[at + 1 :])) for at, text in live] or ["".join(hidden)]


def _pieces(text: str) -> Pieces:
    """Code, with comments and literals blanked, and directives."""
    position = 0
    for match in _TOKENS.finditer(text):
        yield text[position : match.start()]
        yield _blanked(match) if match["keyword"] is None else match
        position = match.end()
    yield text[position:]


def _code(text: str) -> str:
    """A directive's text on one line, without comments and the insides of literals."""
    return _TOKENS.sub(_blanked, text.replace("\\\n", "  ")).strip()


def _blanked(match: re.Match[str]) -> str:
    """A literal keeps its quotes, so that it can be told from nothing; a digit separator stays."""
    token = match.group()
    if token[0] == '"' and len(token) > 1 and token[-1] == '"':
        return f'"{spaces(token[1:-1])}"'
    return spaces(token)


def spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_WORD = re.compile(r"[A-Za-z_]\w*")
# Macros that name functions and dispatch stubs: what a file defines by them is read as it stands.
BUILT_IN = (
    r"TORCH_(?:IMPL|META|PRECOMPUTE_META)_FUNC2?|(?:DEFINE|DECLARE)_DISPATCH|(?:ALSO_)?REGISTER_\w*DISPATCH"
)
_DEFINING = re.compile(rf"\{{|\b(?:{BUILT_IN}|__global__)\b")


class MacroTable:
    """The macros of some files."""

    def __init__(self, sources: Sequence[Source]) -> None:
        macros = (macro for source in sources for macro in source.macros)
        self._macros = grouped((one.name, one) for one in macros if not re.fullmatch(BUILT_IN, one.name))

    def expanded(self, text: str, file: str, within: tuple[str, ...] = ()) -> tuple[str, bool]:
        """The text with uses of defining macros replaced, each on the line where it begins.

        And whether a body among those that were put in defines something.
        """
        is_defining = False

        def body_of(match: re.Match[str], arguments: str) -> str | None:
            nonlocal is_defining
            # The file's own macro, else the only one there is.
            macros = [] if match[1] in within else self._macros.get(match[1], [])
            macros = [one for one in macros if one.file == file][:1] or macros
            if len({one.body for one in macros}) != 1:
                return None
            macro = macros[0]
            given = split_arguments(arguments)
            values = dict(zip(macro.parameters, given, strict=False))
            if macro.parameters[-1].endswith("..."):
                rest = ", ".join(given[len(macro.parameters) - 1 :])
                values[macro.parameters[-1].removesuffix("...") or "__VA_ARGS__"] = rest
            body = _WORD.sub(lambda word: values.get(word.group(), word.group()), macro.body)
            body = re.sub(r"\s*##\s*", "", body).replace("#", " ").replace("\n", " ")
            body, calls_defining = self.expanded(body, file, (*within, macro.name))
            defines = calls_defining or _DEFINING.search(macro.body) is not None
            is_defining = is_defining or defines
            return body if defines else None

        return rewritten(text, _CALL, body_of), is_defining


_BRACKETS = {"(": re.compile(r"[()]"), "{": re.compile(r"[{}]")}


def rewritten(
    text: str, pattern: re.Pattern[str], code_of: Callable[[re.Match[str], str], str | None]
) -> str:
    """A text with other code in the place of what a pattern finds, on as many lines.

    What ends in an open bracket goes on to its partner: the code is asked for with what lies between, and is
    None where the text stays.
    """
    pieces: list[str] = []
    position = 0
    for match in pattern.finditer(text):
        if match.start() < position:
            continue
        end, bracket = match.end(), match[0][-1:]
        depth = int(bracket in _BRACKETS)
        for one in _BRACKETS[bracket].finditer(text, end) if depth else ():
            depth += 1 if one[0] == bracket else -1
            if not depth:
                end = one.end()
                break
        end = len(text) if depth else end
        code = code_of(match, text[match.end() : end - 1])
        if code is not None:
            missing = text.count("\n", match.start(), end) - code.count("\n")
            pieces += (text[position : match.start()], code, "\n" * missing)
            position = end
    return "".join([*pieces, text[position:]])


# Arrows and comparisons that hold an angle are no brackets.
_NO_BRACKET = re.compile(r"->|[<>]=|<<(?=\s)")
# Other brackets may hold a `<`: then it compares.
_INNERMOST = re.compile(r"<[^][(){}<>]*>|\([^][(){}]*\)|\[[^][(){}]*\]|\{[^][(){}]*\}")


def split_arguments(text: str) -> list[str]:
    """The parts of a list between commas at its top level; brackets of all four kinds nest."""
    plain, count = _NO_BRACKET.sub(lambda match: spaces(match[0]), text), 1
    while count:
        plain, count = _INNERMOST.subn(lambda match: "_" * len(match[0]), plain)
    edges = [-1, *(match.start() for match in re.finditer(",", plain)), len(text)]
    parts = [text[before + 1 : after].strip() for before, after in pairwise(edges)]
    return parts if parts != [""] else []
