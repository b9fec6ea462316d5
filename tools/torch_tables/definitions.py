"""What a file defines, from its syntax tree: namespaces, classes, functions, kernels and dispatch stubs.

Types of parameters have one coarse spelling, which tells overloads apart however a type is passed: "Tensor"
for `const at::Tensor & self` and `Tensor(a!) self`; "int?" for `c10::optional<int64_t>` and `SymInt?`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

from opscope.provenance.sources import PACK, Definition, Registration
from torch_tables.preprocess import MacroTable, Source, closing, spaces, split_arguments

_PARSER = Parser(Language(tree_sitter_cpp.language()))
# Macros whose argument is a function's name, and the namespace that they put it in, if another one.
_STRUCTURED = re.compile(r"\bTORCH_(IMPL|META|PRECOMPUTE_META)_FUNC2?\s*\(([^()]*)\)")
_DISPATCH = re.compile(
    r"\b(DEFINE_DISPATCH|DECLARE_DISPATCH|(?:ALSO_)?REGISTER_(?:\w+_)?DISPATCH|jiterator_stringify)\s*\("
)
_FUNCTION_NAME = re.compile(r"[&(\s]*(?:[A-Za-z_]\w*::)*([A-Za-z_]\w*)\s*(?:<[^()]*>)?[)\s]*$")
_CPU_ARCHITECTURES = frozenset(
    ("CPU", "ALL_CPU", "NO_CPU", "ARCH", "AVX2", "AVX512", "NO_AVX512", "VSX", "ZVECTOR", "SVE", "SVE256")
)
# What may stand in a declaration without a meaning for the parser, perhaps with arguments.
_ATTRIBUTE = re.compile(
    r"\b(?:C10_\w+|TORCH\w*_API|AT\w*_API|CAFFE2_API|AOTI_TORCH_EXPORT|CUTLASS_\w+|FUNCAPI|INLINE"
    r"|__declspec|__ubsan_\w+|__(?:host|device|forceinline|noinline|inline|restrict|attribute"
    r"|launch_bounds|align|cluster_dims|block_size|grid_constant|maxnreg|shared|constant|managed)__)\b(\s*\()?"
)
# What the parser takes for something else: interfaces of Objective-C, macros as statements.
_FOREIGN = re.compile(
    r"@(?:interface|protocol|implementation)\b(?s:.*?)@end\b"
    r"|^[ \t]*[A-Z][A-Z0-9]*_[A-Z0-9_]+\([^(){};]*\)[ \t]*$",
    re.MULTILINE,
)
# Comparisons in template arguments, which the parser ends there, and empty defaults of parameters.
_MISREAD = re.compile(r"(?<!operator)(?<!>)>=|(?<==)( *)\{ *\}")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_BODIES = ("compound_statement", "try_statement")
_MACRO_NAME = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]")


def is_member(definition: Definition) -> bool:
    """Whether the scope ends in a class, as far as PyTorch's spelling tells: classes begin with a capital."""
    last = definition.scope.rpartition("::")[2]
    return last[:1].isupper() and not _MACRO_NAME.fullmatch(last)


@dataclass
class Found:
    """A definition, and the names of functions that its body calls."""

    row: Definition
    calls: frozenset[str] = frozenset()


