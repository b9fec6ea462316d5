"""Advice on a host that cannot keep the device busy, and on how much of that the recording itself did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving, StepTime
from opscope.advice.wording import counted, period
from opscope.analysis.timeline.values import IdleCause
from opscope.units import format_duration, format_fraction

__all__ = ["RULES"]


def launch_bound(case: Case, rule: Rule) -> Iterator[Advice]:
    """A host slower than the device."""
    step = case.step
    if step is None or step.host_ns is None or step.launches < 1 or step.busy_ns <= 0:
        return
    if (step.most_host_ns or 0.0) < rule.threshold("host_over_device") * step.device_ns:
        return
    if case.idle_fraction(IdleCause.HOST_LAUNCH) < rule.threshold("least_idle_fraction"):
        return
    if step.host_ns > rule.threshold("most_launch_ns") * step.launches:
        return
    graph_ns = case.book.number("graph_host_ns")
    yield Advice(
        f"The host{_rank(case, step)} needs {format_duration(step.host_ns)} to launch {_whole(case)}"
        f"{_recorded(step)}, the device {format_duration(step.device_ns)} to run it: "
        f"{counted(step.launches, 'launch', 'launches')} of {format_duration(step.busy_ns / step.launches)} "
        "of work each.",
        {
            "host_ns": step.host_ns,
            "recorded_host_ns": step.recorded_host_ns,
            "recorder_ns": step.recorder_ns,
            "device_busy_ns": step.busy_ns,
            "launches_per_step": step.launches,
            "idle_fraction": case.idle_fraction(IdleCause.HOST_LAUNCH),
        },
        Saving(host_ns=step.host_ns - graph_ns),
        f"one CUDA graph {'per step' if case.has_steps else 'of it all'} leaves the host "
        f"{format_duration(graph_ns)}",
    )


def recording_inflates_host(case: Case, rule: Rule) -> Iterator[Advice]:
    """A recorder that takes much of the host's time."""
    step = case.step
    if step is None or not step.recorder_ns or not step.recorded_host_ns:
        return
    fraction = step.recorder_ns / step.recorded_host_ns
    if fraction < rule.threshold("least_recorder_fraction"):
        return
    if step.recorded_host_ns < rule.threshold("host_over_device") * step.device_ns:
        return
    host_ns = step.recorded_host_ns - step.recorder_ns
    yield Advice(
        f"Of the {format_duration(step.recorded_host_ns)} that the host needs"
        f" {period(case)} as recorded, the "
        f"recording itself took an estimated {format_duration(step.recorder_ns)} "
        f"({format_fraction(fraction)}): without it about {format_duration(host_ns)}, beside "
        f"{format_duration(step.device_ns)} of the device.",
        {
            "recorded_host_ns": step.recorded_host_ns,
            "recorder_ns": step.recorder_ns,
            "recorder_fraction": fraction,
            "device_busy_ns": step.busy_ns,
            "how_estimated": step.recorder_basis,
        },
    )


RULES: Mapping[str, RuleFunction] = {
    "advice.launch_bound": launch_bound,
    "advice.recording_inflates_host": recording_inflates_host,
}


def _rank(case: Case, step: StepTime) -> str:
    """Which rank it is, where there are several."""
    ranks = {device.trace_id: device.rank for device in case.summary.devices}
    rank = None if step.trace_id is None or len(ranks) < 2 else ranks.get(step.trace_id)
    return "" if rank is None else f" of rank {rank}"


def _whole(case: Case) -> str:
    """What the host launches in the time told."""
    return "a step" if case.has_steps else "what was recorded"


def _recorded(step: StepTime) -> str:
    """What the recorder has to do with the host's time."""
    if not step.recorder_ns or step.recorded_host_ns is None:
        return " as recorded" if step.recorder_ns is None else ""
    return (
        f" ({format_duration(step.recorded_host_ns)} as recorded, of which the recording itself is estimated "
        f"to take {format_duration(step.recorder_ns)} ± {format_duration(step.host_error_ns)})"
    )
