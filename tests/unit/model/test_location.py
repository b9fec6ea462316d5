"""A place in source code is known as well as its weakest part."""

from __future__ import annotations

import pytest

from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation


@pytest.mark.parametrize(
    ("location", "grade"),
    [
        (SourceLocation("a.cu", Grade.EXACT), Grade.EXACT),
        (SourceLocation("a.cu", Grade.EXACT, 3, 9, Grade.NEIGHBOR_VERSION), Grade.NEIGHBOR_VERSION),
        (SourceLocation("a.cu", Grade.NEIGHBOR_VERSION, 3, 9, Grade.EXACT), Grade.NEIGHBOR_VERSION),
        (SourceLocation("a.cu", Grade.RELEASE_INDEX, 3), Grade.RELEASE_INDEX),
    ],
)
def test_its_grade_is_that_of_its_weakest_part(location: SourceLocation, grade: Grade) -> None:
    assert location.grade is grade


def test_as_text_it_has_its_line_if_that_is_known() -> None:
    assert str(SourceLocation("a/b.cu", Grade.EXACT)) == "a/b.cu"
    assert str(SourceLocation("a/b.cu", Grade.EXACT, 7, 9, Grade.EXACT)) == "a/b.cu:7"
    assert str(SourceLocation("a.cu", Grade.EXACT, 7, 9, Grade.NEIGHBOR_VERSION)) == "a.cu:≈7"
    assert str(SourceLocation("a.cu", Grade.EXACT, 7, 9, Grade.BRACKET)) == "a.cu:7–9"
