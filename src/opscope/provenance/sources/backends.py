"""Which part of the PyTorch tree a file belongs to, and where a dispatch key's implementations are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from opscope.provenance.sources.definitions import Definition

__all__ = ["area_of", "is_compiled", "nearest_to_key"]

_COMPILED = (".cu", ".cpp", ".cc", ".mm", ".c")
# Folder → area; a file in none of them is "generic".
_AREAS = {
    "cuda": "cuda",
    "cudnn": "cuda",
    "hip": "hip",
    "miopen": "hip",
    "mps": "mps",
    "metal": "metal",
    "vulkan": "vulkan",
    "xpu": "xpu",
    "nnapi": "nnapi",
    "xnnpack": "xnnpack",
    "mkldnn": "mkl",
    "mkl": "mkl",
    "cpu": "cpu",
    "functorch": "functorch",
    "test": "test",
    "templates": "test",
}
# Areas in which a key's functions may be defined, in order of preference; areas that are not named hold none.
# MIOpen's functions have CUDA entries too: stubs that raise.
_CUDA = (("cuda",), ("generic",), ("hip",))
_CPU = (("generic", "cpu"), ("mkl", "xnnpack"))
_COMPOSITE = (("generic",), ("cuda", "cpu", "mkl", "vulkan", "metal", "xnnpack", "hip"))
_MPS = (("mps",), ("generic",))


def is_compiled(file: str) -> bool:
    """Whether a file is a translation unit of its own, not a header."""
    return file.endswith(_COMPILED)


@lru_cache(maxsize=8192)
def area_of(file: str) -> str:
    """The area of a file, such as "cuda", "cpu" or "generic"."""
    if file.endswith((".cu", ".cuh")):
        return "cuda"
    folders = file.split("/")[:-1]
    return next((_AREAS[folder] for folder in reversed(folders) if folder in _AREAS), "generic")


def nearest_to_key(definitions: Sequence[Definition], key: str) -> list[Definition]:
    """The definitions in the likeliest area for a dispatch key; [] if none is where one may be."""
    for areas in _preferences(key):
        nearest = [definition for definition in definitions if area_of(definition.file) in areas]
        if nearest:
            return nearest
    return []


def _preferences(key: str) -> tuple[tuple[str, ...], ...]:
    if key.endswith("CUDA"):
        return _CUDA
    if key.endswith("MPS"):
        return _MPS
    if key.endswith("CPU"):
        return _CPU
    return _COMPOSITE
