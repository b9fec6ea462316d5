"""A map from texts to small numbers that keeps a 48-bit hash of each text instead of the text.

A text that is not in a map of 25,000 is taken for one that is with a probability of 25,000 / 2^48, one in ten
thousand million. Texts of one map that share a hash are found when the map is made. Packed, keys are the
steps from one sorted hash to the next, and bytes of equal weight stand together, for the sake of compression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST_VALUE", "HashMap", "PackedMap", "hash_map", "text_hash", "text_hashes"]

LARGEST_VALUE = 2**16 - 1
_KEY_BYTES = 6
_VALUE_BYTES = 2
_KEY_END = 1 << (8 * _KEY_BYTES)


class PackedMap(msgspec.Struct, frozen=True):
    """A `HashMap` in a file.

    Args:
        count: Entries.
        keys: Steps between the sorted hashes, big-endian, the first bytes of all before the second bytes of
            all.
        values: Their numbers in the same manner.
    """

    count: int
    keys: bytes
    values: bytes


@dataclass(frozen=True, eq=False)
class HashMap:
    """The map; `hashes: uint64[n]` sorted and without duplicates, `values: uint16[n]`."""

    hashes: NDArray[np.uint64]
    values: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.hashes)

    def get(self, text_hash: int) -> int | None:
        """The number of the text with this hash; None if there is none."""
        position = int(self.hashes.searchsorted(np.uint64(text_hash)))
        if position == len(self.hashes) or int(self.hashes[position]) != text_hash:
            return None
        return int(self.values[position])

    def contains(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """For each hash whether the map has it: bool[n]."""
        if not len(self.hashes):
            return np.zeros(len(hashes), dtype=np.bool_)
        positions = np.minimum(self.hashes.searchsorted(hashes), len(self.hashes) - 1)
        return np.equal(self.hashes[positions], hashes)

    def packed(self) -> PackedMap:
        """The map as it is stored."""
        steps = np.diff(self.hashes, prepend=np.uint64(0))
        return PackedMap(len(self), _by_weight(steps, _KEY_BYTES), _by_weight(self.values, _VALUE_BYTES))

    @classmethod
    def unpacked(cls, packed: PackedMap) -> HashMap:
        """The map of its stored form.

        Raises:
            ValueError: The parts do not fit each other.
        """
        steps = _from_weights(packed.keys, packed.count, _KEY_BYTES)
        values = _from_weights(packed.values, packed.count, _VALUE_BYTES)
        hashes = np.cumsum(steps, dtype=np.uint64)
        # A step is below 2^48, so a sum that overflows is smaller than the one before it.
        if np.any(hashes[1:] <= hashes[:-1]) or (len(hashes) and int(hashes[-1]) >= _KEY_END):
            raise ValueError("keys of a map are not sorted numbers of 48 bits")
        return cls(hashes, values.astype(np.uint16))


def hash_map(entries: Mapping[int, int]) -> HashMap:
    """The map from hash to number.

    Raises:
        ValueError: A number does not fit.
    """
    if any(not 0 <= value <= LARGEST_VALUE for value in entries.values()):
        raise ValueError(f"a number of a map is not within 0 and {LARGEST_VALUE}")
    hashes = np.fromiter(entries.keys(), dtype=np.uint64, count=len(entries))
    values = np.fromiter(entries.values(), dtype=np.uint16, count=len(entries))
    order = np.argsort(hashes)
    return HashMap(hashes[order], values[order])


def text_hash(text: str) -> int:
    """The 48-bit hash of a text."""
    return int.from_bytes(
        blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest(), "big"
    )


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The hashes of texts in their order: uint64[n]."""
    return np.fromiter(map(text_hash, texts), dtype=np.uint64)


def _by_weight(numbers: NDArray[np.unsignedinteger], width_bytes: int) -> bytes:
    octets = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return bytes(octets[:, 8 - width_bytes :].T.tobytes())


def _from_weights(stored: bytes, count: int, width_bytes: int) -> NDArray[np.uint64]:
    if len(stored) != count * width_bytes:
        raise ValueError(f"{len(stored)} bytes of a map where {count * width_bytes} belong")
    octets = np.zeros((count, 8), dtype=np.uint8)
    octets[:, 8 - width_bytes :] = np.frombuffer(stored, dtype=np.uint8).reshape(width_bytes, count).T
    return octets.view(">u8").reshape(count).astype(np.uint64)
