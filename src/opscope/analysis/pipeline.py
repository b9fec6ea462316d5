"""Pipeline bubbles: how long a stage's device has nothing to compute, for what it needs has not been sent.

A stage waits in the kernels of its sends and receives, which run until the other side has come and the data
are moved. Moving takes as long as the quickest kernel of the same size anywhere in the job; what a kernel
takes longer, from its start on, is waiting, and a bubble where nothing is computed meanwhile. Sends and
receives are told by NCCL's metadata: a kernel alone may as well be part of an all-to-all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analysis.timeline.spans import NOTHING, Spans, merge, overlap, total

if TYPE_CHECKING:
    from opscope.analysis.collectives import CollectiveKernel

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
    quickest: dict[tuple[int | None, str | None], int] = {}
    for one in told:
        size = one.element_count, one.data_type
        quickest[size] = min(quickest.get(size, one.duration_ns), one.duration_ns)
    by_trace: dict[int, list[CollectiveKernel]] = defaultdict(list)
    for one in told:
        by_trace[one.trace_id].append(one)
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
        stages.append(
            PipelineStage(
                trace_id,
                ranks[trace_id],
                len(mine),
                max(1, len(times)),
                bubble_ns,
                sum(times),
                ideal.get(trace_id),
            )
        )
    return tuple(stages)


def _ideal_fractions(
    by_trace: Mapping[int, Sequence[CollectiveKernel]], step_times: Mapping[int, Sequence[int]]
) -> dict[int, float]:
    """By trace, of groups whose receives are told: the first and last stage receive once per microbatch."""
    groups: dict[str | None, dict[int, int]] = defaultdict(dict)
    sizes: dict[str | None, int | None] = {}
    for trace_id, kernels in by_trace.items():
        received = Counter(one.members for one in kernels if one.collective == "recv")
        for members, count in received.items():
            groups[members][trace_id] = round(count / max(1, len(step_times.get(trace_id, ()))))
            sizes[members] = next(one.group_size for one in kernels if one.members == members)
    found: dict[int, float] = {}
    for members, counts in groups.items():
        stages, microbatches = sizes[members], min(counts.values())
        if members is not None and stages is not None and stages > 1 and microbatches:
            found |= dict.fromkeys(counts, (stages - 1) / (microbatches + stages - 1))
    return found
