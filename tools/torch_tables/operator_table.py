"""The operator table of a PyTorch release, by the torchgen that it ships: entries, what serves them, nodes.

torchgen reads the yaml files and generates the variants; here its results become rows. Which key serves a
backend is the dispatcher's own rule.

Source: aten/src/ATen/core/dispatch/OperatorEntry.cpp, "DispatchTable computation";
c10/core/DispatchKeySet.cpp; torchgen/dest/register_dispatch_key.py (what it writes for structured entries).
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from opscope.provenance.operators.table import Derivative, NativeFunction, OperatorTable, Served, parse_schema
from torch_tables.places import Places

# In a folder `torchgen/packaged` of a PyTorch installation.
NATIVE_FUNCTIONS_YAML = "ATen/native/native_functions.yaml"
TAGS_YAML = "ATen/native/tags.yaml"
DERIVATIVES_YAML = "autograd/derivatives.yaml"
BACKENDS = ("CUDA", "CPU")
_EXPLICIT, _IMPLICIT = "CompositeExplicitAutograd", "CompositeImplicitAutograd"
_NON_FUNCTIONAL = "CompositeExplicitAutogradNonFunctional"
# Given to all operators by releases that have it: it says nothing.
_EVERYWHERE = {"pt2_compliant_tag"}


def build_operator_table(
    packaged: Path, places: Places, *, version: str | None = None, git_version: str | None = None,
    neighbor_git_version: str | None = None,
) -> OperatorTable:  # fmt: skip
    """The table of a PyTorch installation, from the yaml files it ships. Takes some seconds."""
    torchgen = _imported(packaged)
    files = [str(packaged / name) for name in (DERIVATIVES_YAML, NATIVE_FUNCTIONS_YAML, TAGS_YAML)]
    parsed = torchgen("gen").parse_native_yaml(*files[1:])
    dispatch: dict[str, dict[str, str]] = defaultdict(dict)
    for key, index in parsed.backend_indices.items():
        for name, kernel in index.index.items():
            dispatch[str(name)][str(key)] = kernel.kernel
    by_name = {str(one.func.name): one for one in parsed.native_functions}
    listed = [str(name) for one in parsed.native_functions for name in one.autogen]
    order = {name: position for position, name in enumerate(listed)}
    functions = tuple(
        NativeFunction(
            name=f"{one.namespace}::{one.func.name.name}",
            overload=one.func.name.overload_name,
            schema=str(one.func),
            served={
                backend: served
                for backend in BACKENDS
                if (served := _served(one, backend, by_name, dispatch, places)) is not None
            },
            structured=one.structured,
            structured_delegate=one.structured_delegate and str(one.structured_delegate),
            autogen=tuple(map(str, one.autogen)),
            tags=tuple(sorted(one.tags - _EVERYWHERE)),
            generated="generated" in one.tags,
            yaml_line=one.loc.line,
        )
        for one in sorted(  # those of the yaml as they stand there, then those it lists as generated
            parsed.native_functions,
            key=lambda one: order.get(str(one.func.name), 0) + 1 if "generated" in one.tags else 0,
        )
    )
    derivatives = _derivatives(torchgen, files, parsed.native_functions)
    return OperatorTable(2, version, git_version, functions, tuple(derivatives), neighbor_git_version)


def _imported(packaged: Path) -> Any:
    folder = str(packaged.resolve().parents[1])
    sys.path.insert(0, folder)
    try:
        importlib.import_module("torchgen.gen")
        return lambda name: importlib.import_module(f"torchgen.{name}")
    finally:
        sys.path.remove(folder)


def _served(
    one: Any,
    backend: str,
    by_name: Mapping[str, Any],
    dispatch: Mapping[str, Mapping[str, str]],
    places: Places,
) -> Served | None:
    """What the dispatcher calls for a function on a backend: its own, a delegate's, a composite."""
    own = dispatch[str(one.func.name)]
    delegate = by_name.get(str(one.structured_delegate))
    entry, key, kind = one, backend, "native"
    if backend not in own and delegate is not None and backend in dispatch[str(delegate.func.name)]:
        entry = delegate
    elif backend not in own:
        found = _composite(one, own)
        if found is None:
            return None
        key, kind = found
    function = dispatch[str(entry.func.name)].get(key)
    overload = entry.func.name.overload_name
    if key == backend and entry.ufunc_inner_loop:
        name = str(entry.func.name.name)
        header = f"aten/src/ATen/native/ufunc/{name}.h"
        return Served(key, function, "ufunc", overload, header, places.scalar_function(name))
    if function is None:
        return Served(key, None, kind, overload)
    types = [argument.type for argument in parse_schema(str(entry.func)).arguments]
    return Served(key, function, kind, overload, None, *places.function(function, key, types, backend))


