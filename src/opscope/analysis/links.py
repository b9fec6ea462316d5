"""What the links between the ranks of a process group can carry: by the data sheet, else the best seen.

Devices of one host have numbers of their own. So a group whose ranks name different devices is taken for one
of one host, joined by NVLink where every such device has it, else by PCIe; a group in which a number returns
is taken for one of several hosts, or of processes that each see one device: which network joins those, a
trace does not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from opscope.hardware.devices import DeviceSpec
from opscope.text_enum import TextEnum


class LinkKind(TextEnum):
    """What joins the devices."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    UNKNOWN = "unknown"


class LinkEvidence(TextEnum):
    """Where a link's rate comes from."""

    DATA_SHEET = "data_sheet"
    BEST_SEEN = "best_seen"


class RankLink(msgspec.Struct, frozen=True):
    """What each rank's link carries at most, in each direction."""

    kind: LinkKind
    bytes_per_s: float
    evidence: LinkEvidence


def link_of(spec: DeviceSpec | None, devices: Sequence[int], seen: Iterable[float | None]) -> RankLink | None:
    """The link of a group; None where neither its kind nor a rate is known."""
    if spec is not None and len(set(devices)) == len(devices):
        if spec.nvlink_bytes_per_s is not None:
            return RankLink(LinkKind.NVLINK, spec.nvlink_bytes_per_s, LinkEvidence.DATA_SHEET)
        if spec.pcie_bytes_per_s is not None:
            return RankLink(LinkKind.PCIE, spec.pcie_bytes_per_s, LinkEvidence.DATA_SHEET)
    best = max((one for one in seen if one is not None), default=None)
    return None if best is None else RankLink(LinkKind.UNKNOWN, best, LinkEvidence.BEST_SEEN)
