"""The kernels of a shared library and the translation unit each comes from, read once per build and kept.

Two routes lead to the kernels: the code that registers them (`registration`), and, for stripped libraries
and for host code of other machines than x86-64, the device code itself (`embedded`). Where both can be had
they find the same kernels; only the first knows every unit.

A library has up to 25,000 kernels with names of up to 5,000 characters, and each goes by its mangled and its
demangled name: they are looked up by sorted hashes, and to list them names are kept apart, compressed. Names
that share a 64-bit hash are not told apart: the odds that a foreign name shares one with any of 50,000 are 3
in 10^15. The cache keeps a mark with the format's number, a digest of the rest, and the rest as MessagePack;
whatever is not exactly that is made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from opscope.errors import InputError
from opscope.provenance.binaries.elf import ElfFile, open_elf
from opscope.provenance.binaries.embedded import embedded_kernels, holds_device_code
from opscope.provenance.binaries.registration import registered_kernels
from opscope.provenance.binaries.translation_unit import TranslationUnit, UnitKernels, with_source_paths
from opscope.provenance.cache import cache_folder, kept
from opscope.provenance.demangle import demangle_all
from opscope.text_enum import TextEnum

_COMPRESSION_LEVEL = 3
_SEPARATOR = "\0"


@dataclass(frozen=True, eq=False)
class KernelIndex:
    """Unit sets by the hash of a name."""

    hashes: NDArray[np.uint64]  # uint64[n_keys], ascending, distinct
    set_ids: NDArray[np.uint32]  # uint32[n_keys], index into `unit_sets`
    # Indexes of units, ascending; empty where a kernel's unit is unknown
    unit_sets: tuple[tuple[int, ...], ...]
    names: bytes  # one name per kernel, separated by NUL, as a Zstandard frame

    @classmethod
    def of(cls, kernels: Mapping[str, frozenset[int]], names: Iterable[str]) -> KernelIndex:
        """The index of units by name."""
        unit_sets = {units: position for position, units in enumerate(dict.fromkeys(kernels.values()))}
        hashes = np.frombuffer(b"".join(map(_digest, kernels)), "<u8")
        hashes, first = np.unique(hashes, return_index=True)
        set_ids = np.fromiter((unit_sets[units] for units in kernels.values()), np.uint32, len(kernels))[
            first
        ]
        text = _SEPARATOR.join(names).encode("utf-8", "surrogatepass")
        compressed = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(text)
        return cls(hashes, set_ids, tuple(tuple(sorted(units)) for units in unit_sets), compressed)

    def find(self, name: str) -> tuple[int, ...] | None:
        """Units of a kernel, by any of its names; None if there is no such kernel."""
        wanted = np.frombuffer(_digest(name), "<u8")[0]
        position = int(np.searchsorted(self.hashes, wanted))
        if position == len(self.hashes) or self.hashes[position] != wanted:
            return None
        return self.unit_sets[self.set_ids[position]]

    def list_names(self) -> list[str]:
        """The names to list, in the order given."""
        text = zstandard.ZstdDecompressor().decompress(self.names).decode("utf-8", "surrogatepass")
        return text.split(_SEPARATOR) if text else []


def _digest(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()


class Route(TextEnum):
    """How the kernels of a library were found. A closed set."""

    REGISTRATION = "registration"
    FATBIN = "fatbin"


@dataclass(frozen=True, eq=False)
class LibraryKernels:
    """The kernels a shared library brings along."""

    path: str
    build_id: str | None  # the linker's identification of the build; None if it left none
    route: Route  # how the kernels were found
    units: tuple[TranslationUnit, ...]  # every translation unit named, with kernels or without, by name
    index: KernelIndex = field(repr=False)  # where the names lead

    def __contains__(self, name: object) -> bool:
        """Whether the library has a kernel of this name, demangled as Kineto writes it or mangled."""
        return isinstance(name, str) and self.index.find(name) is not None

    def units_of(self, name: str) -> tuple[TranslationUnit, ...]:
        """Units a kernel comes from.

        Several units may hold the same kernel, or kernels that differ in what demangling hides. None: not a
        kernel of this library, or one whose unit the library does not tell (see `in`). The name is demangled,
        as Kineto writes it, or mangled.
        """
        return tuple(self.units[index] for index in self.index.find(name) or ())

    def kernel_names(self) -> list[str]:
        """Every kernel once, demangled where possible, in the order of the mangled names."""
        return self.index.list_names()


def library_kernels(
    path: str, build_id: str | None, route: Route, found: Sequence[UnitKernels]
) -> LibraryKernels:
    """The kernels of a library, by unit, made searchable."""
    units = sorted({kernels.unit for kernels in found if kernels.unit is not None}, key=_sort_key)
    positions = {unit: position for position, unit in enumerate(units)}
    unit_indexes: dict[str, set[int]] = {}
    for kernels in found:
        for name in kernels.kernels:
            indexes = unit_indexes.setdefault(name, set())
            if kernels.unit is not None:
                indexes.add(positions[kernels.unit])
    mangled = sorted(unit_indexes)
    shown = [text or name for name, text in zip(mangled, demangle_all(mangled), strict=True)]
    keys = {name: frozenset(unit_indexes[name]) for name in mangled}
    for name, text in zip(mangled, shown, strict=True):
        keys[text] = keys.get(text, frozenset()) | unit_indexes[name]
    return LibraryKernels(path, build_id, route, tuple(units), KernelIndex.of(keys, dict.fromkeys(shown)))


def _sort_key(unit: TranslationUnit) -> tuple[str, str, str]:
    return unit.name, unit.module_id or "", unit.source_path or ""


# The number changes with the format and with what the readers find.
_MARK = b"opscope kernels 1\n"
_DIGEST_BYTES = 16


class _StoredLibrary(msgspec.Struct, frozen=True, array_like=True):
    build_id: str | None
    route: Route
    units: list[tuple[str, str | None, str | None]]
    unit_sets: list[tuple[int, ...]]
    hashes: bytes
    set_ids: bytes
    names: bytes


def encode_library(library: LibraryKernels) -> bytes:
    """The bytes `decode_library` reads; the path is not among them."""
    index = library.index
    content = msgspec.msgpack.encode(
        _StoredLibrary(
            library.build_id,
            library.route,
            [(unit.name, unit.module_id, unit.source_path) for unit in library.units],
            list(index.unit_sets),
            index.hashes.astype("<u8").tobytes(),
            index.set_ids.astype("<u4").tobytes(),
            index.names,
        )
    )
    return _MARK + blake2b(content, digest_size=_DIGEST_BYTES).digest() + content


def decode_library(stored: bytes, path: str) -> LibraryKernels | None:
    """The library encoded in these bytes; None if they are damaged or of another format."""
    mark, content = stored[: len(_MARK)], memoryview(stored)[len(_MARK) + _DIGEST_BYTES :]
    digest = stored[len(_MARK) : len(_MARK) + _DIGEST_BYTES]
    if mark != _MARK or digest != blake2b(content, digest_size=_DIGEST_BYTES).digest():
        return None
    try:
        library = msgspec.msgpack.decode(content, type=_StoredLibrary)
    except (msgspec.MsgspecError, RecursionError):
        return None
    index = KernelIndex(
        np.frombuffer(library.hashes, "<u8"),
        np.frombuffer(library.set_ids, "<u4"),
        tuple(library.unit_sets),
        library.names,
    )
    units = tuple(TranslationUnit(*unit) for unit in library.units)
    return LibraryKernels(path, library.build_id, library.route, units, index)


_HIP_SECTION = ".hip_fatbin"


def read_library(path: str | os.PathLike[str]) -> LibraryKernels:
    """The kernels of a shared library."""
    with open_elf(path) as elf:
        return _read(elf)


def cached_library(path: str | os.PathLike[str], folder: Path | None = None) -> LibraryKernels:
    """The same, from the cache if this build was read before."""
    with open_elf(path) as elf:
        file = (folder or cache_folder() / "libraries") / f"{_cache_key(elf)}.kernels"
        return kept(
            file, lambda stored: decode_library(stored, elf.source), lambda: _read(elf), encode_library
        )


def _read(elf: ElfFile) -> LibraryKernels:
    if not holds_device_code(elf):
        hint = "It holds HIP code, which opscope does not read" if _HIP_SECTION in elf.sections else None
        raise InputError("no CUDA device code in it", source=elf.source, hint=hint)
    route, found = Route.REGISTRATION, registered_kernels(elf)
    if not any(kernels.kernels for kernels in found):
        route, found = Route.FATBIN, embedded_kernels(elf)
    return library_kernels(elf.source, elf.build_id, route, with_source_paths(elf, found))


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
