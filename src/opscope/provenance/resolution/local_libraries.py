"""The libraries of the torch installed here, as evidence for traces that this very build made.

Read when a kernel is first asked for, and kept in the cache; an installation without CUDA has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from opscope.errors import InputError
from opscope.provenance.binaries.library import cached_library
from opscope.provenance.binaries.library_kernels import LibraryKernels
from opscope.provenance.binaries.vendor import vendor_libraries
from opscope.provenance.installation import package_folders

__all__ = ["LocalLibraries", "installed_libraries"]

_TORCH_LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_hip.so")


class LocalLibraries:
    """Kernels of some libraries, torch's own before its vendors'.

    Args:
        torch: PyTorch's libraries.
        vendors: cuBLAS and others; read only for kernels that PyTorch's do not hold.
    """

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
        return tuple(_read(self._torch_paths))

    @cached_property
    def _vendors(self) -> tuple[LibraryKernels, ...]:
        return tuple(_read(self._vendor_paths))


def installed_libraries() -> LocalLibraries:
    """Those of the torch that this Python would import, found without importing it."""
    folders = package_folders("torch")
    torch = [folder / "lib" / name for folder in folders for name in _TORCH_LIBRARIES]
    # The wheels of NVIDIA lie beside torch's: nvidia/cublas/lib, or nvidia/cu13/lib.
    vendors = [lib for folder in folders for lib in sorted(folder.parent.glob("nvidia/*/lib"))]
    return LocalLibraries([path for path in torch if path.is_file()], vendor_libraries(vendors))


def _read(paths: Iterable[Path]) -> Iterator[LibraryKernels]:
    for path in paths:
        try:
            yield cached_library(path)
        except InputError:  # without device code: cuBLAS' host-only parts, stubs
            continue
