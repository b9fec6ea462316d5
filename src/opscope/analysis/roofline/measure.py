"""From a Session to its Efficiency: costs of calls, their launches, rooflines by call, operator and kernel.

Every activity belongs to exactly one distinct call, so Σ device_ns of the calls is all device time, and what
is costed and what is not share it out exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from opscope.analysis.common_device import common_device
from opscope.analysis.efficiency import CallEfficiency, CostCoverage, Efficiency, Roofline
from opscope.analysis.roofline.rooflines import RooflineModel, combine, roofline_of
from opscope.analysis.roofline.work import Launches, Work, read_launches, work_by_kernel, work_of_call
from opscope.hardware.limits import DeviceLimits
from opscope.model.session import Session
from opscope.operators.session_costs import CostedCall, fill_costs, read_costs

_UNKNOWN_REASON = "no rule for this operator"


def measure_efficiency(session: Session, limits: DeviceLimits | None) -> Efficiency:
    """How far everything in a Session is from the limits; fills the cost tables if they are empty.

    Args:
        session: The Session.
        limits: Of its device; None where devices differ or are unknown: then costs are known, no distances.
    """
    fill_costs(session)
    device = common_device(session)
    capability = None if device is None else device.compute_capability
    model = RooflineModel(limits, capability or (None if limits is None else limits.compute_capability))
    return efficiency_of(read_costs(session), read_launches(session, device), model)


def efficiency_of(
    calls: Iterable[CostedCall], launches: Mapping[int, tuple[Launches, ...]], model: RooflineModel
) -> Efficiency:
    """The Efficiency of distinct calls.

    Args:
        calls: With their costs.
        launches: By call id; a call without any is left out.
        model: The device.
    """
    works = [
        (call, work_of_call(launches[call.call_id], call.cost, call.calls))
        for call in calls
        if call.call_id in launches
    ]
    found = [_call(call, work, model) for call, work in works]
    by_operator: dict[str, list[Roofline]] = defaultdict(list)
    for call in found:
        if call.attribution is None:
            by_operator[call.operator].append(call.roofline)
    return Efficiency(
        limits=model.limits,
        coverage=_coverage(found),
        operators={name: combine(parts) for name, parts in by_operator.items()},
        kernels=_kernels(works, model),
        calls=tuple(sorted(found, key=lambda one: (-one.roofline.device_ns, one.operator, one.call_id))),
    )


def _call(call: CostedCall, work: Work, model: RooflineModel) -> CallEfficiency:
    return CallEfficiency(
        call_id=call.call_id,
        operator=call.name,
        overload=call.overload,
        shapes=call.shapes,
        types=call.types,
        concrete=call.concrete,
        calls=call.calls,
        kernels=tuple(dict.fromkeys(one.kernel for one in work.launches)),
        cost=call.cost,
        roofline=roofline_of(work, model),
        attribution=call.attribution,
    )


def _kernels(
    works: Iterable[tuple[CostedCall, Work]], model: RooflineModel
) -> dict[tuple[str | None, str], Roofline]:
    parts: dict[tuple[str | None, str], list[Roofline]] = defaultdict(list)
    for call, work in works:
        for kernel, done in work_by_kernel(work):
            roofline = roofline_of(done, model)
            parts[None, kernel].append(roofline)
            if call.attribution is None:
                parts[call.name, kernel].append(roofline)
    return {key: combine(rooflines) for key, rooflines in parts.items()}


def _coverage(calls: Iterable[CallEfficiency]) -> CostCoverage:
    known = list(calls)
    device_ns = sum(call.roofline.device_ns for call in known)
    if not device_ns:
        return CostCoverage()
    bytes_ns = sum(call.roofline.device_ns for call in known if call.cost.min_bytes is not None)
    flop_ns = sum(call.roofline.device_ns for call in known if call.cost.flop_count is not None)
    return CostCoverage(bytes_ns / device_ns, flop_ns / device_ns, _uncosted(known))


def _uncosted(calls: Iterable[CallEfficiency]) -> tuple[tuple[str, int, str], ...]:
    reasons: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for call in calls:
        unknown_ns = call.roofline.device_ns - call.roofline.costed_ns
        if unknown_ns:
            reasons[call.operator][call.cost.reason or _UNKNOWN_REASON] += unknown_ns
    found = (
        (name, sum(times.values()), max(times, key=lambda reason: times[reason]))
        for name, times in reasons.items()
    )
    return tuple(sorted(found, key=lambda one: (-one[1], one[0])))
