"""The file of a release's kernel table: facts only (names, paths, hashes of names).

A file is checked wholly when it is read:
whoever holds a `UnitTableFile` may index without fear.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from opscope.provenance.table_format import TableFormat
from opscope.text_enum import TextEnum

Member = TypeVar("Member")

# A map from texts to small numbers keeps a 48-bit hash of each text instead of the text. A text that is not
# in a map of 25,000 is taken for one that is with a probability of 25,000 / 2^48, one in ten thousand
# million. Texts of one map that share a hash are found when the map is made. Packed, keys are the steps from
# one sorted hash to the next, and bytes of equal weight stand together, for the sake of compression.
LARGEST_VALUE = 2**16 - 1
_KEY_BYTES = 6
_VALUE_BYTES = 2
_KEY_END = 1 << (8 * _KEY_BYTES)


class PackedMap(msgspec.Struct, frozen=True):
    count: int
    # Steps between the sorted hashes, big-endian, the first bytes of all before the second bytes of all
    keys: bytes
    values: bytes  # their numbers in the same manner


class HashMap(msgspec.Struct, frozen=True, eq=False):
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
        steps = np.diff(self.hashes, prepend=np.uint64(0))
        return PackedMap(len(self), _by_weight(steps, _KEY_BYTES), _by_weight(self.values, _VALUE_BYTES))

    @classmethod
    def unpacked(cls, packed: PackedMap) -> HashMap:
        steps = _from_weights(packed.keys, packed.count, _KEY_BYTES)
        values = _from_weights(packed.values, packed.count, _VALUE_BYTES)
        hashes = np.cumsum(steps, dtype=np.uint64)
        # A step is below 2^48, so a sum that overflows is smaller than the one before it.
        if np.any(hashes[1:] <= hashes[:-1]) or (len(hashes) and int(hashes[-1]) >= _KEY_END):
            raise ValueError("keys of a map are not sorted numbers of 48 bits")
        return cls(hashes, values.astype(np.uint16))


def hash_map(entries: Mapping[int, int]) -> HashMap:
    if any(not 0 <= value <= LARGEST_VALUE for value in entries.values()):
        raise ValueError(f"a number of a map is not within 0 and {LARGEST_VALUE}")
    hashes = np.fromiter(entries.keys(), dtype=np.uint64, count=len(entries))
    values = np.fromiter(entries.values(), dtype=np.uint16, count=len(entries))
    order = np.argsort(hashes)
    return HashMap(hashes[order], values[order])


def numbered_sets(
    members: Mapping[str, Collection[Member]], order: Callable[[Member], Any]
) -> tuple[tuple[Member, ...], tuple[tuple[int, ...], ...], dict[str, int]]:
    """All members in an order, the distinct sets of their indexes, and the number of each name's set."""
    listed = tuple(sorted({member for of in members.values() for member in of}, key=order))
    index = {member: position for position, member in enumerate(listed)}
    sets = {name: tuple(sorted(index[member] for member in of)) for name, of in members.items()}
    numbers = {one: number for number, one in enumerate(sorted(set(sets.values())))}
    return listed, tuple(numbers), {name: numbers[one] for name, one in sets.items()}


def text_hash(text: str) -> int:
    """The 48-bit hash of a text."""
    return int.from_bytes(
        blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest(), "big"
    )


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
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


class Origin(TextEnum):
    """Where a unit's file lies. A closed set."""

    REPOSITORY = "repository"
    SUBMODULE = "submodule"
    GENERATED = "generated"
    OTHER_PROJECT = "other_project"
    UNKNOWN = "unknown"


class Unit(msgspec.Struct, frozen=True, array_like=True):
    name: str  # file name (`SoftMax.cu`)
    path: str | None = None  # path in the repository, None where it is not known or there is none
    origin: Origin = Origin.UNKNOWN  # where the file lies

    @property
    def label(self) -> str:
        """The path where it is known, else the file name."""
        return self.path or self.name


# Loose keys whose kernels are in more than one unit. Only that is known of them.
SEVERAL_UNITS = LARGEST_VALUE


class Library(msgspec.Struct, frozen=True):
    """A library the table was read from."""

    name: str
    build_id: str | None = None
    kernel_count: int = 0


class UnitTableFile(msgspec.Struct, frozen=True):
    version: str  # release, `2.11.0`
    units: tuple[Unit, ...]  # every unit that has a kernel
    unit_sets: tuple[tuple[int, ...], ...]  # sets of indexes into `units`
    exact: PackedMap  # hash of a kernel name -> index into `unit_sets`
    loose: PackedMap  # hash of a loose key -> index into `units`, or `SEVERAL_UNITS`
    git_version: str | None = None  # commit of the release, if known
    cuda: str | None = None  # CUDA version it was built with, if known
    libraries: tuple[Library, ...] = ()  # what the table was read from
    format_version: int = 1


_FORMAT = TableFormat(
    "a kernel table of opscope",
    UnitTableFile,
    hint="Delete the file and add the library again, or reinstall opscope",
    has_checksum=True,
)


def encode_table(table: UnitTableFile) -> bytes:
    """The bytes of the file; equal tables give equal bytes."""
    return _FORMAT.encode(table)


def decode_table(content: bytes, source: str) -> UnitTableFile:
    table = _FORMAT.decode(content, source)
    try:
        _check(table)
    except ValueError as error:
        raise _FORMAT.damaged(error, source) from error
    return table


def _check(table: UnitTableFile) -> None:
    exact, loose = HashMap.unpacked(table.exact).values, HashMap.unpacked(table.loose).values
    if len(exact) and int(exact.max()) >= len(table.unit_sets):
        raise ValueError("a kernel refers to a set of units that is not there")
    known = loose[loose != SEVERAL_UNITS]
    if len(known) and int(known.max()) >= len(table.units):
        raise ValueError("a loose key refers to a unit that is not there")
    for unit_set in table.unit_sets:
        if not unit_set or min(unit_set) < 0 or max(unit_set) >= len(table.units):
            raise ValueError("a set of units refers to one that is not there")
