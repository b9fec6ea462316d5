"""derivatives.yaml → backward nodes: names, formulas, what these call, the functions that record them.

Source: torchgen/packaged/autograd/load_derivatives.py (names), torchgen/api/autograd.py (which functions
share a node, list operators).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from opscope.errors import InputError
from opscope.provenance.operators.dispatch import view_copy_of
from opscope.provenance.operators.schema import Derivative, Kind, NativeFunction, Schema, schema_of
from opscope.provenance.packaged import lazy_pattern
from torch_tables.declarations import LINE, read_mappings, text_of, words

_CALL = lazy_pattern(r"(?P<scope>(?:\w+::)*)(?P<name>[A-Za-z_]\w*)\s*\(")
_MEMBER = lazy_pattern(r"(?:\.|->)\s*$")
_LITERAL = lazy_pattern(r'"[^"]*"')
_TEMPLATE_CALL = lazy_pattern(r"(\w+)<[^<>()]*>\s*(?=\()")
# Scopes in which operators are called; a name in any other (`std::`, `c10::`) is none.
_OPERATOR_SCOPES = {"", "at::"}
_NO_FUNCTIONS = lazy_pattern(r"if|return|sizeof|not_implemented(_list)?|[A-Z]\w*")  # the last are types


def called_functions(
    formula: str, operators: Collection[str], declared: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Operators (C++ names) and other free functions that a formula calls, each once and in order.

    Of the functions `declared` in native_functions.yaml, those that never reach the dispatcher are left out.
    """
    found: dict[str, None] = {}
    helpers: dict[str, None] = {}
    for call in _CALL.finditer(_TEMPLATE_CALL.sub(r"\1", _LITERAL.sub('""', formula))):
        scope, name = call["scope"], call["name"].removesuffix("_symint")
        if scope not in _OPERATOR_SCOPES:
            continue
        if name in operators:
            found[name] = None
        elif not (
            name in declared or _MEMBER.search(call.string[: call.start()]) or _NO_FUNCTIONS.fullmatch(name)
        ):
            helpers[call["name"]] = None
    return tuple(found), tuple(helpers)


_DEFAULT = "Default"
_NOT_FORMULAS = {"name", "dispatch", "output_differentiability", LINE}
_FOREACH = "_foreach_"
# List operators whose reference takes one argument more, which they leave at its default.
_SHORTER_FOREACH = lazy_pattern(r"_foreach_(?:add|sub)_?\.Scalar(?:List)?")


class _Definition(msgspec.Struct, frozen=True):
    """One item of derivatives.yaml. `nodes` is by dispatch key; no node where nothing is differentiable."""

    entry: NativeFunction
    line: int
    formulas: dict[str, dict[str, str]]
    nodes: dict[str, str]
    reference: str | None = None


def backward_nodes(path: Path, functions: Sequence[NativeFunction]) -> list[Derivative]:
    """The nodes that a derivatives.yaml makes of these functions, in its order."""
    by_schema = {entry.schema: entry for entry in functions}
    counts: Counter[str] = Counter()
    definitions = []
    for item in read_mappings(path):
        try:
            definitions.append(_definition(item, by_schema, counts))
        except ValueError as error:
            raise InputError(f"line {item[LINE]}: {error}", source=path) from error

    # A view's derivative serves its copying variant too, unless that has its own.
    by_name = {entry.qualified_name: entry for entry in functions}
    own = {definition.entry.schema for definition in definitions}
    for definition in tuple(definitions):
        copy = by_name.get(view_copy_of(definition.entry) or "")
        if copy is not None and copy.schema not in own:
            nodes = {key: f"{node}_copy" for key, node in definition.nodes.items()}
            definitions.append(_Definition(copy, definition.line, definition.formulas, nodes))

    matcher = _Matcher(definitions)
    forward: dict[str, dict[str, None]] = {
        node: {definition.entry.qualified_name: None}
        for definition in definitions
        for node in definition.nodes.values()
    }
    for entry in functions:
        found = matcher.definition_of(entry)
        if found is None:
            continue
        if found.reference is not None:
            definitions.append(found)
        for node in found.nodes.values():
            forward.setdefault(node, {})[entry.qualified_name] = None
    return _derivatives(definitions, forward, functions)