class FileFacts:
    """What one file defines, in any of its texts."""

    def __init__(self, source: Source, macros: MacroTable) -> None:
        self.file = source.file
        self.found: list[Found] = []
        self.declared_stubs: set[str] = set()
        self.registrations: dict[Registration, None] = {}
        seen: dict[tuple[int | None, str, str], list[Found]] = {}
        for text in source.texts:
            known = dict(seen)
            for one in self._read(macros.expanded(text, source.file)):
                place = one.row.line, one.row.name, one.row.parameters
                if place not in known:
                    seen.setdefault(place, []).append(one)
                    self.found.append(one)
                    continue
                for twin in known[place]:  # in another branch it may call others
                    twin.calls |= one.calls
        self.found.sort(key=lambda one: one.row.line or 0)

    def _read(self, text: str) -> Iterator[Found]:
        text = _STRUCTURED.sub(_structured_head, text)
        text = "".join(self._without_dispatch(text))
        code = _FOREIGN.sub(lambda match: spaces(match.group()), text.replace("__global__", "register  "))
        code = _MISREAD.sub(lambda match: "==" if match[1] is None else "0".rjust(len(match.group())), code)
        code = _without_bodies("".join(_without_attributes(code)))
        tree = _PARSER.parse(code.encode("ascii", "replace"))
        return _Reader(self.file, text).definitions(tree.root_node)

    def _without_dispatch(self, text: str) -> Iterator[str]:
        """Parts of a text in which stubs are declared as variables, and registrations are gone."""
        position = 0
        for match in _DISPATCH.finditer(text):
            if match.start() < position:
                continue
            yield text[position : match.start()]
            position = closing(text, match.end())
            arguments = split_arguments(text[match.end() : position - 1])
            macro = match[1]
            if macro.startswith("DE"):
                self.declared_stubs.add(arguments[0 if macro == "DEFINE_DISPATCH" else -1])
            if macro == "DEFINE_DISPATCH":
                yield f"dispatch_stub {arguments[0]};"
            elif macro == "jiterator_stringify":  # a text
                yield "0"
            elif "REGISTER" in macro:
                named = _FUNCTION_NAME.match(arguments[-1]) if len(arguments) > 1 else None
                function = named[1] if named and named[1] != "nullptr" else ""
                line = text.count("\n", 0, match.start()) + 1
                key = _dispatch_key(macro, self.file)
                self.registrations[Registration(arguments[0], key, function, self.file, line)] = None
            yield "\n" * text.count("\n", match.start(), position)
        yield text[position:]


def _structured_head(match: re.Match[str]) -> str:
    kind = "structured_function" if match[1] == "IMPL" else "structured_check"
    name = "__DOT__".join(part.strip() for part in match[2].split(","))
    return f"{kind} {name}" + "\n" * match.group().count("\n")


def _dispatch_key(macro: str, file: str) -> str:
    """The key a macro registers for. REGISTER_DISPATCH has it from the compiler: nvcc's files mean CUDA."""
    device = macro.removeprefix("ALSO_").removeprefix("REGISTER_").removesuffix("DISPATCH").rstrip("_")
    if device in _CPU_ARCHITECTURES:
        return "CPU"
    if device:
        return "PrivateUse1" if device == "PRIVATEUSE1" else device
    if file.endswith((".cu", ".cuh")):
        return "CUDA"
    return "MPS" if file.endswith(".mm") else "CPU"


def _without_attributes(text: str) -> Iterator[str]:
    position = 0
    for match in _ATTRIBUTE.finditer(text):
        if match.start() >= position:
            yield text[position : match.start()]
            position = closing(text, match.end()) if match[1] else match.end()
            yield spaces(text[match.start() : position])
    yield text[position:]


_BRACE = re.compile(r"[{};]")
_BODY = re.compile(
    r"\)\s*(?:(?:const|noexcept|override|final|try|mutable|volatile|throw|&&?|[A-Z][A-Z0-9_]+)\s*|->[^;{}]*|:[^:;{}][^;{}]*\)\s*)*$"
)


def _without_bodies(code: str) -> str:
    """Without what stands in the braces behind round brackets, where the parser might lose its way.

    A semicolon behind such braces goes as well: with it they might be an initializer's.
    """
    pieces: list[str] = []
    position = start = depth = 0
    is_behind = False
    for match in _BRACE.finditer(code):
        at, brace = match.start(), match.group()
        if depth:
            depth += {"{": 1, "}": -1}.get(brace, 0)
            if not depth:
                pieces += (spaces(code[position:at]), brace)
                position = start = at + 1
                is_behind = True
            continue
        if brace == "{" and _BODY.search(code, start, at):
            pieces.append(code[position : at + 1])
            position, depth = at + 1, 1
        elif brace == ";" and is_behind and code[start:at].isspace() | (start == at):
            pieces += (code[position:at], " ")
            position = start = at + 1
            continue
        start, is_behind = at + 1, False
    return "".join([*pieces, code[position:]])


