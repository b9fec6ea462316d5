"""How well a derived fact is known: every one carries one of these grades; unknown is None."""

from __future__ import annotations

from collections.abc import Iterable

from opscope.text_enum import MeaningEnum


class Grade(MeaningEnum):
    """The evidence for a fact, strongest first. A closed set."""

    EXACT = "exact", "read from this build's own binary, yaml file or header"
    RELEASE_INDEX = "release_index", "from the packaged index of the same release"
    COMPILED = "compiled", "from line numbers compiled into this release's libraries"
    BRACKET = "bracket", "a range of lines, from the same"
    NEIGHBOR_VERSION = "neighbor_version", "from the index of another release (≈ before a line)"
    NAME_PATTERN = "name_pattern", "read from the name by a documented grammar"
    INFERRED = "inferred", "from an undocumented but observed pattern"


_ORDER = {grade: rank for rank, grade in enumerate(Grade)}


def weakest(grades: Iterable[Grade | None]) -> Grade | None:
    """The grade of a fact that needs all of these; None if there are none or one of them is unknown."""
    known = list(grades)
    if not known or None in known:
        return None
    return max((grade for grade in known if grade is not None), key=_ORDER.__getitem__)
