"""Intervals of ratios between two independent sets of samples, by the bootstrap.

Samples of two runs share no rounds, so each side is resampled by itself (implementations of one run take
turns: there `benchmarking.statistics` resamples whole rounds). Deterministic: numerator and denominator have
random numbers of their own, which depend on the seed and on the number of samples alone.
"""

from __future__ import annotations

from math import ceil, sqrt
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from opscope.benchmarking.statistics import CONFIDENCE
from opscope.model.benchmark import Interval

__all__ = ["MeanResampler", "MedianResampler", "RatioResampler"]

# The widened interval of few samples reaches far into the tails.
_RESAMPLES = 9_999
_MEDIAN_RESAMPLES = 1_999
_VALUES_AT_ONCE = 1 << 20

Samples = NDArray[np.float64]


class RatioResampler(Protocol):
    """Makes the interval of the ratio of one statistic of two sets of samples."""

    def interval(self, numerator: Samples, denominator: Samples) -> Interval:
        """95 % interval of statistic(numerator) / statistic(denominator)."""
        ...


class MeanResampler:
    """Ratio of means, for samples that are parts of a sum: steps of a recording.

    The resamples of one number of steps are drawn once and serve every row of a comparison.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._weights: dict[tuple[int, int], Samples] = {}

    def interval(self, numerator: Samples, denominator: Samples) -> Interval:
        """95 % interval of the ratio of means, widened for few samples."""
        tail = _tail(min(len(numerator), len(denominator)))
        above = self._weight(0, len(numerator)) @ numerator
        below = self._weight(1, len(denominator)) @ denominator
        return _bounds(above, below, tail)

    def _weight(self, role: int, count: int) -> Samples:
        """How often each of `count` samples occurs in each resample, over `count`."""
        key = (role, count)
        if key not in self._weights:
            random = np.random.default_rng([self._seed, role, count])
            drawn = random.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
            self._weights[key] = drawn / count
        return self._weights[key]


class MedianResampler:
    """Ratio of medians, for independent timings of one call."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def interval(self, numerator: Samples, denominator: Samples) -> Interval:
        """95 % interval of the ratio of medians, widened for few samples."""
        above, below = self._medians(0, numerator), self._medians(1, denominator)
        return _bounds(above, below, _tail(min(len(numerator), len(denominator))))

    def _medians(self, role: int, samples: Samples) -> Samples:
        count = len(samples)
        # Neighboring samples of a run resemble each other (clocks, temperature), so blocks are drawn.
        # Source: Hall, Horowitz and Jing (1995): their length should grow with the cube root of the count.
        block = ceil(count ** (1 / 3))
        random = np.random.default_rng([self._seed, role, count])
        at_once = max(1, _VALUES_AT_ONCE // count)
        parts = []
        for begin in range(0, _MEDIAN_RESAMPLES, at_once):
            shape = (min(at_once, _MEDIAN_RESAMPLES - begin), -(-count // block))
            starts = random.integers(count, size=shape)
            drawn = (starts[:, :, np.newaxis] + np.arange(block)) % count
            parts.append(np.median(samples[drawn.reshape(shape[0], -1)[:, :count]], axis=1))
        return np.concatenate(parts)


def _bounds(above: Samples, below: Samples, tail: float) -> Interval:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.nan_to_num(above / below, nan=1.0, posinf=np.inf)
    # Order statistics, not interpolated: between two finite ratios and an infinite one lies nothing.
    low, high = np.quantile(ratios, (tail, 1 - tail), method="inverted_cdf")
    return float(low), float(high)


def _tail(count: int) -> float:
    """Probability to cut off at each end, so that the interval covers what it says also for few samples.

    Source: Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), the expanded percentile
    interval: Φ(-sqrt(n / (n - 1)) t), t the quantile of Student's distribution with n - 1 degrees of freedom.
    """
    return NormalDist().cdf(-sqrt(count / (count - 1)) * _student_quantile(count - 1))


def _student_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's distribution, within 0.3 % for 4 degrees of freedom and more.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum((term / float(freedom) ** power for power, term in enumerate(terms)), 0.0)
