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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from opscope.model.queries import grouped
from opscope.provenance import native_functions as tables
from opscope.provenance import sources
from opscope.provenance.native_functions import OperatorTable, Place, Registered, Served
from opscope.provenance.sources import Definition, SourceIndex, is_compiled, only
from torch_tables.definitions import CALLABLE, is_member, signature_distance
from torch_tables.preprocess import PYTORCH

# In a folder `torchgen/packaged` of a PyTorch installation.
YAML_FILES = ("autograd/derivatives.yaml", "ATen/native/native_functions.yaml", "ATen/native/tags.yaml")
BACKENDS = ("CUDA", "CPU")
_EXPLICIT, _IMPLICIT = "CompositeExplicitAutograd", "CompositeImplicitAutograd"
_NON_FUNCTIONAL = "CompositeExplicitAutogradNonFunctional"
# Given to all operators by releases that have it: it says nothing.
_EVERYWHERE = {"pt2_compliant_tag"}


def build_operator_table(packaged: Path, places: Places, **facts: Any) -> OperatorTable:
    """The table of a PyTorch installation, from the yaml files it ships. Takes some seconds."""
    sys.path.insert(0, str(packaged.resolve().parents[1]))
    torchgen = importlib.import_module("torchgen.gen")
    files = [str(packaged / name) for name in YAML_FILES]
    parsed = torchgen.parse_native_yaml(*files[1:])
    by_name = {one.func.name: one for one in parsed.native_functions}
    kernels = {str(key): index.index for key, index in parsed.backend_indices.items()}

    def served_on(backend: str, one: Any) -> Served | None:
        """What the dispatcher calls for a function on a backend: its own, a delegate's, a composite."""
        name, entry, key, kind = one.func.name, one, backend, "native"
        if name in kernels[backend]:
            pass
        elif one.structured_delegate in kernels[backend]:
            entry = by_name[one.structured_delegate]
        elif name in kernels[_NON_FUNCTIONAL]:
            # torchgen writes the kernel that copies the result of a view.
            is_copy = "view_copy" in one.tags and str(name.name).endswith("_copy")
            key, kind = _NON_FUNCTIONAL, "generated" if is_copy else "composite_explicit"
        elif one.structured_delegate is not None and one.func.kind().name != "out":
            # It writes one in terms of the delegate, which no backend key may name.
            key, kind = _NON_FUNCTIONAL, "generated"
        elif name in kernels[_EXPLICIT]:
            key, kind = _EXPLICIT, "generated" if "generated" in one.tags else "composite_explicit"
        elif name in kernels[_IMPLICIT]:
            key, kind = _IMPLICIT, "composite_implicit"
        else:
            return None
        overload, found = entry.func.name.overload_name, kernels[key].get(entry.func.name)
        if found is None:
            return Served(key, None, kind, overload)
        function = found.kernel
        if key == backend and entry.ufunc_inner_loop:
            header = f"aten/src/ATen/native/ufunc/{entry.func.name.name}.h"
            place = places.scalar_function(f"at::native::CUDAFunctor_{entry.func.name.name}")
            return Served(key, function, "ufunc", overload, header, place)
        types = [str(argument.type) for argument in entry.func.schema_order_arguments()]
        return Served(key, function, kind, overload, None, *places.function(function, key, types, backend))

    # Those of the yaml as they stand there, then those it lists as generated.
    listed = [str(name) for one in parsed.native_functions for name in one.autogen]
    order = {name: position for position, name in enumerate(listed, 1)}
    functions = sorted(
        parsed.native_functions,
        key=lambda one: order.get(str(one.func.name), 1) if "generated" in one.tags else 0,
    )
    rows = tuple(
        tables.NativeFunction(
            f"{one.namespace}::{one.func.name.name}",
            one.func.name.overload_name,
            str(one.func),
            {backend: served for backend in BACKENDS if (served := served_on(backend, one))},
            structured=one.structured,
            structured_delegate=one.structured_delegate and str(one.structured_delegate),
            autogen=tuple(map(str, one.autogen)),
            tags=tuple(sorted(one.tags - _EVERYWHERE)),
            generated="generated" in one.tags,
            yaml_line=one.loc.line,
        )
        for one in functions
    )
    nodes = tuple(_derivatives(torchgen, files, list(parsed.native_functions)))
    return OperatorTable(2, functions=rows, derivatives=nodes, **facts)


