"""Which units a kernel name belongs to, as sorted hashes: compact in a file, usable without decoding it.

A library has up to 25,000 kernels with names of up to 5,000 characters, and each goes by its mangled and
its demangled name. To list them, names are kept apart, compressed. Names that share a 64-bit hash are not
told apart: the odds that a foreign name shares one with any of 50,000 are 3 in 10^15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import zstandard
from numpy.typing import NDArray

__all__ = ["KernelIndex"]

_COMPRESSION_LEVEL = 3
_SEPARATOR = "\0"


@dataclass(frozen=True, eq=False)
class KernelIndex:
    """Unit sets by the hash of a name.

    Args:
        hashes: uint64[n_keys], ascending, distinct.
        set_ids: uint32[n_keys], index into `unit_sets`.
        unit_sets: Indexes of units, ascending; empty where a kernel's unit is unknown.
        names: One name per kernel, separated by NUL, as a Zstandard frame.
    """

    hashes: NDArray[np.uint64]
    set_ids: NDArray[np.uint32]
    unit_sets: tuple[tuple[int, ...], ...]
    names: bytes

    @classmethod
    def of(cls, kernels: Mapping[str, frozenset[int]], names: Iterable[str]) -> KernelIndex:
        """The index of units by name.

        Args:
            kernels: Units of each kernel, under every name it goes by.
            names: The names to list.
        """
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
