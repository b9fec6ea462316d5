from __future__ import annotations

import numpy as np
import pytest

from opscope.analysis.comparison import MeanResampler, MedianResampler, Timing, presence_of, time_change
from opscope.model.benchmark import Verdict
from opscope.model.comparison import Presence

RESAMPLERS = [MeanResampler, MedianResampler]


def timing(value: float, spread: float = 0.005, count: int = 20, seed: int = 1) -> Timing:
    samples = value * (1 + spread * np.random.default_rng(seed).standard_normal(count))
    return Timing(float(np.median(samples)), tuple(map(float, samples)))


@pytest.mark.parametrize("make", RESAMPLERS)
@pytest.mark.parametrize("count", [6, 10, 30])
def test_intervals_of_equal_populations_hold_one_as_often_as_they_say(make, count: int) -> None:
    random = np.random.default_rng(5)
    resampler = make(0)
    trials = 200
    hits = 0
    for _ in range(trials):
        low, high = resampler.interval(*(1 + 0.02 * random.standard_normal((2, count))))
        hits += low <= 1 <= high
    assert hits / trials >= 0.92


@pytest.mark.parametrize("make", RESAMPLERS)
def test_an_interval_narrows_with_samples(make) -> None:
    random = np.random.default_rng(5)
    widths = []
    for count in (8, 200):
        low, high = make(0).interval(*(1 + 0.02 * random.standard_normal((2, count))))
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


@pytest.mark.parametrize("make", RESAMPLERS)
def test_sides_of_different_sizes_are_compared(make) -> None:
    first, second = np.full(6, 2.0), np.full(50, 1.0)
    assert make(0).interval(first, second) == pytest.approx((2.0, 2.0))


def test_a_time_that_is_sometimes_zero_has_an_open_interval() -> None:
    low, high = MeanResampler(0).interval(np.full(6, 1.0), np.array([0, 0, 0, 0, 0, 1.0]))
    assert low > 0
    assert high == float("inf")


def change(reference: Timing | None, candidate: Timing | None, **options):
    return time_change(reference, candidate, MedianResampler(0), 0.02, **options)


def test_a_clear_difference_is_a_verdict() -> None:
    slower = change(timing(100), timing(110, seed=2))
    assert slower.verdict is Verdict.SLOWER
    assert "above 1" in (slower.reason or "")
    faster = change(timing(110, seed=2), timing(100))
    assert faster.verdict is Verdict.FASTER
    assert faster.ratio_interval == tuple(1 / end for end in reversed(slower.ratio_interval or ()))


def test_noise_is_ambiguous() -> None:
    assert change(timing(100, spread=0.2), timing(105, spread=0.2, seed=2)).verdict is Verdict.AMBIGUOUS


def test_steady_times_close_together_are_the_same() -> None:
    result = change(timing(100, count=50), timing(100.5, count=50, seed=2))
    assert result.verdict is Verdict.SAME
    assert "within 2.0 % of 1" in (result.reason or "")


def test_the_very_same_samples_are_the_same() -> None:
    result = change(timing(100, spread=0.5), timing(100, spread=0.5))
    assert (result.verdict, result.reason) == (Verdict.SAME, "equal to the nanosecond")


def test_what_cannot_be_judged_says_why() -> None:
    few = change(timing(100, count=5), timing(200, count=5, seed=2))
    assert (few.verdict, few.ratio_interval) == (Verdict.AMBIGUOUS, None)
    assert "too few" in (few.reason or "")
    apart = change(timing(100), timing(200, seed=2), incomparable="timed by different clocks")
    assert (apart.verdict, apart.reason) == (Verdict.AMBIGUOUS, "timed by different clocks")
    assert apart.ratio == pytest.approx(2, rel=0.02)
    absent = change(None, timing(100))
    assert (absent.verdict, absent.ratio, absent.reason) == (None, None, "only in the candidate")
    nothing = change(Timing(0.0, (0.0,) * 6), timing(100, count=6))
    assert (nothing.verdict, nothing.ratio, nothing.reason) == (None, None, "no time in the reference")


def test_presence() -> None:
    assert [presence_of(1, 1), presence_of(None, 1), presence_of(1, None)] == [
        Presence.BOTH,
        Presence.ADDED,
        Presence.REMOVED,
    ]
