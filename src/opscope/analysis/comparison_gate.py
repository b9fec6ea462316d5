"""What makes a comparison fail a gate: `opscope compare --fail-on`. Each failure is one sentence.

What is ambiguous never fails one; neither does a comparison with itself.
"""

from __future__ import annotations

from opscope.model.benchmark import Verdict
from opscope.model.comparison import (
    BenchmarkComparison,
    BenchmarkRowChange,
    FailOn,
    Presence,
    SessionComparison,
    TimeChange,
)
from opscope.units import format_duration

__all__ = ["differences", "gate_reasons"]


def gate_reasons(comparison: BenchmarkComparison | SessionComparison, fail_on: FailOn) -> tuple[str, ...]:
    """Why the comparison fails the gate; empty if it passes.

    `slower` (and `faster`, with the sides exchanged): the verdict is slower and the ratio above
    1 + threshold, of a benchmark row, or of the total of a recording, or of an operator that holds at least
    `relevant_fraction` of the reference's time. A benchmark row that was ok and is not any more counts as
    slower. `different`: either verdict, or anything exact that changed. Benchmarks without a common row pass
    no gate.
    """
    if isinstance(comparison, BenchmarkComparison):
        return _benchmark_reasons(comparison, fail_on)
    reasons = _session_reasons(comparison, fail_on)
    return reasons + differences(comparison) if fail_on is FailOn.DIFFERENT else reasons


def _fails(time: TimeChange, fail_on: FailOn, threshold: float) -> bool:
    if time.ratio is None or time.verdict not in (Verdict.SLOWER, Verdict.FASTER):
        return False
    is_asked = fail_on is FailOn.DIFFERENT or time.verdict.value == fail_on.value
    return is_asked and max(time.ratio, 1 / time.ratio) > 1 + threshold


def _session_reasons(comparison: SessionComparison, fail_on: FailOn) -> tuple[str, ...]:
    options = comparison.options
    least_ns = options.relevant_fraction * (comparison.total.reference_ns or 0)
    relevant = [row for row in comparison.operators if (row.time.reference_ns or 0) >= least_ns]
    times = [("the total", comparison.total), *((row.name, row.time) for row in relevant)]
    return tuple(_sentence(name, time) for name, time in times if _fails(time, fail_on, options.threshold))


def _sentence(name: str, time: TimeChange) -> str:
    times = f"{format_duration(time.reference_ns)} to {format_duration(time.candidate_ns)}"
    return f"{name} is {time.verdict}: {times}, {time.reason}"


def differences(comparison: SessionComparison) -> tuple[str, ...]:
    """What changed exactly between two recordings: launches, operators, kernels; one sentence each."""
    reference, candidate = comparison.reference, comparison.candidate
    found = []
    before, after = reference.per_step(reference.launches), candidate.per_step(candidate.launches)
    if before != after:
        found.append(f"kernel launches went from {float(before):,.6g} to {float(after):,.6g}")
    for what, rows in (("operator", comparison.operators), ("kernel", comparison.kernels)):
        for presence in (Presence.ADDED, Presence.REMOVED, Presence.REPLACED):
            count = sum(row.presence is presence for row in rows)
            if count:
                found.append(f"{count} {what}{'s' if count > 1 else ''} {presence}")
    return tuple(found)


def _benchmark_reasons(comparison: BenchmarkComparison, fail_on: FailOn) -> tuple[str, ...]:
    if not any(row.presence is Presence.BOTH for _, row in comparison.rows):
        return ("no benchmark row of one side has a counterpart on the other",)
    reasons: list[str] = []
    for point, row in comparison.rows:
        name = f"{point.suite}, {row.name}"
        if _fails(row.time, fail_on, comparison.options.threshold):
            reasons.append(_sentence(name, row.time))
        elif row.is_broken and fail_on is FailOn.SLOWER:
            reasons.append(f"{name} was ok and is {row.candidate_status}")
        if fail_on is FailOn.DIFFERENT:
            reasons += _row_differences(name, row)
    if fail_on is FailOn.DIFFERENT:
        count = len(comparison.only_in_reference) + len(comparison.only_in_candidate)
        reasons += [f"{count} benchmarks have no counterpart"] if count else []
    return tuple(reasons)


def _row_differences(name: str, row: BenchmarkRowChange) -> list[str]:
    found = []
    if row.presence is not Presence.BOTH:
        found.append(f"{name} was {row.presence}")
    elif row.reference_status is not row.candidate_status:
        found.append(f"{name} was {row.reference_status} and is {row.candidate_status}")
    before, after = row.reference_launches, row.candidate_launches
    if before is not None and after is not None and before != after:
        found.append(f"{name} launches {after:g} kernels a call instead of {before:g}")
    elif row.kernels_added or row.kernels_removed:
        found.append(f"{name} launches other kernels")
    return found
