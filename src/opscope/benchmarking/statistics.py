"""Statistics of samples: the median with its interval, ratios over rounds, verdicts, outliers.

Nothing here assumes a distribution: the median's interval follows from order statistics, the ratio's from a
bootstrap over rounds. No sample is ever removed. Pure numpy; imports no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from opscope.model.benchmark import Interval, Verdict

CONFIDENCE = 0.95
RESAMPLES = 2_000
# With fewer rounds the extremes of all samples cover the median in less than 95 % of cases.
FEWEST_ROUNDS = 6

# |x - median| beyond so many median absolute deviations: 6.7 standard deviations of a normal distribution,
# for latencies have heavier tails than one.
_OUTLIER_DEVIATIONS = 10.0
_SLOWER, _DEVIATIONS = 0.10, 5.0
# The median absolute deviation of a normal distribution times this is its standard deviation.
_PER_DEVIATION = 1.4826
# Clocks with coarse steps give deviations of 0; then this part of the median takes their place.
_LEAST_RELATIVE_DEVIATION = 0.001
_LONGEST_BLOCK_PART = 5
_MUCH_WIDER = 2.0
_ELEMENTS_AT_ONCE = 2_000_000

Samples = NDArray[np.float64]


class MedianInterval(msgspec.Struct, frozen=True):
    median_ns: float  # Of the samples
    low_ns: float  # Lower end
    high_ns: float  # Upper end
    # Probability that it holds the true median of independent samples; at least 0.95 from six samples on.
    # With fewer the interval is the whole range and covers less
    coverage: float

    @property
    def bounds_ns(self) -> Interval:
        return (self.low_ns, self.high_ns)


class RatioInterval(msgspec.Struct, frozen=True):
    """A candidate's time over the reference's, over the rounds both were sampled in."""

    ratio: float  # The candidate's median over the reference's
    low: float  # Lower end of its 95 % interval
    high: float  # Upper end
    within_low: float  # Lower end of the 95 % interval of the median of the ratios within rounds
    within_high: float  # Upper end
    rounds: int  # Rounds it rests on
    block: int = 1  # Rounds resampled together; more than 1 where neighboring rounds resemble each other

    @property
    def bounds(self) -> Interval:
        return (self.low, self.high)


def median_interval(samples_ns: Sequence[float]) -> MedianInterval:
    """The median and its distribution-free 95 % interval, between two order statistics.

    Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., §7.1: [x(k), x(n+1-k)] holds the
    median with probability 1 - 2 P(B < k), B binomial (n, 1/2).
    """
    ordered = np.sort(np.asarray(samples_ns, dtype=np.float64))
    rank, coverage = _rank(len(ordered))
    return MedianInterval(
        float(np.median(ordered)), float(ordered[rank - 1]), float(ordered[-rank]), coverage
    )


def relative_half_width(interval: MedianInterval) -> float:
    """Half the width of a median's interval over the median; infinite where it covers less than 95 %."""
    if interval.coverage < CONFIDENCE or interval.median_ns <= 0:
        return math.inf
    return (interval.high_ns - interval.low_ns) / 2 / interval.median_ns


def ratio_interval(
    candidate_ns: Sequence[float], reference_ns: Sequence[float], *, seed: int
) -> RatioInterval:
    """The ratio of two medians and its 95 % percentile bootstrap interval, over rounds.

    Rounds are resampled whole, so what hits both sides of a round alike (clocks, temperature, other load)
    cancels. Where rounds resemble their neighbors, blocks of neighboring rounds are resampled: single ones
    would make the interval too narrow.

    Source: B. Efron and R. J. Tibshirani, An Introduction to the Bootstrap, §13.3 (percentile interval);
    D. N. Politis and J. P. Romano, A circular block-resampling procedure (1992).
    """
    pairs = np.stack([np.asarray(candidate_ns, np.float64), np.asarray(reference_ns, np.float64)])
    block = _block_length(pairs)
    of_medians, within_rounds = _resampled_ratios(pairs, block, np.random.default_rng(seed))
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = (float(end) for end in np.quantile(of_medians, tails))
    within_low, within_high = (float(end) for end in np.quantile(within_rounds, tails))
    candidate, reference = (float(median) for median in np.median(pairs, axis=1))
    return RatioInterval(candidate / reference, low, high, within_low, within_high, pairs.shape[1], block)


def judge(ratio: RatioInterval, same_within: float) -> tuple[Verdict, str]:
    """The verdict on a candidate and the figures it rests on.

    Two intervals are asked: of the ratio of medians, and of the ratios within rounds. "Same" is what one of
    them lies within; a difference is what both exclude 1 for, which noise rarely makes both do. Where the
    first is much wider than a narrow second, because the machine runs at one of several speeds and a median
    may lie at either, the second decides: both sides of a round ran at one speed.
    """
    if ratio.rounds < FEWEST_ROUNDS:
        reason = f"{ratio.rounds} rounds with both sides, {FEWEST_ROUNDS} needed for a 95 % interval"
        return Verdict.AMBIGUOUS, reason
    first, where = _position(ratio.low, ratio.high, same_within)
    reason = f"95 % CI {ratio.low:.4f}–{ratio.high:.4f}× over {ratio.rounds} rounds {where}"
    second, where = _position(ratio.within_low, ratio.within_high, same_within)
    if first in {second, Verdict.SAME}:
        return first, reason
    reason += f"; of ratios within rounds, {ratio.within_low:.4f}–{ratio.within_high:.4f}× {where}"
    width, within_width = ratio.high - ratio.low, ratio.within_high - ratio.within_low
    is_sharper = _MUCH_WIDER * within_width < width and within_width <= 2 * same_within
    if second is Verdict.SAME or (first is Verdict.AMBIGUOUS and is_sharper):
        return second, reason
    return Verdict.AMBIGUOUS, reason


