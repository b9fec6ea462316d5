"""Sets of moments, against sets of ticks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.arrays import (
    NOTHING,
    Spans,
    between,
    covering,
    cut,
    length,
    merge,
    overlap,
    subtract,
    total,
)
from opscope.ingest.nesting import Int64

Pairs = list[tuple[int, int]]
pairs = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)
BASE = 1_790_857_026_000_000_000


def arrays(found: Pairs, shift: int = 0) -> tuple[Int64, Int64]:
    starts, ends = (np.array([pair[i] + shift for pair in found], dtype=np.int64) for i in range(2))
    return starts, ends


def ticks(spans: Spans | tuple[Int64, Int64], shift: int = 0) -> set[int]:
    return {
        t - shift for start, end in zip(*(a.tolist() for a in spans), strict=True) for t in range(start, end)
    }


@given(pairs, pairs)
def test_a_union_holds_each_moment_once_and_in_order(first: Pairs, second: Pairs) -> None:
    found = merge(arrays(first, BASE), arrays(second, BASE))
    assert ticks(found, BASE) == ticks(arrays(first)) | ticks(arrays(second))
    assert total(found) == len(ticks(found))
    assert (found.start_ns[1:] > found.end_ns[:-1]).all()
    assert (found.end_ns > found.start_ns).all()


@given(pairs, pairs)
def test_what_is_taken_is_gone(first: Pairs, second: Pairs) -> None:
    found = subtract(merge(arrays(first)), merge(arrays(second)))
    assert ticks(found) == ticks(arrays(first)) - ticks(arrays(second))


@given(pairs, st.lists(st.integers(-3, 50), min_size=1, max_size=8))
def test_length_counts_what_lies_before(found: Pairs, moments: list[int]) -> None:
    spans = merge(arrays(found, BASE))
    before = length(spans, np.array(moments, dtype=np.int64) + BASE)
    assert before.tolist() == [len({t for t in ticks(spans, BASE) if t < moment}) for moment in moments]


@given(pairs, pairs)
def test_overlap_counts_what_lies_within(found: Pairs, windows: Pairs) -> None:
    spans = merge(arrays(found))
    measured = overlap(spans, *arrays(windows)).tolist()
    assert measured == [len(ticks(spans) & set(range(start, end))) for start, end in windows]


@given(pairs, st.lists(st.integers(0, 50), max_size=8))
def test_a_cut_keeps_every_moment_with_its_owner(found: Pairs, moments: list[int]) -> None:
    spans = merge(arrays(found))
    index, starts, ends = cut(spans.start_ns, spans.end_ns, np.array(moments, dtype=np.int64))
    assert ticks((starts, ends)) == ticks(spans)
    assert (ends > starts).all()
    assert (starts[1:] >= ends[:-1]).all()
    for moment in moments:
        assert not any(
            start < moment < end for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        )
    assert index.tolist() == covering(spans, starts).tolist()


@given(pairs, st.integers(-3, 50))
def test_covering_finds_the_interval_of_a_moment(found: Pairs, moment: int) -> None:
    spans = merge(arrays(found))
    (index,) = covering(spans, np.array([moment])).tolist()
    assert (index >= 0) == (moment in ticks(spans))
    if index >= 0:
        assert spans.start_ns[index] <= moment < spans.end_ns[index]


def test_room_between_neighbors() -> None:
    assert ticks(between(merge(arrays([(0, 2), (5, 6), (6, 8), (9, 10)])))) == {2, 3, 4, 8}
    assert not len(between(NOTHING).start_ns)
    assert total(NOTHING) == 0
