"""Clocks of ranks, by the ends of what they did together."""

from __future__ import annotations

import pytest

from opscope.analysis.communication import RankClock, align

MINUTE = 60_000_000_000
TODAY = 1_790_000_000_000_000_000  # ns since 1970: more than a float64 holds exactly


@pytest.mark.parametrize("start", [0, TODAY])
def test_clocks_minutes_apart_agree_to_the_nanosecond(start: int) -> None:
    offsets = {0: 0, 1: 7 * MINUTE, 2: -3}
    ends = [{rank: start + 1000 * one + ns for rank, ns in offsets.items()} for one in range(5)]
    assert align(ends) == {rank: RankClock(ns, 0, 5) for rank, ns in offsets.items()}


def test_the_error_is_how_far_an_aligned_end_is_off() -> None:
    ends = [{0: 1000 * one, 1: 1000 * one + 50 + extra} for one, extra in enumerate((0, 0, 0, 8, -2))]
    found = align(ends)
    assert (found[1].offset_ns, found[1].error_ns) == (50, 4)
    assert found[0].error_ns == 4


def test_groups_that_share_a_rank_are_chained() -> None:
    """Two pairs of tensor parallel ranks, and one group of their first ranks."""
    offsets = {0: 0, 1: 100, 2: MINUTE, 3: MINUTE - 7}
    groups = ((0, 1), (2, 3), (0, 2))
    ends = [{rank: 10_000 * one + offsets[rank] for rank in group} for one in range(4) for group in groups]
    assert {rank: clock.offset_ns for rank, clock in align(ends).items()} == offsets


def test_errors_of_a_chain_add_up() -> None:
    tied = [{0: 0, 1: 0}, {0: 1000, 1: 1010}, {0: 2000, 1: 2010}]
    beyond = [{1: 0, 2: 0}, {1: 1000, 2: 1004}, {1: 2000, 2: 2004}]
    found = align([*tied, *beyond])
    assert found[2].error_ns == found[1].error_ns + 2


def test_ranks_that_share_nothing_with_the_reference_are_left_out() -> None:
    assert set(align([{0: 1, 1: 1}, {0: 2, 1: 2}, {5: 9, 6: 9}])) == {0, 1}
    assert align([{0: 5}]) == {}
