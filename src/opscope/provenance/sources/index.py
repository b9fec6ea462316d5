"""Where kernels and functors of a PyTorch release are defined.

All definitions of a source tree are held in columns: small on disk, opened quickly, made into objects by
name. Names, files and lines, no source text. Look-ups take what the binary says: the translation units that
hold the symbol. A definition in another unit's file is never returned, and where files remain that nothing
tells apart the answer is None: a wrong place is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from opscope.provenance.installation import RELEASE_NAME
from opscope.provenance.packaged import lazy_pattern, release_files
from opscope.provenance.table_format import TableFormat


class Definition(msgspec.Struct, frozen=True):
    """Where something is defined."""

    # Function, structured (TORCH_IMPL_FUNC), kernel (`__global__`), class, stub (a dispatch stub), or
    # jiterator (in packaged tables; not looked up)
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


FORMAT_VERSION = 2
_KINDS = ("function", "structured", "kernel", "class", "stub", "jiterator")
_VOCABULARIES = ("name", "scope", "file", "template", "parameters", "stubs", "launchers")
_FIELDS = {"template": "template_parameters"}  # of Definition, where named otherwise
_COLUMNS = ("kind", "line", "span", *_VOCABULARIES)
_SEPARATOR = "\x1f"


class _Wire(msgspec.Struct, array_like=True):
    """The file's content: columns of uint32; rows sorted by file and line; lines as steps."""

    format_version: int
    version: str
    git_version: str | None
    vocabularies: dict[str, list[str]]
    columns: dict[str, bytes]
    registrations: list[Registration]


_FORMAT = TableFormat("a source index", _Wire, FORMAT_VERSION, hint="Build it again with this version")


class SourceIndex:
    """The definitions of one source tree, held in columns, and look-ups in them."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self.version = wire.version  # of PyTorch, "2.6.0"
        self.git_version = wire.git_version  # commit of the tree, if it was known when the table was built
        self._vocabulary = wire.vocabularies
        self._columns = {name: np.frombuffer(wire.columns[name], dtype="<u4") for name in _COLUMNS}

    @property
    def files(self) -> tuple[str, ...]:
        """Files that hold a definition, sorted."""
        return tuple(self._vocabulary["file"])

    def __len__(self) -> int:
        return len(self._columns["name"])

    def __iter__(self) -> Iterator[Definition]:
        return map(self._definition, range(len(self)))

    def named(self, name: str) -> tuple[Definition, ...]:
        """Definitions of a name without scope, by file and line."""
        identifier = self._name_ids.get(name)
        if identifier is None:
            return ()
        order, starts = self._by_name
        return tuple(self._definition(int(row)) for row in order[starts[identifier] : starts[identifier + 1]])

    def registered(self, stub: str) -> tuple[Registration, ...]:
        """Registrations for a dispatch stub."""
        return tuple(entry for entry in self._wire.registrations if entry.stub == stub)

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """All registrations for dispatch stubs."""
        return tuple(self._wire.registrations)

    @cached_property
    def _name_ids(self) -> dict[str, int]:
        return {name: identifier for identifier, name in enumerate(self._vocabulary["name"])}

    @cached_property
    def _by_name(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows sorted by name, and where each name's rows begin."""
        names = self._columns["name"]
        order = np.argsort(names, kind="stable")
        starts = np.searchsorted(names[order], np.arange(len(self._vocabulary["name"]) + 1))
        return order, starts

    @cached_property
    def _lines(self) -> NDArray[np.int64]:
        """Line of each row: steps summed up within a file."""
        steps = self._columns["line"].astype(np.int64)
        files = self._columns["file"]
        total = np.cumsum(steps)
        first = np.flatnonzero(np.diff(files, prepend=-1))
        before = total[first] - steps[first]
        return total - np.repeat(before, np.diff(np.append(first, len(files))))

    def _definition(self, row: int) -> Definition:
        value = {name: int(column[row]) for name, column in self._columns.items()}
        text = {name: self._vocabulary[name][value[name]] for name in _VOCABULARIES}
        line = int(self._lines[row])
        return Definition(
            _KINDS[value["kind"] // 2],
            text["name"],
            text["scope"],
            text["file"],
            line,
            line + value["span"],
            _split(text["template"]),
            text["parameters"],
            _split(text["stubs"]),
            bool(value["kind"] % 2),
            _split(text["launchers"]),
        )

    @classmethod
    def from_definitions(
        cls,
        version: str,
        git_version: str | None,
        definitions: Iterable[Definition],
        registrations: Iterable[Registration],
    ) -> SourceIndex:
        """The table of definitions whose lines are known, in any order."""
        rows = sorted(definitions, key=lambda row: (row.file, row.line or 0))
        vocabularies: dict[str, dict[str, int]] = {name: {} for name in _VOCABULARIES}
        columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
        file, last_line = "", 0
        for row in rows:
            last_line = last_line if row.file == file else 0
            line, end_line = row.line or 0, row.end_line or 0
            columns["kind"].append(_KINDS.index(row.kind) * 2 + row.is_specialization)
            columns["line"].append(line - last_line)
            columns["span"].append(max(0, end_line - line))
            file, last_line = row.file, line
            for name in _VOCABULARIES:
                value = getattr(row, _FIELDS.get(name, name))
                text = value if isinstance(value, str) else _joined(value)
                columns[name].append(vocabularies[name].setdefault(text, len(vocabularies[name])))
        wire = _Wire(
            FORMAT_VERSION,
            version,
            git_version,
            {name: list(words) for name, words in vocabularies.items()},
            {name: np.array(column, dtype="<u4").tobytes() for name, column in columns.items()},
            sorted(registrations, key=lambda entry: (entry.file, entry.line, entry.stub)),
        )
        return cls(wire)

    def encode(self) -> bytes:
        """The table as bytes, compressed."""
        return _FORMAT.encode(self._wire)

    @classmethod
    def decoded(cls, wire: _Wire, source: Path | None = None) -> SourceIndex:
        """The index of what a file holds."""
        if not _is_whole(wire):
            raise _FORMAT.damaged("its parts do not fit each other", source)
        return cls(wire)

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


def _joined(texts: tuple[str, ...]) -> str:
    """A tuple of texts, written with a separator before each, which tells () from ("",)."""
    return _SEPARATOR.join(("", *texts)) if texts else ""


def _split(joined: str) -> tuple[str, ...]:
    return tuple(joined.split(_SEPARATOR)[1:])


def _is_whole(wire: _Wire) -> bool:
    """Whether every column is there, as long as the others, and points into its vocabulary."""
    if set(wire.columns) != set(_COLUMNS) or set(wire.vocabularies) != set(_VOCABULARIES):
        return False
    if len({len(column) for column in wire.columns.values()}) != 1 or len(wire.columns["kind"]) % 4:
        return False
    limits = {name: len(words) for name, words in wire.vocabularies.items()} | {"kind": 2 * len(_KINDS)}
    columns = {name: np.frombuffer(wire.columns[name], dtype="<u4") for name in limits}
    return all(len(column) == 0 or int(column.max()) < limits[name] for name, column in columns.items())


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


def load_index(path: Path) -> SourceIndex:
    """The index in a file."""
    return SourceIndex.decoded(_FORMAT.read(path), path)


@cache
def source_index(version: str | None) -> SourceIndex | None:
    """The packaged index of a release, `2.6.0` or `2.6.0+cu124`; None if there is none."""
    match = RELEASE_NAME.match(version or "")
    file = release_files(FILE_NAME).get(match.group()) if match else None
    return None if file is None else load_index(file)
