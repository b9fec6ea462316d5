"""The span of a device by what it did: compute, exposed communication, exposed copy, idle.

Of what runs at the same time, compute counts before communication and communication before copies; so the
parts are disjoint, and sum to the span to the nanosecond whatever overlaps on whichever streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opscope.analysis.timeline.queries import distinct
from opscope.analysis.timeline.records import DeviceRecords, Work
from opscope.analysis.timeline.spans import Spans, between, merge, total
from opscope.analysis.timeline.values import DeviceStep
from opscope.attribution.nesting import Int64

__all__ = ["Occupation", "device_steps", "occupation"]


@dataclass(frozen=True)
class Occupation:
    """What one device did with its span; `gaps` are its idle moments."""

    span_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    communication_ns: int
    copy_ns: int
    gaps: Spans

    @property
    def busy_ns(self) -> int:
        """Time in which anything ran."""
        return self.compute_ns + self.exposed_communication_ns + self.exposed_copy_ns


def occupation(device: DeviceRecords) -> Occupation:
    """The parts of a device's span."""
    by_work = {work: _of(device, device.work == work) for work in Work}
    computing = by_work[Work.COMPUTE]
    in_kernels = merge(computing, by_work[Work.COMMUNICATION])
    busy = merge(in_kernels, by_work[Work.COPY])
    compute_ns, kernels_ns, busy_ns = total(computing), total(in_kernels), total(busy)
    return Occupation(
        span_ns=int(device.end_ns.max() - device.start_ns[0]),
        compute_ns=compute_ns,
        exposed_communication_ns=kernels_ns - compute_ns,
        exposed_copy_ns=busy_ns - kernels_ns,
        communication_ns=total(by_work[Work.COMMUNICATION]),
        copy_ns=total(by_work[Work.COPY]),
        gaps=_gaps(device, busy),
    )


def _gaps(device: DeviceRecords, busy: Spans) -> Spans:
    """Idle moments. An activity without duration at either end of the span is work too, only none to see."""
    first, last = device.start_ns[:1], device.end_ns.max(keepdims=True)
    idle = between(
        Spans(np.concatenate((first, busy.start_ns, last)), np.concatenate((first, busy.end_ns, last)))
    )
    keep = idle.end_ns > idle.start_ns
    return Spans(idle.start_ns[keep], idle.end_ns[keep])


def _of(device: DeviceRecords, chosen: Int64) -> Spans:
    return merge((device.start_ns[chosen], device.end_ns[chosen]))


def device_steps(device: DeviceRecords) -> tuple[DeviceStep, ...]:
    """The same parts of what was launched in each step, whenever it ran."""
    launched = device.step >= 0
    steps = distinct(device.step[launched])
    rank = np.searchsorted(steps, device.step[launched])
    if not len(steps):
        return ()
    origin = device.start_ns[0]
    reach = int(device.end_ns.max() - origin) + 1
    # Steps are laid one after the other, so that work of different steps never counts as beside each other.
    shift = rank * reach - origin
    start_ns, end_ns, work = (
        device.start_ns[launched] + shift,
        device.end_ns[launched] + shift,
        device.work[launched],
    )
    bounds = np.arange(len(steps) + 1) * reach

    def union_ns(*kinds: Work) -> Int64:
        chosen = np.isin(work, kinds)
        spans = merge((start_ns[chosen], end_ns[chosen]))
        owner = np.searchsorted(bounds, spans.start_ns, side="right") - 1
        # Sums of integers below 2**53 are exact in the float64 that bincount adds in.
        lengths = np.bincount(owner, weights=spans.end_ns - spans.start_ns, minlength=len(steps))
        return lengths.astype(np.int64)

    compute = union_ns(Work.COMPUTE)
    kernels = union_ns(Work.COMPUTE, Work.COMMUNICATION)
    busy = union_ns(*Work)
    rows = zip(steps, compute, busy - kernels, kernels - compute, strict=True)
    return tuple(DeviceStep(device.trace_id, device.device, *map(int, row)) for row in rows)
