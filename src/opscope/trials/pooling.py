"""What rounds of one process and of several say together: intervals, verdicts, and what they rest on.

The order of a round is drawn, so the sign of each difference is a fair coin if both are equal: the interval
of one process is exact, but needs eight rounds, and many programs end before. Rounds of all changes of a
program differ by about as much, so processes are pooled with the noise that all changes show. Between
processes a ratio differs by more than that (addresses, clocks, what the compiler chose). What is usual is
known; all changes that ran in several processes say together how far those of this program are from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
# Several changes are tried at once: of equal ones at most one in a hundred is called faster.
_SURELY_APART = 0.98
# What is called the same: within a process, and of processes together, whose ratios differ by more.
_SAME_WITHIN, _SAME_POOLED = 0.02, 0.06
# Ratios of one change differ by so much between processes of one program (standard deviation: 1.4 to 5.3 % of
# 7 programs on CPUs; 0 to 2 % on an H200 where a change does nothing, more where it does much). It counts
# like so many processes seen before.
_SCATTER, _SCATTER_OF_GAIN, _SEEN_BEFORE = 0.016, 0.05, 4
_OF_ITS_OWN = 1 / 3  # of what a change is apart in processes; the rest is the program's, alike for all
# What rounds of all arms differ by counts like so many rounds of each; how far out of it a round may lie.
_SHARED_ROUNDS, _OUTLIER = 8, 4.0
_NORMAL_DEVIATION = 1.4826  # standard deviation of a normal variable over the median of its distance


class Middle(NamedTuple):
    """A logarithm of a ratio and the ends of its interval."""

    value: float
    low: float
    high: float


class ProgramNoise(NamedTuple):
    deviation: float = 0.0  # of rounds
    freedom: int = 0
    scatter: float = 1.0  # between processes, over what is usual
    seen: float = _SEEN_BEFORE  # processes that this rests on


class Pooled(NamedTuple):
    ratio: float
    interval: Interval  # 95 %
    verdict: TrialVerdict
    reason: str
    by_process: tuple[float, ...]


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


def noise_of(arms: Iterable[Sequence[Sequence[float]]]) -> ProgramNoise:
    """The noise of a program, from the rounds of all its arms by process.

    That of rounds is robust, for a neighbor may hold up any of them.
    """
    arms = [one for one in arms if one]
    several = [one for processes in arms for one in processes if len(one) > 1]
    if not several:
        return ProgramNoise()
    away = [np.asarray(one) - signed_rank_interval(one).value for one in several]
    spread = [math.sqrt(len(one) / (len(one) - 1)) * abs(one) for one in away]
    deviation = _NORMAL_DEVIATION * float(np.median(np.concatenate(spread)))
    squares, freedom = 0.0, 0
    for processes in arms:
        centers, more = _centers(processes), len(processes) - 1
        within = more * fmean(deviation**2 / len(one) for one in processes)
        squares += (float(((centers - centers.mean()) ** 2).sum()) - within) / _usual_scatter(centers) ** 2
        freedom += more
    seen = _SEEN_BEFORE + _OF_ITS_OWN * freedom
    scatter = math.sqrt((_SEEN_BEFORE + _OF_ITS_OWN * max(0.0, squares)) / seen)
    return ProgramNoise(deviation, sum(map(len, several)) - len(several), scatter, seen)


def _centers(processes: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array([signed_rank_interval(one).value for one in processes])


def _usual_scatter(centers: np.ndarray, least: float = _SCATTER) -> float:
    return math.hypot(least, _SCATTER_OF_GAIN * float(centers.mean()))


def pooled(
    processes: Sequence[Sequence[float]], noise: ProgramNoise | None = None, scatter: float = _SCATTER
) -> Pooled:
    """Pool log-ratios by process and round.

    `noise` is that of the program, of these rounds if None; `scatter` what processes usually differ by.

    Source: A. Gelman et al., Bayesian Data Analysis, 3rd edition, §2.6 and §3.2 (scaled inverse χ² priors of
    variances; the posterior interval is Student's); F. E. Satterthwaite, Biometrics Bulletin 2, 1946 (the
    degrees of freedom of a sum of two).
    """
    noise = noise_of([processes])._replace(scatter=1.0, seen=_SEEN_BEFORE) if noise is None else noise
    centers, count = _centers(processes), len(processes)
    rounds = np.array([len(one) for one in processes])
    shared, most = min(_SHARED_ROUNDS, noise.freedom), (_OUTLIER * noise.deviation) ** 2
    own = sum(
        float(np.minimum((np.asarray(one) - center) ** 2, most).sum())
        for one, center in zip(processes, centers, strict=True)
    )
    freedom_within = max(1, shared + int(rounds.sum()) - count)
    within = (shared * noise.deviation**2 + own) / freedom_within / rounds  # by process
    prior = (noise.scatter * _usual_scatter(centers, scatter)) ** 2
    seen = max(0.0, float(((centers - centers.mean()) ** 2).sum() - within.sum() * (count - 1) / count))
    freedom_between = noise.seen + count - 1
    between = (noise.seen * prior + seen) / freedom_between
    if count <= 2:  # that two agree does not make the third agree
        between = max(between, prior)
    weights = 1 / (between + within)
    value, variance = float(np.average(centers, weights=weights)), float(1 / weights.sum())
    parts = between / count, max(0.0, variance - between / count)
    freedom = variance**2 / (parts[0] ** 2 / freedom_between + parts[1] ** 2 / freedom_within)
    error, whole = math.sqrt(variance), max(1, int(freedom))
    half, band = student_quantile(whole) * error, math.log1p(_SAME_POOLED)
    low, high = value - half, value + half
    if abs(value) > student_quantile(whole, _SURELY_APART) * error:
        verdict = TrialVerdict.FASTER if value < 0 else TrialVerdict.SLOWER
    elif -band <= low and high <= band:
        verdict = TrialVerdict.SAME
    else:
        verdict = TrialVerdict.INCONCLUSIVE
    by_process = tuple(np.exp(centers).tolist())
    told = ", ".join(f"{100 * one:.1f} %" for one in by_process)
    where = "one process" if count == 1 else f"{count} processes"
    reason = f"{told} of the time in {where}"
    if rounds.max() > 1:
        reason = f"{told} of the time in {where}, ± {100 * math.sqrt(float(within.max())):.1f} % within"
    return Pooled(math.exp(value), (math.exp(low), math.exp(high)), verdict, reason, by_process)
