"""How well a derived fact is known: every one carries one of these grades; unknown is None."""

from __future__ import annotations

from collections.abc import Iterable

from opscope.text_enum import TextEnum

__all__ = ["Grade", "weakest"]


class Grade(TextEnum):
    """The evidence for a fact, strongest first. A closed set."""

    EXACT = "exact"
    RELEASE_INDEX = "release_index"
    NEIGHBOR_VERSION = "neighbor_version"
    NAME_PATTERN = "name_pattern"
    INFERRED = "inferred"

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Grade.EXACT: "read from this build's own binary, yaml file or header",
    Grade.RELEASE_INDEX: "from the packaged index of the same release",
    Grade.NEIGHBOR_VERSION: "from the index of another release",
    Grade.NAME_PATTERN: "read from the name by a documented grammar",
    Grade.INFERRED: "from an undocumented but observed pattern",
}
_ORDER = {grade: rank for rank, grade in enumerate(Grade)}


def weakest(grades: Iterable[Grade | None]) -> Grade | None:
    """The grade of a fact that needs all of these; None if there are none or one of them is unknown."""
    known = list(grades)
    if not known or None in known:
        return None
    return max((grade for grade in known if grade is not None), key=_ORDER.__getitem__)
