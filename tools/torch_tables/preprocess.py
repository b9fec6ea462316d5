"""C++ and CUDA text as a parser without a preprocessor can read it: conditionals decided, macros expanded.

Comments, the insides of literals, and directives become spaces. Where a condition depends on the build, each
branch is in one of the texts that a file stands for. A macro is expanded where its body defines something, on
the line of its use, so every line stays where it was.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from torch_tables.cpp_types import split_arguments

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
    except (SyntaxError, ValueError, RecursionError, MemoryError):
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
_MOST_TEXTS = 16


@dataclass(frozen=True)
class Macro:
    """A macro with parameters, as one file defines it."""

    name: str
    parameters: tuple[str, ...]
    body: str
    file: str


@dataclass
class _Branch:
    """Code and the conditionals in it. `count` is how many texts show all of it."""

    parts: list[str | _Conditional] = field(default_factory=list)

    @property
    def count(self) -> int:
        return max((part.count for part in self.parts if isinstance(part, _Conditional)), default=1)

    def text(self, number: int, *, hidden: bool = False) -> str:
        return "".join(
            (spaces(part) if hidden else part) if isinstance(part, str) else part.text(number, hidden=hidden)
            for part in self.parts
        )


@dataclass
class _Conditional:
    """The branches from `#if` to `#endif`, those that are compiled by their numbers."""

    branches: list[_Branch] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    is_decided: bool = False

    @property
    def count(self) -> int:
        return max(1, sum(self.branches[at].count for at in self.live))

    def text(self, number: int, *, hidden: bool) -> str:
        number = min(number, self.count - 1)
        shown = -1
        for at in () if hidden else self.live:
            if number < self.branches[at].count:
                shown = at
                break
            number -= self.branches[at].count
        return "".join(one.text(number, hidden=at != shown) for at, one in enumerate(self.branches))

    def begin(self, keyword: str, condition: str) -> _Branch:
        value = None if keyword == "else" else _condition(keyword, condition)
        if not self.is_decided and value is not False:
            self.live.append(len(self.branches))
        self.is_decided = self.is_decided or value is True
        self.branches.append(_Branch())
        return self.branches[-1]


class Source:
    """A file: the texts it stands for, its macros, and the names of files that it includes."""

    def __init__(self, file: str, text: str) -> None:
        self.includes: set[str] = set()
        self.macros: list[Macro] = []
        root = _Branch()
        open_branches, conditionals = [root], []
        position = 0
        for match in _TOKENS.finditer(text):
            open_branches[-1].parts.append(text[position : match.start()])
            position = match.end()
            keyword, rest = match["keyword"], match["rest"]
            if keyword is None:
                open_branches[-1].parts.append(_blanked(match.group()))
                continue
            if keyword in ("if", "ifdef", "ifndef"):
                conditionals.append(_Conditional())
                open_branches[-1].parts.append(conditionals[-1])
                open_branches.append(conditionals[-1].begin(keyword, _code(rest)))
            elif keyword.startswith("el") and conditionals:
                open_branches[-1] = conditionals[-1].begin(keyword, _code(rest))
            elif keyword == "endif" and conditionals:
                conditionals.pop()
                open_branches.pop()
            elif keyword == "include" and (found := _INCLUDED.match(rest)):
                self.includes.add(found[1])
            elif keyword == "define" and (found := _DEFINE.match(code := _code(rest))):
                parameters = tuple(part.strip() for part in found[2].split(","))
                self.macros.append(Macro(found[1], parameters, code[found.end() :].strip(), file))
            open_branches[-1].parts.append(spaces(match.group()))
        open_branches[-1].parts.append(text[position:])
        self.file = file
        self.texts = [root.text(number) for number in range(min(root.count, _MOST_TEXTS))]


def _condition(keyword: str, text: str) -> bool | None:
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
_DEEPEST_EXPANSION = 8
_MOST_USES = 5000


class MacroTable:
    def __init__(self, sources: Iterable[Source]) -> None:
        self._includes = {source.file: source.includes for source in sources}
        self._macros: dict[str, list[Macro]] = {}
        for macro in (macro for source in sources for macro in source.macros):
            if not _BUILT_IN.fullmatch(macro.name):
                self._macros.setdefault(macro.name, []).append(macro)
        called = {
            name: {call[1] for one in macros for call in _CALL.finditer(one.body)}
            for name, macros in self._macros.items()
        }
        statements = {
            name for name, of in self._macros.items() if all(_STATEMENT.match(one.body) for one in of)
        }
        defining = {
            name
            for name, of in self._macros.items()
            if name not in statements and any(_DEFINING.search(one.body) for one in of)
        }
        while found := {
            name
            for name, calls in called.items()
            if not defining.isdisjoint(calls) and name not in defining | statements
        }:
            defining |= found
        self._defining = defining
        # Those that call one of their parameters, as lists of types call the macro given to them.
        self._forwarding = {
            name
            for name, of in self._macros.items()
            if any(called[name] & set(one.parameters) for one in of) and name not in statements
        }

    def expanded(self, text: str, file: str) -> str:
        """The text with uses of defining macros replaced, each on the line where it begins."""
        return self._expanded(text, file, (), [_MOST_USES])

    def _expanded(self, text: str, file: str, within: tuple[str, ...], remaining: list[int]) -> str:
        """The same within other macros; `remaining` counts down, so that none takes exponential time."""
        pieces: list[str] = []
        position = 0
        for match in _CALL.finditer(text):
            name = match[1]
            is_known = name in self._defining or name in self._forwarding
            if match.start() < position or not is_known or name in within:
                continue
            if len(within) > _DEEPEST_EXPANSION or not remaining[0]:
                break
            end = closing(text, match.end())
            arguments = split_arguments(text[match.end() : end - 1])
            if name not in self._defining and self._defining.isdisjoint(arguments):
                continue
            body = self._body(name, arguments, file)
            if body is not None:
                remaining[0] -= 1
                body = self._expanded(body, file, (*within, name), remaining)
                breaks = "\n" * text.count("\n", match.start(), end)
                pieces += (text[position : match.start()], body, breaks)
                position = end
        pieces.append(text[position:])
        return "".join(pieces)

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
