"""All definitions of a source tree in columns: small on disk, opened quickly, made into objects by name.

An index holds names, files and lines, no source text. The same bytes serve the packaged index of a release
and one that a user built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

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


class DefinitionTable:
    """A source of definitions held in columns."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._vocabulary = wire.vocabularies
        self._columns = {name: np.frombuffer(wire.columns[name], dtype="<u4") for name in _COLUMNS}

    @property
    def version(self) -> str:
        """PyTorch's version, "2.6.0"."""
        return self._wire.version

    @property
    def git_version(self) -> str | None:
        """Commit of the tree, if it was known when the table was built."""
        return self._wire.git_version

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
    ) -> DefinitionTable:
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
    def decode(cls, content: bytes, source: Path | None = None) -> DefinitionTable:
        """The table in bytes that `encode` wrote."""
        wire = _FORMAT.decode(content, source)
        if not _is_whole(wire):
            raise _FORMAT.damaged("its parts do not fit each other", source)
        return cls(wire)


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
