"""Advice on device memory that is allocated and freed in every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import counted, listed, period
from opscope.units import format_duration

__all__ = ["RULES"]


def cuda_malloc(case: Case, rule: Rule) -> Iterator[Advice]:
    """Allocations by the driver in steps of which several have some."""
    rows = case.records("allocations")
    calls = sum(row["calls"] for row in rows)
    steps = max((row["steps"] for row in rows), default=0)
    if steps < rule.threshold("least_steps") or calls < rule.threshold("least_calls") * case.step_count:
        return
    host_ns = sum(row["duration_ns"] for row in rows) / case.step_count
    yield Advice(
        f"{listed([row['name'] for row in rows])} run {counted(calls / case.step_count, 'time')}"
        f" {period(case)} "
        f"and take the host {format_duration(host_ns)}: memory comes from the driver, not from the cache.",
        {
            "calls": calls,
            "steps_with_calls": steps,
            "functions": [row["name"] for row in rows],
            "host_ns_per_step": host_ns,
        },
        Saving(host_ns=host_ns),
        "the time of these calls, as recorded",
    )


RULES: Mapping[str, RuleFunction] = {"advice.cuda_malloc": cuda_malloc}
