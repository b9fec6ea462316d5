"""Which kernel tables there are: those packaged with opscope and those the user added.

A user's table lies in `releases/<label>/units.msgpack.zst` of the cache folder. Where its label is that of a
packaged release, the two are one table in which the user's kernels come first. Tables are read when first
asked for, once.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from opscope.errors import InputError
from opscope.provenance.cache import cache_folder
from opscope.provenance.releases.overlay import overlaid
from opscope.provenance.releases.table import ReleaseTable
from opscope.provenance.releases.table_file import UnitTableFile, decode_table
from opscope.provenance.releases.version import label_order, parse_version

__all__ = ["TABLE_NAME", "added_table", "forget_tables", "git_version", "release", "release_versions"]

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
