"""Which kernel tables of PyTorch releases there are. They are read when first asked for, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from opscope.errors import InputError
from opscope.provenance.installation import label_order, parse_version
from opscope.provenance.packaged import packaged_table, release_files
from opscope.provenance.releases.release_table import ReleaseTable
from opscope.provenance.releases.table_file import (
    decode_table,
)
from opscope.provenance.table_format import TableFormat

TABLE_NAME = "units.msgpack.zst"


@cache
def release_versions() -> tuple[str, ...]:
    """Every version there is a table of, oldest first."""
    return tuple(sorted(release_files(TABLE_NAME), key=label_order))


def release(version: str) -> ReleaseTable:
    """The table of a version; `2.11.0+cu130` is `2.11.0`."""
    known, parsed = release_versions(), parse_version(version)
    name = version if parsed is None else parsed.name
    if name not in known:
        raise InputError(f"no kernel table of PyTorch {version}; there are: {', '.join(known)}")
    return _table(name)


def git_version(version: str) -> str | None:
    """The commit a release was built from; None if it is not known."""
    parsed = parse_version(version)
    name = version if parsed is None else parsed.name
    return release(name).git_version if name in release_versions() else None


@cache
def _table(version: str) -> ReleaseTable:
    file = packaged_table(version, TABLE_NAME)
    return ReleaseTable(decode_table(file.read_bytes(), str(file)))


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
