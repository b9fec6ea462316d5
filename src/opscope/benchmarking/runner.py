"""`run_benchmark`: the implementations of one problem prepared, sampled in rounds, and compared.

What one implementation does wrong ends that implementation alone; an interruption keeps what is finished.
Every change is handed on, so that a caller can save it. Importing this module does not import torch.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from msgspec.structs import replace

from opscope.benchmarking.device_state import DeviceMonitor, monitor_for
from opscope.benchmarking.findings import RunFacts, benchmark_findings
from opscope.benchmarking.inputs import bodies, calls_per_sample
from opscope.benchmarking.limits import measure_ceilings as measure_device_ceilings
from opscope.benchmarking.preparation import Inspector, Preparation, Prepared, row_of
from opscope.benchmarking.problem import Failure, Problem, failure_of, first_line
from opscope.benchmarking.sampling import SampleSeries, Sampling, with_ceiling, with_ratio, with_samples
from opscope.benchmarking.timer import Timer, benchmark_timer
from opscope.errors import InputError
from opscope.model.benchmark import (
    BenchmarkOptions,
    BenchmarkResult,
    BenchmarkRow,
    CacheState,
    Ceiling,
    Status,
)
from opscope.model.environment import Environment
from opscope.model.finding import Finding, Severity
from opscope.model.measurement import Clock
from opscope.workloads.runtime import release_memory, require_torch

__all__ = ["Inspector", "MeasureCeilings", "OnChange", "run_benchmark"]

OnChange = Callable[[BenchmarkResult], object]


class MeasureCeilings(Protocol):
    """Measures what a device reaches at its best, as `opscope.benchmarking.limits` does."""

    def __call__(
        self,
        device: str,
        names: Sequence[str],
        timer: Timer,
        *,
        seed: int = 0,
        copy_bytes: int | None = None,
    ) -> tuple[Ceiling, ...]:
        """The ceilings of these names that the device has."""
        ...


def run_benchmark(
    problem: Problem,
    options: BenchmarkOptions,
    *,
    environment: Environment,
    timer: Timer | None = None,
    monitor: DeviceMonitor | None = None,
    inspect: Inspector | None = None,
    on_change: OnChange | None = None,
    measure_ceilings: MeasureCeilings = measure_device_ceilings,
) -> BenchmarkResult:
    """Time the implementations of a problem side by side.

    First each implementation is built, called, checked, warmed up, profiled and timed in a plain loop; then,
    after the ceilings, rounds are taken in which each is sampled once, in random order. Ctrl-C ends the run,
    not the function: the result then holds what is finished and is not `complete`.
    """
    _validate(problem, options)
    unread = None
    if monitor is None:
        monitor, unread = monitor_for(problem.device)
    run = _Run(
        problem,
        options,
        environment=environment,
        timer=timer or benchmark_timer(problem.device, options.clock, options.cache_state),
        monitor=monitor,
        inspect=inspect,
        on_change=on_change,
        unread=unread if problem.device.startswith("cuda") else None,
    )
    return run.execute(measure_ceilings)


class _Run:
    """One run and what is known so far; `Sampling` tells it what happens between rounds."""

    def __init__(
        self,
        problem: Problem,
        options: BenchmarkOptions,
        *,
        environment: Environment,
        timer: Timer,
        monitor: DeviceMonitor,
        inspect: Inspector | None,
        on_change: OnChange | None,
        unread: str | None,
    ) -> None:
        self._problem = problem
        self._options = options
        self._environment = environment
        self._timer = timer
        self._monitor = monitor
        self._on_change = on_change
        self._unread = unread
        is_controlled = problem.device.startswith("cuda") and timer.clock is not Clock.WALL
        self._cache_state = options.cache_state if is_controlled else CacheState.UNCONTROLLED
        self._preparation = Preparation(
            problem, options, timer, cache_state=self._cache_state, inspect=inspect
        )
        self._prepared: dict[str, Prepared] = {}
        self._sampling: Sampling | None = None
        self._ceilings: tuple[Ceiling, ...] = ()
        self._ceilings_error: str | None = None
        self._setup_ns = 0
        self._statistics_ns = 0
        self._is_interrupted = False
        self._created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")

    def execute(self, measure_ceilings: MeasureCeilings) -> BenchmarkResult:
        """The whole run."""
        with _current(self._problem.device):
            return self._execute(measure_ceilings)

    def _execute(self, measure_ceilings: MeasureCeilings) -> BenchmarkResult:
        began_ns = time.perf_counter_ns()
        try:
            try:
                self._prepare_all()
                self._measure_ceilings(measure_ceilings)
                all_series = self._all_series()
            finally:
                self._setup_ns = time.perf_counter_ns() - began_ns
            self._sample(all_series)
        except KeyboardInterrupt:
            self._is_interrupted = True
        result = self._finished()
        if self._on_change is not None:
            self._on_change(result)
        return result

    def failed(self, series: SampleSeries, failure: Failure) -> bool:
        """Note a series' failure; the others go on unless the device is lost."""
        self._prepared[series.name].fail(failure)
        series.bodies = ()
        self._preparation.release(series.name)
        return self._preparation.lost is None

    def progressed(self) -> None:
        """Hand on the result so far, without ratios."""
        if self._on_change is not None:
            self._on_change(self._result(self._sampled_rows(), complete=False))

    def _prepare_all(self) -> None:
        """Prepare the implementations; the reference first, because the others are checked against it."""
        name = self._problem.reference
        for implementation in sorted(self._problem.implementations, key=lambda one: one.name != name):
            self._prepared[implementation.name] = self._preparation.prepare(implementation)
            self.progressed()

    def _measure_ceilings(self, measure: MeasureCeilings) -> None:
        is_needed = any(prepared.is_ready for prepared in self._prepared.values())
        if not (self._options.ceilings and is_needed) or self._preparation.lost is not None:
            return
        names = ["copy", "copy_large"]
        if self._preparation.flop_count:
            ready = [one.implementation for one in self._prepared.values() if one.is_ready]
            names += sorted({name for one in ready if (name := self._matrix_ceiling(one.name)) is not None})
        try:
            self._ceilings = measure(
                self._problem.device,
                names,
                self._timer,
                seed=self._options.seed,
                copy_bytes=self._preparation.min_bytes,
            )
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - fractions of a ceiling are worth less than the samples
            self._ceilings_error = f"{type(error).__name__}: {first_line(error)}"
        if self._ceilings_error is not None:
            release_memory()

    def _matrix_ceiling(self, name: str) -> str | None:
        """The matrix ceiling that applies to an implementation."""
        own = {one.name: one.matrix_ceiling for one in self._problem.implementations}
        return own.get(name) or self._problem.matrix_ceiling

    def _all_series(self) -> list[SampleSeries]:
        """The implementations to sample, each with as many calls in a sample as comparing them needs."""
        ready = [prepared for prepared in self._prepared.values() if prepared.is_ready]
        counts = calls_per_sample([one.call_ns for one in ready], self._timer.resolution_ns)
        all_series = [self._series_of(prepared, calls) for prepared, calls in zip(ready, counts, strict=True)]
        return [series for series in all_series if series is not None]

    def _series_of(self, prepared: Prepared, calls: int) -> SampleSeries | None:
        if calls == 1 or prepared.fn is None:
            return SampleSeries(prepared.implementation.name, prepared.once)
        prepared.once = ()  # CUDA graphs of single calls are not needed any more
        try:
            repeated = self._timer.prepare(bodies(prepared.fn, self._preparation.sets, calls))
            return SampleSeries(prepared.implementation.name, repeated, calls)
        except Exception as error:  # noqa: BLE001 - one implementation's error, the others go on
            prepared.fail(failure_of(error, "while its samples were prepared"))
        self._preparation.release(prepared.implementation.name)
        return None

    def _sample(self, all_series: list[SampleSeries]) -> None:
        if not all_series or self._preparation.lost is not None:
            return
        self._sampling = Sampling(all_series, self._timer, self._options, self, read_state=self._monitor.read)
        self._sampling.run()

    def _finished(self) -> BenchmarkResult:
        """The result at the end, with ratios, rates and findings."""
        began_ns = time.perf_counter_ns()
        rows = [self._ended(row) for row in self._sampled_rows(every=True)]
        reference = next((row for row in rows if row.name == self._problem.reference), None)
        if reference is not None and reference.status is Status.OK and reference.median_ns:
            rows = [self._compared(row, reference) for row in rows]
        rows = [self._rated(row) for row in rows]
        findings = (*benchmark_findings(rows, self._facts()), *self._about_ceilings())
        if self._sampling is not None:
            self._statistics_ns = time.perf_counter_ns() - began_ns
        return self._result(rows, complete=not self._is_interrupted, findings=findings)

    def _sampled_rows(self, *, every: bool = False) -> list[BenchmarkRow]:
        """Rows with their samples so far, in the problem's order; `every` one, or the prepared ones."""
        all_series = (
            {} if self._sampling is None else {series.name: series for series in self._sampling.all_series}
        )
        rows = []
        for implementation in self._problem.implementations:
            prepared = self._prepared.get(implementation.name)
            series = all_series.get(implementation.name)
            if prepared is not None and series is not None and self._sampling is not None:
                rows.append(with_samples(prepared.row, series, self._sampling.throttled(series)))
            elif prepared is not None:
                rows.append(prepared.row)
            elif every:
                reason = "stopped by the user before it was measured"
                rows.append(row_of(implementation, Status.INTERRUPTED, reason))
        return rows

    def _ended(self, row: BenchmarkRow) -> BenchmarkRow:
        """The row with its last status: `ok` takes enough samples, and failed rows have no figures."""
        taken, least = len(row.samples_ns), self._options.min_samples
        if row.status is not Status.OK:
            return _without_figures(row)
        if taken >= least:
            return row
        if self._preparation.lost is not None:
            reason = f"has {taken} of {least} samples: {self._preparation.lost}"
            return _without_figures(replace(row, status=Status.FAILED, reason=reason))
        what = f"after {taken} of at least {least} samples" if taken else "before it was sampled"
        return replace(row, status=Status.INTERRUPTED, reason=f"stopped by the user {what}")

    def _compared(self, row: BenchmarkRow, reference: BenchmarkRow) -> BenchmarkRow:
        """The row with its ratio if it is `ok` or interrupted, and with a verdict if it is `ok`."""
        if row.status is Status.OK:
            return with_ratio(row, reference, self._options)
        if row.status is Status.INTERRUPTED:
            return replace(with_ratio(row, reference, self._options), verdict=None, verdict_reason=None)
        return row

    def _rated(self, row: BenchmarkRow) -> BenchmarkRow:
        return with_ceiling(
            row,
            min_bytes=self._preparation.min_bytes,
            flop_count=self._preparation.flop_count,
            ceilings=self._ceilings,
            matrix_ceiling=self._matrix_ceiling(row.name),
        )

    def _facts(self) -> RunFacts:
        prepared = self._prepared.values()
        return RunFacts(
            clock=self._timer.clock,
            resolution_ns=self._timer.resolution_ns,
            options=self._options,
            reference=self._problem.reference,
            states=[] if self._sampling is None else [state for _, state in self._sampling.states],
            unread=self._unread,
            unchecked={one.row.name: one.unchecked for one in prepared if one.is_ready and one.unchecked},
            unprofiled={
                one.row.name: one.profile_error for one in prepared if one.is_ready and one.profile_error
            },
            lost=self._preparation.lost,
            is_interrupted=self._is_interrupted,
        )

    def _about_ceilings(self) -> list[Finding]:
        if self._ceilings_error is None:
            return []
        message = f"The device's ceilings could not be measured: {self._ceilings_error}"
        return [Finding("bench.no_ceilings", Severity.INFO, message)]

    def _result(
        self, rows: Sequence[BenchmarkRow], *, complete: bool, findings: Sequence[Finding] = ()
    ) -> BenchmarkResult:
        problem, sampling = self._problem, self._sampling
        states = [] if sampling is None else sampling.states
        return BenchmarkResult(
            opscope_version=self._environment.opscope,
            suite=problem.name,
            shape=problem.shape,
            dtype=problem.dtype,
            device=problem.device,
            parameters=dict(problem.parameters),
            reference=problem.reference,
            clock=self._timer.clock,
            cache_state=self._cache_state,
            options=self._options,
            environment=self._environment,
            created=self._created,
            setup_ns=self._setup_ns,
            sampling_ns=0 if sampling is None else sampling.elapsed_ns + self._statistics_ns,
            in_samples_ns=0 if sampling is None else sampling.in_samples_ns,
            complete=complete,
            device_state_before=states[0][1] if states else None,
            device_state_after=states[-1][1] if states else None,
            ceilings=self._ceilings,
            rows=tuple(rows),
            findings=tuple(findings),
        )


def _current(device: str) -> AbstractContextManager[object]:
    """The device made the current one: kernels that are not torch's run there."""
    if not device.startswith("cuda"):
        return nullcontext()
    chosen: AbstractContextManager[object] = require_torch().cuda.device(device)
    return chosen


def _without_figures(row: BenchmarkRow) -> BenchmarkRow:
    return replace(row, outliers=(), median_ns=None, interval_ns=None)


def _validate(problem: Problem, options: BenchmarkOptions) -> None:
    names = [implementation.name for implementation in problem.implementations]
    if not names:
        raise InputError(f"'{problem.name}' has no implementations to measure")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"implementations share a name: {', '.join(twice)}", hint="Give each its own name")
    if not 1 <= options.min_samples <= options.max_samples:
        raise InputError(
            f"min_samples={options.min_samples}, max_samples={options.max_samples} cannot be measured",
            hint="Need 1 <= min_samples <= max_samples",
        )
    negative = [
        name
        for name in ("warmup_s", "time_budget_s", "precision", "same_within")
        if not getattr(options, name) >= 0
    ]
    if negative:
        raise InputError(f"{', '.join(negative)} must not be negative")