class _Reader:
    """Reads a syntax tree, whose text has the same offsets."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._text = file, text

    def definitions(self, root: Node) -> Iterator[Found]:
        """Those in a tree, but for those in bodies of functions."""
        waiting: list[tuple[Node, tuple[str, ...], Node | None]] = [(root, (), None)]
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
                    yield Found(
                        self._row("class", scope, plain, node, template, is_specialization=is_special)
                    )
                    scope, template = (*scope, self._words(plain)), None
                case "function_definition" if (found := self._function(node, scope, template)) is not None:
                    yield found
                    continue
                case "declaration" if self._words(node.child_by_field_name("type")) == "dispatch_stub":
                    name = node.child_by_field_name("declarator")
                    yield Found(self._row("stub", scope, name, name))
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

    def _names(self, template: Node | None) -> tuple[str, ...]:
        """Names of a template's parameters; a pack's ends in `...`, a parameter without one is ""."""
        parameters = () if template is None else template.named_children
        return tuple(
            self._words(_name_of(one)) + PACK * one.type.startswith("variadic") for one in parameters
        )

    def _unqualified(self, name: Node, scope: tuple[str, ...]) -> tuple[tuple[str, ...], Node]:
        while name.type != "operator_cast" and (inner := name.child_by_field_name("name")) is not None:
            outer = name.child_by_field_name("scope")
            if outer is not None:
                scope = (*scope, self._words(outer.child_by_field_name("name") or outer))
            name = inner
        return scope, name

    def _function(self, node: Node, scope: tuple[str, ...], template: Node | None) -> Found | None:
        body = next((one for one in node.children if one.type in _BODIES), None)
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type not in ("function_declarator", "operator_cast"):
            if declarator.type == "qualified_identifier":  # of a conversion
                scope, declarator = self._unqualified(declarator, scope)
                declarator = declarator if declarator.type == "operator_cast" else None
            else:  # a reference, a pointer, an array
                declarators = (one for one in declarator.children if one.type.endswith("declarator"))
                declarator = next(declarators, None)
        if declarator is None or body is None:
            return None
        name, parameters = declarator, declarator.child_by_field_name("parameters")
        if declarator.type == "function_declarator":
            scope, name = self._unqualified(declarator.child_by_field_name("declarator"), scope)
        result = self._words(node.child_by_field_name("type"))
        if not result and _MACRO_NAME.fullmatch(text := self._words(name)) and text not in scope:
            return None
        kind = "function"
        if result.startswith("structured_"):
            kind, scope = "structured", ("at::meta",) if result == "structured_check" else scope
        elif "__global__" in self._text[node.start_byte : name.start_byte]:
            kind = "kernel"
        row = self._row(
            kind, scope, name, node, template, parameters=self._types(parameters),
            is_specialization=template is not None and not template.named_children,
        )  # fmt: skip
        return Found(row, frozenset(_CALLED.findall(self._text, body.start_byte, body.end_byte)))

    def _row(
        self, kind: str, scope: tuple[str, ...], name: Node, node: Node, template: Node | None = None,
        *, parameters: str = "", is_specialization: bool = False,
    ) -> Definition:  # fmt: skip
        text = self._words(name).replace("__DOT__", ".")
        if name.type == "operator_cast":  # the brackets of `operator bool() const` are in it
            text = text.partition("()")[0]
        line, end_line = name.start_point.row + 1, node.end_point.row + 1
        return Definition(
            kind, text, "::".join(scope), self._file, line, end_line, self._names(template), parameters,
            is_specialization=is_specialization,
        )  # fmt: skip


def _name_of(parameter: Node) -> Node | None:
    match parameter.type:
        case "template_template_parameter_declaration":
            return _name_of(parameter.named_children[-1])
        case "optional_type_parameter_declaration":
            return parameter.child_by_field_name("name")
        case "type_parameter_declaration" | "variadic_type_parameter_declaration":
            return next((one for one in parameter.named_children if one.type == "type_identifier"), None)
    declarator = parameter.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "identifier":
        declarators = (
            one for one in declarator.named_children if one.type.endswith(("declarator", "identifier"))
        )
        declarator = next(declarators, None)
    return declarator


_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|typename|struct|class|constexpr|__restrict__|__restrict|C10_UNUSED|__grid_constant__)\b"
    r"|\[\[[^\]]*\]\]"
)
_NAMESPACES = re.compile(r"(?<![\w>])(?:::)?(?:at|c10|std|torch|native|caffe2)\s*::\s*(?=[A-Za-z_])")
_PASSING = re.compile(r"\s*&&?\s*")
_SPACE = re.compile(r"\s+")
_WRAPPED = re.compile(r"(\w+)\s*<(.*)>$", re.DOTALL)
_SCHEMA_SUFFIX = re.compile(r"(.*?)\s*(\?|\[\d*\])$", re.DOTALL)
_ALIAS_MARK = re.compile(r"\([a-z](?:\|[a-z])*!?(?:\s*->\s*[*a-z|!]+)?\)")
_SPELLINGS = {
    "int64_t": "int",
    "SymInt": "int",
    "double": "float",
    "string_view": "str",
    "string": "str",
    "IntArrayRef": "int[]",
    "SymIntArrayRef": "int[]",
    "DimVector": "int[]",
    "OptionalIntArrayRef": "int[]?",
    "OptionalSymIntArrayRef": "int[]?",
    "OptionalArrayRef<int64_t>": "int[]?",
    "TensorList": "Tensor[]",
    "ITensorListRef": "Tensor[]",
    "IOptTensorListRef": "Tensor?[]",
    "OptionalTensorRef": "Tensor?",
    "SparseTensor": "Tensor",
    "SparseCsrTensor": "Tensor",
    "OptionalScalarRef": "Scalar?",
    "DimnameList": "Dimname[]",
}
# All that a schema may say; other names in a definition are aliases.
_SCHEMA_WORDS = """
    Tensor int float bool str Scalar ScalarType Layout Device MemoryFormat Generator Dimname Storage Stream
    QScheme
