"""The kernels of a shared library and the translation unit each comes from, read once per build and kept.

What is kept is like the kernel table of a release (`releases.table_file`): each kernel goes by the hashes of
its mangled and its demangled name.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import msgspec

from opscope.errors import InputError
from opscope.model.origin import RecordedUnit
from opscope.provenance.binaries.elf import ElfFile, open_elf
from opscope.provenance.binaries.embedded import embedded_kernels, holds_device_code
from opscope.provenance.binaries.translation_unit import with_source_paths
from opscope.provenance.cache import cache_folder, kept
from opscope.provenance.demangle import demangle_all
from opscope.provenance.releases.table_file import HashMap, PackedMap, hash_map, numbered_sets, text_hash
from opscope.provenance.table_format import TableFormat

_HIP_SECTION = ".hip_fatbin"


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    format_version: int
    build_id: str | None
    units: tuple[RecordedUnit, ...]
    unit_sets: tuple[tuple[int, ...], ...]
    kernels: PackedMap  # hash of a kernel's name -> index into `unit_sets`


# The number changes with the format and with what the readers find.
_FORMAT = TableFormat("the kernels of a library", _Stored, 3, has_checksum=True)


class LibraryKernels:
    def __init__(self, path: str, stored: _Stored) -> None:
        self.path = path
        self.build_id = stored.build_id  # the linker's identification of the build; None if it left none
        self._units, self._unit_sets = stored.units, stored.unit_sets
        self._kernels = HashMap.unpacked(stored.kernels)

    def __contains__(self, name: str) -> bool:
        """Whether the library has a kernel of this name, demangled as Kineto writes it or mangled."""
        return self._kernels.get(text_hash(name)) is not None

    def units_of(self, name: str) -> tuple[RecordedUnit, ...]:
        """Units a kernel comes from, by its demangled or mangled name.

        Several units may hold the same kernel, or kernels that differ in what demangling hides. None: not a
        kernel of this library, or one whose unit the library does not tell (see `in`).
        """
        found = self._kernels.get(text_hash(name))
        return () if found is None else tuple(self._units[unit] for unit in self._unit_sets[found])


def read_library(path: str | os.PathLike[str]) -> LibraryKernels:
    with open_elf(path) as elf:
        return LibraryKernels(elf.source, _read(elf))


def cached_library(path: str | os.PathLike[str], folder: Path | None = None) -> LibraryKernels:
    """The same, from the cache if this build was read before."""
    with open_elf(path) as elf:
        file = (folder or cache_folder() / "libraries") / f"{_cache_key(elf)}.kernels"
        stored = kept(file, lambda content: _FORMAT.decode(content, file), lambda: _read(elf), _FORMAT.encode)
        return LibraryKernels(elf.source, stored)


def units_by_kernel(elf: ElfFile) -> dict[str, frozenset[RecordedUnit]]:
    """The units of every kernel of a library, by its mangled name; empty where they are unknown."""
    if not holds_device_code(elf):
        hint = "It holds HIP code, which opscope does not read" if _HIP_SECTION in elf.sections else None
        raise InputError("no CUDA device code in it", source=elf.source, hint=hint)
    units: dict[str, set[RecordedUnit]] = {}
    for kernels in with_source_paths(elf, embedded_kernels(elf)):
        for name in kernels.kernels:
            units.setdefault(name, set()).update(() if kernels.unit is None else (kernels.unit,))
    return {name: frozenset(units[name]) for name in sorted(units)}


def by_shown_name(kernels: dict[str, frozenset[RecordedUnit]]) -> dict[str, frozenset[RecordedUnit]]:
    """The same by the names a trace shows, demangled where possible; kernels that share one are joined."""
    shown: dict[str, frozenset[RecordedUnit]] = {}
    for name, text in zip(kernels, demangle_all(kernels), strict=True):
        shown[text or name] = shown.get(text or name, frozenset()) | kernels[name]
    return shown


def _read(elf: ElfFile) -> _Stored:
    kernels = units_by_kernel(elf)
    known = {**kernels, **by_shown_name(kernels)}
    units, sets, numbers = numbered_sets(
        known, lambda unit: (unit.name, unit.module_id or "", unit.source_path or "")
    )
    hashes = hash_map({text_hash(name): number for name, number in numbers.items()})
    return _Stored(_FORMAT.number, elf.build_id, units, sets, hashes.packed())


def _cache_key(elf: ElfFile) -> str:
    """Identifies a build; stripping keeps the build id but loses units, so the symbols are part of it."""
    symbols = "symbols" if ".symtab" in elf.sections else "stripped"
    if elf.build_id is not None:
        return f"{elf.build_id}.{symbols}"
    try:
        state = Path(elf.source).stat()
    except OSError as error:
        raise InputError(f"cannot be read ({error})", source=elf.source) from None
    identity = f"{Path(elf.source).resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    return f"{blake2b(identity.encode('utf-8', 'surrogateescape'), digest_size=20).hexdigest()}.{symbols}"
