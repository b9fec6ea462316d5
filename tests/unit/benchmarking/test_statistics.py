import itertools
import math

import numpy as np
import pytest

from case_tables import cases
from opscope.benchmarking.statistics import (
    FEWEST_ROUNDS,
    RatioInterval,
    judge,
    median_interval,
    outliers,
    ratio_interval,
    relative_half_width,
    student_quantile,
)
from opscope.model.benchmark import Verdict


def coverage_by_counting(count, rank):
    """Probability that the median lies between two order statistics, from all 2**n sides of it."""
    below = [sum(sides) for sides in itertools.product((0, 1), repeat=count)]
    return sum(rank <= number <= count - rank for number in below) / len(below)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 12, 15])
def test_the_median_interval_is_the_narrowest_that_covers_95_percent(count):
    interval = median_interval(range(1, count + 1))
    rank = int(interval.low_ns)
    assert interval.high_ns == count + 1 - rank
    assert interval.coverage == pytest.approx(coverage_by_counting(count, rank))
    if count >= FEWEST_ROUNDS:
        assert interval.coverage >= 0.95
        assert coverage_by_counting(count, rank + 1) < 0.95


def test_few_samples_give_the_whole_range_and_widths_are_of_the_median():
    interval = median_interval([3.0, 1.0, 2.0])
    assert (interval.median_ns, interval.low_ns, interval.high_ns, interval.coverage) == (2.0, 1.0, 3.0, 0.75)
    assert relative_half_width(interval) == math.inf
    interval = median_interval([90.0, 95.0, 98.0, 100.0, 100.0, 102.0, 104.0, 110.0])
    assert relative_half_width(interval) == pytest.approx((interval.high_ns - interval.low_ns) / 2 / 100.0)
    assert relative_half_width(median_interval([5.0] * 10)) == 0.0


def test_the_median_interval_of_many_samples_covers_the_median_as_often_as_it_says():
    random = np.random.default_rng(1)
    trials = [median_interval(random.exponential(1.0, 101)) for _ in range(400)]
    share = np.mean([one.low_ns <= math.log(2) <= one.high_ns for one in trials])
    assert share == pytest.approx(trials[0].coverage, abs=0.03)
    assert 0.95 <= trials[0].coverage < 0.98


def test_the_bootstrap_resamples_rounds_whole():
    drift = np.linspace(100, 300, 60)
    random = np.random.default_rng(3)
    random.shuffle(drift)
    ratio = ratio_interval(1.1 * drift, drift, seed=0)
    assert (ratio.low, ratio.high) == pytest.approx((1.1, 1.1))


@pytest.mark.parametrize(("count", "seed"), [(20, 22), (21, 23), (333, 1)])
def test_the_bootstrap_agrees_with_a_plain_one(count, seed):
    random = np.random.default_rng(seed)
    candidate, reference = random.normal(100, 3, count), random.normal(80, 3, count)
    rounds = random.integers(0, count, (4000, count))
    plain = np.median(candidate[rounds], axis=1) / np.median(reference[rounds], axis=1)
    ratio = ratio_interval(candidate, reference, seed=1)
    assert (ratio.low, ratio.high) == pytest.approx(np.quantile(plain, (0.025, 0.975)), rel=0.005)
    assert ratio.ratio == np.median(candidate) / np.median(reference)
    assert (ratio.rounds, ratio.block) == (count, 1)


def test_rounds_that_resemble_their_neighbors_are_resampled_in_blocks():
    random = np.random.default_rng(4)
    walk = 100 + np.cumsum(random.normal(0, 0.3, 400))
    ratio = ratio_interval(walk, np.full(400, 100.0), seed=0)
    single = ratio_interval(random.permutation(walk), np.full(400, 100.0), seed=0)
    assert ratio.block > 5
    assert single.block == 1
    assert ratio.high - ratio.low > 2 * (single.high - single.low)


@cases("freedom", "quantile")
def test_the_quantile_of_student_is_exact(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=1e-6)


@cases("low", "high", "verdict", "words")
def test_verdicts_follow_from_the_interval_and_name_it(low, high, verdict, words):
    given, reason = judge(RatioInterval((low + high) / 2, low, high, low, high, rounds=40), 0.02)
    assert given == verdict
    assert f"{low:.4f}–{high:.4f}× over 40 rounds {words}" in reason


@cases("medians", "within", "verdict")
def test_ratios_within_rounds_are_asked_too(medians, within, verdict):
    given, reason = judge(RatioInterval(1.0, *medians, *within, rounds=40), 0.02)
    assert given == verdict
    assert f"within rounds, {within[0]:.4f}–{within[1]:.4f}× " in reason


def test_swapping_sides_inverts_the_verdict_and_few_rounds_give_none():
    random = np.random.default_rng(5)
    slow, fast = random.normal(110, 2, 80), random.normal(100, 2, 80)
    assert judge(ratio_interval(slow, fast, seed=0), 0.02)[0] is Verdict.SLOWER
    assert judge(ratio_interval(fast, slow, seed=0), 0.02)[0] is Verdict.FASTER
    verdict, reason = judge(RatioInterval(2.0, 2.0, 2.0, 2.0, 2.0, rounds=5), 0.02)
    assert verdict is Verdict.AMBIGUOUS
    assert "5 rounds with both sides" in reason


def test_outliers_are_flagged_by_index_but_not_the_steps_of_a_coarse_clock():
    assert outliers([100.0, 101.0, 99.0, 250.0, 100.5, 99.5, 3.0]) == (3, 6)
    assert outliers([1000.0] * 30 + [1001.0]) == ()
    assert outliers([1000.0] * 30 + [1200.0]) == (30,)
