"""The index of the headers in the user's own `torch/include`: exact lines of this very build.

Half a second the first time; then a table in the cache folder, found by the headers' names, sizes and times.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from opscope.errors import InputError
from opscope.provenance.cache import cache_folder, write_atomically
from opscope.provenance.installation import torch_build
from opscope.provenance.sources.build import lex_file, read_tree
from opscope.provenance.sources.definitions import Definition
from opscope.provenance.sources.index import SourceIndex
from opscope.provenance.sources.permalinks import repository_path
from opscope.provenance.sources.table import FORMAT_VERSION, DefinitionTable

__all__ = ["header_index"]

# Where kernels, launchers and functors are; the rest of the headers holds none.
_FOLDERS = ("ATen/native", "ATen/cuda", "c10/cuda", "torch/csrc/distributed/c10d")
_SUFFIXES = (".cuh", ".h", ".hpp")


def header_index(include_folder: Path, *, folder: Path | None = None) -> SourceIndex:
    """The index of an installation's headers. Files are named by their paths in the repository.

    Args:
        include_folder: `site-packages/torch/include`.
        folder: Instead of the user's cache folder.

    Raises:
        InputError: The folder holds no ATen headers, or one of them cannot be read.
    """
    include_folder = Path(include_folder)
    headers = list(_headers(include_folder))
    if not headers:
        raise InputError("no ATen headers", source=include_folder, hint="Give the folder torch/include")
    build = torch_build(include_folder.parent)
    version, git_version = (build.version or "", build.git_version) if build else ("", None)
    cached = (
        (folder or cache_folder())
        / "headers"
        / f"{_fingerprint(include_folder, headers, version)}.msgpack.zst"
    )
    table = _cached(cached)
    if table is None:
        table = _read(include_folder, [name for name, _ in headers], version, git_version)
        with contextlib.suppress(OSError):  # a folder that cannot be written costs time only
            write_atomically(cached, table.encode())
    return SourceIndex(table)


def _headers(include_folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for top in _FOLDERS:
        for parent, folders, names in os.walk(include_folder / top):
            folders.sort()
            relative = Path(parent).relative_to(include_folder).as_posix()
            for name in sorted(names):
                if name.endswith(_SUFFIXES) and repository_path(f"{relative}/{name}"):
                    yield f"{relative}/{name}", Path(parent, name).stat()


def _fingerprint(include_folder: Path, headers: Iterable[tuple[str, os.stat_result]], version: str) -> str:
    digest = hashlib.blake2b(
        f"{FORMAT_VERSION}\0{include_folder.resolve()}\0{version}".encode(), digest_size=16
    )
    for name, status in headers:
        digest.update(f"\0{name}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _cached(path: Path) -> DefinitionTable | None:
    try:
        return DefinitionTable.decode(path.read_bytes(), path)
    except (OSError, InputError):
        return None


def _read(include_folder: Path, headers: list[str], version: str, git_version: str | None) -> DefinitionTable:
    sources = {name: lex_file(include_folder / name) for name in headers}
    definitions, registrations = read_tree(sources)
    return DefinitionTable.from_definitions(
        version, git_version, (_in_repository(row) for row in definitions), registrations
    )


def _in_repository(definition: Definition) -> Definition:
    return msgspec.structs.replace(definition, file=repository_path(definition.file) or definition.file)
