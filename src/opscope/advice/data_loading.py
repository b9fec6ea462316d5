"""Advice on a device that waits for the next batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import period
from opscope.analysis.timeline.values import IdleCause
from opscope.units import format_duration, format_fraction

__all__ = ["RULES"]


def data_loading(case: Case, rule: Rule) -> Iterator[Advice]:
    """Idle time within waits for data."""
    fraction = case.idle_fraction(IdleCause.DATA_LOADING)
    if fraction < rule.threshold("least_idle_fraction"):
        return
    idle_ns = case.idle_per_step(IdleCause.DATA_LOADING)
    gaps = [
        gap
        for partition in case.summary.timeline.partitions
        for gap in partition.longest_gaps
        if gap.cause is IdleCause.DATA_LOADING
    ]
    yield Advice(
        f"The device waits {format_duration(idle_ns)}"
        f" {period(case)} for data, {format_fraction(fraction)} of the "
        "time.",
        {
            "idle_ns_per_step": idle_ns,
            "idle_fraction": fraction,
            "waits_in": list(dict.fromkeys(gap.host for gap in gaps if gap.host)),
        },
        Saving(host_ns=idle_ns),
        "the device's idle time within these waits; loading ahead takes it from the host's side of a step",
    )


RULES: Mapping[str, RuleFunction] = {"advice.data_loading": data_loading}
