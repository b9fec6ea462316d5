"""Which kernel tables of PyTorch releases there are: those packaged with opscope and those the user added.

A user's table lies in `releases/<label>/units.msgpack.zst` of the cache folder. Where its label is that of a
packaged release, the two are one table in which the user's kernels come first. Tables are read when first
asked for, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from opscope.errors import InputError
from opscope.provenance.cache import cache_folder
from opscope.provenance.installation import label_order, parse_version
from opscope.provenance.packaged import added_releases, packaged_table, release_files
from opscope.provenance.releases.release_table import ReleaseTable
from opscope.provenance.releases.table_file import (
    SEVERAL_UNITS,
    HashMap,
    Library,
    PackedMap,
    Unit,
    UnitTableFile,
    decode_table,
    hash_map,
)
from opscope.provenance.table_format import TableFormat


def overlaid(lower: UnitTableFile, upper: UnitTableFile) -> UnitTableFile:
    """One table of both, named as the upper one.

    A unit of the upper table whose path is not known is taken for the lower's unit of that name if there is
    one only. A loose key that points to different units in the two points to none.
    """
    upper_units = _with_paths(upper.units, lower.units)
    units = tuple(dict.fromkeys((*lower.units, *upper_units)))
    index = {unit: position for position, unit in enumerate(units)}
    sets: dict[tuple[int, ...], int] = {}

    def renumbered(table: UnitTableFile, of: Sequence[Unit]) -> dict[int, int]:
        numbers = [
            sets.setdefault(tuple(sorted({index[of[member]] for member in unit_set})), len(sets))
            for unit_set in table.unit_sets
        ]
        return _entries(table.exact, numbers.__getitem__)

    def reindexed(table: UnitTableFile, of: Sequence[Unit]) -> dict[int, int]:
        return _entries(table.loose, lambda number: number if number == SEVERAL_UNITS else index[of[number]])

    exact = {**renumbered(lower, lower.units), **renumbered(upper, upper_units)}
    loose = _joined(reindexed(lower, lower.units), reindexed(upper, upper_units))
    return msgspec.structs.replace(
        upper,
        units=units,
        unit_sets=tuple(sets),
        exact=hash_map(exact).packed(),
        loose=hash_map(loose).packed(),
        git_version=upper.git_version or lower.git_version,
        cuda=upper.cuda or lower.cuda,
        libraries=_libraries(lower.libraries, upper.libraries),
    )


def _entries(packed: PackedMap, number: Callable[[int], int]) -> dict[int, int]:
    entries = HashMap.unpacked(packed)
    return {
        int(key): number(int(value))
        for key, value in zip(entries.hashes.tolist(), entries.values.tolist(), strict=True)
    }


def _joined(lower: dict[int, int], upper: dict[int, int]) -> dict[int, int]:
    disagreeing = {key: SEVERAL_UNITS for key in lower.keys() & upper.keys() if lower[key] != upper[key]}
    return {**lower, **upper, **disagreeing}


def _with_paths(units: Sequence[Unit], known: Sequence[Unit]) -> tuple[Unit, ...]:
    by_name: dict[str, list[Unit]] = {}
    for unit in known:
        by_name.setdefault(unit.name, []).append(unit)
    return tuple(
        by_name[unit.name][0] if unit.path is None and len(by_name.get(unit.name, ())) == 1 else unit
        for unit in units
    )


def _libraries(lower: Sequence[Library], upper: Sequence[Library]) -> tuple[Library, ...]:
    return tuple({library.name: library for library in (*lower, *upper)}.values())


TABLE_NAME = "units.msgpack.zst"


def release_versions() -> tuple[str, ...]:
    """Every version there is a table of, oldest first; labels that are no versions come last."""
    return _versions(cache_folder())


def release(version: str) -> ReleaseTable:
    """The table of a version or a user's label; `2.11.0+cu130` is `2.11.0` unless a table has that name."""
    folder = cache_folder()
    known = _versions(folder)
    parsed = parse_version(version)
    name = version if version in known or parsed is None else parsed.name
    if name not in known:
        raise InputError(
            f"no kernel table of PyTorch {version}; there are: {', '.join(known)}",
            hint="Add one: opscope index --library PATH",
        )
    return _table(name, folder)


def git_version(version: str) -> str | None:
    """The commit a release was built from; None if it is not known."""
    parsed = parse_version(version)
    names = {version} if parsed is None else {version, parsed.name}
    return release(version).git_version if names & set(release_versions()) else None


def added_table(label: str, folder: Path | None = None) -> Path:
    """Where a user's table lies."""
    return added_releases(folder) / label / TABLE_NAME


def forget_tables() -> None:
    """Read tables anew when they are asked for again."""
    _versions.cache_clear()
    _table.cache_clear()


@cache
def _versions(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(release_files(TABLE_NAME, folder), key=label_order))


@cache
def _table(version: str, folder: Path) -> ReleaseTable:
    packaged = packaged_table(version, TABLE_NAME)
    added = added_table(version, folder)
    contents = [decode_table(file.read_bytes(), str(file)) for file in (packaged, added) if file.is_file()]
    content: UnitTableFile = contents[0] if len(contents) == 1 else overlaid(*contents)
    return ReleaseTable(content)


FUNCTIONS_FILE = "functions.msgpack.zst"


class _StoredFunctions(msgspec.Struct, array_like=True):
    format_version: int
    files: list[str]
    functions: dict[str, list[int]]  # name without namespace → indices into files


_FUNCTIONS_FORMAT = TableFormat("a table of functions", _StoredFunctions)


def function_files(version: str, name: str) -> tuple[str, ...]:
    """Paths in the repository of the files, one or two, of which one defines `at::native::NAME` in a release.

    Empty if nothing is known of it.
    """
    return _functions(version).get(name, ())


def encode_functions(functions: Mapping[str, Sequence[str]]) -> bytes:
    """Function → files as it is packaged."""
    paths = sorted({path for files in functions.values() for path in files})
    index = {path: position for position, path in enumerate(paths)}
    indices = {name: [index[path] for path in files] for name, files in sorted(functions.items())}
    return _FUNCTIONS_FORMAT.encode(_StoredFunctions(_FUNCTIONS_FORMAT.number, paths, indices))


@cache
def _functions(version: str) -> Mapping[str, tuple[str, ...]]:
    file = packaged_table(version, FUNCTIONS_FILE)
    if not file.is_file():
        return {}
    stored = _FUNCTIONS_FORMAT.decode(file.read_bytes(), file)
    try:
        return {name: tuple(stored.files[one] for one in of) for name, of in stored.functions.items()}
    except IndexError as error:
        raise _FUNCTIONS_FORMAT.damaged(error, file) from error
