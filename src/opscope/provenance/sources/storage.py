"""Where source indexes are kept: in the package for some releases, in the cache folder for added ones."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from opscope.errors import InputError
from opscope.provenance.cache import cache_folder, write_atomically
from opscope.provenance.sources.index import SourceIndex
from opscope.provenance.sources.table import DefinitionTable

__all__ = ["FILE_NAME", "load_index", "source_index", "store_index"]

FILE_NAME = "sources.msgpack.zst"
_FOLDER = "releases"
_LARGEST_BYTES = 64 << 20
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def source_index(version: str | None) -> SourceIndex | None:
    """The index of a release, the user's own before the packaged one; None if there is none.

    Args:
        version: "2.6.0" or with a build tag, "2.6.0+cu124".

    Raises:
        InputError: The user's own index is damaged or of another format.
    """
    match = _VERSION.match(version or "")
    return None if match is None else _stored(match.group(), cache_folder())


def store_index(index: SourceIndex, folder: Path | None = None) -> Path:
    """Keep an index for later processes, and return the file's path.

    Args:
        index: Of a checkout, as `build_index` makes it.
        folder: Instead of the user's cache folder.

    Raises:
        InputError: The index is not one of a checkout, or its version is none; the file cannot be written.
    """
    table = index.source
    match = _VERSION.match(index.version)
    if not isinstance(table, DefinitionTable) or match is None:
        raise InputError(f"an index of version {index.version!r} cannot be stored", hint="Give its version")
    path = _path(folder or cache_folder(), match.group())
    try:
        write_atomically(path, table.encode())
    except OSError as error:
        raise InputError(f"the source index cannot be written ({error.strerror})", source=path) from error
    _stored.cache_clear()
    return path


def load_index(path: Path) -> SourceIndex:
    """The index in a file.

    Raises:
        InputError: It cannot be read, or holds no index.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError("too large for a source index", source=path)
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the source index cannot be read ({error.strerror})", source=path) from error
    return SourceIndex(DefinitionTable.decode(content, path))


@lru_cache(maxsize=8)
def _stored(version: str, folder: Path) -> SourceIndex | None:
    own = _path(folder, version)
    if own.is_file():
        return load_index(own)
    packaged = _packaged() / version / FILE_NAME
    return load_index(packaged) if packaged.is_file() else None


def _path(folder: Path, version: str) -> Path:
    return folder / _FOLDER / version / FILE_NAME


def _packaged() -> Path:
    return Path(str(files("opscope.provenance"))) / _FOLDER / "data"
