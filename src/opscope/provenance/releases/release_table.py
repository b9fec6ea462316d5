"""The kernel table of each release: which translation units register a kernel.

Exact answers are by the whole name, as a trace shows it. Loose ones, for kernels of another release, are by
what outlives a release in a name, and only where that points to a single unit. The file of a table holds
facts only (names, paths, hashes of names), and is checked wholly when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from opscope.errors import InputError
from opscope.provenance.demangle import demangle
from opscope.provenance.installation import label_order, parse_version
from opscope.provenance.kernel_names.cxx_name import ANONYMOUS, Entity, names_in
from opscope.provenance.packaged import TableFormat, lazy_pattern, release_file, release_files
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


UNITS_FORMAT = TableFormat(
    "a kernel table of opscope",
    UnitTableFile,
    hint="Delete the file and add the library again, or reinstall opscope",
    has_checksum=True,
)


def decode_table(content: bytes, source: str) -> UnitTableFile:
    table = UNITS_FORMAT.decode(content, source)
    try:
        _check(table)
    except ValueError as error:
        raise UNITS_FORMAT.damaged(error, source) from error
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


# Loose keys: the part of a kernel name that outlives a release, that is what is launched, and whose code it
# runs. `vectorized_elementwise_kernel<4, …gelu(…)::{lambda…}, …>` changes its arguments from release to
# release; the function that owns the lambda, or the functor in the template arguments, rarely moves to
# another file. Each name has up to two keys: `owner`, that function, in one file whatever launches it; and
# `launch`, the kernel's function with the functors of its template arguments. Element types, sizes and
# argument holders are left out of both. Packaged tables hold hashes of these keys: a change here asks for new
# tables.

# Namespaces that carry their library's version, and nvcc's namespace of what is local to a unit.
_VERSION_NAMESPACE = lazy_pattern(r"(?:THRUST|CUB)_\w+_NS|__\d+|_INTERNAL_[0-9a-f]{8}_\d+_\w+")
_KEYWORD = lazy_pattern(
    "void|bool|char|signed|unsigned|short|int|long|float|double|auto|wchar_t|true|false|nullptr|const|volatile"
    "|half|__half|__nv_bfloat16|double2|float2|float4|uint4|ulonglong2"
)
# What template arguments hold besides functors: element types, sizes, iterators, argument holders.
_ARGUMENT_NAMESPACES = (
    "std::",
    "c10::",
    "cuda::",
    "thrust::",
    "cub::",
    "at_cuda_detail::",
    "cutlass::",
    "cute::",
)
_ARGUMENT_TYPE = lazy_pattern(
    r"(?:^|::)(?:(?:Trivial)?OffsetCalculator|CUDAGeneratorImpl|ReduceOp|Array|(?:Load|Store)With(?:out)?Cast"
    r"|\w*Metadata)$"
)


def loose_hash(kind: str, key: str) -> int:
    """The hash that a table holds for a loose key."""
    return text_hash(f"{kind}\0{key}")


def loose_keys(kernel_name: str) -> dict[str, str]:
    """`owner` and `launch` of a demangled kernel name, as far as it has them; a mangled one has none."""
    if kernel_name.startswith("_Z"):
        return {}
    entities, is_whole = names_in(kernel_name.replace("<unnamed>", ANONYMOUS))
    owners, functors, function = [], [], None
    for entity in _inner_first(entities):
        path = entity.name.split("::") + ([] if entity.operator is None else [entity.operator])
        name = "::".join(part for part in path if not _VERSION_NAMESPACE.fullmatch(part))
        if not entity.depth:
            function = function if not name or _KEYWORD.fullmatch(name) else name
        elif entity.owns_lambda:
            owners.append(name)
        elif name and _is_functor(name):
            functors.append(name)
    keys = {"owner": owners[0]} if owners else {}
    # A template library's kernel without anybody's functor is anybody's.
    if is_whole and function and (functors or not function.startswith(_ARGUMENT_NAMESPACES)):
        keys["launch"] = "|".join(dict.fromkeys((function, *functors)))
    return keys


def _inner_first(entities: Iterable[Entity]) -> Iterator[Entity]:
    """In the order in which they end."""
    unended: list[Entity] = []
    for entity in entities:
        while unended and unended[-1].depth >= entity.depth:
            yield unended.pop()
        unended.append(entity)
    yield from reversed(unended)


def _is_functor(name: str) -> bool:
    return not (
        _KEYWORD.fullmatch(name) or name.startswith(_ARGUMENT_NAMESPACES) or _ARGUMENT_TYPE.search(name)
    )


class ReleaseTable:
    def __init__(self, content: UnitTableFile) -> None:
        self._unit_sets = content.unit_sets
        self._exact = HashMap.unpacked(content.exact)
        self._loose = HashMap.unpacked(content.loose)
        self.version = content.version
        self.git_version = content.git_version
        self.cuda = content.cuda
        self.libraries = content.libraries
        self.units = content.units

    def units_of(self, kernel_name: str) -> tuple[str, ...]:
        """Every unit that registers the kernel, as path or file name; empty if the name is not known."""
        found = self._exact.get(text_hash(kernel_name))
        if found is None and (shown := demangle(kernel_name)) is not None:
            found = self._exact.get(text_hash(shown))
        return () if found is None else self._labels(self._unit_sets[found])

    def loose_units_of(self, kernel_name: str) -> tuple[str, ...]:
        """The one unit whose kernels launch the same code; empty unless there is exactly one."""
        keys = loose_keys(demangle(kernel_name) or kernel_name)
        hashes = {kind: loose_hash(kind, key) for kind, key in keys.items()}
        found = self._loose.get(hashes["owner"]) if "owner" in hashes else SEVERAL_UNITS
        # The owner of a lambda that no kernel here has is not of this release: its launcher says nothing.
        if found == SEVERAL_UNITS:
            found = self._loose.get(hashes["launch"]) if "launch" in hashes else None
        return () if found is None or found == SEVERAL_UNITS else self._labels((found,))

    def knows(self, name_hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """For each hash of a kernel name whether the table has it: bool[n]."""
        return self._exact.contains(name_hashes)

    def _labels(self, indexes: Iterable[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.units[index].label for index in indexes))


TABLE_NAME = "units.msgpack.zst"


@cache
def release_versions() -> tuple[str, ...]:
    return tuple(sorted(release_files(TABLE_NAME), key=label_order))


def release(version: str) -> ReleaseTable:
    """The table of a version; `2.11.0+cu130` is `2.11.0`."""
    known, parsed = release_versions(), parse_version(version)
    name = version if parsed is None else parsed.name
    if name not in known:
        raise InputError(f"no kernel table of PyTorch {version}; there are: {', '.join(known)}")
    return _table(name)


def git_version(version: str) -> str | None:
    parsed = parse_version(version)
    name = version if parsed is None else parsed.name
    return release(name).git_version if name in release_versions() else None


@cache
def _table(version: str) -> ReleaseTable:
    file = release_file(version, TABLE_NAME)
    return ReleaseTable(decode_table(file.read_bytes(), str(file)))
