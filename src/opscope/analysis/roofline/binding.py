"""What binds a call: compute, memory, latency or launch. docs/roofline.md says why, with the thresholds.

The host is asked first, then the roof that accounts for most of the time, then too little work; what is left
is the nearer roof, from afar.
"""

from __future__ import annotations

import msgspec

from opscope.analysis.efficiency import Bound
from opscope.analysis.roofline.work import Launches, Work

# A roof binds what it accounts for at least half of: then nothing else accounts for more of the time.
_NEAR_ROOF = 0.5
# Kernels that do nothing take 0.6 to 1.4 us in recordings of an H200, 2 us on a V100: below this most of a
# kernel's time is its start and end. Used where the device's own figure was not measured.
_SHORTEST_KERNEL_NS = 2_000.0
# On so few multiprocessors neither roof can be near. Of an H200 these are 8 of 132: at 64 bytes per clock
# each they would draw a fifth of what memory gives; a recorded scan on 8 drew 0.09 of its 4.8 TB/s.
_FEW_MULTIPROCESSORS = 1 / 16


class AttainableTime(msgspec.Struct, frozen=True):
    """Device time that work needs at the device's limits, by resource; overlapped, the longer counts."""

    memory_ns: float
    compute_ns: float

    @property
    def total_ns(self) -> float:
        """At both limits."""
        return max(self.memory_ns, self.compute_ns)


def bound_ns_of(
    work: Work, attainable: AttainableTime | None, *, shortest_kernel_ns: float | None = None
) -> dict[Bound, int]:
    """Device time of work by what limits it; what is unknown is left out.

    Args:
        work: The launches.
        attainable: Of their costed part; None if cost or limits are unknown.
        shortest_kernel_ns: Of the device, as measured.
    """
    bound_ns = {Bound.LAUNCH: work.launch_bound_ns} if work.launch_bound_ns else {}
    rest_ns = work.device_ns - work.launch_bound_ns
    if rest_ns:
        bound = _bound(work, attainable, shortest_kernel_ns or _SHORTEST_KERNEL_NS)
        if bound is not None:
            bound_ns[bound] = rest_ns
    return bound_ns


def _bound(work: Work, attainable: AttainableTime | None, shortest_ns: float) -> Bound | None:
    """What limits launches that the host was in time for."""
    is_latency = _is_most(work, work.time_where(lambda one: one.mean_ns < shortest_ns))
    if attainable is None or not work.costed_ns:
        few = work.time_where(lambda one: _sm_share(one) <= _FEW_MULTIPROCESSORS)
        return Bound.LATENCY if is_latency or _is_most(work, few) else None
    # A grid of fewer blocks than multiprocessors has the peak of those that get one.
    compute_ns = attainable.compute_ns / _used_share(work)
    if max(compute_ns, attainable.memory_ns) < _NEAR_ROOF * work.costed_ns and (
        is_latency or _is_most(work, work.time_where(lambda one: one.is_underfilled))
    ):
        return Bound.LATENCY
    if not attainable.total_ns:
        return None
    return Bound.COMPUTE if compute_ns > attainable.memory_ns else Bound.MEMORY


def _is_most(work: Work, part_ns: int) -> bool:
    return part_ns * 2 > work.device_ns


def _sm_share(one: Launches) -> float:
    """Share of the multiprocessors that get a block; 1 if unknown."""
    quality = one.quality
    if quality is None or not quality.blocks or not quality.sm_count:
        return 1.0
    return min(1.0, quality.blocks / quality.sm_count)


def _used_share(work: Work) -> float:
    """Multiprocessors that get a block, weighted by the time of the launches that do the work."""
    weights = [(_sm_share(one), one.total_ns) for one in work.main]
    total_ns = sum(ns for _, ns in weights)
    return sum(share * ns for share, ns in weights) / total_ns if total_ns else 1.0
