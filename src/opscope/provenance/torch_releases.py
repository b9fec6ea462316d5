"""The kernel table of each release of PyTorch: which units register a kernel; and which release made a trace.

Exact answers are by the whole name, as a trace shows it. Loose ones, for kernels of another release, are by
what outlives a release in a name, and only where that points to a single unit. The file of a table holds
facts only: names, paths, hashes of names. The torch installed here is found and read without importing it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from packaging.version import InvalidVersion, Version

from opscope.errors import InputError
from opscope.model.origin import Grade
from opscope.provenance.kernel_names.cxx_name import ANONYMOUS, Entity, demangle, names_in
from opscope.provenance.packaged import TableFormat, lazy_pattern

Member = TypeVar("Member")

# A map from texts to small numbers keeps a 48-bit hash of each text instead of the text. A text that is not
# in a map of 25,000 is taken for one that is with a probability of 25,000 / 2^48, one in ten thousand
# million. Texts of one map that share a hash are found when the map is made. Packed, keys are the steps from
# one sorted hash to the next, and bytes of equal weight stand together, for the sake of compression.
_KEY_BYTES = 6
_VALUE_BYTES = 2


class PackedMap(msgspec.Struct, frozen=True):
    count: int
    # Steps between the sorted hashes, big-endian, the first bytes of all before the second bytes of all
    keys: bytes
    values: bytes  # their numbers in the same manner


def packed_map(entries: Mapping[int, int]) -> PackedMap:
    hashes = np.fromiter(sorted(entries), dtype=np.uint64, count=len(entries))
    values = np.fromiter((entries[key] for key in hashes.tolist()), dtype=np.uint16, count=len(entries))
    steps = np.diff(hashes, prepend=np.uint64(0))
    return PackedMap(len(entries), _by_weight(steps, _KEY_BYTES), _by_weight(values, _VALUE_BYTES))


class HashMap:
    """A map that can be asked; its hashes are sorted and without duplicates."""

    def __init__(self, packed: PackedMap) -> None:
        self._hashes = np.cumsum(_from_weights(packed.keys, packed.count, _KEY_BYTES), dtype=np.uint64)
        self._values = _from_weights(packed.values, packed.count, _VALUE_BYTES)

    def get(self, text_hash: int) -> int | None:
        """The number of the text with this hash; None if there is none."""
        position = int(self._hashes.searchsorted(np.uint64(text_hash)))
        if position == len(self._hashes) or int(self._hashes[position]) != text_hash:
            return None
        return int(self._values[position])

    def contains(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """For each hash whether the map has it: bool[n]."""
        if not len(self._hashes):
            return np.zeros(len(hashes), dtype=np.bool_)
        positions = np.minimum(self._hashes.searchsorted(hashes), len(self._hashes) - 1)
        return np.equal(self._hashes[positions], hashes)


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


def _by_weight(numbers: NDArray[np.unsignedinteger], width_bytes: int) -> bytes:
    octets = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return bytes(octets[:, 8 - width_bytes :].T.tobytes())


def _from_weights(stored: bytes, count: int, width_bytes: int) -> NDArray[np.uint64]:
    octets = np.zeros((count, 8), dtype=np.uint8)
    octets[:, 8 - width_bytes :] = np.frombuffer(stored, dtype=np.uint8).reshape(width_bytes, count).T
    return octets.view(">u8").reshape(count).astype(np.uint64)


class Unit(msgspec.Struct, frozen=True, array_like=True):
    name: str  # file name (`SoftMax.cu`)
    path: str | None = None  # path in the repository, None where it is not known or there is none

    @property
    def label(self) -> str:
        """The path where it is known, else the file name."""
        return self.path or self.name


# Loose keys whose kernels are in more than one unit. Only that is known of them.
SEVERAL_UNITS = 2**16 - 1


class Library(msgspec.Struct, frozen=True):
    name: str


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
        elif name and not _KEYWORD.fullmatch(name):
            is_argument = name.startswith(_ARGUMENT_NAMESPACES) or _ARGUMENT_TYPE.search(name)
            functors += [] if is_argument else [name]
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


class ReleaseTable(msgspec.Struct, frozen=True, dict=True):
    version: str  # release, `2.11.0`
    units: tuple[Unit, ...]  # every unit that has a kernel
    unit_sets: tuple[tuple[int, ...], ...]  # sets of indexes into `units`
    exact: PackedMap  # hash of a kernel name -> index into `unit_sets`
    loose: PackedMap  # hash of a loose key -> index into `units`, or `SEVERAL_UNITS`
    git_version: str | None = None  # commit of the release, if known
    cuda: str | None = None  # CUDA version it was built with, if known
    libraries: tuple[Library, ...] = ()  # what the table was read from
    format_version: int = 1

    @cached_property
    def _exact(self) -> HashMap:
        return HashMap(self.exact)

    @cached_property
    def _loose(self) -> HashMap:
        return HashMap(self.loose)

    def units_of(self, kernel_name: str) -> tuple[str, ...]:
        """Every unit that registers the kernel, as path or file name; empty if the name is not known."""
        found = self._exact.get(text_hash(kernel_name))
        if found is None and (shown := demangle(kernel_name)) is not None:
            found = self._exact.get(text_hash(shown))
        return () if found is None else self._labels(self.unit_sets[found])

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


UNITS_FORMAT = TableFormat(
    "a kernel table of opscope",
    ReleaseTable,
    hint="Delete the file and add the library again, or reinstall opscope",
    has_checksum=True,
    file="units.msgpack.zst",
)
release_versions = UNITS_FORMAT.releases


def release(version: str) -> ReleaseTable:
    """The table of a version; `2.11.0+cu130` is `2.11.0`."""
    table = _table(version)
    if table is None:
        raise InputError(f"no kernel table of PyTorch {version}; there are: {', '.join(release_versions())}")
    return table


def git_version(version: str) -> str | None:
    table = _table(version)
    return None if table is None else table.git_version


def _table(version: str) -> ReleaseTable | None:
    parsed = parse_version(version)
    return UNITS_FORMAT.of_release(version if parsed is None else parsed.name)


# Which release of PyTorch made a trace, and with that the units of its kernels.
#
# A label is believed; hit rates are computed all the same, as evidence. Without one, the release is the one
# whose table knows (nearly) every kernel name that could be PyTorch's. Releases share most of their kernels,
# so a short trace fits several: then, and where the release itself has no table, the answer is a neighbor,
# graded as such, and the reason says from which release it is.

# Releases five minor versions apart share half of a trace's kernel names.
_LOWEST_HIT_RATE = 0.6
# Kernels of the user's own extensions may look like PyTorch's; a few of them do not make it another release.
_SAME_RELEASE_HIT_RATE = 0.98
# Fewer names fit releases without a table as well.
_FEWEST_CANDIDATES = 10

_MAY_BE_TORCH = lazy_pattern(
    r"(?:void |bool )?(?:\(anonymous namespace\)::)?"
    r"(?:(?:at|at_cuda_detail|c10|c10d|cub|thrust|torch|pytorch_flash)::|fmha_cutlass[FB]_)"
    r"|_ZN?K?\d*(?:2at|14at_cuda_detail|3c10|4c10d|3cub|6thrust|5torch|13pytorch_flash)"
)


class Recognition(msgspec.Struct, frozen=True):
    version: str | None  # of the table to ask, or None
    grade: Grade  # `RELEASE_INDEX` if the trace was made by that release, else `NEIGHBOR_VERSION`
    # By version, the fraction (0 to 1) of the candidates its table knows; empty without candidates
    hit_rates: dict[str, float]
    candidate_count: int  # kernel names that could be of PyTorch's own libraries
    reason: str = ""  # how the version was found, or why not. One clause for people.
    compared: tuple[str, ...] = ()  # further versions that fit as well; an answer they contradict is none
    label: str | None = None  # the release by the trace's own word

    @property
    def release(self) -> str | None:
        """The release that the user has, as far as known; None if nothing answers for it."""
        return None if self.version is None else self.label or self.version


def recognize(
    kernel_names: Iterable[str], *, torch_version: str | None = None, cuda_major: int | None = None
) -> Recognition:
    """The release that made a trace with these kernels.

    `torch_version` is what the trace or its sidecar says of itself. Releases published for an older CUDA than
    `cuda_major` only are out of the question, unless the label says otherwise.
    """
    names, versions = sorted(set(kernel_names)), release_versions()
    hashes = np.fromiter(map(text_hash, names), dtype=np.uint64)
    known = {version: release(version).knows(hashes) for version in versions}
    candidates = np.fromiter((bool(_MAY_BE_TORCH.match(name)) for name in names), np.bool_, len(names))
    for of in known.values():
        candidates |= of
    count = int(np.count_nonzero(candidates))
    rates = {version: int(np.count_nonzero(of)) / count for version, of in known.items() if count}
    found = Recognition(None, Grade.NEIGHBOR_VERSION, rates, count)
    label = (torch_version or "").strip()
    version = parse_version(label)
    if label in versions:
        return _labeled(found, label, label)
    if version is None:
        builds = {one: release(one).cuda for one in rates if cuda_major is not None}
        # That of the build a table was read from, the newest of its release; unknown counts as any.
        older = {one for one, cuda in builds.items() if cuda and int(cuda.split(".")[0]) < (cuda_major or 0)}
        fitting = {one: rate for one, rate in rates.items() if one not in older}
        return _by_hit_rate(replace(found, hit_rates=fitting or rates))
    if version.is_official and version.name in versions:
        return _labeled(found, version.name, label)
    return replace(_neighbor(found, version), label=version.name if version.is_official else label)


def _labeled(found: Recognition, version: str, label: str) -> Recognition:
    if found.candidate_count >= _FEWEST_CANDIDATES and found.hit_rates[version] < _LOWEST_HIT_RATE:
        reason = f"labeled {label}, but its kernels are not those of that release"
        return replace(found, version=version, reason=reason)
    reason = f"labeled {label}"
    return replace(found, version=version, grade=Grade.RELEASE_INDEX, reason=reason)


def _neighbor(found: Recognition, version: TorchVersion) -> Recognition:
    """The nearest release there is a table of; its counterpart on the other side may contradict."""
    known = [one for one in release_versions() if release_of(one)[0] == version.release[0]]
    nearest = nearest_release(version.name, known)
    if nearest is None:
        # Whichever table fits, it is of another release than the label says.
        by_rate = _by_hit_rate(found)
        reason = f"from {by_rate.version}, by its kernels; no near release is known"
        return replace(by_rate, grade=Grade.NEIGHBOR_VERSION, reason=reason) if by_rate.version else by_rate
    if nearest == version.name:
        reason = f"from the release {nearest}"
        return replace(found, version=nearest, reason=reason)
    is_newer = release_of(nearest) > version.release
    other = nearest_release(
        version.name, [one for one in known if (release_of(one) > version.release) is not is_newer]
    )
    reason = (
        f"from {nearest}, the newest known; a newer opscope may know it"
        if version.is_official and nearest == known[-1] and not is_newer
        else f"from {nearest}, the nearest release that is known"
    )
    return replace(found, version=nearest, reason=reason, compared=() if other is None else (other,))


def _by_hit_rate(found: Recognition) -> Recognition:
    count = found.candidate_count
    if not count:
        reason = "no kernel names that could be PyTorch's own"
        return replace(found, reason=reason)
    best = max(found.hit_rates.values(), default=0.0)
    tied = [version for version, rate in found.hit_rates.items() if rate == best]
    share = f"{round(best * count)} of {count} kernel names"
    if not best:
        reason = f"no table knows one of {count} kernel names"
        return replace(found, reason=reason)
    if len(tied) > 1:
        names = f"{', '.join(tied[:-1])} and {tied[-1]}"
        reason = f"{names} know the same {share}; the oldest is taken"
        # More releases without a table lie before the oldest that fits than between those that do.
        return replace(found, version=tied[0], reason=reason, compared=tuple(tied[1:]))
    if best >= _SAME_RELEASE_HIT_RATE and count >= _FEWEST_CANDIDATES:
        reason = f"{tied[0]} alone knows {share}"
        return replace(found, version=tied[0], grade=Grade.RELEASE_INDEX, reason=reason)
    reason = f"{tied[0]} knows {share}, more than any other"
    return replace(found, version=tied[0], reason=reason)


def kernel_units(kernel_name: str, recognition: Recognition) -> tuple[tuple[str, ...], Grade]:
    """The units of a kernel of a recognized trace, none where no table supports an answer; and their grade.

    Units are paths in PyTorch's repository where known, else file names. They are known by the exact name;
    where the release's table does not have it, by its loose keys, which is as good as of a neighbor.
    """
    if recognition.version is None:
        return (), recognition.grade
    table = release(recognition.version)
    units, grade = table.units_of(kernel_name), recognition.grade
    if not units:
        units, grade = table.loose_units_of(kernel_name), Grade.NEIGHBOR_VERSION
    for other in map(release, recognition.compared):
        others = other.units_of(kernel_name) or other.loose_units_of(kernel_name)
        if units and others and not set(units) & set(others):
            # What two releases agree on may be the names of files that moved; empty on a contradiction.
            names, other_names = (
                dict.fromkeys(unit.rpartition("/")[2] for unit in of) for of in (units, others)
            )
            units = tuple(names) if names.keys() & other_names.keys() else ()
    return units, grade


COMMIT = lazy_pattern(r"[0-9a-f]{40}")
_VERSION = lazy_pattern(r"^__version__\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]+)['\"]", re.MULTILINE)


def package_folders(name: str) -> tuple[Path, ...]:
    """Folders of the package of that name that this Python would import; empty if there is none."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return ()
    return tuple(Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ())