def _derivatives(torchgen: Any, files: list[str], functions: list[Any]) -> Iterable[tables.Derivative]:
    load = importlib.import_module("torchgen.packaged.autograd.load_derivatives").load_derivatives
    match = importlib.import_module("torchgen.api.autograd").match_differentiability_info
    infos, _ = load(*files)
    items = yaml.load(Path(files[0]).read_text(encoding="utf-8"), torchgen.LineLoader)
    lines = {" ".join(item["name"].split()): item["__line__"] for item in items}
    formulas: dict[str, dict[str, str]] = {}
    at: dict[str, int] = {}
    forward: dict[str, dict[str, None]] = defaultdict(dict)
    for schema, by_key in infos.items():
        names = [argument.name for argument in schema.arguments.flat_all]
        for info in (info for info in by_key.values() if info.op is not None):
            ordered = sorted(info.derivatives, key=lambda one: names.index(one.var_names[0]))
            written = {", ".join(one.var_names): one.original_formula for one in ordered}
            formulas[info.op] = {inputs: " ".join(text.split()) for inputs, text in written.items()}
            # The copying variant of a view has the view's.
            at[info.op] = lines.get(str(schema)) or at[info.op.removesuffix("_copy")]
            forward[info.op][f"{info.func.namespace}::{info.func.func.name}"] = None
    for matched in match(functions, infos):
        for info in (matched.info or {}).values():
            if info.op is None or matched.func.func.kind().name in ("out", "scratch"):
                continue
            if info.op not in formulas:  # of a list operator: those of its function of one tensor, for each
                reference = info.op.removeprefix("Foreach").removesuffix(matched.func.func.name.overload_name)
                formulas[info.op], at[info.op] = formulas[reference], at[reference]
            forward[info.op][f"{matched.func.namespace}::{matched.func.func.name}"] = None
    # Operators by their C++ names; those of the names whose functions do not reach the dispatcher.
    operators: dict[str, str] = {}
    bypassing: set[str] = set()
    for one in functions:
        base = str(one.func.name.name)
        named = (f"{base}_out", f"{base}_outf") if one.func.arguments.out else (base,)
        operators |= dict.fromkeys(named, f"{one.namespace}::{base}")
        bypassing.update(named if one.manual_cpp_binding else ())
    for node, own in formulas.items():
        called = (name for formula in own.values() for name in called_operators(formula, operators))
        reached = dict.fromkeys(operators[name] for name in called if name not in bypassing)
        yield tables.Derivative(node, tuple(forward[node]), own, tuple(reached), at[node])


_CALL = re.compile(r"((?:\w+::)*)([A-Za-z_]\w*)(?:<[^<>()]*>)?\s*\(")


def called_operators(formula: str, operators: Collection[str]) -> list[str]:
    """Operators (C++ names) that a formula calls, each once and in order; names in `std::` are none."""
    calls = _CALL.findall(re.sub(r'"[^"]*"', "", formula))
    names = (name.removesuffix("_symint") for scope, name in calls if scope in ("", "at::"))
    return list(dict.fromkeys(name for name in names if name in operators))


# Where the function that serves an operator lies in a release: what indexes, lines and binaries say. Indexes
# are of the release's source tree or its headers, and of the release nearest to it whose tree is at hand,
# from which lines move with the checks compiled into the libraries. A binary vetoes files.

_AREAS = {folder: area for area, folders in PYTORCH["areas"].items() for folder in folders.split()}


def _area_of(file: str) -> str:
    if file.endswith((".cu", ".cuh")):
        return "cuda"
    return next((_AREAS[one] for one in reversed(file.split("/")[:-1]) if one in _AREAS), "generic")


