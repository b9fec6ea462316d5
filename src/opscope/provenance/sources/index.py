"""Where functions, kernels, functors and stubs of a PyTorch release are defined.

Look-ups take what the binary says: the translation units that hold the symbol. A definition in another unit's
file is never returned, and where files remain that nothing tells apart the answer is None: a wrong place is
worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opscope.provenance.sources.backends import is_compiled, nearest_to_key
from opscope.provenance.sources.definitions import Definition, Registration
from opscope.provenance.sources.generated import ufunc_of
from opscope.provenance.sources.jiterator import jiterated_name
from opscope.provenance.sources.scopes import is_member, matches_scope, split_name
from opscope.provenance.sources.signatures import signature_distance
from opscope.provenance.sources.table import DefinitionSource
from opscope.provenance.sources.templates import fits

__all__ = ["SourceIndex"]

_NATIVE = "at::native"
_META = "at::meta"
_STRUCTURED_PREFIX = "structured_"
# Registered first, such a function loads libtorch_cuda_linalg, which registers the real one.
_LAZY_PREFIX = "lazy_"


class SourceIndex:
    """Look-ups in the definitions of one source tree.

    Args:
        source: A table, or the headers of an installation.
    """

    def __init__(self, source: DefinitionSource) -> None:
        self._source = source

    @property
    def version(self) -> str:
        """PyTorch's version, "2.6.0"."""
        return self._source.version

    @property
    def git_version(self) -> str | None:
        """Commit of the tree, if known."""
        return self._source.git_version

    @property
    def source(self) -> DefinitionSource:
        """Where the definitions come from."""
        return self._source

    def files_named(self, basename: str) -> tuple[str, ...]:
        """Paths of the files of that name which hold a definition."""
        suffix = f"/{basename}"
        return tuple(file for file in self._source.files if file.endswith(suffix) or file == basename)

    def function(
        self,
        name: str,
        *,
        key: str = "CUDA",
        parameters: Sequence[str] | None = None,
        units: Sequence[str] = (),
    ) -> Definition | None:
        """The native function that a dispatch entry names.

        Args:
            name: "softmax_cuda_out", or qualified for one outside `at::native`.
            key: Dispatch key of the entry, which says where in the tree it may be defined.
            parameters: Parameter types, C++ or schema (see `schema_parameters`); they tell overloads apart.
            units: Translation units (file names or paths) that the binary says define this very function; a
                function in another one's file is not returned. Not the units of the kernels it launches.

        Returns:
            None if unknown or ambiguous between files. Its line is None if the file holds several that fit.
        """
        scope, plain = split_name(name)
        scopes = (scope,) if scope else (_NATIVE, _META) if key == "Meta" else (_NATIVE,)
        candidates = [
            definition
            for definition in self._source.named(plain)
            if definition.kind in ("function", "structured") and _is_native(definition, scopes)
        ]
        if key.startswith("Composite"):
            candidates = [row for row in candidates if row.kind == "function"]
        if parameters is not None:
            candidates = _with_signature(candidates, parameters)
        candidates = _allowed(candidates, units)
        if not scope:
            candidates = nearest_to_key(candidates, key)
        return _only(candidates, units)

    def kernel(
        self, base_name: str, units: Sequence[str] = (), *, template_arguments: Sequence[str] | None = None
    ) -> Definition | None:
        """The `__global__` function of a kernel.

        Args:
            base_name: Name without template arguments, qualified if known.
            units: Translation units that register the kernel. Their own files come first, then headers.
            template_arguments: Arguments of the instance. Templates whose parameters they fit come first.
        """
        candidates = [row for row in self._in_scope(base_name) if row.kind == "kernel"]
        if template_arguments is not None:
            fitting = [row for row in candidates if _fits(row, template_arguments)]
            candidates = fitting or candidates
        return _only(_allowed(candidates, units), units)

    def functor(self, owner: str, units: Sequence[str] = ()) -> Definition | None:
        """The functor class, or the function around a lambda, that a kernel's template arguments name.

        Args:
            owner: Qualified name without template arguments, "at::native::GeluCUDAKernelImpl".
            units: Translation units that register the kernel. Their own files come first, then headers.
        """
        ufunc = ufunc_of(owner)
        if ufunc is not None:
            loops = [row for row in self._source.named(ufunc.name) if row.file == ufunc.file]
            return _only([row for row in loops if "Vectorized" not in row.parameters], ())
        candidates = _allowed(self._owners(owner), units)
        return _only(candidates, units)

    def stub_implementation(
        self, stub: str, *, key: str = "CUDA", units: Sequence[str] = ()
    ) -> Definition | None:
        """The function registered for a dispatch stub.

        Where something else than a named function is registered: that place, as a definition of kind "stub".

        Args:
            stub: Name of the stub, "softmax_lastdim_kernel".
            key: "CUDA", "CPU" or "MPS".
            units: Translation units of the kernels it launches; registrations in other files are left out.
        """
        entries = [entry for entry in self._source.registered(stub) if entry.key == key]
        entries = _most_telling([entry for entry in entries if not units or _is_unit(entry.file, units)])
        if len({(entry.file, entry.function) for entry in entries}) != 1:
            return None
        entry = entries[0]
        found = self._implementation(entry) if entry.function else None
        return found or Definition("stub", stub, "", entry.file, entry.line, entry.line)

    def launcher(self, name: str) -> Definition | None:
        """A function that a definition's `launchers` names; None if the file holds none of that name."""
        rows = [row for row in self._source.named(name) if row.file.endswith(".cu")]
        return _only([row for row in rows if row.kind in ("function", "structured", "kernel")], ())

    def jiterated(self, kernel_name: str) -> Definition | None:
        """The kernel compiled at run time that goes by this name; where its name is declared.

        The name is all the evidence there is: ask only for kernels of no binary and no compiler artifact.
        """
        name = jiterated_name(kernel_name)
        rows = self._source.named(name) if name else ()
        return _only([row for row in rows if row.kind == "jiterator"], ())

    def _implementation(self, entry: Registration) -> Definition | None:
        named = [row for row in self._source.named(entry.function) if row.kind in ("function", "kernel")]
        own = [row for row in named if row.file == entry.file and not is_member(row)]
        return _only(own or [row for row in named if not is_compiled(row.file)], ())

    def _in_scope(self, name: str) -> list[Definition]:
        scope, plain = split_name(name)
        rows = self._source.named(plain)
        return [row for row in rows if matches_scope(row.scope, scope)] if scope else list(rows)

    def _owners(self, owner: str) -> list[Definition]:
        while owner.endswith("::operator()"):
            owner = owner.removesuffix("::operator()")
        scope, plain = split_name(owner)
        parent_scope, parent = split_name(scope)
        if plain == "impl" and parent.startswith(_STRUCTURED_PREFIX):
            rows = self._source.named(parent.removeprefix(_STRUCTURED_PREFIX))
            return [
                row for row in rows if row.kind == "structured" and matches_scope(row.scope, parent_scope)
            ]
        return [row for row in self._in_scope(owner) if row.kind in ("class", "function", "kernel")]


