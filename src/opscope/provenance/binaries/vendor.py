"""Which of NVIDIA's libraries a kernel belongs to: by membership in the libraries at hand, never by its name.

Kernels built while a program runs (nvjet, cuDNN's generated ones, NVRTC) are in no library's file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from opscope.provenance.binaries.library import LibraryKernels

__all__ = ["vendor_libraries", "vendor_of", "vendor_of_file"]

_FILE = re.compile(r"lib(?P<stem>[A-Za-z0-9]+)(?:_[A-Za-z0-9_]+)?(?:-[0-9a-f]+)?\.so(?:\.\d+)*")
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


def vendor_of(name: str, libraries: Sequence[LibraryKernels]) -> str | None:
    """The vendor library a kernel belongs to.

    Args:
        name: Demangled, as Kineto writes it, or mangled.
        libraries: Libraries at hand; those of others than the vendor are passed over.

    Returns:
        `cublas`, `cudnn` and so on; None if none of the libraries has the kernel, or two vendors' have.
    """
    vendors = {vendor_of_file(library.path) for library in libraries if name in library}
    vendors.discard(None)
    return vendors.pop() if len(vendors) == 1 else None
