"""Links of ranks, by times known by hand."""

import pytest

from opscope.analysis.collectives import LinkEvidence, LinkKind, RankLink, link_of
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
