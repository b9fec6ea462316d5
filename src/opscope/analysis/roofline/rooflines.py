"""Rooflines: of the work of alike calls, and of many together.

Exact in integer nanoseconds: Σ device_ns, Σ costed_ns and Σ bound_ns of parts are those of the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import msgspec

from opscope.analysis.efficiency import Bound, Roofline, TensorCoreUse
from opscope.analysis.roofline.binding import AttainableTime, bound_ns_of
from opscope.analysis.roofline.peaks import ComputeLimit, compute_limit, memory_limit
from opscope.analysis.roofline.work import Work
from opscope.hardware.limits import DeviceLimits

_Key = TypeVar("_Key", bound=Hashable)
# Measured limits are medians: a call may beat them by a few percent.
_MOST_FRACTION = 1.05
# Of any GPU. Source: NVIDIA B200 datasheet, 126 MB.
_LARGEST_L2_BYTES = 132_120_576
# What these move does not pass through the device's memory alone: links to the host and to other devices
# limit it, of which no rate is known here.
_ELSEWHERE_FAMILIES = frozenset(("collective", "device_communication"))
_ELSEWHERE_COPIES = frozenset(("host_to_device", "device_to_host", "host_to_host", "peer_to_peer"))


class RooflineModel(msgspec.Struct, frozen=True):
    """The device that work is held against; None is unknown."""

    limits: DeviceLimits | None
    compute_capability: str | None = None


def roofline_of(work: Work, model: RooflineModel) -> Roofline:
    """The roofline of the work of alike calls."""
    compute = compute_limit(work.cost, work.main, model.limits, model.compute_capability)
    attainable = _attainable(work, compute, model.limits)
    shortest_ns = None if model.limits is None else model.limits.smallest_kernel_ns
    bound_ns = bound_ns_of(work, attainable, shortest_kernel_ns=shortest_ns)
    is_resident = attainable is not None and _may_be_cached(work, attainable, model.limits)
    is_excess = attainable is not None and _exceeds(work, attainable, is_resident=is_resident)
    held = None if is_excess else attainable
    flop_count, min_bytes = work.cost.flop_count, work.cost.min_bytes
    is_costed = work.costed_ns > 0 and flop_count is not None and min_bytes is not None
    return Roofline(
        device_ns=work.device_ns,
        costed_ns=work.costed_ns if is_costed else 0,
        flop_count=flop_count * work.repeats if is_costed and flop_count is not None else None,
        min_bytes=min_bytes * work.repeats if is_costed and min_bytes is not None else None,
        attainable_ns=None if held is None else held.total_ns,
        bound=_most(bound_ns, work.device_ns),
        bound_ns=bound_ns,
        data_type=compute.data_type,
        tensor_cores=compute.tensor_cores,
        held_ns=0 if held is None else work.costed_ns,
        cache_resident_ns=work.costed_ns if held is not None and is_resident else 0,
        excess_ns=work.costed_ns if is_excess else 0,
    )


def combine(rooflines: Iterable[Roofline]) -> Roofline:
    """The roofline of several together."""
    parts = list(rooflines)
    costed = [part for part in parts if part.costed_ns]
    held = [part for part in costed if part.attainable_ns is not None]
    device_ns = sum(part.device_ns for part in parts)
    bound_ns: dict[Bound, int] = defaultdict(int)
    for part in parts:
        for bound, ns in part.bound_ns.items():
            bound_ns[bound] += ns
    typed = _weights((part.data_type, part.costed_ns) for part in costed if part.data_type is not None)
    return Roofline(
        device_ns=device_ns,
        costed_ns=sum(part.costed_ns for part in costed),
        flop_count=sum(part.flop_count or 0 for part in costed) if costed else None,
        min_bytes=sum(part.min_bytes or 0 for part in costed) if costed else None,
        attainable_ns=sum(part.attainable_ns or 0.0 for part in held) if held else None,
        bound=_most(bound_ns, device_ns),
        bound_ns=dict(bound_ns),
        data_type=max(typed, key=lambda one: typed[one], default=None),
        tensor_cores=_tensor_cores(parts),
        held_ns=sum(part.costed_ns if part.held_ns is None else part.held_ns for part in held),
        cache_resident_ns=sum(part.cache_resident_ns for part in parts),
        excess_ns=sum(part.excess_ns for part in parts),
    )


def _attainable(work: Work, compute: ComputeLimit, limits: DeviceLimits | None) -> AttainableTime | None:
    """Time of the costed part at the limits; None if a cost, a rate that matters or the device is unknown."""
    flop_count, min_bytes = work.cost.flop_count, work.cost.min_bytes
    memory = memory_limit(work.cost, limits)
    if not work.costed_ns or flop_count is None or min_bytes is None or memory is None or _is_elsewhere(work):
        return None
    if flop_count and compute.flop_per_s is None:
        return None
    return AttainableTime(
        memory_ns=min_bytes * work.repeats / memory.per_s * 1e9,
        compute_ns=flop_count * work.repeats / compute.flop_per_s * 1e9 if compute.flop_per_s else 0.0,
    )


def _is_elsewhere(work: Work) -> bool:
    """Whether most of its time goes over a link to the host or another device."""
    part_ns = work.time_where(
        lambda one: (
            one.decoded.family in _ELSEWHERE_FAMILIES or one.decoded.copy_direction in _ELSEWHERE_COPIES
        )
    )
    return part_ns * 2 > work.device_ns


def _may_be_cached(work: Work, attainable: AttainableTime, limits: DeviceLimits | None) -> bool:
    """Whether the level-2 cache may hold all bytes of one call, or enough of them to outrun memory."""
    l2_bytes = (None if limits is None else limits.l2_bytes) or _LARGEST_L2_BYTES
    min_bytes = work.cost.min_bytes or 0
    if min_bytes < l2_bytes:
        return True
    from_memory_ns = attainable.memory_ns * (min_bytes - l2_bytes) / min_bytes
    is_faster = attainable.memory_ns > work.costed_ns
    return is_faster and min_bytes < 2 * l2_bytes and from_memory_ns <= work.costed_ns


def _exceeds(work: Work, attainable: AttainableTime, *, is_resident: bool) -> bool:
    """Whether the work was done faster than what was counted can be."""
    most_ns = _MOST_FRACTION * work.costed_ns
    return attainable.compute_ns > most_ns or (attainable.memory_ns > most_ns and not is_resident)


def _most(bound_ns: Mapping[Bound, int], device_ns: int) -> Bound | None:
    """What limits most of the time; None where it is unknown for half of it or more."""
    if not bound_ns or sum(bound_ns.values()) * 2 <= device_ns:
        return None
    return max(bound_ns, key=lambda bound: bound_ns[bound])


def _tensor_cores(parts: Iterable[Roofline]) -> TensorCoreUse | None:
    """For most of the time of products; not applicable where there are none."""
    weights = _weights((part.tensor_cores, part.device_ns) for part in parts)
    if TensorCoreUse.USED in weights or TensorCoreUse.ELIGIBLE in weights:
        weights.pop(TensorCoreUse.NOT_APPLICABLE, None)
    return max(weights, key=lambda use: weights[use], default=None)


def _weights(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    total: dict[_Key, int] = defaultdict(int)
    for key, ns in pairs:
        total[key] += ns
    return total
