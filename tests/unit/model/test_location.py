"""A place in source code is known as well as its weakest part."""

import pytest

from opscope.model.origin import Grade, SourceLocation, weakest


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


@pytest.mark.parametrize("grades", [(), (None,), (Grade.EXACT, None), (None, Grade.INFERRED)])
def test_a_fact_with_an_unknown_part_is_unknown(grades):
    assert weakest(grades) is None
