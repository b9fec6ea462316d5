"""Tables of the user's own builds: kernels of a library, kept in the cache folder under a version or name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from opscope.errors import InputError
from opscope.provenance.binaries.library import read_library
from opscope.provenance.binaries.translation_unit import TranslationUnit
from opscope.provenance.cache import write_atomically
from opscope.provenance.releases.builder import Build, build_table
from opscope.provenance.releases.catalog import added_table, forget_tables
from opscope.provenance.releases.overlay import overlaid
from opscope.provenance.releases.table_file import Library, UnitTableFile, decode_table, encode_table
from opscope.provenance.releases.unit import Unit
from opscope.provenance.releases.unit_paths import unit_at

__all__ = ["add_library_table", "kernels_of_library"]


def add_library_table(
    library_path: str | os.PathLike[str],
    version_label: str,
    folder: Path | None = None,
    *,
    git_version: str | None = None,
) -> Path:
    """Keep the kernels of a library; later questions about that version are answered from it first.

    Libraries added under one label are one table; one that is added again replaces what it said before of a
    kernel.

    Args:
        library_path: A shared library with CUDA kernels.
        version_label: The PyTorch version it belongs to (`2.12.0.dev20260101+cu130`), or any name.
        folder: Cache folder, if not the user's.
        git_version: The commit it was built from, if known.

    Returns:
        The file written.

    Raises:
        InputError: Not such a library, it has no kernels of known units, or the label cannot name a folder.
    """
    _check_label(version_label)
    library, kernels = kernels_of_library(Path(library_path))
    if not any(kernels.values()):
        raise InputError("no kernel of it tells which source file it comes from", source=library_path)
    units = {unit: unit_at(unit.name, unit.source_path) for of in kernels.values() for unit in of}
    table = build_table(located(kernels, units), Build(version_label, git_version, libraries=(library,)))
    path = added_table(version_label, folder)
    _write(path, _joined(path, table))
    forget_tables()
    return path


def kernels_of_library(path: Path) -> tuple[Library, dict[str, tuple[TranslationUnit, ...]]]:
    """What a library is, and the units of each of its kernels by the name a trace shows.

    Raises:
        InputError: Not a library with CUDA kernels.
    """
    library = read_library(path)
    kernels = {name: library.units_of(name) for name in library.kernel_names()}
    return Library(path.name, library.build_id, len(kernels)), kernels


def located(
    kernels: Mapping[str, Iterable[TranslationUnit]], units: Mapping[TranslationUnit, Unit]
) -> dict[str, set[Unit]]:
    """The kernels with the located units in place of those the binary names."""
    return {name: {units[unit] for unit in of} for name, of in kernels.items()}


def _joined(path: Path, table: UnitTableFile) -> UnitTableFile:
    if not path.is_file():
        return table
    return overlaid(decode_table(path.read_bytes(), str(path)), table)


def _write(path: Path, table: UnitTableFile) -> None:
    try:
        write_atomically(path, encode_table(table))
    except OSError as error:
        raise InputError(f"the table cannot be written ({error.strerror})", source=path) from error


def _check_label(label: str) -> None:
    if not label or label.startswith(".") or not all(sign.isalnum() or sign in "._+-" for sign in label):
        raise InputError(
            f"{label!r} cannot name a table", hint="Use letters, digits and any of . _ + -, not . first"
        )
