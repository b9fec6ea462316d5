"""Where functions, kernels, functors and stubs of a PyTorch release are defined.

Look-ups take what the binary says: the translation units that hold the symbol. A definition in another unit's
file is never returned, and where files remain that nothing tells apart the answer is None: a wrong place is
worse than none. Some releases have one in the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from opscope.errors import InputError
from opscope.provenance.installation import RELEASE_NAME
from opscope.provenance.packaged import lazy_pattern, release_files
from opscope.provenance.sources.signatures import fits, signature_distance
from opscope.provenance.sources.table import Definition, DefinitionTable

# ---- scopes

# What stands for an anonymous namespace: c++filt's words, or the unit's own name as nvcc writes it.
_ANONYMOUS = lazy_pattern(r"\(anonymous namespace\)|_(?:INTERNAL|GLOBAL__N)_\w*|_NV_ANON_NAMESPACE")
# A namespace named by a macro, `namespace FLASH_NAMESPACE`, may be any.
_MACRO = lazy_pattern(r"[A-Z][A-Z0-9_]+")


def split_name(name: str) -> tuple[str, str]:
    """Scope and last part of a qualified name without template arguments."""
    scope, _, plain = name.strip().removeprefix("::").rpartition("::")
    return scope, plain


def matches_scope(written: str, symbol: str) -> bool:
    """Whether the scope in a source file may be the one in a symbol; anonymous namespaces do not count."""
    source, target = _parts(written), _parts(symbol)
    if not any(_MACRO.fullmatch(part) for part in source):
        return source == target
    plain = [part for part in source if not _MACRO.fullmatch(part)]
    return plain == target or (
        len(source) == len(target)
        and all(_MACRO.fullmatch(mine) or mine == theirs for mine, theirs in zip(source, target, strict=True))
    )


def is_member(definition: Definition) -> bool:
    """Whether the scope ends in a class, as far as PyTorch's spelling tells: classes begin with a capital."""
    last = definition.scope.rpartition("::")[2]
    return last[:1].isupper() and not _MACRO.fullmatch(last)


def _parts(scope: str) -> list[str]:
    return [part for part in scope.split("::") if part and not _ANONYMOUS.fullmatch(part)]


# ---- backends

_COMPILED = (".cu", ".cpp", ".cc", ".mm", ".c")
# Folder → area; a file in none of them is "generic".
_AREAS = {
    "cuda": "cuda",
    "cudnn": "cuda",
    "hip": "hip",
    "miopen": "hip",
    "mps": "mps",
    "metal": "metal",
    "vulkan": "vulkan",
    "xpu": "xpu",
    "nnapi": "nnapi",
    "xnnpack": "xnnpack",
    "mkldnn": "mkl",
    "mkl": "mkl",
    "cpu": "cpu",
    "functorch": "functorch",
    "test": "test",
    "templates": "test",
}
# Areas in which a key's functions may be defined, in order of preference; areas that are not named hold none.
# MIOpen's functions have CUDA entries too: stubs that raise.
_CUDA = (("cuda",), ("generic",), ("hip",))
_CPU = (("generic", "cpu"), ("mkl", "xnnpack"))
_COMPOSITE = (("generic",), ("cuda", "cpu", "mkl", "vulkan", "metal", "xnnpack", "hip"))
_MPS = (("mps",), ("generic",))


def is_compiled(file: str) -> bool:
    """Whether a file is a translation unit of its own, not a header."""
    return file.endswith(_COMPILED)


@lru_cache(maxsize=8192)
def area_of(file: str) -> str:
    """The area of a file, such as "cuda", "cpu" or "generic"."""
    if file.endswith((".cu", ".cuh")):
        return "cuda"
    folders = file.split("/")[:-1]
    return next((_AREAS[folder] for folder in reversed(folders) if folder in _AREAS), "generic")