def _derivatives(
    definitions: Iterable[_Definition],
    forward: Mapping[str, Iterable[str]],
    functions: Iterable[NativeFunction],
) -> list[Derivative]:
    operators: dict[str, str] = {}  # of functions that reach the dispatcher, by C++ name
    declared: set[str] = set()
    bypassing: set[str] = set()
    for entry in functions:
        base = entry.name.rpartition("::")[2]
        for name in (f"{base}_out", f"{base}_outf") if schema_of(entry).out else (base,):
            declared.add(name)
            operators[name] = entry.name
            if entry.has_manual_binding:
                bypassing.add(name)
    for name in bypassing:
        del operators[name]
    derivatives = []
    for definition in definitions:
        for key, node in definition.nodes.items():
            called: dict[str, None] = {}
            helpers: dict[str, None] = {}
            for formula in definition.formulas[key].values():
                found, other = called_functions(formula, operators, declared)
                called.update((operators[name], None) for name in found)
                helpers.update((name, None) for name in other)
            derivatives.append(
                Derivative(
                    node=node,
                    forward=tuple(forward.get(node, ())),
                    formulas=definition.formulas[key],
                    functions=tuple(called),
                    helpers=tuple(helpers),
                    dispatch_key=key,
                    yaml_line=definition.line,
                    reference=definition.reference,
                )
            )
    return derivatives


def _definition(
    item: Mapping[str, Any], by_schema: Mapping[str, NativeFunction], counts: Counter[str]
) -> _Definition:
    specification = text_of(item, "name") or ""
    entry = by_schema.get(specification)
    if entry is None:
        raise ValueError(f"no native function has the schema {specification!r}")
    dispatch = item.get("dispatch", {_DEFAULT: item})
    if not isinstance(dispatch, dict) or not all(
        isinstance(v, dict) for k, v in dispatch.items() if k != LINE
    ):
        raise ValueError("'dispatch' is not a mapping of mappings")
    formulas = {
        key: _backward_formulas(given, schema_of(entry)) for key, given in dispatch.items() if key != LINE
    }
    nodes = {}
    for key, given in formulas.items():
        if given:
            camel = "".join(part.title() for part in schema_of(entry).name.name.split("_"))
            prefix = f"{camel}Backward".replace("ForwardBackward", "Backward")
            prefix += "" if key == _DEFAULT else key
            nodes[key] = f"{prefix}{counts[prefix]}"
            counts[prefix] += 1
    return _Definition(entry, item[LINE], formulas, nodes)


def _backward_formulas(given: Mapping[str, Any], schema: Schema) -> dict[str, str]:
    """The formulas for inputs, less those for outputs (of forward-mode differentiation)."""
    inputs = {argument.name for argument in schema.arguments}
    formulas = {}
    for names, formula in given.items():
        if names in _NOT_FORMULAS or not isinstance(formula, str):
            continue
        if words(names)[:1] and words(names)[0] in inputs and formula.strip().lower() != "non_differentiable":
            formulas[", ".join(words(names))] = " ".join(formula.split())
    return formulas


class _Matcher:
    """Finds the definition a function uses: its own, or that of another variant of it."""

    def __init__(self, definitions: Iterable[_Definition]) -> None:
        self._own = {definition.entry.schema: definition for definition in definitions}
        self._functional: dict[object, _Definition] = {}
        self._other: dict[object, _Definition] = {}
        for definition in definitions:
            schema = schema_of(definition.entry)
            (self._functional if schema.kind is Kind.FUNCTIONAL else self._other)[schema.signature] = (
                definition
            )

    def definition_of(self, entry: NativeFunction) -> _Definition | None:
        """The definition; for a list operator without one, it is derived from its reference."""
        if entry.schema in self._own:
            return self._own[entry.schema]
        schema = schema_of(entry)
        if schema.kind in {Kind.OUT, Kind.SCRATCH}:  # never differentiable
            return None
        is_inplace = schema.kind is Kind.INPLACE
        if not schema.name.name.startswith(_FOREACH):
            found = self._functional.get(schema.signature)
            return self._other.get(schema.signature) if found is None and entry.generated else found
        for definitions in (self._functional, self._other) if is_inplace else (self._functional,):
            for one in definitions.values():
                if _DEFAULT not in one.nodes or not _is_reference(schema, one):
                    continue
                if is_inplace:  # it records the reference's node for each tensor
                    return one
                formulas = {_DEFAULT: one.formulas[_DEFAULT]}
                nodes = {_DEFAULT: f"Foreach{one.nodes[_DEFAULT]}{entry.overload}"}
                return _Definition(entry, one.line, formulas, nodes, one.entry.qualified_name)
        return None


def _is_reference(schema: Schema, definition: _Definition) -> bool:
    reference = schema_of(definition.entry)
    if schema.name.base.removeprefix(_FOREACH) != reference.name.base:
        return False
    inputs = (*reference.positional, *reference.without_tensor_options)
    is_shorter = _SHORTER_FOREACH.fullmatch(str(schema.name)) is not None
    if len(schema.inputs) != len(inputs) and not is_shorter:
        return False
    pairs = zip(schema.inputs, inputs, strict=False)
    return all(one.type in {mine.type, mine.type.removesuffix("[]")} for mine, one in pairs)
