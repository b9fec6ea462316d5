"""Sets of moments of today, against sets of ticks; what is made of them is told where timelines are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.arrays import Spans, length, merge, total
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


@given(pairs, st.lists(st.integers(-3, 50), min_size=1, max_size=8))
def test_length_counts_what_lies_before(found: Pairs, moments: list[int]) -> None:
    spans = merge(arrays(found, BASE))
    before = length(spans, np.array(moments, dtype=np.int64) + BASE)
    assert before.tolist() == [len({t for t in ticks(spans, BASE) if t < moment}) for moment in moments]
