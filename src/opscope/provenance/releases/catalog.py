"""Which kernel tables of PyTorch releases there are. They are read when first asked for, once."""

from __future__ import annotations

from functools import cache

from opscope.errors import InputError
from opscope.provenance.installation import label_order, parse_version
from opscope.provenance.packaged import release_file, release_files
from opscope.provenance.releases.release_table import ReleaseTable
from opscope.provenance.releases.table_file import (
    decode_table,
)

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
    file = release_file(version, TABLE_NAME)
    return ReleaseTable(decode_table(file.read_bytes(), str(file)))
