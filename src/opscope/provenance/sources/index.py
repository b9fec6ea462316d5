"""Where kernels and functors of a PyTorch release are defined.

Look-ups take what the binary says: the translation units that hold the symbol. A definition in another unit's
file is never returned, and where files remain that nothing tells apart the answer is None: a wrong place is
worse than none. Some releases have one in the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from opscope.errors import InputError
from opscope.provenance.installation import RELEASE_NAME
from opscope.provenance.packaged import lazy_pattern, release_files
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


_COMPILED = (".cu", ".cpp", ".cc", ".mm", ".c")


def is_compiled(file: str) -> bool:
    """Whether a file is a translation unit of its own, not a header."""
    return file.endswith(_COMPILED)


_UFUNC_FOLDER = "aten/src/ATen/native/ufunc"
_UFUNC_FUNCTOR = lazy_pattern(
    r"(?:at::native::)?(?:\(anonymous namespace\)::)?CUDAFunctor(?:OnSelf|OnOther)?_(\w+)"
)


_STRUCTURED_PREFIX = "structured_"


class SourceIndex:
    """Look-ups in the definitions of one source tree."""

    def __init__(self, source: DefinitionTable) -> None:
        self.source = source
        self.version = source.version
        self.git_version = source.git_version

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
        return only(allowed(candidates, units), units)

    def functor(self, owner: str, units: Sequence[str] = ()) -> Definition | None:
        """The functor class, or the function around a lambda, that a kernel's template arguments name.

        Files of the units that register the kernel come first, then headers.
        """
        if ufunc := _UFUNC_FUNCTOR.fullmatch(owner):  # generated at build time from a hand-written inner loop
            file = f"{_UFUNC_FOLDER}/{ufunc[1]}.h"
            loops = [row for row in self.source.named(ufunc[1]) if row.file == file]
            return only([row for row in loops if "Vectorized" not in row.parameters], ())
        candidates = allowed(self._owners(owner), units)
        return only(candidates, units)

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


def allowed(definitions: Iterable[Definition], units: Sequence[str]) -> list[Definition]:
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


def only(candidates: Sequence[Definition], units: Sequence[str]) -> Definition | None:
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


PACK = "..."


def fits(parameters: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether so many arguments can instantiate a template with these parameters."""
    packs = sum(name.endswith(PACK) for name in parameters)
    if packs == 0:
        return len(arguments) == len(parameters)
    return packs == 1 and len(arguments) >= len(parameters) - 1


def named_arguments(parameters: Sequence[str], arguments: Sequence[str]) -> Mapping[str, str] | None:
    """Argument by parameter name, in the template's order; None if they do not fit each other.

    A pack takes all arguments that the others leave, joined by ", ". Parameters without a name are left out.
    """
    if not fits(parameters, arguments):
        return None
    named: dict[str, str] = {}
    surplus = len(arguments) - len(parameters) + 1
    position = 0
    for name in parameters:
        count = surplus if name.endswith(PACK) else 1
        value = ", ".join(arguments[position : position + count])
        position += count
        if name.removesuffix(PACK):
            named[name.removesuffix(PACK)] = value
    return named


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
