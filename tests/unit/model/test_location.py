"""A place in source code is known as well as its weakest part."""

from itertools import permutations

import pytest

from opscope.model.location import Grade, SourceLocation, weakest


@pytest.mark.parametrize(
    ("location", "grade"),
    [
        (SourceLocation("a.cu", Grade.EXACT), Grade.EXACT),
        (SourceLocation("a.cu", Grade.EXACT, 3, 9, Grade.NEIGHBOR_VERSION), Grade.NEIGHBOR_VERSION),
        (SourceLocation("a.cu", Grade.NEIGHBOR_VERSION, 3, 9, Grade.EXACT), Grade.NEIGHBOR_VERSION),
        (SourceLocation("a.cu", Grade.RELEASE_INDEX, 3), Grade.RELEASE_INDEX),
    ],
)
def test_its_grade_is_that_of_its_weakest_part(location, grade):
    assert location.grade is grade


STRONGEST_FIRST = [
    "exact", "release_index", "compiled", "bracket", "neighbor_version", "name_pattern", "inferred",
]  # fmt: skip


def test_grades_are_written_as_their_values_and_the_weakest_counts():
    assert [str(grade) for grade in Grade] == STRONGEST_FIRST
    assert all(grade == grade.value and grade.meaning for grade in Grade)
    for one, other in permutations(Grade, 2):
        is_weaker = STRONGEST_FIRST.index(one) > STRONGEST_FIRST.index(other)
        assert weakest((one, other)) is (one if is_weaker else other)
    assert weakest([Grade.EXACT]) is Grade.EXACT
    assert weakest(iter(Grade)) is Grade.INFERRED


@pytest.mark.parametrize("grades", [(), (None,), (Grade.EXACT, None), (None, Grade.INFERRED)])
def test_a_fact_with_an_unknown_part_is_unknown(grades):
    assert weakest(grades) is None
