"""Words that several rules use: counts, lists and the evidence of a set of calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from opscope.advice.case import Case
from opscope.analysis.efficiency import CallEfficiency
from opscope.units import format_duration, format_fraction

__all__ = ["call_evidence", "counted", "listed", "of_device", "operators_of", "per_step", "period"]

_SHOWN = 5


def counted(count: float, singular: str, plural: str | None = None) -> str:
    """`1 launch`, `2 launches`, `1.5 launches`."""
    text = f"{count:,.0f}" if abs(count - round(count)) < 0.05 or count >= 10 else f"{count:.1f}"
    return f"{text} {singular if text == '1' else plural or singular + 's'}"


def listed(items: Sequence[str], shown: int = _SHOWN) -> str:
    """`a, b and c`, cut after some."""
    if len(items) > shown:
        return f"{', '.join(items[:shown])} and {len(items) - shown} more"
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def per_step(case: Case, total_ns: float) -> str:
    """A time of the whole recording as time per step, or in all where no steps were recorded."""
    return f"{format_duration(case.per_step(total_ns))} {period(case)}"


def period(case: Case) -> str:
    """What a figure is of that was divided by the number of steps: where none were recorded, one trace."""
    if case.has_steps:
        return "per step"
    return "in all" if case.step_count == 1 else "per trace"


def of_device(case: Case, total_ns: float) -> str:
    """`12.0 % of device time`."""
    return f"{format_fraction(case.share(total_ns))} of device time"


def operators_of(calls: Iterable[CallEfficiency]) -> list[str]:
    """Their operators, most device time first."""
    time_ns: dict[str, int] = {}
    for call in calls:
        time_ns[call.operator] = time_ns.get(call.operator, 0) + call.roofline.device_ns
    return sorted(time_ns, key=lambda name: (-time_ns[name], name))


def call_evidence(case: Case, calls: Sequence[CallEfficiency]) -> dict[str, Any]:
    """The rows that a finding about calls rests on."""
    ranked = sorted(calls, key=lambda call: (-call.roofline.device_ns, call.call_id))
    total_ns = case.time_of(ranked)
    kernels = dict.fromkeys(kernel for call in ranked for kernel in call.kernels[:1])
    return {
        "device_fraction": case.share(total_ns),
        "device_ns": total_ns,
        "calls": sum(call.calls for call in ranked),
        "call_ids": [call.call_id for call in ranked],
        "operators": operators_of(ranked),
        "kernels": list(kernels)[:_SHOWN],
    }
