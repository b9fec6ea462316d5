"""Two kernel tables as one: what the upper says of a kernel counts, the lower fills the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from opscope.provenance.releases.hash_map import HashMap, PackedMap, hash_map
from opscope.provenance.releases.table_file import SEVERAL_UNITS, Library, UnitTableFile
from opscope.provenance.releases.unit import Unit

__all__ = ["overlaid"]


def overlaid(lower: UnitTableFile, upper: UnitTableFile) -> UnitTableFile:
    """One table of both, named as the upper one.

    A unit of the upper table whose path is not known is taken for the lower's unit of that name if there is
    one only. A loose key that points to different units in the two points to none.
    """
    upper_units = _with_paths(upper.units, lower.units)
    units = tuple(dict.fromkeys((*lower.units, *upper_units)))
    index = {unit: position for position, unit in enumerate(units)}
    sets: dict[tuple[int, ...], int] = {}

    def renumbered(table: UnitTableFile, of: Sequence[Unit]) -> dict[int, int]:
        numbers = [
            sets.setdefault(tuple(sorted({index[of[member]] for member in unit_set})), len(sets))
            for unit_set in table.unit_sets
        ]
        return _entries(table.exact, numbers.__getitem__)

    def reindexed(table: UnitTableFile, of: Sequence[Unit]) -> dict[int, int]:
        return _entries(table.loose, lambda number: number if number == SEVERAL_UNITS else index[of[number]])

    exact = {**renumbered(lower, lower.units), **renumbered(upper, upper_units)}
    loose = _joined(reindexed(lower, lower.units), reindexed(upper, upper_units))
    return msgspec.structs.replace(
        upper,
        units=units,
        unit_sets=tuple(sets),
        exact=hash_map(exact).packed(),
        loose=hash_map(loose).packed(),
        git_version=upper.git_version or lower.git_version,
        cuda=upper.cuda or lower.cuda,
        libraries=_libraries(lower.libraries, upper.libraries),
    )


def _entries(packed: PackedMap, number: Callable[[int], int]) -> dict[int, int]:
    entries = HashMap.unpacked(packed)
    return {
        int(key): number(int(value))
        for key, value in zip(entries.hashes.tolist(), entries.values.tolist(), strict=True)
    }


def _joined(lower: dict[int, int], upper: dict[int, int]) -> dict[int, int]:
    disagreeing = {key: SEVERAL_UNITS for key in lower.keys() & upper.keys() if lower[key] != upper[key]}
    return {**lower, **upper, **disagreeing}


def _with_paths(units: Sequence[Unit], known: Sequence[Unit]) -> tuple[Unit, ...]:
    by_name: dict[str, list[Unit]] = {}
    for unit in known:
        by_name.setdefault(unit.name, []).append(unit)
    return tuple(
        by_name[unit.name][0] if unit.path is None and len(by_name.get(unit.name, ())) == 1 else unit
        for unit in units
    )


def _libraries(lower: Sequence[Library], upper: Sequence[Library]) -> tuple[Library, ...]:
    return tuple({library.name: library for library in (*lower, *upper)}.values())
