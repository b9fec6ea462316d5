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
_INCLUDED = re.compile(r'\s*["<](?:[^">]*/)?([^">/]+)[">]')
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
    """A file: the texts it stands for, its macros, and the names of files that it includes."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        pieces = list(_pieces(text))
        self.texts, _ = _texts(iter(pieces))
        self.includes: set[str] = set()
        self.macros: list[Macro] = []
        for piece in (one for one in pieces if not isinstance(one, str)):
            if piece["keyword"] == "include" and (found := _INCLUDED.match(piece["rest"])):
                self.includes.add(found[1])
            elif piece["keyword"] == "define" and (found := _DEFINE.match(code := _code(piece["rest"]))):
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
_STATEMENT = re.compile(r"\s*(?:do|if|for|switch|while|return|case|auto|static_assert|\[|\(|\{)(?!\w)")


class MacroTable:
    """The macros of some files that define something, which a statement does not."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._includes = {source.file: source.includes for source in sources}
        macros = grouped((macro.name, macro) for source in sources for macro in source.macros)
        self._macros = {
            name: of
            for name, of in macros.items()
            if not (re.fullmatch(BUILT_IN, name) or all(_STATEMENT.match(one.body) for one in of))
        }

    def expanded(self, text: str, file: str, within: tuple[str, ...] = ()) -> tuple[str, bool]:
        """The text with uses of defining macros replaced, each on the line where it begins.

        And whether a body among those that were put in defines something.
        """
        is_defining = False

        def body_of(match: re.Match[str], arguments: str) -> str | None:
            nonlocal is_defining
            name = match[1]
            macro = None if name in within else self._meant(name, file)
            if macro is None:
                return None
            given = split_arguments(arguments)
            values = dict(zip(macro.parameters, given, strict=False))
            if macro.parameters[-1].endswith("..."):
                rest = ", ".join(given[len(macro.parameters) - 1 :])
                values[macro.parameters[-1].removesuffix("...") or "__VA_ARGS__"] = rest
            body = _WORD.sub(lambda word: values.get(word.group(), word.group()), macro.body)
            body = re.sub(r"\s*##\s*", "", body).replace("#", " ").replace("\n", " ")
            body, calls_defining = self.expanded(body, file, (*within, name))
            defines = calls_defining or _DEFINING.search(macro.body) is not None
            is_defining = is_defining or defines
            return body if defines else None

        return rewritten(text, _CALL, body_of), is_defining

    def _meant(self, name: str, file: str) -> Macro | None:
        """The file's own macro, else one it includes, else the only one there is."""
        macros = self._macros.get(name, [])
        included = [one for one in macros if one.file.rpartition("/")[2] in self._includes.get(file, ())]
        candidates = [one for one in macros if one.file == file][:1] or included or macros
        return candidates[0] if len({one.body for one in candidates}) == 1 else None


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
        end = _closing(text, match.end())
        code = code_of(match, text[match.end() : end - 1])
        if code is not None:
            missing = text.count("\n", match.start(), end) - code.count("\n")
            pieces += (text[position : match.start()], code, "\n" * missing)
            position = end
    return "".join([*pieces, text[position:]])


_BRACKETS = {"(": re.compile(r"[()]"), "{": re.compile(r"[{}]")}


def _closing(text: str, position: int) -> int:
    """Where the bracket before a position closes, or the text ends; the position where there is none."""
    depth, bracket = 1, text[position - 1]
    for match in _BRACKETS[bracket].finditer(text, position) if bracket in _BRACKETS else ():
        depth += 1 if match[0] == bracket else -1
        if not depth:
            return match.end()
    return len(text) if bracket in _BRACKETS else position


_PARTNERS = {")": "(", "]": "[", "}": "{", ">": "<"}
# Arrows and comparisons that hold an angle are passed over.
_BRACKET_OR_COMMA = re.compile(r"[()\[\]{},]|->|[<>]=|<<(?=\s)|<|>")


def split_arguments(text: str) -> list[str]:
    """The parts of a list between commas at its top level; brackets of all four kinds nest."""
    parts: list[str] = []
    open_brackets: list[str] = []
    start = 0
    for match in _BRACKET_OR_COMMA.finditer(text):
        token = match.group()
        if token in _PARTNERS:
            # A `<` that is still open inside other brackets was a comparison.
            while open_brackets[-1:] == ["<"] != [_PARTNERS[token]]:
                open_brackets.pop()
            if open_brackets[-1:] == [_PARTNERS[token]]:
                open_brackets.pop()
        elif token in "([{<":
            open_brackets.append(token)
        elif token == "," and not open_brackets:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    parts.append(text[start:].strip())
    return parts if parts != [""] else []
