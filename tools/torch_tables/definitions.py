"""What the files of a source tree define: namespaces, classes, functions, kernels and dispatch stubs.

A tree is PyTorch's repository, or the headers of `torch/include`. Types of parameters have one coarse
spelling, which tells overloads apart however a type is passed: "Tensor" for `const at::Tensor & self` and
`Tensor self`; "int?" for `c10::optional<int64_t>` and `SymInt?`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import tree_sitter_cpp
from msgspec.structs import replace
from tree_sitter import Language, Node, Parser

from opscope.errors import InputError
from opscope.model.queries import grouped
from opscope.provenance import sources
from opscope.provenance.sources import Definition, Registration, SourceIndex
from torch_tables.preprocess import BUILT_IN, PYTORCH, MacroTable, Source, rewritten, spaces, split_arguments

_PARSER = Parser(Language(tree_sitter_cpp.language()))
_SKIPPED = re.compile(PYTORCH["skipped"])
Tree = tuple[Sequence[Definition], Sequence[Registration]]


def tree_index(root: Path, version: str, git_version: str | None, *, headers: bool = False) -> SourceIndex:
    """The index of a source tree, or of the headers in `torch/include`, named as in the repository."""
    known, texts = PYTORCH["headers" if headers else "sources"], {}
    for path in (path for folder in known["folders"] for path in sorted((root / folder).rglob("*.*"))):
        name = path.relative_to(root).as_posix()
        file = sources.repository_path(name) if headers else name
        if file is not None and path.suffix in known["suffixes"] and not _SKIPPED.match(name):
            text = path.read_text(encoding="utf-8", errors="replace")
            texts[file] = sources.without_guard(text) if headers else text
    if not texts:
        raise InputError(known["missing"], source=root, hint=known["hint"])
    return index_of(version, git_version, read_tree(texts))


def index_of(version: str, git_version: str | None, tree: Tree) -> SourceIndex:
    """The index of definitions whose lines are known, in any order."""
    numbers: dict[str | tuple[str, ...], int] = {}
    rows: dict[str, list[list[int]]] = defaultdict(list)
    for one in sorted(tree[0], key=lambda one: (one.file, one.line)):
        of = msgspec.structs.asdict(one) | {"end_line": one.end_line - one.line}
        of |= {field: numbers.setdefault(of[field], len(numbers)) for field in sources.INDEX_TEXTS}
        rows[one.name].append([of[column] for column in sources.INDEX_COLUMNS])
    packed = {name: msgspec.Raw(msgspec.msgpack.encode(of)) for name, of in rows.items()}
    listed = tuple(sorted(tree[1], key=lambda entry: (*entry[3:], entry[0])))
    return SourceIndex(sources.INDEX_FORMAT.number, version, git_version, list(numbers), packed, listed)


def read_tree(texts: Mapping[str, str]) -> Tree:
    """Definitions and stub registrations of files that may use each other's macros and stubs."""
    files = [Source(file, text) for file, text in texts.items()]
    macros, stubs, registrations = MacroTable(files), set[str](), dict[Registration, None]()
    found = [one for file in files for one in _found(file, macros, stubs, registrations)]
    # Names of functions that a `.cu` file defines and no other file does: a call can mean nothing else.
    callable_rows = (row for row, _ in found if row.kind in CALLABLE and not is_member(row))
    defining = grouped((row.name, row.file) for row in callable_rows)
    launchers = {name for name, of in defining.items() if len(set(of)) == 1 and of[0].endswith(".cu")}
    definitions = []
    for row, calls in found:
        launched = set() if row.file.endswith((".cu", ".cuh")) else calls & launchers
        called = {"stubs": tuple(sorted(calls & stubs)), "launchers": tuple(sorted(launched))}
        definitions.append(replace(row, **called))
    return definitions, list(registrations)


CALLABLE = ("function", "structured", "kernel")
_MACRO_NAME = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]")


