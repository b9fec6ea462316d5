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
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from opscope.provenance.native_functions import (
    Derivative,
    NativeFunction,
    OperatorTable,
    Place,
    Registered,
    Served,
)
from opscope.provenance.sources import (
    Definition,
    SourceIndex,
    StoredLines,
    is_compiled,
    only,
    place_of,
    split_name,
)
from torch_tables.definitions import is_member, signature_distance

# In a folder `torchgen/packaged` of a PyTorch installation.
YAML_FILES = ("autograd/derivatives.yaml", "ATen/native/native_functions.yaml", "ATen/native/tags.yaml")
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
    files = [str(packaged / name) for name in YAML_FILES]
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
    types = [str(argument.type) for argument in entry.func.schema_order_arguments()]
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


# Where the function that serves an operator lies in a release: what indexes, lines and binaries say. Indexes
# are of the release's source tree or its headers, and of the release nearest to it whose tree is at hand,
# from which lines move with the checks compiled into the libraries. A binary vetoes files.

# Folder → area; a file in none of them is "generic".
_AREAS = {
    **dict.fromkeys(("cuda", "cudnn"), "cuda"),
    **dict.fromkeys(("hip", "miopen"), "hip"),
    **dict.fromkeys(("mkl", "mkldnn"), "mkl"),
    **dict.fromkeys(("test", "templates"), "test"),
    **{name: name for name in ("cpu", "mps", "metal", "vulkan", "xpu", "nnapi", "xnnpack", "functorch")},
}
# Areas in which a key's functions may be defined, in order of preference; areas that are not named hold none.
# MIOpen's functions have CUDA entries too: stubs that raise.
_KEY_AREAS = {"CUDA": (("cuda",), ("generic",), ("hip",)), "CPU": (("generic", "cpu"), ("mkl", "xnnpack"))}
_COMPOSITE_AREAS = (("generic",), ("cuda", "cpu", "mkl", "vulkan", "metal", "xnnpack", "hip"))


def _area_of(file: str) -> str:
    if file.endswith((".cu", ".cuh")):
        return "cuda"
    return next((_AREAS[one] for one in reversed(file.split("/")[:-1]) if one in _AREAS), "generic")


def _nearest_to_key(definitions: Sequence[Definition], key: str) -> list[Definition]:
    """The definitions in the likeliest area for a dispatch key; [] if none is where one may be."""
    by_preference = _KEY_AREAS.get(key, _COMPOSITE_AREAS)
    found = ([one for one in definitions if _area_of(one.file) in areas] for areas in by_preference)
    return next(filter(None, found), [])


def native_function(
    index: SourceIndex, name: str, *, key: str = "CUDA", parameters: Sequence[str] | None = None
) -> Definition | None:
    """The native function that a dispatch entry names; None if unknown or ambiguous between files.

    Its line is None if the file holds several that fit. The key says where in the tree it may be defined,
    parameter types (C++ or schema) tell overloads apart.
    """
    scope, plain = split_name(name)
    kinds = ("function",) if key.startswith("Composite") else ("function", "structured")
    candidates = [
        row
        for row in index.named(plain)
        if row.kind in kinds
        and row.scope == (scope or "at::native")
        and not (row.template_parameters or row.is_specialization)  # no entry names a template
    ]
    if parameters is not None:
        # A structured function's may differ from its schema's: one of another signature comes last.
        distances = [
            2 if distance is None and row.kind == "structured" else distance
            for row in candidates
            for distance in (signature_distance(row.parameters, parameters),)
        ]
        nearest = min((distance for distance in distances if distance is not None), default=-1)
        candidates = [row for row, far in zip(candidates, distances, strict=True) if far == nearest]
    return only(candidates if scope else _nearest_to_key(candidates, key), ())


class Places:
    """Places in one release. `lines` say how far those of the second index moved."""

    def __init__(
        self,
        own: SourceIndex | None,
        neighbor: SourceIndex | None,
        lines: StoredLines | None,
        files: Mapping[str, Sequence[str]],
    ) -> None:
        self._indexes = [index for index in (own, neighbor) if index is not None]
        self._own, self._lines, self._files = own, lines, files

    def function(self, name: str, key: str, parameters: Sequence[str], backend: str) -> tuple[
        Place | None, dict[str, tuple[Registered, ...]], tuple[Registered, ...]
    ]:  # fmt: skip
        for index in self._indexes:
            found = native_function(index, name, key=key, parameters=parameters)
            if found is not None:
                place = self._vetoed(name, self._place(index, found))
                stubs = {stub: self._registered(stub, backend) for stub in found.stubs}
                return place, stubs, tuple(self._launched(index, one) for one in found.launchers)
        return self._vetoed(name, None), {}, ()

    def scalar_function(self, name: str) -> Place | None:
        for index in self._indexes:
            if found := index.functor(f"at::native::CUDAFunctor_{name}"):
                return self._place(index, found)
        return None

    def _place(self, index: SourceIndex, found: Definition) -> Place:
        return place_of(found, self._lines, is_own=index is self._own)

    def _vetoed(self, name: str, place: Place | None) -> Place | None:
        """What an index says, held against the release's binary.

        A file that the binary supports is known as well as the binary; one that it contradicts is dropped,
        and so is its line. It says nothing of headers: their functions lie in the units that include them.
        """
        files = self._files.get(name, ())
        if not files or (place is not None and not is_compiled(place.file)):
            return place
        if place is not None and place.file in files:
            return replace(place, file_from="release")
        return Place(files[0], "release") if len(files) == 1 else None

    def _registered(self, stub: str, backend: str) -> tuple[Registered, ...]:
        """What is registered for a dispatch stub: a function, or the place where something else is."""
        registered = []
        for index in self._indexes:
            for entry in index.registrations:
                if (entry.stub, entry.key) != (stub, backend):
                    continue
                rows = [row for row in index.named(entry.function) if row.kind in ("function", "kernel")]
                own = [row for row in rows if row.file == entry.file and not is_member(row)]
                found = only(own or [row for row in rows if not is_compiled(row.file)], ())
                found = found or Definition("stub", stub, "", entry.file, entry.line, entry.line)
                place = self._place(index, found)
                registered.append(Registered(found.name, entry.file, entry.function, place))
        return tuple(registered)

    def _launched(self, index: SourceIndex, name: str) -> Registered:
        rows = [row for row in index.named(name) if row.file.endswith(".cu")]
        found = only([row for row in rows if row.kind in ("function", "structured", "kernel")], ())
        if found is None:
            return Registered(name, "", name, None)
        return Registered(name, found.file, name, self._vetoed(found.name, self._place(index, found)))
