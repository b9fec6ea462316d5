"""Which function the dispatcher calls for a backend: its own, a structured delegate's, a composite.

Source: aten/src/ATen/core/dispatch/OperatorEntry.cpp, "DispatchTable computation";
c10/core/DispatchKeySet.cpp; torchgen/dest/register_dispatch_key.py (what it writes for structured entries).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from opscope.provenance.operators.schema import Kind, NativeFunction, OperatorName, schema_of
from opscope.provenance.operators.table import OperatorTable

# In PyTorch's repository.
NATIVE_FUNCTIONS_FILE = "aten/src/ATen/native/native_functions.yaml"
DERIVATIVES_FILE = "tools/autograd/derivatives.yaml"
DispatchKind = Literal["native", "ufunc", "generated", "composite_explicit", "composite_implicit"]

COMPOSITE_IMPLICIT = "CompositeImplicitAutograd"
UFUNC_KEYS = ("CPU", "CUDA")
_EXPLICIT = "CompositeExplicitAutograd"
_NON_FUNCTIONAL = "CompositeExplicitAutogradNonFunctional"
_IMPLICIT_NESTED = "CompositeImplicitAutogradNestedTensor"
_NESTED = "NestedTensor"
# Keys whose kernels a structured delegate provides.
_STRUCTURED_KEYS = frozenset(("CPU", "CUDA", "MPS", "XPU", "MTIA"))
# Backends without CompositeExplicitAutogradNonFunctional kernels; `SparseCsr…` has them.
_SPARSE = frozenset(("SparseCPU", "SparseCUDA", "SparseMPS", "SparseXPU", "SparseMeta"))


class Dispatch(msgspec.Struct, frozen=True):
    """The function that serves an entry on a backend."""

    key: str  # dispatch key it is registered for: the backend, or a composite key
    function: str | None  # its C++ name; None if it is generated without a name of its own
    entry: NativeFunction  # the entry that names it: the delegate's for a structured kernel
    # `native`, written by hand for this backend; `ufunc`, generated for it from a scalar function;
    # `generated`, written by torchgen in terms of other operators; `composite_…`, for all backends
    kind: DispatchKind
    header: str | None = None  # file in the repository that defines the scalar function of a `ufunc`

    @property
    def parameter_types(self) -> tuple[str, ...]:
        """Schema types of its parameters; those of a structured kernel may differ."""
        return tuple(argument.type for argument in schema_of(self.entry).arguments)


def dispatch(table: OperatorTable, entry: NativeFunction, backend: str = "CUDA") -> Dispatch | None:
    """What serves an entry on a backend (`CUDA`, `SparseCUDA`, `NestedTensorCUDA`, …); None if nothing."""
    if own := _own(entry, backend):
        return own
    if entry.structured_delegate is not None and backend in _STRUCTURED_KEYS:
        name = OperatorName.parse(entry.structured_delegate)
        delegate = table.entry(f"{entry.name.rpartition('::')[0]}::{name.name}", name.overload)
        if delegate is not None and (served := _own(delegate, backend)):
            return served
    is_nested = backend.startswith(_NESTED)
    if not is_nested and (explicit := _explicit(table, entry, backend)):
        return explicit
    for key in (_IMPLICIT_NESTED, COMPOSITE_IMPLICIT) if is_nested else (COMPOSITE_IMPLICIT,):
        if key in entry.dispatch:
            return Dispatch(key, entry.dispatch[key], entry, "composite_implicit")
    return None


def _own(entry: NativeFunction, backend: str) -> Dispatch | None:
    function = entry.dispatch.get(backend)
    if function is None:
        return None
    if entry.ufunc and backend in UFUNC_KEYS:
        name = entry.name.rpartition("::")[2]
        return Dispatch(backend, function, entry, "ufunc", f"aten/src/ATen/native/ufunc/{name}.h")
    return Dispatch(backend, function, entry, "native")


def _explicit(table: OperatorTable, entry: NativeFunction, backend: str) -> Dispatch | None:
    if backend not in _SPARSE:
        if _NON_FUNCTIONAL in entry.dispatch:
            view = table.entry(entry.name.removesuffix("_copy"), entry.overload)
            # Torchgen writes the kernel that copies the result of a view.
            is_copy = view is not None and view_copy_of(view) == entry.qualified_name
            kind: DispatchKind = "generated" if is_copy else "composite_explicit"
            return Dispatch(_NON_FUNCTIONAL, entry.dispatch[_NON_FUNCTIONAL], entry, kind)
        # torchgen writes one in terms of the delegate, which no backend key may name.
        if entry.structured_delegate is not None and schema_of(entry).kind is not Kind.OUT:
            return Dispatch(_NON_FUNCTIONAL, None, entry, "generated")
    if _EXPLICIT not in entry.dispatch:
        return None
    kind = "generated" if entry.generated else "composite_explicit"
    return Dispatch(_EXPLICIT, entry.dispatch[_EXPLICIT], entry, kind)


def view_copy_of(entry: NativeFunction) -> str | None:
    """Qualified name of the copying variant that torchgen writes for a view; None for no such view.

    Source: torchgen/model.py, `gets_generated_view_copy` and `get_view_copy_name`.
    """
    schema = schema_of(entry)
    is_view = any(one.annotation and not one.is_written for one in schema.returns) or any(
        "*" in (argument.annotation or "") for argument in schema.arguments
    )
    is_composite = "CompositeImplicitAutograd" in entry.dispatch and schema.name.name != "narrow"
    if not is_view or is_composite or "inplace_view" in entry.tags:
        return None
    if schema.name.is_inplace or schema.name.name.endswith("_inverse"):
        return None
    return f"{entry.name}_copy.{entry.overload}".rstrip(".")
