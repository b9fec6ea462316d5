"""Links and clocks of ranks, by times known by hand."""

import pytest

from opscope.analysis.collectives import LinkEvidence, LinkKind, RankClock, RankLink, align, link_of
from opscope.hardware.devices import match_device

H200 = match_device("NVIDIA H200").spec
L4 = match_device("NVIDIA L4").spec
GB = 1e9


@pytest.mark.parametrize(
    ("spec", "devices", "link"),
    [
        (H200, [0, 1, 2, 3], RankLink(LinkKind.NVLINK, 450 * GB, LinkEvidence.DATA_SHEET)),
        (L4, [0, 1], RankLink(LinkKind.PCIE, 32 * GB, LinkEvidence.DATA_SHEET)),
        (H200, [0, 1, 0, 1], RankLink(LinkKind.UNKNOWN, 40 * GB, LinkEvidence.BEST_SEEN)),  # two hosts
        (None, [0, 1], RankLink(LinkKind.UNKNOWN, 40 * GB, LinkEvidence.BEST_SEEN)),
    ],
)
def test_by_the_data_sheet_of_one_host_else_the_best_seen(spec, devices, link):
    assert link_of(spec, devices, [10 * GB, None, 40 * GB]) == link


MINUTE = 60_000_000_000
TODAY = 1_790_000_000_000_000_000  # ns since 1970: more than a float64 holds exactly


@pytest.mark.parametrize("start", [0, TODAY])
def test_clocks_minutes_apart_agree_to_the_nanosecond(start):
    offsets = {0: 0, 1: 7 * MINUTE, 2: -3}
    ends = [{rank: start + 1000 * one + ns for rank, ns in offsets.items()} for one in range(5)]
    assert align(ends) == {rank: RankClock(ns, 0, 5) for rank, ns in offsets.items()}


def test_the_error_is_how_far_an_aligned_end_is_off_and_adds_up():
    ends = [{0: 1000 * one, 1: 1000 * one + 50 + extra} for one, extra in enumerate((0, 0, 0, 8, -2))]
    found = align(ends)
    assert (found[1].offset_ns, found[1].error_ns) == (50, 4)
    assert found[0].error_ns == 4
    tied = [{0: 0, 1: 0}, {0: 1000, 1: 1010}, {0: 2000, 1: 2010}]
    beyond = [{1: 0, 2: 0}, {1: 1000, 2: 1004}, {1: 2000, 2: 2004}]
    found = align([*tied, *beyond])
    assert found[2].error_ns == found[1].error_ns + 2


def test_groups_that_share_a_rank_are_chained():
    """Two pairs of tensor parallel ranks, and one group of their first ranks."""
    offsets = {0: 0, 1: 100, 2: MINUTE, 3: MINUTE - 7}
    groups = ((0, 1), (2, 3), (0, 2))
    ends = [{rank: 10_000 * one + offsets[rank] for rank in group} for one in range(4) for group in groups]
    assert {rank: clock.offset_ns for rank, clock in align(ends).items()} == offsets


def test_ranks_that_share_nothing_with_the_reference_are_left_out():
    assert set(align([{0: 1, 1: 1}, {0: 2, 1: 2}, {5: 9, 6: 9}])) == {0, 1}
    assert align([{0: 5}]) == {}
