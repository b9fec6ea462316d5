"""The units of a kernel of a trace, with the grade of the evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opscope.model.evidence import Grade
from opscope.provenance.releases.catalog import release
from opscope.provenance.releases.recognition import Recognition
from opscope.provenance.releases.table import ReleaseTable

__all__ = ["UnitAnswer", "kernel_units"]


@dataclass(frozen=True)
class UnitAnswer:
    """The units that register a kernel.

    Args:
        units: Paths in PyTorch's repository where known, else file names. One entry: exactly this unit.
        grade: `RELEASE_INDEX`, or `NEIGHBOR_VERSION` where it is known from another release or another
            kernel.
        version: Of the table that says so.
    """

    units: tuple[str, ...]
    grade: Grade
    version: str


def kernel_units(kernel_name: str, recognition: Recognition) -> UnitAnswer | None:
    """The units of a kernel of a recognized trace; None where no table supports an answer.

    By the exact name; where the release's table does not have it, by its loose keys.

    Raises:
        InputError: A table is damaged.
    """
    if recognition.version is None:
        return None
    table = release(recognition.version)
    units = table.units_of(kernel_name)
    grade = recognition.grade
    if not units:
        units, grade = table.loose_units_of(kernel_name), Grade.NEIGHBOR_VERSION
    for version in recognition.compared:
        units = _agreed(units, _known_units(release(version), kernel_name))
    return UnitAnswer(units, grade, table.version) if units else None


def _known_units(table: ReleaseTable, kernel_name: str) -> tuple[str, ...]:
    return table.units_of(kernel_name) or table.loose_units_of(kernel_name)


def _agreed(units: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """What two releases agree on: the units, or the names of files that moved; empty on a contradiction."""
    if not units or not others or set(units) & set(others):
        return units
    return units_named if (units_named := _names(units)) and set(units_named) & set(_names(others)) else ()


def _names(units: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(unit.rpartition("/")[2] for unit in units))
