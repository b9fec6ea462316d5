"""What a reader of a benchmark must know besides its figures: facts with stable codes, `bench.*`.

A run on a quiet device, precise and with every implementation right, has none. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from opscope.benchmarking.statistics import CONFIDENCE, median_interval, relative_half_width
from opscope.model.benchmark import BenchmarkRow, Status
from opscope.model.finding import Finding, Severity
from opscope.model.measurement import Clock

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

_NOT_MEASURED = {
    Status.FAILED: ("bench.failed", Severity.WARNING, "failed"),
    Status.OUT_OF_MEMORY: ("bench.out_of_memory", Severity.WARNING, "ran out of memory"),
    Status.WRONG: ("bench.wrong_result", Severity.ERROR, "computes a wrong result and gets no verdict"),
    Status.NO_RESULT: ("bench.no_result", Severity.ERROR, "returns no tensor"),
    Status.MUTATES_INPUTS: ("bench.mutates_inputs", Severity.ERROR, "changes its inputs"),
    Status.UNAVAILABLE: ("bench.unavailable", Severity.INFO, "is left out on this machine"),
}


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
        yield Finding(
            "bench.device_lost",
            Severity.ERROR,
            f"{run.lost}; what came after it is not measured.",
            "Leave that implementation out, or run it under compute-sanitizer.",
        )
    if run.is_interrupted:
        said = "The run was stopped by the user; what was finished is kept."
        yield Finding("bench.interrupted", Severity.WARNING, said)
    for status, (code, severity, what) in _NOT_MEASURED.items():
        for row in rows:
            if row.status is status:
                said = f"{row.name} {what}: {row.reason}."
                yield Finding(code, severity, said, evidence={"implementation": row.name})
    reference = next((row for row in rows if row.name == run.problem.reference), None)
    others = [row for row in rows if row.name != run.problem.reference and row.median_ns is not None]
    if others and (reference is None or reference.ratio is None):
        if reference is None:
            why = "it is not among the implementations"
        elif reference.status is Status.OK:
            why = "it has too few samples"
        else:
            why = f"its status is {reference.status}"
        yield Finding(
            "bench.no_reference",
            Severity.WARNING,
            f"There are no ratios, because the reference '{run.problem.reference}' was not measured: {why}.",
            "Choose another reference.",
            evidence={"reference": run.problem.reference},
        )
    for name, reason in ((row.name, row.unchecked) for row in run.ready if row.unchecked):
        yield Finding(
            "bench.unchecked",
            Severity.WARNING,
            f"{name} was timed without being compared: {reason}.",
            "Give the right answer as `expected`.",
            evidence={"implementation": name},
        )


def _about_device(rows: Sequence[BenchmarkRow], run: Run) -> Iterator[Finding]:
    if run.unread is not None and rows:
        said = f"Clocks and throttling of the device were not watched: {run.unread}."
        yield Finding("bench.clocks_unknown", Severity.INFO, said)
    # The first read finds the clocks as the setup before the rounds left them.
    clocks = [state.sm_clock_mhz for _, state in run.states[1:] if state.sm_clock_mhz]
    if clocks and (max(clocks) - min(clocks)) / max(clocks) > _UNSTABLE_CLOCK:
        yield Finding(
            "bench.unstable_clocks",
            Severity.WARNING,
            f"The SM clock ran between {min(clocks)} and {max(clocks)} MHz while sampling; ratios are taken "
            "within rounds and hold, absolute times depend on it.",
            "Repeat the run, or let the device's owner lock its clocks.",
            evidence={"min_sm_clock_mhz": min(clocks), "max_sm_clock_mhz": max(clocks)},
        )
    throttled = sum(len(row.throttled) for row in rows)
    if throttled:
        samples = sum(len(row.samples_ns) for row in rows)
        reasons = sorted({reason for _, state in run.states for reason in state.throttle_reasons})
        yield Finding(
            "bench.throttled",
            Severity.WARNING,
            f"The device lowered its clocks ({', '.join(reasons)}) around {throttled} of {samples} samples.",
            "Compare ratios rather than absolute times, or let the device cool down.",
            evidence={"throttled_samples": throttled, "samples": samples, "reasons": reasons},
        )


def _about_samples(rows: Sequence[BenchmarkRow], run: Run) -> Iterator[Finding]:
    options, intervals = run.options, {row.name: median_interval(row.samples_ns) for row in rows}
    few = {name: one.coverage for name, one in intervals.items() if one.coverage < CONFIDENCE}
    if few:
        yield Finding(
            "bench.few_samples",
            Severity.WARNING,
            f"Too few samples for a 95 % interval; all of them together hold the median with a probability "
            f"of: {_listed(few, _percent)}.",
            "Take at least 6 samples.",
            evidence={"coverage": few},
        )
    widths = {name: relative_half_width(one) for name, one in intervals.items()}
    missed = {name: width for name, width in widths.items() if options.precision < width < float("inf")}
    if missed and not run.is_interrupted:
        # Within the width of "same" it limits no verdict.
        is_harmless = max(missed.values()) <= options.same_within
        yield Finding(
            "bench.budget_missed",
            Severity.INFO if is_harmless else Severity.WARNING,
            f"Medians known less precisely than ±{_percent(options.precision)} after "
            f"{options.time_budget_s:g} s or {options.max_samples} samples: {_listed(missed, _percent)}.",
            "Stop other work on the machine, or allow a longer time budget, if this precision matters.",
            evidence={"relative_half_width": missed},
        )
    samples_ns = {row.name: row.median_ns * row.inner_repeats for row in rows if row.median_ns is not None}
    least_ns = _FEWEST_RESOLUTIONS * run.timer.resolution_ns
    short = {name: sample_ns for name, sample_ns in samples_ns.items() if sample_ns < least_ns}
    if short:
        yield Finding(
            "bench.near_resolution",
            Severity.WARNING,
            f"Samples close to what the timer can tell apart ({run.timer.resolution_ns:.0f} ns): "
            f"{_listed(short, lambda ns: f'{ns:.0f} ns')}.",
            "Use a larger problem.",
            evidence={"resolution_ns": run.timer.resolution_ns, "sample_ns": short},
        )
    outlying = {row.name: len(row.outliers) / len(row.samples_ns) for row in rows}
    many = {name: part for name, part in outlying.items() if part > _OUTLIER_PART}
    if many:
        yield Finding(
            "bench.outliers",
            Severity.INFO,
            f"Samples far from the median, all kept: {_listed(many, _percent)}.",
            "The median is robust to them; check for other work on the machine.",
            evidence={"outlier_fraction": many},
        )


def _about_profiles(rows: Sequence[BenchmarkRow], run: Run) -> Iterator[Finding]:
    for name, reason in ((row.name, row.unprofiled) for row in run.ready if row.unprofiled):
        said = f"{name} was timed but not profiled: {reason}."
        yield Finding("bench.not_profiled", Severity.INFO, said, evidence={"implementation": name})
    for row in rows if run.timer.clock is not Clock.WALL else ():
        median_ns, call_ns, device_ns = row.median_ns or 0.0, row.call_ns or 0.0, row.device_ns
        evidence = {"implementation": row.name}
        if call_ns > max(_LAUNCH_BOUND_RATIO * median_ns, median_ns + _LAUNCH_BOUND_NS):
            launches = {"call_ns": call_ns, "median_ns": median_ns, "kernels_launched": row.kernels_launched}
            yield Finding(
                "bench.launch_bound",
                Severity.INFO,
                f"{row.name} is launch-bound: called again and again it takes {call_ns / 1e3:.1f} µs a call; "
                f"the GPU works {median_ns / 1e3:.1f} µs of that.",
                "Capture it in a CUDA graph, fuse its kernels, or give each call more work.",
                evidence={**evidence, **launches},
            )
        if device_ns is None:
            continue
        difference_ns = median_ns - device_ns
        if abs(difference_ns) > max(_PROFILE_DIFFERENCE * median_ns, _PROFILE_DIFFERENCE_NS):
            longer = (
                "gaps between its kernels, a call that waits for the device, or a cold cache"
                if difference_ns > 0
                else "kernels that ran at the same time, or slower clocks under the profiler"
            )
            yield Finding(
                "bench.profile_differs",
                Severity.INFO,
                f"{row.name}: {median_ns / 1e3:.1f} µs by the timer, {device_ns / 1e3:.1f} µs of kernels "
                f"by the profiler; possible causes: {longer}.",
                evidence={**evidence, "median_ns": median_ns, "device_ns": device_ns},
            )


def _listed(values: dict[str, float], text: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in values.items())


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"
