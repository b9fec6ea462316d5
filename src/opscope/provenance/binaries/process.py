"""Kernels of the libraries that are mapped into this process: custom extensions, PyTorch and what it links.

Linux only; elsewhere nothing is found. Libraries are looked through in rounds: those that tell the unit of a
kernel first, the vendors' only for names no other has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opscope.errors import InputError
from opscope.provenance.binaries.elf import open_elf
from opscope.provenance.binaries.embedded import holds_device_code
from opscope.provenance.binaries.library import LibraryKernels, TranslationUnit, cached_library
from opscope.provenance.binaries.vendor import vendor_of_file

__all__ = ["KernelOrigin", "mapped_libraries", "units_of_process"]

_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class KernelOrigin:
    """Where a kernel comes from.

    Args:
        library: File name of the library.
        build_id: The linker's identification of its build; None if it has none.
        units: Translation units; empty if the library does not tell.
    """

    library: str
    build_id: str | None
    units: tuple[TranslationUnit, ...]


def mapped_libraries(maps: Path = _MAPS) -> tuple[Path, ...]:
    """Files with device code that are mapped into this process, in the order of their addresses.

    Args:
        maps: A file as `/proc/self/maps` is. If there is none, nothing is mapped.
    """
    try:
        text = maps.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ()
    # Address, permissions, offset, device, inode, path; the path may have blanks.
    columns = (line.split(maxsplit=5) for line in text.splitlines())
    paths = dict.fromkeys(row[5] for row in columns if len(row) == 6 and row[5].startswith("/"))
    return tuple(Path(path) for path in paths if _holds_device_code(path))


def _holds_device_code(path: str) -> bool:
    try:
        with open_elf(path) as elf:
            return holds_device_code(elf)
    except InputError:
        return False


def units_of_process(
    names: Iterable[str], folder: Path | None = None, maps: Path = _MAPS
) -> dict[str, KernelOrigin]:
    """The origin of kernels, among the libraries mapped into a process, by default this one.

    A name is left out if no library has it, or several have and only guessing would tell which one ran.

    Args:
        names: Demangled, as Kineto writes them, or mangled.
        folder: Where read libraries are kept, as for `cached_library`.
        maps: The process's memory map, as for `mapped_libraries`.
    """
    libraries = mapped_libraries(maps)
    wanted = set(names)
    origins: dict[str, KernelOrigin] = {}
    for round_ in (
        [path for path in libraries if vendor_of_file(path) is None],
        [path for path in libraries if vendor_of_file(path) is not None],
    ):
        if wanted:
            read = _read(round_, folder)
            known = {name for name in wanted if any(name in library for library in read)}
            origins.update(_origins(known, read))
            wanted -= known
    return origins


def _read(paths: Iterable[Path], folder: Path | None) -> list[LibraryKernels]:
    """The kernels of those libraries that can be read."""
    libraries = []
    for path in paths:
        try:
            libraries.append(cached_library(path, folder))
        except InputError:
            continue
    return libraries


def _origins(names: Iterable[str], libraries: Iterable[LibraryKernels]) -> dict[str, KernelOrigin]:
    """Origin of each name that exactly one library has."""
    origins = {}
    for name in names:
        holders = [library for library in libraries if name in library]
        if len(holders) == 1:
            library = holders[0]
            file = Path(library.path).name
            origins[name] = KernelOrigin(file, library.build_id, library.units_of(name))
    return origins
