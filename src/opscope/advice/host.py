"""Advice on what the program should not be doing at all within a step: dropout in evaluation, compiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import counted, listed, of_device, per_step, period
from opscope.units import format_duration

__all__ = ["RULES"]


def dropout_in_eval(case: Case, rule: Rule) -> Iterator[Advice]:
    """Dropout kernels where nothing is differentiated."""
    if case.has_backward or not case.has_steps:
        return
    found = [
        (operator, kernel)
        for operator in case.summary.operators
        for kernel in operator.kernels
        if kernel.facts is not None and kernel.facts.family == "dropout"
    ]
    calls = sum(kernel.calls for _, kernel in found)
    if not found or case.per_step(calls) < rule.threshold("least_calls"):
        return
    total_ns = sum(kernel.total_ns for _, kernel in found)
    operators = {operator.name: operator for operator, _ in found}
    names = list(operators)
    host_ns = sum(operator.total_cpu_ns for operator in operators.values()) * case.unrecorded_share
    yield Advice(
        f"{listed(names)} run {counted(case.per_step(calls), 'time')}"
        f" {period(case)} ({of_device(case, total_ns)}, "
        f"{per_step(case, total_ns)}), and nothing is differentiated in the recorded steps.",
        {
            "device_fraction": case.share(total_ns),
            "device_ns": total_ns,
            "calls": calls,
            "operators": names,
            "kernels": list(dict.fromkeys(kernel.name for _, kernel in found))[:5],
        },
        Saving(case.per_step(total_ns), case.per_step(calls), case.per_step(host_ns)),
        "these kernels, and their operators on the host",
    )


def recompilation(case: Case, rule: Rule) -> Iterator[Advice]:
    """Compilations within recorded steps."""
    steps_ns = sum(step.duration_ns for step in case.summary.steps)
    for row in case.records("compilations"):
        if not steps_ns or row["duration_ns"] < rule.threshold("least_fraction") * steps_ns:
            continue
        per_step_ns = row["duration_ns"] / case.step_count
        ids = row["compile_ids"] or []
        again = [one for one in ids if not one.endswith("/0")]
        yield Advice(
            f"torch.compile compiles {counted(row['calls'], 'time')} within {counted(row['steps'], 'step')}"
            f"{', ' + listed(again) + ' again' if again else ''}: {format_duration(per_step_ns)} per step.",
            {
                "compilations": row["calls"],
                "steps_with_compilations": row["steps"],
                "host_ns": row["duration_ns"],
                "compile_ids": ids,
            },
            Saving(host_ns=per_step_ns),
            "the host's time in these compilations",
        )


RULES: Mapping[str, RuleFunction] = {
    "advice.dropout_in_eval": dropout_in_eval,
    "advice.recompilation": recompilation,
}
