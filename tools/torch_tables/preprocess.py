"""C++ and CUDA text as a parser without a preprocessor can read it: conditionals decided, macros expanded.

Comments, the insides of literals, and directives become spaces. Where a condition depends on the build, each
branch is in one of the texts that a file stands for. A macro is expanded where its body defines something, on
the line of its use, so every line stays where it was.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

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
    for pattern, replacement in _PYTHON:
        condition = re.sub(pattern, replacement, condition)
    try:
        return _value(ast.parse(condition.strip(), mode="eval").body)
    except SyntaxError:
        return None


def _value(node: ast.expr) -> bool | None:
    match node:
        case ast.Constant(value=int(value)):
            return bool(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            value = _value(operand)
            return None if value is None else not value
        case ast.BoolOp(op=op, values=values):
            decisive = isinstance(op, ast.Or)
            found = [_value(one) for one in values]
            return decisive if decisive in found else None if None in found else not decisive
        case ast.Call(func=ast.Name(id="defined"), args=[ast.Name(id=name)]):
            # AT_ macros are tested by value: whether they are defined says nothing.
            return None if name.startswith("AT_") else _KNOWN.get(name)
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name), args=[]):
            return {"true": True, "false": False}.get(name, _KNOWN.get(name))
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


@dataclass(frozen=True)
class Macro:
    """A macro with parameters, as one file defines it."""

    name: str
    parameters: tuple[str, ...]
    body: str
    file: str


class Source:
    """A file: the texts it stands for, its macros, and the names of files that it includes."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.includes: set[str] = set()
        self.macros: list[Macro] = []
        self.texts, _ = self._block(_pieces(text), is_branch=False)

    def _block(
        self, pieces: Iterator[str | re.Match[str]], *, is_branch: bool
    ) -> tuple[list[str], re.Match[str] | None]:
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
                parts.append(self._conditional(piece, pieces))
            else:
                self._note(piece["keyword"], piece["rest"])
                parts.append([spaces(piece.group())])
        # Conditionals side by side show their branches at the same time, the last one of those with fewer.
        count = max(map(len, parts), default=1)
        return ["".join(part[min(number, len(part) - 1)] for part in parts) for number in range(count)], end

    def _conditional(
        self, directive: re.Match[str] | None, pieces: Iterator[str | re.Match[str]]
    ) -> list[str]:
        """The texts from `#if` to `#endif`: each shows one of the branches that may be compiled."""
        branches: list[list[str]] = []
        live: list[int] = []
        is_decided = False
        while directive is not None and directive["keyword"] != "endif":
            value = _condition(directive["keyword"], _code(directive["rest"]))
            if not is_decided and value is not False:
                live.append(len(branches))
            is_decided = is_decided or value is True
            head = spaces(directive.group())
            texts, directive = self._block(pieces, is_branch=True)
            branches.append([head + text for text in texts])
        hidden = [spaces(texts[0]) for texts in branches]
        if directive is not None:
            hidden.append(spaces(directive.group()))
        shown = ["".join((*hidden[:at], text, *hidden[at + 1 :])) for at in live for text in branches[at]]
        return shown or ["".join(hidden)]

    def _note(self, keyword: str, rest: str) -> None:
        if keyword == "include" and (found := _INCLUDED.match(rest)):
            self.includes.add(found[1])
        elif keyword == "define" and (found := _DEFINE.match(code := _code(rest))):
            parameters = tuple(part.strip() for part in found[2].split(","))
            self.macros.append(Macro(found[1], parameters, code[found.end() :].strip(), self.file))


def _pieces(text: str) -> Iterator[str | re.Match[str]]:
    """Code, with comments and literals blanked, and directives."""
    position = 0
    for match in _TOKENS.finditer(text):
        yield text[position : match.start()]
        yield _blanked(match.group()) if match["keyword"] is None else match
        position = match.end()
    yield text[position:]


def _condition(keyword: str, text: str) -> bool | None:
    if keyword == "else":
        return None
    if keyword.endswith("ndef"):
        return evaluate(f"!defined({text.strip()})")
    return evaluate(f"defined({text.strip()})" if keyword.endswith("def") else text)


def _code(text: str) -> str:
    """A directive's text on one line, without comments and the insides of literals."""
    return _TOKENS.sub(lambda match: _blanked(match.group()), text.replace("\\\n", "  ")).strip()


