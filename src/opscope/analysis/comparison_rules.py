"""How two times become a verdict, and verdicts a failed gate; and two benchmarks compared row by row.

What is ambiguous fails no gate; neither does a comparison with itself. A verdict rests on an interval or on
equality to the nanosecond, never on two bare numbers. Swapping the sides inverts every verdict: intervals are
taken of the slower side over the faster, then mirrored.

Points of benchmarks match by suite, shape, dtype, kind of device and parameters, rows by name; what has no
counterpart is kept and says so. The runs are independent, so each side's samples are resampled by themselves:
intervals hold the noise within both runs, not what differs from run to run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import ceil, sqrt
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

from opscope.benchmarking.statistics import (
    CONFIDENCE,
    FEWEST_ROUNDS,
    RatioInterval,
    judge,
    median_interval,
    student_quantile,
)
from opscope.ingest import wording
from opscope.model.benchmark import BenchmarkResult, BenchmarkRow, Interval, Status, Verdict, reciprocal
from opscope.model.comparison import (
    BenchmarkComparison,
    BenchmarkPoint,
    BenchmarkRowChange,
    ComparisonOptions,
    PointChange,
    Presence,
    SessionComparison,
    TimeChange,
)
from opscope.model.finding import Finding, most_severe_first
from opscope.units import counted, format_duration, format_fraction

_MEDIAN_RESAMPLES = 1_999

Samples = NDArray[np.float64]

_OPPOSITE = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}


class Timing(msgspec.Struct, frozen=True):
    """One side's time with the samples it was taken from (none where there is but one)."""

    value_ns: float
    samples_ns: tuple[float, ...] = ()
    interval_ns: Interval | None = None


def presence_of(reference: object | None, candidate: object | None) -> Presence:
    if reference is None:
        return Presence.ADDED
    return Presence.REMOVED if candidate is None else Presence.BOTH


def time_change(
    reference: Timing | None,
    candidate: Timing | None,
    resampled: Resampled,
    options: ComparisonOptions,
    *,
    incomparable: str | None = None,
) -> TimeChange:
    """Both times with ratio, interval and verdict; None of a side that lacks the thing.

    Differences up to the threshold are none. Where the two times mean different things, no verdict
    is given, and `incomparable` says why.
    """
    verdict: Verdict | None = None
    ratio = interval = None
    if reference is None or candidate is None:
        reason = f"only in the {'candidate' if reference is None else 'reference'}"
    else:
        ratio = candidate.value_ns / reference.value_ns if reference.value_ns else None
        fewest = min(len(reference.samples_ns), len(candidate.samples_ns))
        if incomparable is not None:
            verdict, reason = Verdict.AMBIGUOUS, incomparable
        elif reference.value_ns == candidate.value_ns and reference.samples_ns == candidate.samples_ns:
            verdict, reason = Verdict.SAME, "equal to the nanosecond"
        elif not reference.value_ns or not candidate.value_ns:
            reason = f"no time in the {'candidate' if reference.value_ns else 'reference'}"
        elif fewest < FEWEST_ROUNDS:
            verdict, reason = Verdict.AMBIGUOUS, "one measurement each gives no interval"
            if fewest > 1:
                reason = f"{fewest} samples, {FEWEST_ROUNDS} needed for an interval"
        else:
            verdict, interval = _judged(reference, candidate, resampled, options)
            reason = _reason(verdict, interval, options.threshold)
    return TimeChange(
        reference_ns=None if reference is None else reference.value_ns,
        candidate_ns=None if candidate is None else candidate.value_ns,
        reference_interval_ns=None if reference is None else reference.interval_ns,
        candidate_interval_ns=None if candidate is None else candidate.interval_ns,
        ratio=ratio,
        ratio_interval=interval,
        verdict=verdict,
        reason=reason,
    )


def _judged(
    reference: Timing, candidate: Timing, resampled: Resampled, options: ComparisonOptions
) -> tuple[Verdict, Interval]:
    is_slower = (candidate.value_ns, candidate.samples_ns) > (reference.value_ns, reference.samples_ns)
    slow, fast = (candidate, reference) if is_slower else (reference, candidate)
    samples = np.asarray(slow.samples_ns), np.asarray(fast.samples_ns)
    low, high = ratio_interval(resampled, options.seed, *samples)
    # Samples of two runs share no rounds, so there is one interval, not two.
    ratio, rounds = slow.value_ns / fast.value_ns, min(len(slow.samples_ns), len(fast.samples_ns))
    found = RatioInterval(ratio=ratio, low=low, high=high, within_low=low, within_high=high, rounds=rounds)
    verdict, _ = judge(found, options.threshold)
    if is_slower:
        return verdict, found.bounds
    return _OPPOSITE.get(verdict, verdict), reciprocal(found.bounds)