"""
_SCHEMA_TYPES = frozenset(_SCHEMA_WORDS.split())
_WRAPPERS = {
    "optional": "?",
    "OptionalArrayRef": "[]?",
    "ArrayRef": "[]",
    "List": "[]",
    "vector": "[]",
    "IListRef": "[]",
    "array": "[]",
}


@lru_cache(maxsize=65536)
def coarse_type(parameter: str) -> str:
    text = _NAMESPACES.sub("", _QUALIFIERS.sub(" ", _ALIAS_MARK.sub("", parameter)))
    return _spelled(_SPACE.sub(" ", _PASSING.sub(" ", text)).strip()).replace(" ", "")


def _spelled(text: str) -> str:
    text = text.strip()
    if text in _SPELLINGS:
        return _SPELLINGS[text]
    if suffixed := _SCHEMA_SUFFIX.match(text):
        return _spelled(suffixed[1]) + ("?" if suffixed[2] == "?" else "[]")
    wrapped = _WRAPPED.match(text)
    if wrapped is None or wrapped[1] not in _WRAPPERS:
        return text
    return _spelled(split_arguments(wrapped[2])[0]) + _WRAPPERS[wrapped[1]]


def signature_distance(types: str, wanted: Sequence[str]) -> int | None:
    """How far a definition's coarse `types` are from those wanted, which may be C++ or schema types.

    0 if they are the same, 1 if they may be (a type is an alias that only its file knows), else None.
    """
    mine = types.split(", ") if types else []
    theirs = [coarse_type(parameter) for parameter in wanted]
    if mine == theirs:
        return 0
    if len(mine) != len(theirs):
        return None
    may_be = all(
        left == right or left.rstrip("?[]") not in _SCHEMA_TYPES
        for left, right in zip(mine, theirs, strict=True)
    )
    return 1 if may_be else None