def native_function(
    index: SourceIndex, name: str, *, key: str = "CUDA", parameters: Sequence[str] | None = None
) -> Definition | None:
    """The native function that a dispatch entry names; None if unknown or ambiguous between files.

    Its line is None if the file holds several that fit. The key says where in the tree it may be defined,
    parameter types (C++ or schema) tell overloads apart.
    """
    scope, plain = sources.split_name(name)
    kinds = ("function",) if key.startswith("Composite") else ("function", "structured")
    named = (row for row in index.named(plain) if row.kind in kinds and row.scope == (scope or "at::native"))
    # No entry names a template.
    candidates = [row for row in named if not (row.template_parameters or row.is_specialization)]
    if parameters is not None:
        near = grouped((signature_distance(row.parameters, parameters), row) for row in candidates)
        # A structured function's may differ from its schema's: one of another signature comes last.
        near[2] = [row for row in near[2] if row.kind == "structured"]
        candidates = near[0] or near[1] or near[2]
    areas = PYTORCH["key_areas"].get(key, PYTORCH["key_areas"]["composite"])
    likely = ([row for row in candidates if _area_of(row.file) in area.split()] for area in areas)
    return only(next(filter(None, likely), []), ())


@dataclass(frozen=True)
class Places:
    """Places in one release."""

    own: SourceIndex | None
    neighbor: SourceIndex | None
    lines: sources.StoredLines | None  # how far those of the neighbor moved
    files: Mapping[str, Sequence[str]]  # by function, as the binary says

    @property
    def _indexes(self) -> list[SourceIndex]:
        return [index for index in (self.own, self.neighbor) if index is not None]

    def function(self, name: str, key: str, parameters: Sequence[str], backend: str) -> tuple[
        Place | None, dict[str, tuple[Registered, ...]], tuple[Registered, ...]
    ]:  # fmt: skip
        for index in self._indexes:
            found = native_function(index, name, key=key, parameters=parameters)
            if found is not None:
                stubs = {stub: self.registered(stub, backend) for stub in found.stubs}
                launched = tuple(self._launched(index, one) for one in found.launchers)
                return self._vetoed(name, self._place(index, found)), stubs, launched
        return self._vetoed(name, None), {}, ()

    def scalar_function(self, name: str) -> Place | None:
        found = ((one, one.functor(name)) for one in self._indexes)
        return next((self._place(index, row) for index, row in found if row), None)

    def _place(self, index: SourceIndex, found: Definition) -> Place:
        return sources.place_of(found, self.lines, is_own=index is self.own)

    def _vetoed(self, name: str, place: Place | None) -> Place | None:
        """What an index says, held against the release's binary.

        A file that the binary supports is known as well as the binary; one that it contradicts is dropped,
        and so is its line. It says nothing of headers: their functions lie in the units that include them.
        """
        files = self.files.get(name, ())
        if not files or (place is not None and not is_compiled(place.file)):
            return place
        if place is not None and place.file in files:
            return replace(place, file_from="release")
        return Place(files[0], "release") if len(files) == 1 else None

    def registered(self, stub: str, backend: str) -> tuple[Registered, ...]:
        """What is registered for a dispatch stub: a function, or the place where something else is."""
        registered = []
        for index in self._indexes:
            known = (one for one in index.registrations if one[:2] == (stub, backend))
            for _, _, function, file, line in known:
                rows = [row for row in index.named(function) if row.kind in ("function", "kernel")]
                own = [row for row in rows if row.file == file and not is_member(row)]
                found = only(own or [row for row in rows if not is_compiled(row.file)], ())
                found = found or Definition("stub", stub, "", file, line, line)
                registered.append(Registered(found.name, file, function, self._place(index, found)))
        return tuple(registered)

    def _launched(self, index: SourceIndex, name: str) -> Registered:
        found = only([of for of in index.named(name) if of.file.endswith(".cu") and of.kind in CALLABLE], ())
        place = found and self._vetoed(name, self._place(index, found))
        return Registered(name, found.file if found else "", name, place)
