"""What a reader must know before the figures of two recordings are put side by side, as findings.

Another GPU, another PyTorch, other inputs, no steps: each makes a ratio mean something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from opscope.analysis.compared_environment import environment_finding
from opscope.analysis.compared_session import ComparedSession, Recording
from opscope.benchmarking.statistics import FEWEST_ROUNDS
from opscope.model.comparison import Basis, Metric, OperatorChange, Presence
from opscope.model.finding import Finding, Severity
from opscope.units import format_duration, format_fraction

__all__ = ["comparison_findings"]

# Below this share of a side's time other input shapes are a detail.
_RELEVANT_FRACTION = 0.05
_NO_DEVICE_CODE = "trace.no_device_activity"  # as ingest writes it
_SEVERITIES = tuple(reversed(Severity))


def comparison_findings(
    reference: ComparedSession,
    candidate: ComparedSession,
    metric: Metric,
    basis: Basis,
    operators: Sequence[OperatorChange],
) -> tuple[Finding, ...]:
    """All findings of a session comparison, gravest first."""
    sides = (reference, candidate)
    recordings = (reference.recording, candidate.recording)
    found = [
        *environment_finding(recordings[0].environment, recordings[1].environment),
        *_metric_finding(recordings, metric),
        *_rank_finding(recordings),
        *_input_finding(operators),
        *_step_findings(sides, basis),
        *_recording_finding(recordings),
        *_own_findings(recordings, metric),
    ]
    return tuple(sorted(found, key=lambda finding: _SEVERITIES.index(finding.severity)))


def _metric_finding(recordings: Sequence[Recording], metric: Metric) -> Iterator[Finding]:
    if metric is Metric.DEVICE:
        return
    lacking = [
        name for name, one in zip(("reference", "candidate"), recordings, strict=True) if not one.has_device
    ]
    if len(lacking) == 2:
        yield Finding(
            "compare.cpu_time",
            Severity.INFO,
            "Neither recording holds device activity: operators are compared by their own CPU time.",
        )
        return
    yield Finding(
        "compare.device_missing",
        Severity.WARNING,
        f"The {lacking[0]} holds no device activity: operators are compared by their own CPU time, which for "
        "the other side is mostly the time of launching work.",
        "Record both with CUDA activities",
    )


def _rank_finding(recordings: Sequence[Recording]) -> Iterator[Finding]:
    ranks = [len(recording.sources) for recording in recordings]
    if ranks[0] != ranks[1]:
        yield Finding(
            "compare.ranks_differ",
            Severity.WARNING,
            f"The reference holds {ranks[0]} traces, the candidate {ranks[1]}; figures per step are the mean "
            "of a side's ranks, totals are their sum.",
            evidence={"reference_traces": ranks[0], "candidate_traces": ranks[1]},
        )


def _input_finding(operators: Iterable[OperatorChange]) -> Iterator[Finding]:
    """That operators of both sides were called with shapes of which none is in common."""
    both = [operator for operator in operators if operator.presence is Presence.BOTH]
    whole_ns = sum(operator.time.reference_ns or 0 for operator in both)
    others = [operator for operator in both if _has_other_shapes(operator)]
    others_ns = sum(operator.time.reference_ns or 0 for operator in others)
    if not whole_ns or others_ns < _RELEVANT_FRACTION * whole_ns:
        return
    names = ", ".join(operator.name for operator in others[:3])
    yield Finding(
        "compare.inputs_differ",
        Severity.WARNING,
        f"{len(others)} of {len(both)} common operators ({names}{', …' if len(others) > 3 else ''}), with "
        f"{format_fraction(others_ns / whole_ns)} of their time in the reference, were called with other "
        "input shapes: the work may not be the same.",
        evidence={"operators": len(others), "reference_ns": others_ns},
    )


def _has_other_shapes(operator: OperatorChange) -> bool:
    shapes: dict[bool, set[Any]] = {True: set(), False: set()}
    for variant in operator.variants:
        if variant.input_shapes is not None:
            for is_reference, use in ((True, variant.reference), (False, variant.candidate)):
                shapes[is_reference] |= {variant.input_shapes} if use is not None else set()
    return bool(shapes[True] and shapes[False] and shapes[True].isdisjoint(shapes[False]))


def _step_findings(sides: Sequence[ComparedSession], basis: Basis) -> Iterator[Finding]:
    if basis is Basis.TOTAL:
        yield from _totals_finding(sides)
        return
    steps = [side.sample_count for side in sides]
    if steps[0] != steps[1]:
        yield Finding(
            "compare.steps_differ",
            Severity.INFO,
            f"The reference holds {steps[0]} steps, the candidate {steps[1]}: all figures are per step.",
            evidence={"reference_steps": steps[0], "candidate_steps": steps[1]},
        )
    if min(steps) < FEWEST_ROUNDS and _differ(sides):
        count = min(steps)
        yield _no_interval("One step is too little" if count == 1 else f"{count} steps of a side are too few")
    outside = [side.side().outside_steps_ns for side in sides]
    if any(outside):
        yield Finding(
            "compare.outside_steps",
            Severity.INFO,
            f"Left out, because it belongs to no step: {format_duration(outside[0])} of the reference, "
            f"{format_duration(outside[1])} of the candidate.",
            evidence={"reference_ns": outside[0], "candidate_ns": outside[1]},
        )


def _totals_finding(sides: Sequence[ComparedSession]) -> Iterator[Finding]:
    lacking = [
        name for name, side in zip(("reference", "candidate"), sides, strict=True) if not side.recording.steps
    ]
    if len(lacking) == 1:
        yield Finding(
            "compare.steps_missing",
            Severity.WARNING,
            f"The {lacking[0]} recorded no steps, so whole recordings are compared, however much each holds.",
            "Record both with a schedule of steps",
        )
    if _differ(sides):
        yield _no_interval("One recording each, without steps, is too little")


def _differ(sides: Sequence[ComparedSession]) -> bool:
    return len({(side.total, side.sample_count) for side in sides}) > 1


def _no_interval(what: str) -> Finding:
    return Finding(
        "compare.no_interval",
        Severity.INFO,
        f"{what} for an interval: times are shown, but only equal ones get a verdict. Launches and kernels "
        "are exact.",
        f"Record {FEWEST_ROUNDS} steps or more on both sides.",
    )


def _recording_finding(recordings: Sequence[Recording]) -> Iterator[Finding]:
    if recordings[0].has_stacks != recordings[1].has_stacks:
        which = "reference" if recordings[0].has_stacks else "candidate"
        yield Finding(
            "compare.recording_differs",
            Severity.WARNING,
            f"Only the {which} was recorded with Python stacks, which slows the host down: CPU times and the "
            "duration of steps do not compare.",
        )


def _own_findings(recordings: Sequence[Recording], metric: Metric) -> Iterator[Finding]:
    """What makes one side's own data doubtful. Unattributed time has rows of its own."""
    said = {_NO_DEVICE_CODE} if metric is Metric.CPU else set()
    for name, recording in zip(("Reference", "Candidate"), recordings, strict=True):
        for finding in recording.findings:
            is_said = finding.code in said or finding.code.startswith("attribution.")
            if finding.severity is not Severity.INFO and not is_said:
                message = f"{name}: {finding.message}"
                yield Finding(
                    finding.code, finding.severity, message, finding.suggestion, evidence=finding.evidence
                )
