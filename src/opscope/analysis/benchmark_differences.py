"""What a reader must know before two benchmark results of one problem are put side by side, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from opscope.model.benchmark import BenchmarkResult
from opscope.model.finding import Finding, Severity

__all__ = ["incomparable", "point_findings"]

# Clocks of a run that is not throttled stay within a step or two of 15 MHz in about 1,900.
_CLOCK_TOLERANCE = 0.03


def incomparable(reference: BenchmarkResult, candidate: BenchmarkResult) -> str | None:
    """Why the times of two results mean different things; None if they mean the same.

    A CUDA event counts the device's work, a graph replay leaves launches out, a wall clock adds the host's;
    a hot cache spares reads. The ratio of two such times judges neither run.
    """
    if reference.clock is not candidate.clock:
        return f"timed by different clocks: {reference.clock} and {candidate.clock}"
    if reference.cache_state is not candidate.cache_state:
        return f"timed with different caches: {reference.cache_state} and {candidate.cache_state}"
    return None


def point_findings(reference: BenchmarkResult, candidate: BenchmarkResult) -> Iterator[Finding]:
    """What qualifies the figures of one point."""
    obstacle = incomparable(reference, candidate)
    if obstacle is not None:
        yield Finding(
            "compare.clocks_incomparable",
            Severity.WARNING,
            f"{_name(reference)}: {obstacle}. Ratios are shown, but get no verdict.",
            "Measure both with the same --clock and --cache",
        )
    yield from _clock_finding(reference, candidate)
    for side, result in (("reference", reference), ("candidate", candidate)):
        if not result.complete:
            yield Finding(
                "compare.incomplete",
                Severity.WARNING,
                f"{_name(result)}: the {side} was interrupted; its figures rest on what was finished.",
            )
        throttled = [row.name for row in result.rows if row.throttled]
        if throttled:
            yield Finding(
                "compare.throttled",
                Severity.WARNING,
                f"{_name(result)}: clocks were lowered during the {side}, for {', '.join(throttled)}.",
                evidence={"rows": throttled},
            )


def _clock_finding(reference: BenchmarkResult, candidate: BenchmarkResult) -> Iterator[Finding]:
    clocks = (_sm_clock(reference), _sm_clock(candidate))
    before, after = clocks
    if not before or not after or abs(after - before) <= _CLOCK_TOLERANCE * before:
        return
    yield Finding(
        "compare.clocks_differ",
        Severity.WARNING,
        f"{_name(reference)}: the GPU ran at {before} MHz after the reference, at {after} MHz after the "
        "candidate; what computes takes longer at lower clocks.",
        evidence={"reference_sm_clock_mhz": before, "candidate_sm_clock_mhz": after},
    )


def _sm_clock(result: BenchmarkResult) -> int | None:
    state = result.device_state_after
    return None if state is None else state.sm_clock_mhz


def _name(result: BenchmarkResult) -> str:
    shape = "" if result.shape is None else f" {'×'.join(map(str, result.shape))}"
    return f"{result.suite}{shape}" + (f" {result.dtype}" if result.dtype else "")
