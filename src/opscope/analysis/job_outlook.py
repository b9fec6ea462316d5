"""What holds a job of several ranks up, and what single changes would bring: ranks simulated together."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from opscope.analysis.collectives import JobCollectives
from opscope.analysis.job_model import Job, JobPath
from opscope.analysis.step_model import Gain
from opscope.analysis.straggler import Straggler
from opscope.text_enum import TextEnum

_COLLECTIVES = 5


class WhatIfKind(TextEnum):
    """A change whose worth is simulated."""

    RANK_AS_MEDIAN = "rank_as_fast_as_median"
    OVERLAPPED = "collective_overlapped"


class WhatIf(msgspec.Struct, frozen=True):
    """A change of one rank, or of collectives of one group and name, and what a step would get shorter."""

    kind: WhatIfKind
    gain: Gain
    rank: int | None = None
    process_group: str | None = None
    name: str | None = None


class JobOutlook(msgspec.Struct, frozen=True):
    """The ranks of a job, simulated together."""

    ranks: int  # how many the job has here
    simulated: int  # how many of them are in the simulation
    step_ns: float  # a step of them without the profiler
    path: tuple[JobPath, ...]  # the critical path of the recorded steps across ranks, the largest first
    what_ifs: tuple[WhatIf, ...]  # changes by kind, the most worth first

    @property
    def path_by_trace(self) -> dict[int, float]:
        """Share of the critical path that runs through each rank, by trace id, the largest first."""
        found: dict[int, float] = defaultdict(float)
        for one in self.path:
            found[one.trace_id] += one.fraction
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def look_at_job(
    job: Job | None, collectives: JobCollectives, straggler: Straggler | None
) -> JobOutlook | None:
    """What is known of the ranks together; None where they cannot be simulated together.

    Without a straggler the rank that is waited for most is tried.
    """
    if job is None or job.graph is None:
        return None
    what_ifs = []
    most = max(collectives.skews, key=lambda one: one.awaited_ns, default=None)
    late = most.trace_id if most is not None and most.awaited_ns else None
    late = late if straggler is None else straggler.trace_id
    if late is not None and (change := job.as_fast_as_median(late)) is not None:
        gain = job.gain(change)
        what_ifs.append(WhatIf(WhatIfKind.RANK_AS_MEDIAN, gain, rank=collectives.ranks[late]))
    # Activities by process group and name of the collective, then by trace.
    kernels: dict[tuple[str | None, str], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for one in collectives.matched:
        for kernel in one.kernels:
            of_total = kernels[one.kernels[0].members, one.kernels[0].title or ""]
            of_total[kernel.trace_id].add(kernel.activity_id)
    for total in collectives.totals[:_COLLECTIVES]:
        gain = job.gain(job.overlapped(kernels[total.members, total.name]))
        what_ifs.append(
            WhatIf(WhatIfKind.OVERLAPPED, gain, process_group=total.process_group, name=total.name)
        )
    what_ifs.sort(key=lambda one: -one.gain.ns)
    return JobOutlook(len(collectives.ranks), len(job.models), job.step_ns, job.path, tuple(what_ifs))