def _reason(verdict: Verdict, interval: Interval, threshold: float) -> str:
    """Of the ratio as it is told: `1.43–1.49× faster` is the interval of reference over candidate."""
    low, high = reciprocal(interval) if verdict is Verdict.FASTER else interval
    # Near 1 two decimals would not tell it from 1.
    decimals = 3 if min(abs(low - 1), abs(high - 1)) < 0.1 else 2
    text = f"{CONFIDENCE:.0%} CI {low:.{decimals}f}–{high:.{decimals}f}×".replace("%", " %")
    within = format_fraction(threshold)
    if verdict is Verdict.SAME:
        return f"{text}, within {within} of 1"
    if verdict is Verdict.AMBIGUOUS:
        return f"{text}: neither a difference nor equality within {within} is established"
    return f"{text} {verdict}"


# Makes the statistic of each resample of the bootstrap, by the seed and the role of the samples, which tells
# the random numbers of the two sides apart. Samples of two runs share no rounds, so each side is resampled by
# itself (implementations of one run take turns: there `benchmarking.statistics` resamples whole rounds).
Resampled = Callable[[int, int, Samples], Samples]


def ratio_interval(resampled: Resampled, seed: int, numerator: Samples, denominator: Samples) -> Interval:
    """95 % interval of statistic(numerator) / statistic(denominator), widened for few samples.

    Deterministic: random numbers depend on the seed, the role and the number of samples alone.

    Source: Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), the expanded percentile
    interval: each end cuts off Φ(-sqrt(n / (n - 1)) t), t the quantile of Student's distribution with
    n - 1 degrees of freedom.
    """
    above, below = resampled(seed, 0, numerator), resampled(seed, 1, denominator)
    count = min(len(numerator), len(denominator))
    tail = NormalDist().cdf(-sqrt(count / (count - 1)) * student_quantile(count - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.nan_to_num(above / below, nan=1.0, posinf=np.inf)
    # Order statistics, not interpolated: between two finite ratios and an infinite one lies nothing.
    low, high = np.quantile(ratios, (tail, 1 - tail), method="inverted_cdf")
    return float(low), float(high)


def resampled_means(seed: int, role: int, samples: Samples) -> Samples:
    """Means of samples that are parts of a sum: steps of a recording."""
    means: Samples = _weights(seed, role, len(samples)) @ samples
    return means


@lru_cache(maxsize=2)
def _weights(seed: int, role: int, count: int) -> Samples:
    """How often each sample occurs in each resample, over their number; drawn once for a whole comparison."""
    random = np.random.default_rng([seed, role, count])
    # So many because the widened interval of few samples reaches far into the tails.
    return random.multinomial(count, np.full(count, 1 / count), size=9_999) / count


def resampled_medians(seed: int, role: int, samples: Samples) -> Samples:
    count = len(samples)
    # Neighboring samples of a run resemble each other (clocks, temperature), so blocks are drawn.
    # Source: Hall, Horowitz and Jing (1995): their length should grow with the cube root of the count.
    block = ceil(count ** (1 / 3))
    random = np.random.default_rng([seed, role, count])
    # In parts, so that memory is bounded.
    at_once = max(1, (1 << 20) // count)
    parts = []
    for begin in range(0, _MEDIAN_RESAMPLES, at_once):
        shape = (min(at_once, _MEDIAN_RESAMPLES - begin), -(-count // block))
        drawn = (random.integers(count, size=shape)[:, :, np.newaxis] + np.arange(block)) % count
        parts.append(np.median(samples[drawn.reshape(shape[0], -1)[:, :count]], axis=1))
    return np.concatenate(parts)


def gate_reasons(comparison: BenchmarkComparison | SessionComparison) -> tuple[str, ...]:
    """Why the comparison fails the gate; empty if it passes.

    It fails where the verdict is slower and the ratio above 1 + threshold, of a benchmark row, or of the
    total of a recording, or of an operator that holds at least `relevant_fraction` of the reference's time.
    A benchmark row that was ok and is not any more counts as slower. Benchmarks without a common row fail.
    """
    if isinstance(comparison, BenchmarkComparison):
        return tuple(_benchmark_reasons(comparison))
    options = comparison.options
    least_ns = options.relevant_fraction * (comparison.total.reference_ns or 0)
    relevant = [row for row in comparison.operators if (row.time.reference_ns or 0) >= least_ns]
    times = [("the total", comparison.total), *((row.name, row.time) for row in relevant)]
    return tuple(_sentence(name, time) for name, time in times if _fails(time, options.threshold))


def no_verdict(comparison: BenchmarkComparison | SessionComparison) -> str | None:
    """Why a gate has nothing to judge by: no time it looks at has an interval; None if one has."""
    if isinstance(comparison, SessionComparison):
        steps = min(comparison.reference.steps, comparison.candidate.steps)
        if _is_undecided(comparison.total) and steps < FEWEST_ROUNDS:
            return f"{counted(steps, 'step')} recorded, {FEWEST_ROUNDS} needed (--active {FEWEST_ROUNDS})"
        times = [comparison.total]
    else:
        times = [row.time for _, row in comparison.rows if row.presence is Presence.BOTH]
    undecided = [time.reason for time in times if _is_undecided(time)]
    return undecided[0] if undecided and len(undecided) == len(times) else None


def _is_undecided(time: TimeChange) -> bool:
    return time.verdict is Verdict.AMBIGUOUS and time.ratio_interval is None


def _fails(time: TimeChange, threshold: float) -> bool:
    return time.verdict is Verdict.SLOWER and time.ratio is not None and time.ratio > 1 + threshold


def _sentence(name: str, time: TimeChange) -> str:
    times = f"{format_duration(time.reference_ns)} to {format_duration(time.candidate_ns)}"
    return f"{name} is {time.verdict}: {times}, {time.reason}"


def _benchmark_reasons(comparison: BenchmarkComparison) -> Iterator[str]:
    if not any(row.presence is Presence.BOTH for _, row in comparison.rows):
        yield "no benchmark row of one side has a counterpart on the other"
        return
    for point, row in comparison.rows:
        name = f"{point.suite}, {row.name}"
        if _fails(row.time, comparison.options.threshold):
            yield _sentence(name, row.time)
        elif row.is_broken:
            yield f"{name} was ok and is {row.candidate_status}"


finding = partial(wording.finding, package=__package__)


def compare_benchmarks(
    reference: Sequence[BenchmarkResult],
    candidate: Sequence[BenchmarkResult],
    options: ComparisonOptions | None = None,
    *,
    reference_source: str = "reference",
    candidate_source: str = "candidate",
) -> BenchmarkComparison:
    options = options or ComparisonOptions()
    before, after = _by_point(reference), _by_point(candidate)
    matched = {key: (before[key], after[key]) for key in before if key in after}
    points = tuple(
        PointChange(point, (str(pair[0].clock), str(pair[1].clock)), tuple(_rows(*pair, options)))
        for (point, _), pair in matched.items()
    )
    environments = (_common_environment(reference), _common_environment(candidate))
    # Rows of both sides by verdict, and those without any, by why.
    counts = Counter(
        str(row.time.verdict or "untimed") if row.presence is Presence.BOTH else str(row.presence)
        for change in points
        for row in change.rows
    )
    findings: list[Finding] = []
    for pair in matched.values():
        findings += [one for one in point_findings(*pair) if one not in findings]
    verdict, reason = _overall(counts)
    return BenchmarkComparison(
        reference_source=reference_source,
        candidate_source=candidate_source,
        reference_environment=environments[0],
        candidate_environment=environments[1],
        options=options,
        points=points,
        only_in_reference=tuple(key[0] for key in before if key not in after),
        only_in_candidate=tuple(key[0] for key in after if key not in before),
        verdict=verdict,
        verdict_reason=reason,
        findings=most_severe_first(findings),
        counts=dict(counts),
    )


def _by_point(results: Iterable[BenchmarkResult]) -> dict[tuple[BenchmarkPoint, int], BenchmarkResult]:
    """Results by what they measured; those of the same by their order."""
    seen: Counter[BenchmarkPoint] = Counter()
    found = {}
    for result in results:
        point = BenchmarkPoint(
            suite=result.suite,
            shape=result.shape,
            dtype=result.dtype,
            device_kind=result.device.partition(":")[0],
            parameters=tuple(sorted((name, str(value)) for name, value in result.parameters.items())),
        )
        found[point, seen[point]] = result
        seen[point] += 1
    return found


def _common_environment(results: Sequence[BenchmarkResult]) -> dict[str, str]:
    """What one side was measured on and with, as far as that was used; different values side by side."""
    values: dict[str, dict[str, None]] = defaultdict(dict)
    for result in results:
        environment = result.environment
        kind, _, index = result.device.partition(":")
        facts = {"CPU": environment.cpu}
        if kind != "cpu":
            gpus = environment.gpu
            place = int(index) if index.isdigit() and int(index) < len(gpus) else 0
            facts = {
                "GPU": gpus[place].name if gpus else None,
                "CUDA driver": environment.cuda_driver,
                "CUDA": environment.cuda_runtime,
                "cuDNN": environment.cudnn,
            }
        for label, value in (facts | {"PyTorch": environment.torch, "Triton": environment.triton}).items():
            if value:
                values[label][value] = None
    return {label: ", ".join(distinct) for label, distinct in values.items()}


def _rows(
    reference: BenchmarkResult, candidate: BenchmarkResult, options: ComparisonOptions
) -> Iterator[BenchmarkRowChange]:
    rows_before, rows_after = ({row.name: row for row in one.rows} for one in (reference, candidate))
    obstacle = incomparable(reference, candidate)
    for name in dict.fromkeys((*rows_before, *rows_after)):
        before, after = rows_before.get(name), rows_after.get(name)
        statuses = [row.status for row in (before, after) if row is not None]
        # What a change of status is about; None where both are ok or a side lacks the row.
        note = None
        if before is not None and after is not None and {*statuses} != {Status.OK}:
            row = after if after.status is not Status.OK else before
            is_both = before.status is after.status
            note = f"{after.status} on both sides" if is_both else f"{before.status} → {after.status}"
            note = f"{note}: {row.reason}" if row.reason else note
        old, new = _titles(before), _titles(after)
        is_known = bool(before and after and before.profile and after.profile)
        times = _timing(before), _timing(after)
        yield BenchmarkRowChange(
            name=name,
            presence=presence_of(before, after),
            reference_status=before.status if before else None,
            candidate_status=after.status if after else None,
            status_note=note,
            time=time_change(*times, resampled_medians, options, incomparable=obstacle),
            reference_launches=before.kernels_launched if before else None,
            candidate_launches=after.kernels_launched if after else None,
            kernels_added=_missing(new, old) if is_known else (),
            kernels_removed=_missing(old, new) if is_known else (),
        )


def _timing(row: BenchmarkRow | None) -> Timing | None:
    if row is None or row.status is not Status.OK or not row.samples_ns:
        return None
    samples_ns = tuple(float(sample) for sample in row.samples_ns)
    interval = median_interval(samples_ns)
    return Timing(interval.median_ns, samples_ns, interval.bounds_ns)


def _titles(row: BenchmarkRow | None) -> dict[str, str]:
    profile = row.profile if row else None
    return {} if profile is None else {use.name: use.title for use in profile.kernels}


def _missing(titles: Mapping[str, str], others: Mapping[str, str]) -> tuple[str, ...]:
    """Kernels the others lack: their titles, their names where a title does not tell them apart."""
    known = set(others.values())
    return tuple(name if title in known else title for name, title in titles.items() if name not in others)


def _overall(counts: Mapping[str, int]) -> tuple[Verdict | None, str]:
    """The verdict all rows share; ambiguous where some are faster and some slower."""
    told = ", ".join(
        f"{counts[name]} {name}"
        for name in ("slower", "faster", "same", "ambiguous", "untimed", "added", "removed")
        if counts.get(name)
    )
    found = {verdict for verdict in Verdict if counts.get(verdict.value)}
    if not found:
        return None, told or "nothing in common"
    directions = found & {Verdict.SLOWER, Verdict.FASTER}
    if len(directions) == 1:
        return directions.pop(), told
    return (Verdict.SAME if found == {Verdict.SAME} else Verdict.AMBIGUOUS), told


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
    obstacle = incomparable(reference, candidate)
    if obstacle is not None:
        yield finding("compare.clocks_incomparable", point=_name(reference), obstacle=obstacle)
    states = (one.device_state_after for one in (reference, candidate))
    before, after = (None if state is None else state.sm_clock_mhz for state in states)
    # Clocks of a run that is not throttled stay within a step or two of 15 MHz in about 1,900.
    if before and after and abs(after - before) > 0.03 * before:
        clocks = {"reference_sm_clock_mhz": before, "candidate_sm_clock_mhz": after}
        yield finding("compare.clocks_differ", evidence=clocks, point=_name(reference))
    for side, result in (("reference", reference), ("candidate", candidate)):
        if not result.complete:
            yield finding("compare.incomplete", point=_name(result), side=side)
        throttled = [row.name for row in result.rows if row.throttled]
        if throttled:
            yield finding(
                "compare.throttled",
                evidence={"rows": throttled},
                point=_name(result),
                side=side,
                names=", ".join(throttled),
            )


def _name(result: BenchmarkResult) -> str:
    shape = "" if result.shape is None else f" {'×'.join(map(str, result.shape))}"
    return f"{result.suite}{shape}" + (f" {result.dtype}" if result.dtype else "")
