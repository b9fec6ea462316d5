"""Grades: their order, their words."""

from __future__ import annotations

from itertools import permutations

import pytest

from opscope.model.evidence import Grade, weakest

STRONGEST_FIRST = [
    "exact",
    "release_index",
    "compiled",
    "bracket",
    "neighbor_version",
    "name_pattern",
    "inferred",
]


def test_grades_are_written_as_their_values_strongest_first() -> None:
    assert [str(grade) for grade in Grade] == STRONGEST_FIRST
    assert all(grade == grade.value and grade.meaning for grade in Grade)


def test_the_weakest_of_two_in_any_order() -> None:
    for one, other in permutations(Grade, 2):
        is_weaker = STRONGEST_FIRST.index(one) > STRONGEST_FIRST.index(other)
        assert weakest((one, other)) is (one if is_weaker else other)
    assert weakest([Grade.EXACT]) is Grade.EXACT
    assert weakest(iter(Grade)) is Grade.INFERRED


@pytest.mark.parametrize("grades", [(), (None,), (Grade.EXACT, None), (None, Grade.INFERRED)])
def test_a_fact_with_an_unknown_part_is_unknown(grades: tuple[Grade | None, ...]) -> None:
    assert weakest(grades) is None