def is_member(definition: Definition) -> bool:
    """Whether the scope ends in a class, as far as PyTorch's spelling tells: classes begin with a capital."""
    last = definition.scope.rpartition("::")[2]
    return last[:1].isupper() and not _MACRO_NAME.fullmatch(last)


# A definition, and the names of functions that its body calls.
_Found = tuple[Definition, frozenset[str]]


def _found(
    source: Source, macros: MacroTable, stubs: set[str], registrations: dict[Registration, None]
) -> list[_Found]:
    """What a file defines, in any of its texts; stubs it declares and registrations are added."""
    found: dict[tuple[object, ...], _Found] = {}
    for text in source.texts:
        seen: dict[tuple[object, ...], int] = defaultdict(int)
        plain = _without_macros(macros.expanded(text, source.file)[0], source.file, stubs, registrations)
        for row, calls in _Reader(source.file, plain).definitions():
            place = (row.line, row.name, row.parameters)
            seen[place] += 1
            first, known = found.get((place, seen[place]), (row, frozenset()))
            found[place, seen[place]] = first, known | calls  # in another branch it may call others
    return sorted(found.values(), key=lambda one: one[0].line)


# Macros whose argument is a function's name, those of dispatch stubs, and one that makes a text.
_MACRO = re.compile(rf"\b({BUILT_IN}|jiterator_stringify)\s*\(")
_FUNCTION_NAME = re.compile(r"[&(\s]*(?:[A-Za-z_]\w*::)*([A-Za-z_]\w*)\s*(?:<[^()]*>)?[)\s]*$")
_CPU_NAMES = frozenset(PYTORCH["macros"]["cpu"].split())


def _without_macros(text: str, file: str, stubs: set[str], registrations: dict[Registration, None]) -> str:
    """A text in which stubs are declared as variables, functions named, and registrations gone."""

    def code_of(match: re.Match[str], listed: str) -> str:
        macro, arguments = match[1], split_arguments(listed)
        if macro.startswith("TORCH_"):
            kind = "structured_function" if "IMPL" in macro else "structured_check"
            return f"{kind} {'__DOT__'.join(arguments)}"
        if macro.startswith("DE"):
            stubs.add(arguments[0 if macro == "DEFINE_DISPATCH" else -1])
        if "REGISTER" in macro:
            named = _FUNCTION_NAME.match(arguments[-1]) if len(arguments) > 1 else None
            function = named[1] if named and named[1] != "nullptr" else ""
            line = text.count("\n", 0, match.start()) + 1
            # REGISTER_DISPATCH has the key from the compiler: nvcc's files mean CUDA.
            device = re.sub(r"^(ALSO_)?REGISTER_|_?DISPATCH$", "", macro)
            device = device or ("CUDA" if file.endswith((".cu", ".cuh")) else "CPU")
            key = "CPU" if device in _CPU_NAMES else device
            registrations[arguments[0], key, function, file, line] = None
        if macro == "DEFINE_DISPATCH":
            return f"dispatch_stub {arguments[0]};"
        return "0" if macro == "jiterator_stringify" else ""

    return rewritten(text, _MACRO, code_of)


# What may stand in a declaration without a meaning for the parser, perhaps with arguments.
_ATTRIBUTE = re.compile(rf"\b(?:{'|'.join(PYTORCH['macros']['attributes'].split())})\b(\s*\()?")
# What the parser takes for something else: macros as statements.
_FOREIGN = re.compile(r"^[ \t]*[A-Z][A-Z0-9]*_[A-Z0-9_]+\([^(){};]*\)[ \t]*$", re.MULTILINE)
# Comparisons in template arguments, which the parser ends there, and empty defaults of parameters.
_MISREAD = re.compile(r"(?<!operator)(?<!>)>=|(?<==)( *)\{ *\}")
# The head of a body: what is behind round brackets. In the body the parser might lose its way.
_BODY = re.compile(
    r"\)\s*(?:(?:const|noexcept|override|final|try|mutable|volatile|throw|&&?|[A-Z][A-Z0-9_]+)\s*|->[^;{}]*"
    r"|:[^:;{}][^;{}]*\)\s*)*\{"
)
_BODY_END = "\1"
_ENDED = re.compile(rf"{_BODY_END}((?:\s*;)*)")


