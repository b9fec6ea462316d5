"""Where kernels and functors of a PyTorch release are defined.

Definitions of a source tree are held by name, and made into objects when a name is asked for. Names, files
and lines, no source text. Look-ups take what the binary says: the translation units that hold the symbol. A
definition in another unit's file is never returned, and where files remain that nothing tells apart the
answer is None: a wrong place is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any

import msgspec

from opscope.provenance.installation import RELEASE_NAME
from opscope.provenance.packaged import TableFormat, lazy_pattern, release_files


class Definition(msgspec.Struct, frozen=True):
    # Function, structured (TORCH_IMPL_FUNC), kernel (`__global__`), class, or stub (a dispatch stub)
    kind: str
    name: str  # without its scope and without template arguments
    scope: str  # namespaces and classes around it, joined by `::`
    file: str  # path in the PyTorch repository
    # Of the name; None if several definitions in the file fit and nothing tells which one it is
    line: int | None
    end_line: int | None  # of the closing brace; None where `line` is
    # Names of its own template parameters; a pack ends in `...`, unnamed ones are ""
    template_parameters: tuple[str, ...] = ()
    parameters: str = ""  # coarse types of its parameters, joined by ", "
    stubs: tuple[str, ...] = ()  # dispatch stubs it calls
    is_specialization: bool = False  # for particular template arguments only
    # Of C++ code, the functions it calls that a `.cu` file defines and no other file does
    launchers: tuple[str, ...] = ()


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """`function` implements the dispatch stub `stub` for a dispatch key; "" if it is not a plain name."""

    stub: str
    key: str
    function: str
    file: str
    line: int


class IndexRow(msgspec.Struct, frozen=True, array_like=True):
    """A definition in the file: its texts by number, its last line by how far it is from the first."""

    kind: int
    scope: int
    file: int
    line: int
    span: int
    template_parameters: int
    parameters: int
    stubs: int
    is_specialization: bool
    launchers: int


INDEX_TEXTS = ("kind", "scope", "file", "template_parameters", "parameters", "stubs", "launchers")


class SourceIndex(msgspec.Struct, frozen=True, array_like=True, eq=False):
    format_version: int
    version: str  # of PyTorch, "2.6.0"
    git_version: str | None  # commit of the tree, if it was known when the table was built
    texts: list[str | tuple[str, ...]]
    rows: dict[str, msgspec.Raw]  # by name, made into objects when asked for; of one by file and line
    registrations: tuple[Registration, ...]  # for dispatch stubs

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(sorted({one.file for one in self}))

    def __iter__(self) -> Iterator[Definition]:
        return chain.from_iterable(map(self.named, self.rows))

    def named(self, name: str) -> tuple[Definition, ...]:
        """Definitions of a name without scope, by file and line."""
        rows = self.rows.get(name)
        if rows is None:
            return ()
        found = []
        for row in msgspec.msgpack.decode(rows, type=tuple[IndexRow, ...]):
            fields: dict[str, Any] = {field: self.texts[getattr(row, field)] for field in INDEX_TEXTS}
            fields |= {"line": row.line, "end_line": row.line + row.span}
            found.append(Definition(name=name, **fields, is_specialization=row.is_specialization))
        return tuple(found)

    def kernel(
        self, base_name: str, units: Sequence[str] = (), *, template_arguments: Sequence[str] | None = None
    ) -> Definition | None:
        """The `__global__` function of a kernel.

        Files of the units that register it come first, then headers; templates that the arguments fit, first.
        """
        candidates = [row for row in self._in_scope(base_name) if row.kind == "kernel"]
        if template_arguments is not None:
            fitting = [
                row
                for row in candidates
                if fits(row.template_parameters, template_arguments)
                or (row.is_specialization and template_arguments)
            ]
            candidates = fitting or candidates
        return only(allowed(candidates, units), units)

    def functor(self, owner: str, units: Sequence[str] = ()) -> Definition | None:
        """The functor class, or the function around a lambda, that a kernel's template arguments name.

        Files of the units that register the kernel come first, then headers.
        """
        if ufunc := _UFUNC_FUNCTOR.fullmatch(owner):  # generated at build time from a hand-written inner loop
            file = f"{_UFUNC_FOLDER}/{ufunc[1]}.h"
            loops = [row for row in self.named(ufunc[1]) if row.file == file]
            return only([row for row in loops if "Vectorized" not in row.parameters], ())
        candidates = allowed(self._owners(owner), units)
        return only(candidates, units)

    def _in_scope(self, name: str) -> list[Definition]:
        scope, plain = split_name(name)
        rows = self.named(plain)
        return [row for row in rows if matches_scope(row.scope, scope)] if scope else list(rows)

    def _owners(self, owner: str) -> list[Definition]:
        while owner.endswith("::operator()"):
            owner = owner.removesuffix("::operator()")
        scope, plain = split_name(owner)
        parent_scope, parent = split_name(scope)
        if plain == "impl" and parent.startswith(_STRUCTURED_PREFIX):
            rows = self.named(parent.removeprefix(_STRUCTURED_PREFIX))
            return [
                row for row in rows if row.kind == "structured" and matches_scope(row.scope, parent_scope)
            ]
        return [row for row in self._in_scope(owner) if row.kind in ("class", "function", "kernel")]


INDEX_FORMAT = TableFormat(
    "a source index", SourceIndex, 3, hint="Build it again with this version", has_checksum=True
)

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


def allowed(definitions: Iterable[Definition], units: Sequence[str]) -> list[Definition]:
    """Without those in the file of another translation unit."""
    if not units:
        return list(definitions)
    return [row for row in definitions if not is_compiled(row.file) or is_unit(row.file, units)]


def is_unit(file: str, units: Sequence[str]) -> bool:
    """Whether a file is one of the units, which are paths or names."""
    return any(file == unit or file.endswith(f"/{unit}") for unit in units)


def only(candidates: Sequence[Definition], units: Sequence[str]) -> Definition | None:
    """The one definition that remains: of a unit's own file before headers, whole files before lines.

    In one file a template comes before its specializations, a class before functions.
    """
    own = [row for row in candidates if units and is_unit(row.file, units)]
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
    surplus, left = len(arguments) - len(parameters) + 1, iter(arguments)
    named = {
        name.removesuffix(PACK): ", ".join(islice(left, surplus if name.endswith(PACK) else 1))
        for name in parameters
    }
    named.pop("", None)
    return named


FILE_NAME = "sources.msgpack.zst"


@cache
def source_index(version: str | None) -> SourceIndex | None:
    """The packaged index of a release, `2.6.0` or `2.6.0+cu124`; None if there is none."""
    match = RELEASE_NAME.match(version or "")
    file = release_files(FILE_NAME).get(match.group()) if match else None
    return None if file is None else INDEX_FORMAT.read(file)
