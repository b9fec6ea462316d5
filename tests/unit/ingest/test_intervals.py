"""The length of a union of intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.ingest.nesting import union_length

Spans = list[tuple[int, int]]


def length(spans: Spans) -> int:
    starts, ends = (np.array([span[i] for span in spans], dtype=np.int64) for i in range(2))
    return union_length(starts, ends)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0),
        ([(3, 3)], 0),
        ([(3, 8)], 5),
        ([(0, 5), (5, 9)], 9),
        ([(0, 5), (4, 9)], 9),
        ([(0, 9), (2, 3), (8, 12)], 12),
        ([(0, 9), (20, 21), (2, 3)], 10),
        ([(0, 2), (1, 1), (7, 7)], 2),
        ([(10**18, 10**18 + 7), (0, 1)], 8),
    ],
)
def test_what_is_covered_twice_counts_once(spans: Spans, expected: int) -> None:
    assert length(spans) == expected


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=20), st.integers(-(10**17), 10**18)
)
def test_it_counts_covered_ticks_wherever_they_lie(spans: Spans, shift: int) -> None:
    ticks = {tick for start, duration in spans for tick in range(start, start + duration)}
    moved = [(start + shift, start + duration + shift) for start, duration in spans]
    assert length(moved) == length(moved[::-1]) == len(ticks)