class _Reader:
    """Reads the syntax tree of a file's text: the parser gets another one, with the same offsets."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._text = file, text

    def definitions(self) -> Iterator[_Found]:
        """Those outside of bodies of functions."""
        code = _FOREIGN.sub(lambda match: spaces(match[0]), self._text.replace("__global__", "register  "))
        code = _MISREAD.sub(lambda match: "==" if match[1] is None else "0".rjust(len(match[0])), code)
        code = rewritten(
            code, _ATTRIBUTE, lambda match, given: spaces(match[0] + given + ")" * bool(match[1]))
        )
        code = rewritten(code, _BODY, lambda match, body: f"{match[0]}{spaces(body)}{_BODY_END}")
        # With a semicolon behind its end the body might be an initializer's.
        code = _ENDED.sub(lambda match: "}" + spaces(match[1]), code)
        tree = _PARSER.parse(code.encode("ascii", "replace"))
        waiting: list[tuple[Node, tuple[str, ...], Node | None]] = [(tree.root_node, (), None)]
        while waiting:
            node, scope, template = waiting.pop()
            name = node.child_by_field_name("name")
            match node.type:
                case "compound_statement" | "initializer_list" | "lambda_expression" | "enum_specifier":
                    continue
                case "template_declaration":
                    template = node.child_by_field_name("parameters")
                case "namespace_definition":
                    scope = (*scope, self._words(name) or "(anonymous namespace)")
                case "class_specifier" | "struct_specifier" | "union_specifier":
                    if name is None or node.child_by_field_name("body") is None:
                        continue
                    scope, plain = self._unqualified(name, scope)
                    is_special = name.type == "template_type"
                    yield self._row("class", scope, plain, node, template, is_specialization=is_special)
                    scope, template = (*scope, self._words(plain)), None
                case "function_definition" if (found := self._function(node, scope, template)) is not None:
                    yield found
                    continue
                case "declaration" if self._words(node.child_by_field_name("type")) == "dispatch_stub":
                    name = node.child_by_field_name("declarator")
                    yield self._row("stub", scope, name, name)
                    continue
            waiting += ((child, scope, template) for child in reversed(node.children))

    def _words(self, node: Node | None) -> str:
        """Text of a node, without spaces."""
        return "" if node is None else re.sub(r"\s+", "", self._text[node.start_byte : node.end_byte])

    def _types(self, parameters: Node | None) -> str:
        types: list[str] = []
        for parameter in () if parameters is None else parameters.named_children:
            default = parameter.child_by_field_name("default_value")
            before = default and default.prev_sibling  # the equals sign
            end = before.start_byte if before else parameter.end_byte
            name = _name_of(parameter)
            first, last = (end, end) if name is None else (name.start_byte, name.end_byte)
            types.append(coarse_type(f"{self._text[parameter.start_byte : first]} {self._text[last:end]}"))
        return "" if types == ["void"] else ", ".join(types)

    def _unqualified(self, name: Node, scope: tuple[str, ...]) -> tuple[tuple[str, ...], Node]:
        while (inner := name.child_by_field_name("name")) is not None:
            outer = name.child_by_field_name("scope")
            if outer is not None:
                scope = (*scope, self._words(outer.child_by_field_name("name") or outer))
            name = inner
        return scope, name

    def _function(self, node: Node, scope: tuple[str, ...], template: Node | None) -> _Found | None:
        body = node.child_by_field_name("body")
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type != "function_declarator":
            # A reference, a pointer, an array; a conversion is nothing that is asked for.
            declarators = (one for one in declarator.children if one.type.endswith("declarator"))
            declarator = next(declarators, None)
        if declarator is None or body is None:
            return None
        parameters = declarator.child_by_field_name("parameters")
        scope, name = self._unqualified(declarator.child_by_field_name("declarator"), scope)
        result = self._words(node.child_by_field_name("type"))
        if not result and _MACRO_NAME.fullmatch(text := self._words(name)) and text not in scope:
            return None
        kind = "function"
        if result.startswith("structured_"):
            kind, scope = "structured", ("at::meta",) if result == "structured_check" else scope
        elif "__global__" in self._text[node.start_byte : name.start_byte]:
            kind = "kernel"
        calls = re.compile(r"\b([A-Za-z_]\w*)\s*\(").findall(self._text, body.start_byte, body.end_byte)
        return self._row(
            kind, scope, name, node, template, parameters=self._types(parameters), calls=frozenset(calls),
            is_specialization=template is not None and not template.named_children,
        )  # fmt: skip

    def _row(
        self, kind: str, scope: tuple[str, ...], name: Node, node: Node, template: Node | None = None,
        *, calls: frozenset[str] = frozenset(), **facts: Any,
    ) -> _Found:  # fmt: skip
        text = self._words(name).replace("__DOT__", ".")
        # Names of a template's parameters; a pack's ends in `...`, a parameter without one is "".
        names = tuple(
            self._words(_name_of(one)) + sources.PACK * one.type.startswith("variadic")
            for one in (() if template is None else template.named_children)
        )
        line, end_line = name.start_point.row + 1, node.end_point.row + 1
        return Definition(kind, text, "::".join(scope), self._file, line, end_line, names, **facts), calls


def _name_of(parameter: Node) -> Node | None:
    """The identifier that a parameter of a function or of a template declares; None without a name."""
    if parameter.type == "template_template_parameter_declaration":
        return _name_of(parameter.named_children[-1])
    if "type_parameter" in parameter.type:
        default = parameter.child_by_field_name("default_type")
        names = (one for one in parameter.named_children if one.type == "type_identifier" and one != default)
        return next(names, None)
    name = parameter.child_by_field_name("declarator")
    while name is not None and name.type != "identifier":
        parts = (one for one in name.named_children if one.type.endswith(("declarator", "identifier")))
        name = next(parts, None)
    return name


_NAMESPACES = re.compile(r"(?<![\w>])(?:::)?(?:at|c10|std|torch|native|caffe2)\s*::\s*(?=[A-Za-z_])")
_WRAPPED = re.compile(r"(\w+)\s*<(.*)>$", re.DOTALL)
_SCHEMA_SUFFIX = re.compile(r"(.*?)\s*(\?|\[\d*\])$", re.DOTALL)
_TYPES = PYTORCH["types"]
_QUALIFIERS = re.compile(rf"\b(?:{'|'.join(_TYPES['qualifiers'].split())})\b|\[\[[^\]]*\]\]")
_SCHEMA_TYPES = frozenset(_TYPES["schema"]["words"].split())


@lru_cache(maxsize=65536)
def coarse_type(parameter: str) -> str:
    text = _NAMESPACES.sub("", _QUALIFIERS.sub(" ", parameter))
    text = re.sub(r"[\s&]+", " ", text).strip()
    if text in _TYPES["spellings"]:
        return _TYPES["spellings"][text]
    if suffixed := _SCHEMA_SUFFIX.match(text):
        return coarse_type(suffixed[1]) + ("?" if suffixed[2] == "?" else "[]")
    wrapped = _WRAPPED.match(text)
    if wrapped is None or wrapped[1] not in _TYPES["wrappers"]:
        return text.replace(" ", "")
    return coarse_type(split_arguments(wrapped[2])[0]) + _TYPES["wrappers"][wrapped[1]]


def signature_distance(types: str, wanted: Sequence[str]) -> int:
    """How far a definition's coarse `types` are from those wanted, which may be C++ or schema types.

    0 if they are the same, 1 if they may be (a type is an alias that only its file knows), else 2.
    """
    mine, theirs = types.split(", ") if types else [], list(map(coarse_type, wanted))
    if mine == theirs or len(mine) != len(theirs):
        return 0 if mine == theirs else 2
    pairs = zip(mine, theirs, strict=True)
    return 1 if all(one == other or one.rstrip("?[]") not in _SCHEMA_TYPES for one, other in pairs) else 2