def nearest_to_key(definitions: Sequence[Definition], key: str) -> list[Definition]:
    """The definitions in the likeliest area for a dispatch key; [] if none is where one may be."""
    ends = (("CUDA", _CUDA), ("MPS", _MPS), ("CPU", _CPU), ("", _COMPOSITE))
    for areas in next(areas for end, areas in ends if key.endswith(end)):
        nearest = [definition for definition in definitions if area_of(definition.file) in areas]
        if nearest:
            return nearest
    return []


_UFUNC_FOLDER = "aten/src/ATen/native/ufunc"
_UFUNC_FUNCTOR = lazy_pattern(
    r"(?:at::native::)?(?:\(anonymous namespace\)::)?CUDAFunctor(?:OnSelf|OnOther)?_(\w+)"
)


# ---- index

_NATIVE = "at::native"
_META = "at::meta"
_STRUCTURED_PREFIX = "structured_"
# Registered first, such a function loads libtorch_cuda_linalg, which registers the real one.
_LAZY_PREFIX = "lazy_"


class SourceIndex:
    """Look-ups in the definitions of one source tree."""

    def __init__(self, source: DefinitionTable) -> None:
        self.source = source
        self.version = source.version
        self.git_version = source.git_version

    def function(
        self,
        name: str,
        *,
        key: str = "CUDA",
        parameters: Sequence[str] | None = None,
        units: Sequence[str] = (),
    ) -> Definition | None:
        """The native function that a dispatch entry names; None if unknown or ambiguous between files.

        Its line is None if the file holds several that fit. The key says where in the tree it may be
        defined, parameter types (C++ or schema) tell overloads apart. `units` are files that the binary says
        define this very function, not those of the kernels it launches: one in another file is not returned.
        """
        scope, plain = split_name(name)
        scopes = (scope,) if scope else (_NATIVE, _META) if key == "Meta" else (_NATIVE,)
        candidates = [
            definition
            for definition in self.source.named(plain)
            if definition.kind in ("function", "structured")
            and definition.scope in scopes
            and not (
                definition.template_parameters or definition.is_specialization
            )  # no entry names a template
        ]
        if key.startswith("Composite"):
            candidates = [row for row in candidates if row.kind == "function"]
        if parameters is not None:
            # A structured function's may differ from its schema's: one of another signature comes last.
            distances = [
                2 if distance is None and row.kind == "structured" else distance
                for row in candidates
                for distance in (signature_distance(row.parameters, parameters),)
            ]
            nearest = min((distance for distance in distances if distance is not None), default=-1)
            candidates = [row for row, far in zip(candidates, distances, strict=True) if far == nearest]
        candidates = _allowed(candidates, units)
        if not scope:
            candidates = nearest_to_key(candidates, key)
        return _only(candidates, units)

    def kernel(
        self, base_name: str, units: Sequence[str] = (), *, template_arguments: Sequence[str] | None = None
    ) -> Definition | None:
        """The `__global__` function of a kernel.

        Files of the units that register it come first, then headers; templates that the arguments fit, first.
        """
        candidates = [row for row in self._in_scope(base_name) if row.kind == "kernel"]
        if template_arguments is not None:
            fitting = [row for row in candidates if _fits(row, template_arguments)]
            candidates = fitting or candidates
        return _only(_allowed(candidates, units), units)

    def functor(self, owner: str, units: Sequence[str] = ()) -> Definition | None:
        """The functor class, or the function around a lambda, that a kernel's template arguments name.

        Files of the units that register the kernel come first, then headers.
        """
        if ufunc := _UFUNC_FUNCTOR.fullmatch(owner):  # generated at build time from a hand-written inner loop
            file = f"{_UFUNC_FOLDER}/{ufunc[1]}.h"
            loops = [row for row in self.source.named(ufunc[1]) if row.file == file]
            return _only([row for row in loops if "Vectorized" not in row.parameters], ())
        candidates = _allowed(self._owners(owner), units)
        return _only(candidates, units)

    def stub_implementation(
        self, stub: str, *, key: str = "CUDA", units: Sequence[str] = ()
    ) -> Definition | None:
        """The function registered for a dispatch stub.

        Where something else than a named function is registered: that place, as a definition of kind "stub".
        Registrations in other files than the units of the kernels it launches are left out.
        """
        entries = [entry for entry in self.source.registered(stub) if entry.key == key]
        entries = [entry for entry in entries if not units or _is_unit(entry.file, units)]
        # Those of named functions, and not those that only load the library of another one.
        named = [entry for entry in entries if entry.function] or entries
        entries = [entry for entry in named if not entry.function.startswith(_LAZY_PREFIX)] or named
        if len({(entry.file, entry.function) for entry in entries}) != 1:
            return None
        entry = entries[0]
        found = None
        if entry.function:
            rows = [row for row in self.source.named(entry.function) if row.kind in ("function", "kernel")]
            own = [row for row in rows if row.file == entry.file and not is_member(row)]
            found = _only(own or [row for row in rows if not is_compiled(row.file)], ())
        return found or Definition("stub", stub, "", entry.file, entry.line, entry.line)

    def launcher(self, name: str) -> Definition | None:
        """A function that a definition's `launchers` names; None if the file holds none of that name."""
        rows = [row for row in self.source.named(name) if row.file.endswith(".cu")]
        return _only([row for row in rows if row.kind in ("function", "structured", "kernel")], ())

    def _in_scope(self, name: str) -> list[Definition]:
        scope, plain = split_name(name)
        rows = self.source.named(plain)
        return [row for row in rows if matches_scope(row.scope, scope)] if scope else list(rows)

    def _owners(self, owner: str) -> list[Definition]:
        while owner.endswith("::operator()"):
            owner = owner.removesuffix("::operator()")
        scope, plain = split_name(owner)
        parent_scope, parent = split_name(scope)
        if plain == "impl" and parent.startswith(_STRUCTURED_PREFIX):
            rows = self.source.named(parent.removeprefix(_STRUCTURED_PREFIX))
            return [
                row for row in rows if row.kind == "structured" and matches_scope(row.scope, parent_scope)
            ]
        return [row for row in self._in_scope(owner) if row.kind in ("class", "function", "kernel")]


