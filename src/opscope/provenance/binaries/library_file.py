"""Kernels of a library as bytes: what the cache keeps.

A mark with the format's number, a digest of the rest, and the rest as MessagePack. Whatever is not exactly
that is not read: the cache is made again.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import numpy as np

from opscope.provenance.binaries.kernel_index import KernelIndex
from opscope.provenance.binaries.library_kernels import LibraryKernels, Route
from opscope.provenance.binaries.translation_unit import TranslationUnit

__all__ = ["decode_library", "encode_library"]

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
    return _MARK + _digest(content) + content


def decode_library(stored: bytes, path: str) -> LibraryKernels | None:
    """The library encoded in these bytes; None if they are damaged or of another format.

    Args:
        stored: What `encode_library` wrote.
        path: Where the library lies now.
    """
    mark, digest, content = (
        stored[: len(_MARK)],
        stored[len(_MARK) : len(_MARK) + _DIGEST_BYTES],
        memoryview(stored)[len(_MARK) + _DIGEST_BYTES :],
    )
    if mark != _MARK or digest != _digest(content):
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


def _digest(content: bytes | memoryview) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