def installed_torch() -> str | None:
    """Version in the `version.py` of the torch that this Python would import; None is unknown."""
    try:
        text = (package_folders("torch")[0] / "version.py").read_text(encoding="utf-8", errors="replace")
    except (IndexError, OSError):
        return None
    found = _VERSION.search(text)
    return None if found is None else found[1]


_OFFICIAL_LOCAL = lazy_pattern(r"cu\d+|cpu|", re.IGNORECASE)


class TorchVersion(msgspec.Struct, frozen=True):
    release: tuple[int, int, int]  # major, minor and patch number
    is_official: bool  # it is the release itself, built for CUDA or for CPUs

    @property
    def name(self) -> str:
        """The release as text: `2.11.0`."""
        return ".".join(map(str, self.release))


@cache
def parse_version(label: str) -> TorchVersion | None:
    """The release of a build: `2.11.0`, `2.11.0+cu130`, `2.12.0.dev20260101`, `2.6.0a0+git2236df1`."""
    try:
        version = Version(label)
    except InvalidVersion:
        return None
    if not 2 <= len(version.release) <= 3:
        return None
    major, minor, patch = (*version.release, 0)[:3]
    is_release = not (version.is_prerelease or version.is_postrelease)
    is_official = is_release and _OFFICIAL_LOCAL.fullmatch(version.local or "") is not None
    return TorchVersion((major, minor, patch), is_official)


def release_of(label: str) -> tuple[int, int, int]:
    parsed = parse_version(label)
    return (0, 0, 0) if parsed is None else parsed.release


def nearest_release(label: str | None, known: Sequence[str]) -> str | None:
    """The nearest of some releases by minor version, the later of two; the last for an unknown label.

    The one rule for all that is asked of a release.

    A function that a release lacks was more often added later than removed before.
    """
    wanted = parse_version(label or "")
    if wanted is None:
        return known[-1] if known else None

    def distance(name: str) -> tuple[int, int]:
        pairs = zip(release_of(name), wanted.release, strict=True)
        major, minor, patch = (one - other for one, other in pairs)
        return abs(1000 * major + minor), abs(patch)

    return min(reversed(known), key=distance, default=None)
