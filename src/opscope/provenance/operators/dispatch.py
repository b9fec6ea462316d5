"""[dispatch] Which function the dispatcher calls for a backend: the backend's own, a structured delegate's, a composite.

Source: aten/src/ATen/core/dispatch/OperatorEntry.cpp, "DispatchTable computation";
c10/core/DispatchKeySet.cpp; torchgen/dest/register_dispatch_key.py (what it writes for structured entries).

[chain] The way from an operator to the function that serves it, as links a reader can follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opscope.provenance.operators.declarations import COMPOSITE_IMPLICIT, UFUNC_KEYS
from opscope.provenance.operators.derivatives import view_copy_of
from opscope.provenance.operators.overloads import Resolved
from opscope.provenance.operators.schema import Kind, NativeFunction, OperatorName, parameter_types, schema_of
from opscope.provenance.operators.table import OperatorTable

# ---- dispatch

DispatchKind = Literal["native", "ufunc", "generated", "composite_explicit", "composite_implicit"]

_EXPLICIT = "CompositeExplicitAutograd"
_NON_FUNCTIONAL = "CompositeExplicitAutogradNonFunctional"
_IMPLICIT_NESTED = "CompositeImplicitAutogradNestedTensor"
_NESTED = "NestedTensor"
# Keys whose kernels a structured delegate provides.
_STRUCTURED_KEYS = frozenset(("CPU", "CUDA", "MPS", "XPU", "MTIA"))
# Backends without CompositeExplicitAutogradNonFunctional kernels; `SparseCsr…` has them.
_SPARSE = frozenset(("SparseCPU", "SparseCUDA", "SparseMPS", "SparseXPU", "SparseMeta"))


@dataclass(frozen=True)
class Dispatch:
    """The function that serves an entry on a backend.

    Args:
        key: Dispatch key it is registered for: the backend, or a composite key.
        function: Its C++ name; None if it is generated without a name of its own.
        entry: The entry that names it: the delegate's for a structured kernel.
        kind: `native`, written by hand for this backend; `ufunc`, generated for it from a scalar function;
            `generated`, written by torchgen in terms of other operators; `composite_…`, for all backends.
        unit: Translation unit that holds it, where the name of the function decides that.
        header: File in the repository that defines the scalar function of a `ufunc`.
    """

    key: str
    function: str | None
    entry: NativeFunction
    kind: DispatchKind
    unit: str | None = None
    header: str | None = None

    @property
    def parameter_types(self) -> tuple[str, ...]:
        """C++ types of its parameters; those of a structured kernel may differ."""
        is_symbolic = self.function is not None and self.function.endswith("_symint")
        return parameter_types(schema_of(self.entry), symbolic_sizes=is_symbolic)


def dispatch(table: OperatorTable, entry: NativeFunction, backend: str = "CUDA") -> Dispatch | None:
    """What serves an entry on a backend (`CUDA`, `SparseCUDA`, `NestedTensorCUDA`, …); None if nothing."""
    return _own(entry, backend) or _delegated(table, entry, backend) or _composite(table, entry, backend)


def shared_dispatch(table: OperatorTable, resolved: Resolved, backend: str = "CUDA") -> Dispatch | None:
    """What serves a recorded call whichever candidate it was; None where candidates differ."""
    found = [dispatch(table, entry, backend) for entry in resolved.candidates]
    functions = {None if one is None else (one.key, one.function, one.kind) for one in found}
    first = found[0] if found else None
    return None if len(functions) != 1 or first is None or first.function is None else first


def structured_delegate(table: OperatorTable, entry: NativeFunction) -> NativeFunction | None:
    """The entry whose structured kernel serves this one; None if it has its own functions."""
    if entry.structured_delegate is None:
        return None
    name = OperatorName.parse(entry.structured_delegate)
    return table.entry(f"{entry.name.rpartition('::')[0]}::{name.name}", name.overload)


def _own(entry: NativeFunction, backend: str) -> Dispatch | None:
    function = entry.dispatch.get(backend)
    if function is None:
        return None
    if entry.ufunc and backend in UFUNC_KEYS:
        name = entry.name.rpartition("::")[2]
        unit = f"UfuncCUDA_{name}.cu" if backend == "CUDA" else f"UfuncCPU_{name}.cpp"
        return Dispatch(backend, function, entry, "ufunc", unit, f"aten/src/ATen/native/ufunc/{name}.h")
    return Dispatch(backend, function, entry, "native")


def _delegated(table: OperatorTable, entry: NativeFunction, backend: str) -> Dispatch | None:
    if entry.structured_delegate is None or backend not in _STRUCTURED_KEYS:
        return None
    delegate = structured_delegate(table, entry)
    return None if delegate is None else _own(delegate, backend)


def _composite(table: OperatorTable, entry: NativeFunction, backend: str) -> Dispatch | None:
    is_nested = backend.startswith(_NESTED)
    if not is_nested:
        explicit = _explicit(table, entry, backend)
        if explicit is not None:
            return explicit
    for key in (_IMPLICIT_NESTED, COMPOSITE_IMPLICIT) if is_nested else (COMPOSITE_IMPLICIT,):
        if key in entry.dispatch:
            return Dispatch(key, entry.dispatch[key], entry, "composite_implicit")
    return None


def _explicit(table: OperatorTable, entry: NativeFunction, backend: str) -> Dispatch | None:
    if backend not in _SPARSE:
        if _NON_FUNCTIONAL in entry.dispatch:
            kind: DispatchKind = "generated" if _is_view_copy(table, entry) else "composite_explicit"
            return Dispatch(_NON_FUNCTIONAL, entry.dispatch[_NON_FUNCTIONAL], entry, kind)
        # torchgen writes one in terms of the delegate, which no backend key may name.
        if entry.structured_delegate is not None and schema_of(entry).kind is not Kind.OUT:
            return Dispatch(_NON_FUNCTIONAL, None, entry, "generated")
    if _EXPLICIT not in entry.dispatch:
        return None
    kind = "generated" if entry.generated else "composite_explicit"
    return Dispatch(_EXPLICIT, entry.dispatch[_EXPLICIT], entry, kind)


def _is_view_copy(table: OperatorTable, entry: NativeFunction) -> bool:
    """Torchgen writes its kernel: it copies the result of a view."""
    view = table.entry(entry.name.removesuffix("_copy"), entry.overload)
    return view is not None and view_copy_of(view) == entry.qualified_name


# ---- chain

# In PyTorch's repository.
NATIVE_FUNCTIONS_FILE = "aten/src/ATen/native/native_functions.yaml"
DERIVATIVES_FILE = "tools/autograd/derivatives.yaml"
_EXPLANATIONS = {
    "native": "",
    "ufunc": ", generated from a scalar function",
    "generated": ", generated in terms of another operator",
    "composite_explicit": ", for all backends",
    "composite_implicit": ", made of other operators",
}


@dataclass(frozen=True)
class ChainLink:
    """One station; `file` and `line` say where in PyTorch's repository it is written, None if unknown."""

    text: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.text
        place = self.file.rpartition("/")[2] + ("" if self.line is None else f":{self.line}")
        return f"{self.text} ({place})"


def dispatch_chain(
    table: OperatorTable, entry: NativeFunction, backend: str = "CUDA"
) -> tuple[ChainLink, ...]:
    """Entry, structured delegate where there is one, function; the last is absent if no function serves it.

    A generated entry names the one it is derived from, which is where its line points.
    """
    links = [ChainLink(entry.qualified_name, NATIVE_FUNCTIONS_FILE, entry.yaml_line)]
    delegate = structured_delegate(table, entry)
    served = dispatch(table, entry, backend)
    if delegate is not None and served is not None and served.entry is delegate:
        text = f"structured_delegate {entry.structured_delegate}"
        links.append(ChainLink(text, NATIVE_FUNCTIONS_FILE, delegate.yaml_line))
    if served is not None:
        links.append(_function(served))
    return tuple(links)


def _function(served: Dispatch) -> ChainLink:
    name = served.key if served.function is None else f"{served.key} {served.function}"
    return ChainLink(f"{name}{_EXPLANATIONS[served.kind]}", served.header)
