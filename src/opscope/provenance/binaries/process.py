"""Kernels of the libraries at hand: those mapped into this process, and those of the torch installed here.

Libraries are looked through in rounds: those that tell the unit of a kernel first, the vendors' (cuBLAS and
others) only for names no other has. Kernels built while a program runs (nvjet, cuDNN's generated ones, NVRTC)
are in no library's file. Mapped libraries are known on Linux only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from opscope.errors import InputError
from opscope.model.origin import RecordedKernel
from opscope.provenance.binaries.elf import open_elf
from opscope.provenance.binaries.embedded import holds_device_code
from opscope.provenance.binaries.library import LibraryKernels, cached_library
from opscope.provenance.installation import package_folders
from opscope.provenance.packaged import lazy_pattern

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


def vendor_libraries(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The vendor libraries among these files and, directly in them, folders; sorted."""
    files = (file for path in paths for file in (path.iterdir() if path.is_dir() else (path,)))
    return tuple(sorted(file for file in files if vendor_of_file(file) is not None))


def mapped_libraries(maps: Path) -> tuple[Path, ...]:
    """Files with device code that are mapped into this process, in the order of their addresses."""
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
    names: Iterable[str], folder: Path | None = None, *, maps: Path
) -> dict[str, RecordedKernel]:
    """The origin of kernels, among the libraries mapped into a process.

    A name is left out if no library has it, or several have and only guessing would tell which one ran.
    """
    libraries = mapped_libraries(maps)
    wanted = set(names)
    origins: dict[str, RecordedKernel] = {}
    for round_ in (
        [path for path in libraries if vendor_of_file(path) is None],
        [path for path in libraries if vendor_of_file(path) is not None],
    ):
        if wanted:
            read = _read(round_, folder)
            holders = {name: [library for library in read if name in library] for name in wanted}
            wanted -= {name for name, having in holders.items() if having}
            for name, (library, *others) in ((name, having) for name, having in holders.items() if having):
                if not others:
                    file, units = Path(library.path).name, library.units_of(name)
                    origins[name] = RecordedKernel(name, file, library.build_id, units)
    return origins


def _read(paths: Iterable[Path], folder: Path | None = None) -> tuple[LibraryKernels, ...]:
    """The kernels of those libraries that have device code: not cuBLAS' host-only parts, nor stubs."""
    libraries = []
    for path in paths:
        with suppress(InputError):
            libraries.append(cached_library(path, folder))
    return tuple(libraries)


_TORCH_LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_hip.so")


class LocalLibraries:
    """Kernels of some libraries, torch's own before its vendors'."""

    def __init__(self, torch: Sequence[Path] = (), vendors: Sequence[Path] = ()) -> None:
        self._torch_paths = torch
        self._vendor_paths = vendors

    def holding(self, name: str) -> LibraryKernels | None:
        """The only library that holds a kernel of this name; None if none or several do."""
        found = [library for library in self._torch if name in library]
        found = found or [library for library in self._vendors if name in library]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _torch(self) -> tuple[LibraryKernels, ...]:
        return _read(self._torch_paths)

    @cached_property
    def _vendors(self) -> tuple[LibraryKernels, ...]:
        return _read(self._vendor_paths)


def installed_libraries() -> LocalLibraries:
    """Those of the torch that this Python would import, found without importing it."""
    folders = package_folders("torch")
    torch = [folder / "lib" / name for folder in folders for name in _TORCH_LIBRARIES]
    # The wheels of NVIDIA lie beside torch's: nvidia/cublas/lib, or nvidia/cu13/lib.
    vendors = [lib for folder in folders for lib in sorted(folder.parent.glob("nvidia/*/lib"))]
    return LocalLibraries([path for path in torch if path.is_file()], vendor_libraries(vendors))
