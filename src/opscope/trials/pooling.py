"""What rounds within a process, and processes together, say of a ratio.

Within a process, the order of both sides in a round was drawn, so the sign of each difference is a fair coin
if they are equal: the interval is exact. Between processes a ratio differs by more than that (addresses,
clocks, what the compiler chose), so the pooled interval holds the scatter of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

import numpy as np

from opscope.benchmarking.statistics import student_quantile
from opscope.model.benchmark import Interval
from opscope.model.trial import TrialVerdict

# Rounds at which a process looks whether an arm is decided, and the error of each look, both sides together:
# of equal arms at most one in twenty is called apart at any of the five.
LOOKS, LOOK_ERROR = (8, 16, 32, 64, 128), 0.01
# What is called the same: within a process, and of processes together, whose ratios differ by more.
_SAME_WITHIN, _SAME_POOLED = 0.02, 0.06
# Ratios of one change differed by so much between processes of one program (standard deviation; prototype on
# CPUs, 7 programs: 1.4 to 5.3 %). It counts like so many processes seen before.
_SCATTER, _SEEN_BEFORE = 0.014, 4
# Of the step itself, between processes started anew: 5 to 30 % on H100s.
APART = 0.05


class Middle(NamedTuple):
    """A logarithm of a ratio and the ends of its interval."""

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """About its standard error."""
        return (self.high - self.low) / (2 * 2.576) if math.isfinite(self.high - self.low) else math.inf


@lru_cache(maxsize=512)
def _excluded(count: int, error: float) -> int:
    """How many of the ordered Walsh averages of so many differences lie outside of the interval, each side.

    Source: M. Hollander, D. Wolfe, E. Chicken, Nonparametric Statistical Methods, 3rd edition, §3.3.
    """
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, count + 1):  # the distribution of the signed rank sum
        ways = (ways + np.concatenate([np.zeros(rank), ways[:-rank]])) / 2
    return int(np.searchsorted(np.cumsum(ways), error / 2, side="right"))


def signed_rank_interval(differences: Sequence[float], error: float = LOOK_ERROR) -> Middle:
    """The median of the Walsh averages and its exact interval; unbounded where too few tell."""
    values = np.asarray(differences)
    count = len(values)
    walsh = np.sort(((values[:, None] + values[None, :]) / 2)[np.triu_indices(count)])
    excluded = _excluded(count, error)
    bounds = (float(walsh[excluded - 1]), float(walsh[-excluded])) if excluded else (-math.inf, math.inf)
    return Middle(float(np.median(walsh)), *bounds)


def is_decided(differences: Sequence[float]) -> bool:
    """Whether a look at these rounds tells an arm from the baseline, or that it is the same."""
    if len(differences) not in LOOKS:
        return len(differences) > LOOKS[-1]
    _, low, high = signed_rank_interval(differences)
    band = math.log1p(_SAME_WITHIN)
    return high < 0 or low > 0 or (-band <= low and high <= band)


class Pooled(NamedTuple):
    """What processes say together."""

    ratio: float
    interval: Interval  # 95 %
    verdict: TrialVerdict
    reason: str


def pooled(processes: Sequence[Sequence[float]], scatter: float = _SCATTER) -> Pooled:
    """Pool log-ratios by process and round; `scatter` is what processes differ by as far as is known.

    Source: A. Gelman et al., Bayesian Data Analysis, 3rd edition, §2.6 and §3.2 (scaled inverse χ² prior of a
    variance; the posterior interval is Student's).
    """
    middles = [signed_rank_interval(one) for one in processes]
    count, value = len(middles), fmean(one.value for one in middles)
    within = [_error_within(rounds, one) for rounds, one in zip(processes, middles, strict=True)]
    freedom = _SEEN_BEFORE + count - 1
    seen = sum((one.value - value) ** 2 for one in middles)
    variance = (_SEEN_BEFORE * scatter**2 + seen) / freedom
    if count <= 2:  # that two agree does not make the third agree
        variance = max(variance, scatter**2)
    half = student_quantile(freedom) * math.sqrt(variance / count + sum(one**2 for one in within) / count**2)
    low, high, band = value - half, value + half, math.log1p(_SAME_POOLED)
    if high < 0 or low > 0:
        verdict = TrialVerdict.FASTER if high < 0 else TrialVerdict.SLOWER
    else:
        verdict = TrialVerdict.SAME if -band <= low and high <= band else TrialVerdict.INCONCLUSIVE
    told = ", ".join(f"{100 * math.exp(one.value):.1f} %" for one in middles)
    where = "one process" if count == 1 else f"{count} processes"
    reason = f"{told} of the time in {where}, ± {100 * max(within):.1g} % within"
    return Pooled(math.exp(value), (math.exp(low), math.exp(high)), verdict, reason)


def _error_within(rounds: Sequence[float], middle: Middle) -> float:
    """Standard error of the middle of one process; of few rounds a guess from how they scatter."""
    if math.isfinite(middle.error):
        return middle.error
    if len(rounds) < 2:
        return APART
    return float(np.std(rounds, ddof=1)) / math.sqrt(len(rounds)) + APART / len(rounds) ** 2