def _composite(one: Any, own: Mapping[str, str]) -> tuple[str, str] | None:
    is_generated = "generated" in one.tags
    is_copy = "view_copy" in one.tags and str(one.func.name.name).endswith("_copy")
    if _NON_FUNCTIONAL in own:
        # torchgen writes the kernel that copies the result of a view.
        return _NON_FUNCTIONAL, "generated" if is_copy else "composite_explicit"
    # It writes one in terms of the delegate, which no backend key may name.
    if one.structured_delegate is not None and one.func.kind().name != "out":
        return _NON_FUNCTIONAL, "generated"
    if _EXPLICIT in own:
        return _EXPLICIT, "generated" if is_generated else "composite_explicit"
    return (_IMPLICIT, "composite_implicit") if _IMPLICIT in own else None


def _derivatives(torchgen: Any, files: list[str], functions: Iterable[Any]) -> Iterable[Derivative]:
    infos, _ = torchgen("packaged.autograd.load_derivatives").load_derivatives(*files)
    lines = _lines(Path(files[0]).read_text(encoding="utf-8"))
    formulas: dict[str, dict[str, str]] = {}
    at: dict[str, int] = {}
    forward: dict[str, list[str]] = defaultdict(list)
    for schema, by_key in infos.items():
        names = [argument.name for argument in schema.arguments.flat_all]
        for info in by_key.values():
            if info.op is not None:
                ordered = sorted(info.derivatives, key=lambda one: names.index(one.var_names[0]))
                formulas[info.op] = {
                    ", ".join(one.var_names): " ".join(one.original_formula.split()) for one in ordered
                }
                # The copying variant of a view has the view's.
                at[info.op] = lines.get(str(schema)) or at[info.op.removesuffix("_copy")]
                forward[info.op].append(_qualified(info.func))
    for matched in torchgen("api.autograd").match_differentiability_info(list(functions), infos):
        for info in (matched.info or {}).values():
            if info.op is None or matched.func.func.kind().name in ("out", "scratch"):
                continue
            if info.op not in formulas:  # of a list operator: those of its function of one tensor, for each
                reference = info.op.removeprefix("Foreach").removesuffix(matched.func.func.name.overload_name)
                formulas[info.op], at[info.op] = formulas[reference], at[reference]
            if _qualified(matched.func) not in forward[info.op]:
                forward[info.op].append(_qualified(matched.func))
    operators, declared = _cpp_names(functions)
    for node, own in formulas.items():
        called = (name for formula in own.values() for name in called_operators(formula, operators))
        names = dict.fromkeys(operators[name] for name in called if name in declared)
        yield Derivative(node, tuple(forward[node]), own, tuple(names), at[node])


def _qualified(function: Any) -> str:
    return f"{function.namespace}::{function.func.name}"


def _lines(text: str) -> Mapping[str, int]:
    """Line of each item of derivatives.yaml, from 1, by its schema."""
    found = re.finditer(r"^- name: (.*)$", text, re.MULTILINE)
    return {" ".join(match[1].split()): text.count("\n", 0, match.start()) + 1 for match in found}


def _cpp_names(functions: Iterable[Any]) -> tuple[dict[str, str], set[str]]:
    """Operators by their C++ names; and those of the names whose functions reach the dispatcher."""
    operators: dict[str, str] = {}
    bypassing: set[str] = set()
    for one in functions:
        base = str(one.func.name.name)
        for name in (f"{base}_out", f"{base}_outf") if one.func.arguments.out else (base,):
            operators[name] = f"{one.namespace}::{base}"
            if one.manual_cpp_binding:
                bypassing.add(name)
    return operators, set(operators) - bypassing


_CALL = re.compile(r"(?P<scope>(?:\w+::)*)(?P<name>[A-Za-z_]\w*)\s*\(")
_LITERAL = re.compile(r'"[^"]*"')
_TEMPLATE_CALL = re.compile(r"(\w+)<[^<>()]*>\s*(?=\()")


def called_operators(formula: str, operators: Collection[str]) -> list[str]:
    """Operators (C++ names) that a formula calls, each once and in order; names in `std::` are none."""
    calls = _CALL.finditer(_TEMPLATE_CALL.sub(r"\1", _LITERAL.sub('""', formula)))
    names = (call["name"].removesuffix("_symint") for call in calls if call["scope"] in ("", "at::"))
    return list(dict.fromkeys(name for name in names if name in operators))