def usual_and_limit(times_ns: Sequence[float] | Samples) -> tuple[float, float]:
    """What is usual of times, and from where on one is slower than chance: by 10 % and by 5 deviations."""
    usual_ns = float(statistics.median(times_ns))
    deviation_ns = _PER_DEVIATION * statistics.median(abs(one - usual_ns) for one in times_ns)
    return usual_ns, usual_ns + max(_DEVIATIONS * deviation_ns, _SLOWER * usual_ns)


def outliers(samples_ns: Sequence[float]) -> tuple[int, ...]:
    """Indices of samples further from the median than ten median absolute deviations."""
    samples = np.asarray(samples_ns, dtype=np.float64)
    median = float(np.median(samples))
    distance = np.abs(samples - median)
    deviation = max(float(np.median(distance)), _LEAST_RELATIVE_DEVIATION * median)
    return tuple(int(index) for index in np.flatnonzero(distance > _OUTLIER_DEVIATIONS * deviation))


@lru_cache(maxsize=256)
def student_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """What Student's t stays within so surely, for whole degrees of freedom, to rounding.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4: the distribution in
    θ = atan(t / √n) for n degrees of freedom, which is solved for θ by halving.
    """
    odd = freedom % 2
    steps = 2.0 * np.arange(1, (freedom - odd) // 2)
    factors = np.concatenate([[1.0], np.cumprod(steps / (steps + 1) if odd else (steps - 1) / steps)])
    factors = factors if freedom > 1 else factors[:0]
    powers = 2 * np.arange(len(factors)) + odd
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        within = math.sin(angle) * float(np.dot(factors, math.cos(angle) ** powers))
        within = 2 / math.pi * (angle + within) if odd else within
        low, high = (angle, high) if within < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


@lru_cache(maxsize=256)
def _rank(count: int) -> tuple[int, float]:
    """The rank k of the interval [x(k), x(n+1-k)], 1 at least, and what it covers."""
    drawn = np.arange(1, count + 1)
    log_choose = np.concatenate([[0.0], np.cumsum(np.log((count - drawn + 1) / drawn))])
    below = np.cumsum(np.exp(log_choose - count * math.log(2)))  # P(B <= k) at k
    tail = (1 - CONFIDENCE) / 2
    rank = max(1, int(np.count_nonzero(below <= tail)))
    return rank, float(1 - 2 * below[rank - 1])


def _block_length(pairs: Samples) -> int:
    """Rounds to resample together, from how much each side resembles itself one round on.

    Source: P. Hall, J. L. Horowitz and B.-Y. Jing (1995) and H. R. Künsch (1989): a block of
    (2 ρ² / (1 - ρ²)²)^⅓ n^⅓ rounds is best for the mean of a first-order autoregressive series.
    """
    count: int = pairs.shape[1]
    longest = max(1, count // _LONGEST_BLOCK_PART)
    correlation = max(_neighbor_correlation(series) for series in (pairs[0], pairs[1], pairs[0] / pairs[1]))
    if correlation <= 2 / math.sqrt(count):  # two standard errors of no correlation
        return 1
    correlation = min(correlation, 0.99)
    best: float = (2 * correlation**2 / (1 - correlation**2) ** 2 * count) ** (1 / 3)
    return max(1, min(math.ceil(best), longest))


def _neighbor_correlation(series: Samples) -> float:
    """Rank correlation of the samples with their successors, so that outliers weigh no more than others."""
    if len(series) < FEWEST_ROUNDS:
        return 0.0
    _, inverse, counts = np.unique(series, return_inverse=True, return_counts=True)
    # Equal samples share the mean of their ranks: ranked by position they would seem to rise.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    centered = ranks - ranks.mean()
    variance = float(np.dot(centered, centered))
    return float(np.dot(centered[:-1], centered[1:])) / variance if variance else 0.0


def _position(low: float, high: float, same_within: float) -> tuple[Verdict, str]:
    """What an interval of a ratio says by itself, and where it lies."""
    band = f"1 ± {same_within:g}"
    if 1 - same_within <= low and high <= 1 + same_within:
        return Verdict.SAME, f"lies within {band}"
    if high < 1:
        return Verdict.FASTER, "lies below 1"
    if low > 1:
        return Verdict.SLOWER, "lies above 1"
    return Verdict.AMBIGUOUS, f"includes 1 and extends beyond {band}"


def _resampled_ratios(pairs: Samples, block: int, random: np.random.Generator) -> tuple[Samples, Samples]:
    """Of resampled rounds: ratios of medians, and medians of the ratios within rounds."""
    count = pairs.shape[1]
    series = np.stack([pairs[0], pairs[1], pairs[0] / pairs[1]])
    at_once = max(1, _ELEMENTS_AT_ONCE // count)
    parts = []
    for begin in range(0, RESAMPLES, at_once):
        starts = random.integers(0, count, (min(at_once, RESAMPLES - begin), -(-count // block), 1))
        # Blocks go on around the end.
        rounds = ((starts + np.arange(block)) % count).reshape(len(starts), -1)[:, :count]
        parts.append(np.median(series[:, rounds], axis=2))
    candidate, reference, within = np.concatenate(parts, axis=1)
    return candidate / reference, within
