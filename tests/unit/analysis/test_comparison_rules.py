from __future__ import annotations

import numpy as np
import pytest

from opscope.analysis.comparison_rules import MeanResampler, MedianResampler, Timing, presence_of, time_change
from opscope.model.benchmark import Verdict
from opscope.model.comparison import Presence, TimeChange

RESAMPLERS = [MeanResampler, MedianResampler]


def timing(value: float, spread: float = 0.005, count: int = 20, seed: int = 1) -> Timing:
    samples = value * (1 + spread * np.random.default_rng(seed).standard_normal(count))
    return Timing(float(np.median(samples)), tuple(map(float, samples)))


@pytest.mark.parametrize("make", RESAMPLERS)
@pytest.mark.parametrize(
    "count", [6, *(pytest.param(one, marks=pytest.mark.exhaustive(few=False)) for one in (10, 30))]
)
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


SAME, AMBIGUOUS = Verdict.SAME, Verdict.AMBIGUOUS
CLOCKS = "timed by different clocks"
CHANGES = {
    "slower": (change(timing(100), timing(110, seed=2)), Verdict.SLOWER, "× slower"),
    "faster": (change(timing(110, seed=2), timing(100)), Verdict.FASTER, "95 % CI 1."),
    "noise": (change(timing(100, 0.2), timing(105, 0.2, seed=2)), AMBIGUOUS, "is established"),
    "close": (change(timing(100, count=50), timing(100.5, count=50, seed=2)), SAME, "within 2.0 % of 1"),
    "equal": (change(timing(100, 0.5), timing(100, 0.5)), SAME, "equal to the nanosecond"),
    "few": (change(timing(100, count=5), timing(200, count=5, seed=2)), AMBIGUOUS, "5 samples, 6 needed"),
    "clocks": (change(timing(100), timing(200, seed=2), incomparable=CLOCKS), AMBIGUOUS, CLOCKS),
    "absent": (change(None, timing(100)), None, "only in the candidate"),
    "no time": (change(Timing(0.0, (0.0,) * 6), timing(100, count=6)), None, "no time in the reference"),
}


@pytest.mark.parametrize(("found", "verdict", "words"), CHANGES.values(), ids=CHANGES)
def test_a_verdict_says_what_it_rests_on(found: TimeChange, verdict: Verdict | None, words: str) -> None:
    assert found.verdict is verdict
    assert words in (found.reason or "")


def test_sides_mirror_each_other_and_what_cannot_be_judged_has_no_interval() -> None:
    found = {name: row[0] for name, row in CHANGES.items()}
    slower = found["slower"].ratio_interval or ()
    assert found["faster"].ratio_interval == tuple(1 / end for end in reversed(slower))
    assert found["few"].ratio_interval is None
    assert found["clocks"].ratio == pytest.approx(2, rel=0.02)
    assert found["absent"].ratio is found["no time"].ratio is None


def test_presence() -> None:
    found = [presence_of(1, 1), presence_of(None, 1), presence_of(1, None)]
    assert found == [Presence.BOTH, Presence.ADDED, Presence.REMOVED]
