"""`compare_benchmarks`: two benchmark results, or two sweeps, row by row.

Points match by suite, shape, dtype, kind of device and parameters, rows by name; what has no counterpart is
kept and says so. The runs are independent, so each side's samples are resampled by themselves: intervals hold
the noise within both runs, not what differs from run to run.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from opscope.analysis.comparison_rules import (
    Timing,
    environment_finding,
    finding,
    presence_of,
    resampled_medians,
    time_change,
)
from opscope.benchmarking.statistics import median_interval
from opscope.model.benchmark import BenchmarkResult, BenchmarkRow, Status, Verdict
from opscope.model.comparison import (
    BenchmarkComparison,
    BenchmarkPoint,
    BenchmarkRowChange,
    ComparisonOptions,
    PointChange,
    Presence,
)
from opscope.model.finding import Finding, most_severe_first

# Clocks of a run that is not throttled stay within a step or two of 15 MHz in about 1,900.
_CLOCK_TOLERANCE = 0.03

Key = tuple[BenchmarkPoint, int]


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
        PointChange(
            key[0],
            (str(pair[0].clock), str(pair[1].clock)),
            tuple(_rows(*pair, options)),
        )
        for key, pair in matched.items()
    )
    environments = (_common_environment(reference), _common_environment(candidate))
    # Rows of both sides by verdict, and those without any, by why.
    counts = Counter(
        str(row.time.verdict or "untimed") if row.presence is Presence.BOTH else str(row.presence)
        for change in points
        for row in change.rows
    )
    findings = [*environment_finding(*environments)]
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


def _by_point(results: Iterable[BenchmarkResult]) -> dict[Key, BenchmarkResult]:
    """Results by what they measured; those of the same by their order."""
    seen: Counter[BenchmarkPoint] = Counter()
    found: dict[Key, BenchmarkResult] = {}
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
            reference_relative=before.ratio if before else None,
            candidate_relative=after.ratio if after else None,
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
    if before and after and abs(after - before) > _CLOCK_TOLERANCE * before:
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


def growth_exponent(points: Sequence[BenchmarkResult], name: str, parameter: str) -> float | None:
    """The k of `time ∝ parameter**k` of an implementation, by least squares of the logarithms.

    Points that agree in all other parameters form a group with a level of its own; the slope is common. Those
    without a median, or a positive number as value, do not count.
    """
    groups: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        value = point.parameters.get(parameter)
        median_ns = next((row.median_ns for row in point.rows if row.name == name and row.median_ns), None)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if median_ns is None or value is None or not is_number or value <= 0:
            continue
        others = tuple(sorted((k, str(v)) for k, v in point.parameters.items() if k != parameter))
        groups[others].append((math.log(value), math.log(median_ns)))
    products = squares = 0.0
    for group in groups.values():
        x, y = np.array(group).T
        products += float((x - x.mean()) @ (y - y.mean()))
        squares += float((x - x.mean()) @ (x - x.mean()))
    return products / squares if squares > 0 else None
