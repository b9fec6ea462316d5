"""[version] Version labels of PyTorch builds: `2.11.0`, `2.11.0+cu130`, `2.12.0.dev20260101`, `2.6.0a0+git2236df1`.

A label is official if its build is the published release for some CUDA version. Source: PEP 440 for the
grammar.

[overlay] Two kernel tables as one: what the upper says of a kernel counts, the lower fills the rest.

[catalog] Which kernel tables there are: those packaged with opscope and those the user added.

A user's table lies in `releases/<label>/units.msgpack.zst` of the cache folder. Where its label is that of a
packaged release, the two are one table in which the user's kernels come first. Tables are read when first
asked for, once.

[functions] Which files may define a native function, as a release's own binary shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec
import zstandard

from opscope.errors import InputError
from opscope.provenance.cache import cache_folder
from opscope.provenance.releases.table import ReleaseTable
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

# ---- version

_LABEL = re.compile(
    r"\s*v?(?P<major>\d+)\.(?P<minor>\d+)(?:\.(?P<patch>\d+))?"
    r"(?P<suffix>[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview|post|rev|r|dev)[-_.]?\d*(?:\.dev\d+)?)?"
    r"(?:\+(?P<local>[a-z0-9._-]+))?\s*",
    re.IGNORECASE,
)
_OFFICIAL_LOCAL = re.compile(r"cu\d+", re.IGNORECASE)


@dataclass(frozen=True)
class TorchVersion:
    """A version label.

    Args:
        release: Major, minor and patch number.
        suffix: What marks a build before or after the release (`a0`, `rc1`, `.dev20260101`, `.post1`), or
            empty.
        local: What follows the plus sign (`cu130`, `git2236df1`, `rocm6.2`), or empty.
    """

    release: tuple[int, int, int]
    suffix: str
    local: str

    @property
    def name(self) -> str:
        """The release as text: `2.11.0`."""
        return ".".join(map(str, self.release))

    @property
    def is_official(self) -> bool:
        """It is the release itself, built for CUDA."""
        return not self.suffix and (not self.local or _OFFICIAL_LOCAL.fullmatch(self.local) is not None)

    def distance(self, other: TorchVersion) -> tuple[int, int] | None:
        """Minor and patch releases between the two; None between major versions, which are not comparable."""
        if self.release[0] != other.release[0]:
            return None
        return abs(self.release[1] - other.release[1]), abs(self.release[2] - other.release[2])


def parse_version(label: str) -> TorchVersion | None:
    """The version in a label; None if it is none."""
    match = _LABEL.fullmatch(label)
    if match is None:
        return None
    release = (int(match["major"]), int(match["minor"]), int(match["patch"] or 0))
    return TorchVersion(release, match["suffix"] or "", match["local"] or "")


def label_order(label: str) -> tuple[bool, tuple[int, ...], str]:
    """Sorts labels by release, oldest first; those that are no versions come last."""
    parsed = parse_version(label)
    return (parsed is None, () if parsed is None else parsed.release, label)


# ---- overlay


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


# ---- catalog

TABLE_NAME = "units.msgpack.zst"
_FOLDER = "releases"


def release_versions() -> tuple[str, ...]:
    """Every version there is a table of, oldest first; labels that are no versions come last."""
    return _versions(cache_folder())


def release(version: str) -> ReleaseTable:
    """The table of a version or of a user's label; `2.11.0+cu130` is `2.11.0` unless a table has that name.

    Raises:
        InputError: There is none, or its file is damaged.
    """
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
    """Where a user's table lies.

    Args:
        label: Version or name.
        folder: Cache folder, if not the user's.
    """
    return (folder or cache_folder()) / _FOLDER / label / TABLE_NAME


def forget_tables() -> None:
    """Read tables anew when they are asked for again."""
    _versions.cache_clear()
    _table.cache_clear()


@cache
def _versions(folder: Path) -> tuple[str, ...]:
    packaged = [entry.name for entry in _packaged().iterdir() if entry.joinpath(TABLE_NAME).is_file()]
    added = [table.parent.name for table in (folder / _FOLDER).glob(f"*/{TABLE_NAME}")]
    return tuple(sorted({*packaged, *added}, key=label_order))


@cache
def _table(version: str, folder: Path) -> ReleaseTable:
    packaged = _packaged().joinpath(version, TABLE_NAME)
    added = added_table(version, folder)
    contents = [decode_table(file.read_bytes(), str(file)) for file in (packaged, added) if file.is_file()]
    content: UnitTableFile = contents[0] if len(contents) == 1 else overlaid(*contents)
    return ReleaseTable(content)


def _packaged() -> Path:
    return Path(str(files(__package__))) / "data"


# ---- functions

FUNCTIONS_FILE = "functions.msgpack.zst"
_FORMAT = 1
_COMPRESSION_LEVEL = 19
_LARGEST_BYTES = 16 << 20


class _Stored(msgspec.Struct, array_like=True):
    format: int
    files: list[str]
    functions: dict[str, list[int]]  # name without namespace → indices into files


def function_files(version: str, name: str) -> tuple[str, ...]:
    """Paths in the repository of the files, one or two, of which one defines `at::native::NAME` in a release.

    Empty if nothing is known of it.
    """
    return _functions(version).get(name, ())


def encode_functions(functions: Mapping[str, Sequence[str]]) -> bytes:
    """Function → files as it is packaged."""
    paths = sorted({path for files in functions.values() for path in files})
    index = {path: position for position, path in enumerate(paths)}
    stored = _Stored(
        _FORMAT, paths, {name: [index[path] for path in files] for name, files in sorted(functions.items())}
    )
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(msgspec.msgpack.encode(stored))


@cache
def _functions(version: str) -> Mapping[str, tuple[str, ...]]:
    file = files(__package__) / "data" / version / FUNCTIONS_FILE
    if not file.is_file():
        return {}
    try:
        content = zstandard.ZstdDecompressor().decompress(file.read_bytes(), max_output_size=_LARGEST_BYTES)
        stored = msgspec.msgpack.decode(content, type=_Stored)
        if stored.format != _FORMAT:
            raise InputError(
                f"a table of functions of format {stored.format}, not {_FORMAT}", source=str(file)
            )
        return {
            name: tuple(stored.files[index] for index in indices)
            for name, indices in stored.functions.items()
        }
    except (zstandard.ZstdError, msgspec.MsgspecError, IndexError) as error:
        raise InputError(f"not a table of functions ({error})", source=str(file)) from error