def _allowed(definitions: Iterable[Definition], units: Sequence[str]) -> list[Definition]:
    """Without those in the file of another translation unit."""
    if not units:
        return list(definitions)
    return [row for row in definitions if not is_compiled(row.file) or _is_unit(row.file, units)]


def _is_unit(file: str, units: Sequence[str]) -> bool:
    return any(file == unit or file.endswith(f"/{unit}") for unit in units)


def _fits(definition: Definition, arguments: Sequence[str]) -> bool:
    return fits(definition.template_parameters, arguments) or (
        definition.is_specialization and bool(arguments)
    )


def _only(candidates: Sequence[Definition], units: Sequence[str]) -> Definition | None:
    """The one definition that remains: of a unit's own file before headers, whole files before lines.

    In one file a template comes before its specializations, a class before functions.
    """
    own = [row for row in candidates if units and _is_unit(row.file, units)]
    rows = own or list(candidates)
    if len({row.file for row in rows}) != 1:
        return None
    general = [row for row in rows if not row.is_specialization] or rows
    remaining = [row for row in general if row.kind == "class"] or general
    first = remaining[0]
    if len(remaining) == 1:
        return first
    return Definition(first.kind, first.name, first.scope, first.file, None, None)


# ---- storage

FILE_NAME = "sources.msgpack.zst"
_LARGEST_BYTES = 64 << 20


def source_index(version: str | None) -> SourceIndex | None:
    """The packaged index of a release; None if there is none."""
    match = RELEASE_NAME.match(version or "")
    return None if match is None else _stored(match.group())


def load_index(path: Path) -> SourceIndex:
    """The index in a file."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError("too large for a source index", source=path)
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the source index cannot be read ({error.strerror})", source=path) from error
    return SourceIndex(DefinitionTable.decode(content, path))


@lru_cache(maxsize=8)
def _stored(version: str) -> SourceIndex | None:
    file = release_files(FILE_NAME).get(version)
    return None if file is None else load_index(file)
