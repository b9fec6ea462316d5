"""What a reader of a benchmark must know besides its figures: facts in the words of `findings.toml`.

A run on a quiet device, precise and with every implementation right, has none. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opscope.benchmarking.statistics import CONFIDENCE, median_interval, relative_half_width
from opscope.data import packaged_toml
from opscope.model.benchmark import BenchmarkRow, Clock, Status
from opscope.model.finding import Finding, Severity, worded

if TYPE_CHECKING:
    from opscope.benchmarking.run import Run

_UNSTABLE_CLOCK = 0.05
# A call is launch-bound if the host needs so much longer than the device, relatively and in absolute terms.
_LAUNCH_BOUND_RATIO = 1.5
_LAUNCH_BOUND_NS = 5_000
_FEWEST_RESOLUTIONS = 10
_OUTLIER_PART = 0.05
# Events also hold the gaps between kernels; the profiler's calls find a warm cache.
_PROFILE_DIFFERENCE = 0.1
_PROFILE_DIFFERENCE_NS = 10_000
# What becomes of rows that are not measured has the name of their status.
_NOT_MEASURED = (
    Status.FAILED,
    Status.OUT_OF_MEMORY,
    Status.WRONG,
    Status.NO_RESULT,
    Status.MUTATES_INPUTS,
    Status.UNAVAILABLE,
)
_CODES = {"wrong": "bench.wrong_result"}


def _finding(
    name: str, evidence: dict[str, Any] | None = None, severity: Severity | None = None, **words: Any
) -> Finding:
    entry = packaged_toml(__package__, "findings.toml")[name]
    return worded(_CODES.get(name, f"bench.{name}"), entry, evidence or {}, words, severity=severity)


def benchmark_findings(rows: Sequence[BenchmarkRow], run: Run) -> tuple[Finding, ...]:
    """Every finding on a run, what invalidates figures first."""
    measured = [row for row in rows if row.status is Status.OK and row.median_ns is not None]
    found = [
        *_about_run(rows, run),
        *_about_device(measured, run),
        *_about_samples(measured, run),
        *_about_profiles(measured, run),
    ]
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def _about_run(rows: Sequence[BenchmarkRow], run: Run) -> Iterator[Finding]:
    if run.lost is not None:
        yield _finding("device_lost", why=run.lost)
    if run.is_interrupted:
        yield _finding("interrupted")
    for status in _NOT_MEASURED:
        for row in rows:
            if row.status is status:
                yield _finding(str(status), {"implementation": row.name}, reason=row.reason)
    name = run.problem.reference
    reference = next((row for row in rows if row.name == name), None)
    others = [row for row in rows if row.name != name and row.median_ns is not None]
    if others and (reference is None or reference.ratio is None):
        if reference is None:
            why = "it is not among the implementations"
        elif reference.status is Status.OK:
            why = "it has too few samples"
        else:
            why = f"its status is {reference.status}"
        yield _finding("no_reference", {"reference": name}, why=why)
    for one in run.ready:
        if one.unchecked is not None:
            yield _finding("unchecked", {"implementation": one.name}, reason=one.unchecked)
    if run.ceilings_error is not None:
        yield _finding("no_ceilings", why=run.ceilings_error)


def _about_device(rows: Sequence[BenchmarkRow], run: Run) -> Iterator[Finding]:
    if run.unread is not None and rows:
        yield _finding("clocks_unknown", why=run.unread)
    # The first read finds the clocks as the setup before the rounds left them.
    clocks = [state.sm_clock_mhz for _, state in run.states[1:] if state.sm_clock_mhz]
    if clocks and (max(clocks) - min(clocks)) / max(clocks) > _UNSTABLE_CLOCK:
        yield _finding("unstable_clocks", {"min_sm_clock_mhz": min(clocks), "max_sm_clock_mhz": max(clocks)})
    throttled = sum(len(row.throttled) for row in rows)
    if throttled:
        samples = sum(len(row.samples_ns) for row in rows)
        reasons = sorted({reason for _, state in run.states for reason in state.throttle_reasons})
        evidence = {"throttled_samples": throttled, "samples": samples, "reasons": reasons}
        yield _finding("throttled", evidence, why=", ".join(reasons))


def _about_samples(rows: Sequence[BenchmarkRow], run: Run) -> Iterator[Finding]:
    options, intervals = run.options, {row.name: median_interval(row.samples_ns) for row in rows}
    few = {name: one.coverage for name, one in intervals.items() if one.coverage < CONFIDENCE}
    if few:
        yield _finding("few_samples", {"coverage": few}, listed=_listed(few, _percent))
    widths = {name: relative_half_width(one) for name, one in intervals.items()}
    missed = {name: width for name, width in widths.items() if options.precision < width < float("inf")}
    if missed and not run.is_interrupted:
        # Within the width of "same" it limits no verdict.
        is_harmless = max(missed.values()) <= options.same_within
        yield _finding(
            "budget_missed",
            {"relative_half_width": missed},
            severity=Severity.INFO if is_harmless else Severity.WARNING,
            precision=_percent(options.precision),
            budget_s=f"{options.time_budget_s:g}",
            most=options.max_samples,
            listed=_listed(missed, _percent),
        )
    samples_ns = {row.name: row.median_ns * row.inner_repeats for row in rows if row.median_ns is not None}
    resolution_ns = run.timer.resolution_ns
    least_ns = _FEWEST_RESOLUTIONS * resolution_ns
    short = {name: sample_ns for name, sample_ns in samples_ns.items() if sample_ns < least_ns}
    if short:
        evidence = {"resolution_ns": resolution_ns, "sample_ns": short}
        listed = _listed(short, lambda ns: f"{ns:.0f} ns")
        yield _finding("near_resolution", evidence, resolution=f"{resolution_ns:.0f}", listed=listed)
    outlying = {row.name: len(row.outliers) / len(row.samples_ns) for row in rows}
    many = {name: part for name, part in outlying.items() if part > _OUTLIER_PART}
    if many:
        yield _finding("outliers", {"outlier_fraction": many}, listed=_listed(many, _percent))


def _about_profiles(rows: Sequence[BenchmarkRow], run: Run) -> Iterator[Finding]:
    for one in run.ready:
        if one.unprofiled is not None:
            yield _finding("not_profiled", {"implementation": one.name}, reason=one.unprofiled)
    for row in rows if run.timer.clock is not Clock.WALL else ():
        median_ns, call_ns, device_ns = row.median_ns or 0.0, row.call_ns or 0.0, row.device_ns
        evidence: dict[str, Any] = {"implementation": row.name, "median_ns": median_ns}
        median = f"{median_ns / 1e3:.1f}"
        if call_ns > max(_LAUNCH_BOUND_RATIO * median_ns, median_ns + _LAUNCH_BOUND_NS):
            launches = {"call_ns": call_ns, "kernels_launched": row.kernels_launched}
            yield _finding("launch_bound", evidence | launches, call=f"{call_ns / 1e3:.1f}", median=median)
        if device_ns is None:
            continue
        difference_ns = median_ns - device_ns
        if abs(difference_ns) > max(_PROFILE_DIFFERENCE * median_ns, _PROFILE_DIFFERENCE_NS):
            causes = (
                "gaps between its kernels, a call that waits for the device, or a cold cache"
                if difference_ns > 0
                else "kernels that ran at the same time, or slower clocks under the profiler"
            )
            evidence |= {"device_ns": device_ns}
            device = f"{device_ns / 1e3:.1f}"
            yield _finding("profile_differs", evidence, median=median, device=device, causes=causes)


def _listed(values: dict[str, float], text: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in values.items())


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"
