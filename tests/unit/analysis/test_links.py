"""What the links of a process group can carry."""

from __future__ import annotations

import pytest

from opscope.analysis.communication import LinkEvidence, LinkKind, RankLink, link_of
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
def test_by_the_data_sheet_of_one_host_else_the_best_seen(
    spec: object, devices: list[int], link: RankLink
) -> None:
    assert link_of(spec, devices, [10 * GB, None, 40 * GB]) == link  # type: ignore[arg-type]


def test_nothing_known() -> None:
    assert link_of(None, [0, 1], [None]) is None