def _blanked(token: str) -> str:
    """A literal keeps its quotes, so that it can be told from nothing; a digit separator stays."""
    if token[0] == '"' and len(token) > 1 and token[-1] == '"':
        return f'"{spaces(token[1:-1])}"'
    return spaces(token)


def spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_BRACKET = re.compile(r"[()]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_PASTE = re.compile(r"\s*##\s*")
_DEFINING = re.compile(
    r"\{|\b(?:TORCH_\w+_FUNC2?|(?:DEFINE|DECLARE)_DISPATCH|REGISTER_\w*DISPATCH|__global__)\b"
)
_STATEMENT = re.compile(r"\s*(?:do|if|for|switch|while|return|case|auto|static_assert|\[|\(|\{)(?!\w)")
_BUILT_IN = re.compile(
    r"TORCH_(?:IMPL|META|PRECOMPUTE_META)_FUNC2?|(?:DEFINE|DECLARE)_DISPATCH|(?:ALSO_)?REGISTER_\w*DISPATCH"
)


class MacroTable:
    def __init__(self, sources: Sequence[Source]) -> None:
        self._includes = {source.file: source.includes for source in sources}
        macros: dict[str, list[Macro]] = defaultdict(list)
        for macro in (macro for source in sources for macro in source.macros):
            if not _BUILT_IN.fullmatch(macro.name):
                macros[macro.name].append(macro)
        # A statement defines nothing.
        self._macros = {
            name: of for name, of in macros.items() if not all(_STATEMENT.match(one.body) for one in of)
        }
        called = {
            name: {call[1] for one in of for call in _CALL.finditer(one.body)}
            for name, of in self._macros.items()
        }
        self._defining = {
            name for name, of in self._macros.items() if any(_DEFINING.search(one.body) for one in of)
        }
        while found := {
            name
            for name, calls in called.items()
            if name not in self._defining and not self._defining.isdisjoint(calls)
        }:
            self._defining |= found
        # Those that call one of their parameters, as lists of types call the macro given to them.
        self._forwarding = {
            name for name, of in self._macros.items() if any(called[name] & set(one.parameters) for one in of)
        }

    def expanded(self, text: str, file: str, within: tuple[str, ...] = ()) -> str:
        """The text with uses of defining macros replaced, each on the line where it begins."""
        pieces: list[str] = []
        position = 0
        for match in _CALL.finditer(text):
            name = match[1]
            is_known = name in self._defining or name in self._forwarding
            if match.start() < position or not is_known or name in within:
                continue
            end = closing(text, match.end())
            arguments = split_arguments(text[match.end() : end - 1])
            if name not in self._defining and self._defining.isdisjoint(arguments):
                continue
            body = self._body(name, arguments, file)
            if body is not None:
                breaks = "\n" * text.count("\n", match.start(), end)
                body = self.expanded(body, file, (*within, name))
                pieces += (text[position : match.start()], body, breaks)
                position = end
        return "".join([*pieces, text[position:]])

    def _body(self, name: str, arguments: Sequence[str], file: str) -> str | None:
        """A use, replaced by the file's own macro, else one it includes, else the only one there is."""
        macros = self._macros[name]
        included = [one for one in macros if one.file.rpartition("/")[2] in self._includes.get(file, ())]
        candidates = [one for one in macros if one.file == file][:1] or included or macros
        if len({one.body for one in candidates}) != 1:
            return None
        macro = candidates[0]
        values = dict(zip(macro.parameters, arguments, strict=False))
        if macro.parameters[-1].endswith("..."):
            rest = ", ".join(arguments[len(macro.parameters) - 1 :])
            values[macro.parameters[-1].removesuffix("...") or "__VA_ARGS__"] = rest
        body = _WORD.sub(lambda match: values.get(match.group(), match.group()), macro.body)
        return _PASTE.sub("", body).replace("#", " ").replace("\n", " ")


def closing(text: str, position: int) -> int:
    """Where the round bracket that is open at a position closes, or the text ends."""
    depth = 1
    for match in _BRACKET.finditer(text, position):
        depth += 1 if match.group() == "(" else -1
        if not depth:
            return match.end()
    return len(text)


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
