"""Reads the kernels of a shared library, and keeps what was read.

Two routes lead to the kernels: the code that registers them (`registration`), and, for stripped libraries
and for host code of other machines than x86-64, the device code itself (`embedded`). Where both can be had
they find the same kernels; only the first knows every unit.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from opscope.errors import InputError
from opscope.provenance.binaries.elf import ElfFile, open_elf
from opscope.provenance.binaries.embedded import embedded_kernels, holds_device_code
from opscope.provenance.binaries.library_file import decode_library, encode_library
from opscope.provenance.binaries.library_kernels import LibraryKernels, Route, library_kernels
from opscope.provenance.binaries.registration import registered_kernels
from opscope.provenance.binaries.source_paths import with_source_paths
from opscope.provenance.binaries.translation_unit import TranslationUnit
from opscope.provenance.cache import cache_folder, write_atomically

__all__ = ["LibraryKernels", "Route", "TranslationUnit", "cached_library", "read_library"]

_HIP_SECTION = ".hip_fatbin"


def read_library(path: str | os.PathLike[str]) -> LibraryKernels:
    """The kernels of a shared library.

    Args:
        path: A Linux library of CUDA kernels, stripped or not.

    Raises:
        InputError: Not an ELF file, no device code in it, or damaged.
    """
    with open_elf(path) as elf:
        return _read(elf)


def cached_library(path: str | os.PathLike[str], folder: Path | None = None) -> LibraryKernels:
    """The same, from the cache if this build was read before.

    Args:
        path: The library.
        folder: Where files are kept, `libraries` in the user's cache folder by default; need not be writable.

    Raises:
        InputError: As for `read_library`.
    """
    with open_elf(path) as elf:
        file = (folder or cache_folder() / "libraries") / f"{_cache_key(elf)}.kernels"
        with suppress(OSError):
            if (library := decode_library(file.read_bytes(), elf.source)) is not None:
                return library
        library = _read(elf)
    with suppress(OSError):
        write_atomically(file, encode_library(library))
    return library


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