def _is_native(definition: Definition, scopes: Sequence[str]) -> bool:
    """Whether a dispatch entry may name the definition: neither a template, nor in another namespace."""
    is_template = bool(definition.template_parameters) or definition.is_specialization
    return definition.scope in scopes and not is_template


def _with_signature(definitions: Sequence[Definition], parameters: Sequence[str]) -> list[Definition]:
    """Those whose parameters are nearest to the ones wanted.

    A structured function's may differ from its schema's, so one of another signature comes last, not out.
    """
    distances = [
        2 if distance is None and row.kind == "structured" else distance
        for row in definitions
        for distance in (signature_distance(row.parameters, parameters),)
    ]
    nearest = min((distance for distance in distances if distance is not None), default=None)
    if nearest is None:
        return []
    return [row for row, distance in zip(definitions, distances, strict=True) if distance == nearest]


def _allowed(definitions: Iterable[Definition], units: Sequence[str]) -> list[Definition]:
    """Without those in the file of another translation unit."""
    if not units:
        return list(definitions)
    return [row for row in definitions if not is_compiled(row.file) or _is_unit(row.file, units)]


def _most_telling(entries: list[Registration]) -> list[Registration]:
    """Registrations of named functions, and not those that only load the library of another one."""
    named = [entry for entry in entries if entry.function] or entries
    return [entry for entry in named if not entry.function.startswith(_LAZY_PREFIX)] or named


def _is_unit(file: str, units: Sequence[str]) -> bool:
    return any(file == unit or file.endswith(f"/{unit}") for unit in units)


def _fits(definition: Definition, arguments: Sequence[str]) -> bool:
    return fits(definition.template_parameters, arguments) or (
        definition.is_specialization and bool(arguments)
    )


def _only(candidates: Sequence[Definition], units: Sequence[str]) -> Definition | None:
    """The one definition that remains: of a unit's own file before headers, whole files before lines."""
    own = [row for row in candidates if units and _is_unit(row.file, units)]
    rows = own or list(candidates)
    if len({row.file for row in rows}) != 1:
        return None
    return _in_file(rows)


def _in_file(rows: Sequence[Definition]) -> Definition:
    """One of several in one file: a template before its specializations, a class before functions."""
    general = [row for row in rows if not row.is_specialization] or list(rows)
    remaining = [row for row in general if row.kind == "class"] or general
    first = remaining[0]
    if len(remaining) == 1:
        return first
    return Definition(first.kind, first.name, first.scope, first.file, None, None)
