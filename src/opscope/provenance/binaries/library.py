"""The kernels of shared libraries and the translation unit each comes from, read once per build and kept.

What is kept is like the kernel table of a release (`torch_releases`): each kernel goes by the hashes
of its mangled and its demangled name.

Libraries at hand are those mapped into a process (known on Linux only). They are looked through in rounds:
those that tell the unit of a kernel first, the vendors' (cuBLAS and others) only for names no other has.
Kernels built while a program runs (nvjet, cuDNN's generated ones, NVRTC) are in no library's file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from opscope.errors import InputError
from opscope.model.origin import RecordedKernel, RecordedUnit
from opscope.provenance.binaries.device_code import embedded_kernels, holds_device_code, with_source_paths
from opscope.provenance.binaries.elf import ElfFile, open_elf
from opscope.provenance.kernel_names.cxx_name import demangle_all
from opscope.provenance.packaged import TableFormat, cache_folder, kept, lazy_pattern
from opscope.provenance.torch_releases import HashMap, PackedMap, numbered_sets, packed_map, text_hash

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
        self._kernels = HashMap(stored.kernels)

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
        # Stripping keeps the build id but loses units, so the symbols are part of what identifies a build.
        build, path = elf.build_id, Path(elf.source)
        if build is None:
            state = path.stat()
            identity = f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
            build = blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
        symbols = "symbols" if ".symtab" in elf.sections else "stripped"
        file = (folder or cache_folder() / "libraries") / f"{build}.{symbols}.kernels"
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
    hashes = packed_map({text_hash(name): number for name, number in numbers.items()})
    return _Stored(_FORMAT.number, elf.build_id, units, sets, hashes)


_FILE = lazy_pattern(r"lib(?P<stem>[A-Za-z0-9]+)(?:_[A-Za-z0-9_]+)?(?:-[0-9a-f]+)?\.so(?:\.\d+)*")
_VENDORS = {
    stem.lower(): stem
    for stem in (
        "cublas", "cublasLt", "cudnn", "cufft", "cufftMp", "curand", "cusolver", "cusolverMg", "cusparse",
        "cusparseLt", "cutensor", "nccl", "nvjpeg", "nvshmem",
    )
}  # fmt: skip


def vendor_of_file(path: Path | str) -> str | None:
    """The vendor library a file is part of, by its name (`cudnn` of `libcudnn_ops.so.9`); None for others."""
    match = _FILE.fullmatch(Path(path).name)
    return _VENDORS.get(match["stem"].lower()) if match else None


def mapped_libraries(maps: Path) -> tuple[Path, ...]:
    """Files with device code that are mapped into this process, in the order of their addresses."""
    try:
        text = maps.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ()
    # Address, permissions, offset, device, inode, path; the path may have blanks.
    columns = (line.split(maxsplit=5) for line in text.splitlines())
    paths = dict.fromkeys(row[5] for row in columns if len(row) == 6 and row[5].startswith("/"))
    found = []
    for path in paths:
        with suppress(InputError), open_elf(path) as elf:
            found += [Path(path)] * holds_device_code(elf)
    return tuple(found)


def units_of_process(
    names: Iterable[str], folder: Path | None = None, *, maps: Path
) -> dict[str, RecordedKernel]:
    """The origin of kernels, among the libraries mapped into a process.

    A name is left out if no library has it, or several have and only guessing would tell which one ran.
    """
    libraries = mapped_libraries(maps)
    wanted = set(names)
    origins: dict[str, RecordedKernel] = {}
    for is_vendor in (False, True):
        paths = [path for path in libraries if (vendor_of_file(path) is not None) is is_vendor]
        read = _read_all(paths, folder) if wanted else ()
        for name in tuple(wanted):
            having = [library for library in read if name in library]
            if len(having) == 1:
                file, units = Path(having[0].path).name, having[0].units_of(name)
                origins[name] = RecordedKernel(name, file, having[0].build_id, units)
            wanted -= {name} if having else set()
    return origins


def _read_all(paths: Iterable[Path], folder: Path | None = None) -> tuple[LibraryKernels, ...]:
    """The kernels of those libraries that have device code: not cuBLAS' host-only parts, nor stubs."""
    libraries = []
    for path in paths:
        with suppress(InputError):
            libraries.append(cached_library(path, folder))
    return tuple(libraries)
