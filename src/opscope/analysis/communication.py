"""What ranks send each other: on which links, by which clocks, and pipeline bubbles.

A group whose ranks name different devices is taken for one of one host, joined by NVLink where every such
device has it, else by PCIe; where a number returns, a trace does not tell which network joins them. A stage
of a pipeline waits in its sends and receives: a kernel takes longer than the quickest of the same size
anywhere while the other side has not come, and that is a bubble where nothing is computed meanwhile. Clocks
are aligned by collectives, which end on all their ranks together; by how much aligned ends still differ is
the error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analysis.arrays import NOTHING, Spans, merge, overlap, total
from opscope.hardware.devices import DeviceSpec
from opscope.model.queries import grouped
from opscope.text_enum import TextEnum

if TYPE_CHECKING:
    from opscope.analysis.collectives import CollectiveKernel


class LinkKind(TextEnum):
    NVLINK = "nvlink"
    PCIE = "pcie"
    UNKNOWN = "unknown"


class LinkEvidence(TextEnum):
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


class RankClock(msgspec.Struct, frozen=True):
    """The clock of one rank against that of a reference."""

    offset_ns: int  # what to take from its times to have them by the reference's clock
    # The most by which an aligned end of its collectives is off the middle of that collective's ends; with
    # that of the rank by which its group is tied to the reference
    error_ns: int
    collectives: int  # how many this rests on


def align(ends: Iterable[Mapping[int, int]]) -> dict[int, RankClock]:
    """The clocks of ranks, by rank; the least rank of the largest group is the reference.

    Ranks that share no group with it, directly or through others, are left out. `ends` are, of each
    collective, when it ended on each rank, in ns by that rank's own clock.
    """
    groups = grouped(
        (tuple(sorted(one)), [one[rank] for rank in sorted(one)]) for one in ends if len(one) > 1
    )
    waiting = sorted(groups.items(), key=lambda item: (-len(item[0]), -len(item[1]), item[0]))
    known: dict[int, RankClock] = {}
    while waiting:
        chosen = next((item for item in waiting if not known or not known.keys().isdisjoint(item[0])), None)
        if chosen is None:
            break
        waiting.remove(chosen)
        ranks, rows = chosen
        by = next((rank for rank in ranks if rank in known), ranks[0])
        tie, reference = known.get(by, RankClock(0, 0, 0)), ranks.index(by)
        ends_ns = np.array(rows, dtype=np.int64)
        # Small before they are floating-point numbers: nanoseconds of today have 61 bits.
        apart_ns = ends_ns - ends_ns[:, [reference]]
        offsets = np.median(apart_ns - np.median(apart_ns, axis=1, keepdims=True), axis=0)
        offsets_ns = np.rint(offsets - offsets[reference]).astype(np.int64)
        aligned_ns = apart_ns - offsets_ns
        errors = np.abs(aligned_ns - np.median(aligned_ns, axis=1, keepdims=True)).max(axis=0)
        for rank, offset_ns, error_ns in zip(
            ranks, offsets_ns.tolist(), np.ceil(errors).tolist(), strict=True
        ):
            known.setdefault(
                rank, RankClock(tie.offset_ns + offset_ns, tie.error_ns + int(error_ns), len(rows))
            )
    return known


# As NCCL's metadata and kernel names have them; `coalesced`: several in one kernel.
POINT_TO_POINT = frozenset(("send", "recv", "SendRecv", "coalesced"))


class PipelineStage(msgspec.Struct, frozen=True):
    """What one rank waits in a pipeline, in its steps."""

    trace_id: int
    rank: int | None
    transfers: int  # its sends and receives
    steps: int  # steps that these are of; 1 where none were recorded
    bubble_ns: int  # time in which its device computes nothing and waits in them
    step_ns: int  # time of the steps
    # (p − 1) / (m + p − 1) for p stages and m microbatches, of a schedule without interleaving; None where
    # receives are not told apart, or the group is not known
    ideal_fraction: float | None

    @property
    def bubble_fraction(self) -> float | None:
        return self.bubble_ns / self.step_ns if self.step_ns else None


def find_bubbles(
    kernels: Iterable[CollectiveKernel],
    ranks: Mapping[int, int | None],
    computing: Mapping[tuple[int, int], Spans],
    step_times: Mapping[int, Sequence[int]],
) -> tuple[PipelineStage, ...]:
    """The stages of a job's pipelines, by trace.

    `kernels` are of sends and receives in steps; `computing` is when kernels that do not communicate ran, by
    trace and device; `step_times` are durations in ns, by trace.
    """
    told = [one for one in kernels if one.collective is not None]
    by_size = grouped(((one.element_count, one.data_type), one.duration_ns) for one in told)
    quickest = {size: min(durations_ns) for size, durations_ns in by_size.items()}
    by_trace = grouped((one.trace_id, one) for one in told)
    ideal = _ideal_fractions(by_trace, step_times)
    stages = []
    for trace_id, mine in sorted(by_trace.items()):
        bubble_ns = 0
        for device in {one.device for one in mine}:
            here = [one for one in mine if one.device == device]
            start_ns = np.array([one.start_ns for one in here], dtype=np.int64)
            moved_ns = np.array([quickest[one.element_count, one.data_type] for one in here], dtype=np.int64)
            lasted_ns = np.array([one.duration_ns for one in here], dtype=np.int64)
            waiting = merge((start_ns, start_ns + lasted_ns - moved_ns))
            busy_ns = overlap(computing.get((trace_id, device), NOTHING), *waiting)
            bubble_ns += total(waiting) - int(busy_ns.sum())
        times = step_times.get(trace_id, ())
        of_steps = max(1, len(times)), bubble_ns, sum(times), ideal.get(trace_id)
        stages.append(PipelineStage(trace_id, ranks[trace_id], len(mine), *of_steps))
    return tuple(stages)


def _ideal_fractions(
    by_trace: Mapping[int, Sequence[CollectiveKernel]], step_times: Mapping[int, Sequence[int]]
) -> dict[int, float]:
    """By trace, of groups whose receives are told: the first and last stage receive once per microbatch."""
    groups: dict[str | None, dict[int, int]] = defaultdict(dict)
    sizes: dict[str | None, int | None] = {}
    for trace_id, kernels in by_trace.items():
        for members, count in Counter(one.members for one in kernels if one.collective == "recv").items():
            groups[members][trace_id] = round(count / max(1, len(step_times.get(trace_id, ()))))
            sizes[members] = next(one.group_size for one in kernels if one.members == members)
    found: dict[int, float] = {}
    for members, counts in groups.items():
        stages, microbatches = sizes[members], min(counts.values())
        if members is not None and stages is not None and stages > 1 and microbatches:
            found |= dict.fromkeys(counts, (stages - 1) / (microbatches + stages - 1))
    return found
