"""A release's kernel table from the kernels its libraries register."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from opscope.errors import InputError
from opscope.provenance.releases.hash_map import LARGEST_VALUE, hash_map, text_hash
from opscope.provenance.releases.loose_key import loose_keys
from opscope.provenance.releases.table import launch_key_hash, owner_key_hash
from opscope.provenance.releases.table_file import SEVERAL_UNITS, Library, UnitTableFile
from opscope.provenance.releases.unit import Unit

__all__ = ["Build", "build_table"]


@dataclass(frozen=True)
class Build:
    """Which build a table is of.

    Args:
        version: Release (`2.11.0`) or the user's label.
        git_version: Its commit, if known.
        cuda: The CUDA version it was built with, if known.
        libraries: What its kernels were read from.
    """

    version: str
    git_version: str | None = None
    cuda: str | None = None
    libraries: tuple[Library, ...] = ()


def build_table(kernels: Mapping[str, Iterable[Unit]], build: Build) -> UnitTableFile:
    """The table of kernels and the units that register them; the order of either does not matter.

    Args:
        kernels: By name as a trace shows it. A kernel without a unit is left out: nothing is known of it.
        build: What the kernels belong to.

    Raises:
        InputError: Two names share a hash, or there are more units than the format can count.
    """
    known = {name: frozenset(units) for name, units in sorted(kernels.items())}
    known = {name: units for name, units in known.items() if units}
    units = sorted({unit for of in known.values() for unit in of}, key=_order)
    if len(units) >= SEVERAL_UNITS:
        raise InputError(f"{len(units):,} units in {build.version}; a table holds {SEVERAL_UNITS - 1:,}")
    index = {unit: position for position, unit in enumerate(units)}
    members = {name: tuple(sorted(index[unit] for unit in of)) for name, of in known.items()}
    sets = {unit_set: number for number, unit_set in enumerate(sorted(set(members.values())))}
    if len(sets) > LARGEST_VALUE:
        raise InputError(f"{len(sets):,} sets of units in {build.version}; a table holds {LARGEST_VALUE:,}")
    exact = _hashed({name: text_hash(name) for name in members}, build.version)
    return UnitTableFile(
        version=build.version,
        units=tuple(units),
        unit_sets=tuple(sets),
        exact=hash_map({exact[name]: sets[members[name]] for name in members}).packed(),
        loose=hash_map(_loose_entries(members, build.version)).packed(),
        git_version=build.git_version,
        cuda=build.cuda,
        libraries=build.libraries,
    )


def _hashed(hashes: Mapping[str, int], version: str) -> Mapping[str, int]:
    """The hashes themselves, all distinct."""
    seen: dict[int, str] = {}
    for text, number in hashes.items():
        other = seen.setdefault(number, text)
        if other != text:
            raise InputError(f"two names of {version} share the hash {number:#x}: {other!r} and {text!r}")
    return hashes


def _loose_entries(members: Mapping[str, Sequence[int]], version: str) -> dict[int, int]:
    units_of_key: dict[str, set[int]] = {}
    hashes: dict[str, int] = {}
    for name, unit_set in members.items():
        for text, number in _key_hashes(name):
            hashes[text] = number
            units_of_key.setdefault(text, set()).update(unit_set)
    return {
        number: next(iter(units_of_key[text])) if len(units_of_key[text]) == 1 else SEVERAL_UNITS
        for text, number in _hashed(hashes, version).items()
    }


def _key_hashes(name: str) -> Iterator[tuple[str, int]]:
    keys = loose_keys(name)
    if keys.owner is not None:
        yield f"owner {keys.owner}", owner_key_hash(keys.owner)
    if keys.launch is not None:
        yield f"launch {keys.launch}", launch_key_hash(keys.launch)


def _order(unit: Unit) -> tuple[str, str]:
    return unit.label, unit.origin.value
