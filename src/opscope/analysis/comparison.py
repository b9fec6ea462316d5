"""How two times become a verdict, for benchmarks and recordings alike.

A verdict rests on an interval or on equality to the nanosecond, never on two bare numbers. Swapping the sides
inverts every verdict: intervals are taken of the slower side over the faster, then mirrored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opscope.analysis.resampling import RatioResampler
from opscope.benchmarking.statistics import FEWEST_ROUNDS, RatioInterval, judge
from opscope.model.benchmark import Interval, Verdict
from opscope.model.comparison import Presence, TimeChange
from opscope.units import format_fraction

__all__ = ["Timing", "presence_of", "time_change"]

_OPPOSITE = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}


@dataclass(frozen=True)
class Timing:
    """One side's time with the samples it was taken from (none where there is but one)."""

    value_ns: float
    samples_ns: tuple[float, ...] = ()
    interval_ns: Interval | None = None


def presence_of(reference: object | None, candidate: object | None) -> Presence:
    """On which sides something is."""
    if reference is None:
        return Presence.ADDED
    return Presence.REMOVED if candidate is None else Presence.BOTH


def time_change(
    reference: Timing | None,
    candidate: Timing | None,
    resampler: RatioResampler,
    threshold: float,
    *,
    incomparable: str | None = None,
) -> TimeChange:
    """Both times with ratio, interval and verdict.

    Args:
        reference: None where the reference lacks the thing.
        candidate: Likewise.
        resampler: What makes intervals of ratios from samples.
        threshold: Differences up to this share are none.
        incomparable: Why the two times mean different things, if they do: no verdict is given then.
    """
    if reference is None or candidate is None:
        side = "candidate" if reference is None else "reference"
        return _change(reference, candidate, reason=f"only in the {side}")
    if incomparable is not None:
        return _change(reference, candidate, verdict=Verdict.AMBIGUOUS, reason=incomparable)
    if reference.value_ns == candidate.value_ns and reference.samples_ns == candidate.samples_ns:
        return _change(reference, candidate, verdict=Verdict.SAME, reason="equal to the nanosecond")
    if not reference.value_ns or not candidate.value_ns:
        side = "candidate" if reference.value_ns else "reference"
        return _change(reference, candidate, reason=f"no time in the {side}")
    fewest = min(len(reference.samples_ns), len(candidate.samples_ns))
    if fewest < FEWEST_ROUNDS:
        reason = "one measurement each gives no interval"
        if fewest > 1:
            reason = f"{fewest} samples are too few for an interval, which takes {FEWEST_ROUNDS}"
        return _change(reference, candidate, verdict=Verdict.AMBIGUOUS, reason=reason)
    return _judged(reference, candidate, resampler, threshold)


def _judged(reference: Timing, candidate: Timing, resampler: RatioResampler, threshold: float) -> TimeChange:
    is_slower = _order(candidate) > _order(reference)
    slow, fast = (candidate, reference) if is_slower else (reference, candidate)
    low, high = resampler.interval(_array(slow.samples_ns), _array(fast.samples_ns))
    # Samples of two runs share no rounds, so there is one interval, not two.
    ratio = RatioInterval(
        ratio=slow.value_ns / fast.value_ns,
        low=low,
        high=high,
        within_low=low,
        within_high=high,
        rounds=min(len(slow.samples_ns), len(fast.samples_ns)),
    )
    verdict, _ = judge(ratio, threshold)
    interval = ratio.bounds
    if not is_slower:
        verdict = _OPPOSITE.get(verdict, verdict)
        interval = _inverse(interval)
    return _change(
        reference, candidate, interval, verdict=verdict, reason=_reason(verdict, interval, threshold)
    )


def _order(timing: Timing) -> tuple[float, tuple[float, ...]]:
    return timing.value_ns, timing.samples_ns


def _array(samples_ns: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(samples_ns, dtype=np.float64)


def _inverse(interval: Interval) -> Interval:
    low, high = interval
    return 1 / high, 1 / low if low else float("inf")


def _reason(verdict: Verdict, interval: Interval, threshold: float) -> str:
    low, high = interval
    text = f"the ratio lies in [{low:.3f}, {high:.3f}]"
    within = format_fraction(threshold)
    if verdict is Verdict.SAME:
        return f"{text}, within {within} of 1"
    if verdict is Verdict.AMBIGUOUS:
        return f"{text}, which settles neither a difference nor that it is within {within}"
    return f"{text}, {'above' if verdict is Verdict.SLOWER else 'below'} 1"


def _change(
    reference: Timing | None,
    candidate: Timing | None,
    ratio_interval: Interval | None = None,
    *,
    verdict: Verdict | None = None,
    reason: str,
) -> TimeChange:
    ratio = None
    if reference is not None and candidate is not None and reference.value_ns:
        ratio = candidate.value_ns / reference.value_ns
    return TimeChange(
        reference_ns=None if reference is None else reference.value_ns,
        candidate_ns=None if candidate is None else candidate.value_ns,
        reference_interval_ns=None if reference is None else reference.interval_ns,
        candidate_interval_ns=None if candidate is None else candidate.interval_ns,
        ratio=ratio,
        ratio_interval=ratio_interval,
        verdict=verdict,
        reason=reason,
    )
