"""`run_benchmark`: the implementations of one problem prepared, sampled in rounds, and compared.

In each round every implementation is sampled once, in random order: interleaved like this, whatever changes
with time (clocks, temperature, other load) hits all alike. All samples are kept, and what was taken stays
whole if the run is interrupted anywhere. What one implementation does wrong ends that implementation alone.
Every change is handed on, so that a caller can save it. Importing this module does not import torch.
"""

from __future__ import annotations

import datetime
import itertools
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from opscope.benchmarking.check import check_output
from opscope.benchmarking.device_state import DeviceMonitor, monitor_for
from opscope.benchmarking.findings import RunFacts, benchmark_findings
from opscope.benchmarking.inputs import (
    bodies,
    calls_per_sample,
    count_flops,
    make_input_sets,
    min_bytes,
    peak_memory_bytes,
    tensors_of,
)
from opscope.benchmarking.limits import measure_ceilings as measure_device_ceilings
from opscope.benchmarking.problem import (
    Failure,
    Implementation,
    Inputs,
    Problem,
    failure_of,
    first_line,
    lost_device,
)
from opscope.benchmarking.statistics import (
    judge,
    median_interval,
    outliers,
    ratio_interval,
    relative_half_width,
)
from opscope.benchmarking.timer import Timer, benchmark_timer
from opscope.errors import InputError
from opscope.model.benchmark import (
    BenchmarkOptions,
    BenchmarkResult,
    BenchmarkRow,
    CacheState,
    CallProfile,
    Ceiling,
    DeviceState,
    Status,
)
from opscope.model.environment import Environment
from opscope.model.finding import Finding, Severity
from opscope.model.measurement import Clock
from opscope.units import NS_PER_S
from opscope.workloads.runtime import is_out_of_memory, release_memory, require_torch, synchronize

Inspector = Callable[[Callable[[], object]], CallProfile]

# Added to the seed: the check has inputs that no call has seen.
_CHECK_SEED = 1_000_003
_LEAST_WARMUP_CALLS = 3
_LONG_WARMUP_NS = NS_PER_S
_CALL_LOOP_NS = 20_000_000
_MOST_CALLS = 1_000

_ORDERS_AT_ONCE = 64
# Convergence is looked at when a row has so many times the samples it had at the last look.
_CHECK_GROWTH = 1.25
_POLL_NS = 50_000_000
_REPORT_NS = 1_000_000_000
# Polling and reporting wait so many times what they last cost: each takes at most 2.5 % of the time.
_REST = 40
_FEWEST_SAMPLES = 2


@dataclass
class RunRow:
    """One implementation in a run: what it built, what a sample of it runs, and what is known of it."""

    implementation: Implementation
    row: BenchmarkRow  # its status is `ok` until it is known otherwise
    fn: Callable[..., Any] | None = None  # what it built; None before, and after it failed
    # What a sample runs, by the set of inputs it begins with: round i runs body i modulo their number.
    bodies: Sequence[Callable[[], object]] = ()
    calls: int = 1  # in each body
    call_ns: float = 0.0  # duration of one call by the timer
    samples: list[tuple[int, int]] = field(default_factory=list)  # round and duration, in the order taken
    spent_ns: int = 0  # wall time its samples took
    is_precise: bool = False  # whether its median was known well enough at the last look
    profile_error: str | None = None  # why it is not profiled, if it should have been
    unchecked: str | None = None  # why its outputs were not compared, if they should have been

    @property
    def name(self) -> str:
        return self.implementation.name

    @property
    def is_ready(self) -> bool:
        return self.row.status is Status.OK

    @property
    def samples_ns(self) -> tuple[float, ...]:
        """Duration of each sample per call."""
        return tuple(duration / self.calls for _, duration in self.samples)

    def note(self, **facts: Any) -> None:
        self.row = msgspec.structs.replace(self.row, **facts)

    def fail(self, failure: Failure) -> None:
        """It cannot be sampled; what it holds is released."""
        self.note(status=failure.status, reason=failure.reason)
        self.fn, self.bodies = None, ()


def row_of(
    implementation: Implementation, status: Status = Status.OK, reason: str | None = None
) -> BenchmarkRow:
    """The row of an implementation of which nothing was measured yet."""
    return BenchmarkRow(
        name=implementation.name,
        status=status,
        reason=reason,
        engine=implementation.engine,
        teaching=implementation.teaching,
        note=implementation.note,
    )


def run_benchmark(
    problem: Problem,
    options: BenchmarkOptions,
    *,
    environment: Environment,
    timer: Timer | None = None,
    monitor: DeviceMonitor | None = None,
    inspect: Inspector | None = None,
    on_change: Callable[[BenchmarkResult], object] = lambda result: None,
    measure_ceilings: Callable[..., tuple[Ceiling, ...]] = measure_device_ceilings,
) -> BenchmarkResult:
    """Time the implementations of a problem side by side.

    First each implementation is built, called, checked, warmed up, profiled and timed in a plain loop; then,
    after the ceilings, rounds are taken. Ctrl-C ends the run, not the function: the result then holds what is
    finished and is not `complete`. `on_change` is given the result so far after each implementation's
    preparation, about every second of sampling, and at the end; ratios and verdicts come at the end.
    """
    _validate(problem, options)
    is_cuda = problem.device.startswith("cuda")
    unread = None
    if monitor is None:
        monitor, unread = monitor_for(problem.device)
    run = _Run(
        problem,
        options,
        environment,
        timer or benchmark_timer(problem.device, options.clock, options.cache_state),
        monitor,
        inspect,
        on_change,
        unread if is_cuda else None,
    )
    # The device is the current one: kernels that are not torch's run there.
    with require_torch().cuda.device(problem.device) if is_cuda else nullcontext():
        return run.execute(measure_ceilings)


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
    limits = ("warmup_s", "time_budget_s", "precision", "same_within")
    negative = [name for name in limits if not getattr(options, name) >= 0]
    if negative:
        raise InputError(f"{', '.join(negative)} must not be negative")


@dataclass
class _Run:
    """One run and what is known so far."""

    problem: Problem
    options: BenchmarkOptions
    environment: Environment
    timer: Timer
    monitor: DeviceMonitor
    inspect: Inspector | None  # profiles a call without arguments; None leaves profiles out
    on_change: Callable[[BenchmarkResult], object]
    unread: str | None  # why the device's state is not read
    rows: dict[str, RunRow] = field(default_factory=dict)  # those that are prepared
    reference: Callable[..., Any] | None = None  # what the others are checked against
    rounds: Rounds | None = None
    lost: str | None = None  # why the device cannot be used any more
    ceilings: tuple[Ceiling, ...] = ()
    ceilings_error: str | None = None
    setup_ns: int = 0
    statistics_ns: int = 0

    def __post_init__(self) -> None:
        is_controlled = self.problem.device.startswith("cuda") and self.timer.clock is not Clock.WALL
        self.cache_state = self.options.cache_state if is_controlled else CacheState.UNCONTROLLED
        self.min_bytes = self.problem.min_bytes  # None until an implementation has returned something
        self.flop_count = self.problem.flop_count  # None while no implementation's operations are known
        self.created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")

    def execute(self, measure_ceilings: Callable[..., tuple[Ceiling, ...]]) -> BenchmarkResult:
        """The whole run."""
        began_ns = time.perf_counter_ns()
        is_interrupted = False
        try:
            try:
                # The reference first, because the others are checked against it.
                implementations = self.problem.implementations
                for implementation in sorted(
                    implementations, key=lambda one: one.name != self.problem.reference
                ):
                    row = RunRow(implementation, row_of(implementation))
                    self.prepare(row)
                    self.rows[row.name] = row
                    self.progressed()
                self.measure_ceilings(measure_ceilings)
                ready = self.repeated()
            finally:
                self.setup_ns = time.perf_counter_ns() - began_ns
            if ready and self.lost is None:
                self.rounds = Rounds(ready, self.timer, self.options, self, read_state=self.monitor.read)
                self.rounds.run()
        except KeyboardInterrupt:
            is_interrupted = True
        result = self.finished(is_interrupted=is_interrupted)
        self.on_change(result)
        return result

    def failed(self, row: RunRow, failure: Failure) -> bool:
        """Note the failure of a row that was sampled; whether the others go on."""
        row.fail(failure)
        self.release(row.name)
        return self.lost is None

    def progressed(self) -> None:
        """Hand on the result so far, without ratios."""
        self.on_change(self.result(self.sampled_rows(), complete=False))

    def release(self, name: str) -> None:
        """Give back a failed implementation's memory, and note if it took the device with it."""
        reason = lost_device(self.problem.device)
        if reason is not None:
            self.lost = f"'{name}' ended this process's use of {self.problem.device} ({reason})"
        else:
            release_memory()

    @cached_property
    def sets(self) -> tuple[Inputs, ...]:
        """The inputs every implementation is timed with."""
        return make_input_sets(self.problem, self.options.seed, self.cache_state)

    def prepare(self, row: RunRow) -> None:
        """Take an implementation as far as it goes."""
        if self.lost is not None:
            row.fail(Failure(Status.FAILED, f"not measured: {self.lost}"))
            return
        stage = ""
        try:
            for stage in self.steps(row):  # noqa: B007 - an error is of the last one
                if not row.is_ready:
                    break
        except Exception as error:  # noqa: BLE001 - an implementation may raise anything; the others go on
            is_early = stage in {"while it was built", "at its first call"}
            row.fail(failure_of(error, stage, may_be_unavailable=is_early))
        # Here the error is gone, and with it the tensors its frames held.
        if not row.is_ready:
            self.release(row.name)

    def steps(self, row: RunRow) -> Iterator[str]:
        """Prepare a row; what comes next is named before it is done, and not asked of a row that failed."""
        problem, options = self.problem, self.options
        yield "while it was built"
        began_ns = time.perf_counter_ns()
        fn = row.fn = row.implementation.build()
        row.note(build_ns=time.perf_counter_ns() - began_ns)
        if row.name == problem.reference:
            self.reference = fn
        if row.implementation.is_interpreted:
            yield "while it was checked"
            self.check_interpreted(row, fn)
            return

        yield "at its first call"
        # On inputs of its own: if it changes them, the others do not see it.
        inputs = problem.make_inputs(options.seed)
        synchronize()
        began_ns = time.perf_counter_ns()
        outputs = fn(*inputs)
        synchronize()
        row.note(first_call_ns=time.perf_counter_ns() - began_ns)
        del inputs
        if not tensors_of(outputs):
            what = "nothing" if outputs is None else f"{type(outputs).__name__} without tensors"
            row.fail(Failure(Status.NO_RESULT, f"returned {what}: there is nothing to check or to time"))
        yield "while it was checked"
        if options.check:
            del outputs  # the check needs the room
            outputs = self.check(row, fn)

        yield "while its cost was counted"
        if self.min_bytes is None:
            self.min_bytes = min_bytes(self.sets[0], outputs)
        del outputs
        if self.flop_count is None:
            self.flop_count = count_flops(fn, self.sets[0])

        yield "while it warmed up"
        self.warm_up(row, fn)
        yield "while its memory was measured"
        row.note(peak_memory_bytes=peak_memory_bytes(bodies(fn, self.sets[:1], 1)[0], problem.device))
        if self.inspect is not None and options.profile:
            yield "while it was profiled"
            self.profile(row, fn, self.inspect)

        yield "while its calls were timed"
        calls = bodies(fn, self.sets, 1)
        count = max(1, min(_MOST_CALLS, int(_CALL_LOOP_NS / max(row.call_ns, 1.0))))
        synchronize()
        began_ns = time.perf_counter_ns()
        for number in range(count):
            calls[number % len(calls)]()
        synchronize()
        row.note(call_ns=(time.perf_counter_ns() - began_ns) / count)

    def check(self, row: RunRow, fn: Callable[..., Any], *, small: bool = False) -> Any:
        """Note what checking gave; what the function returned."""
        outcome = check_output(
            fn,
            self.problem,
            reference=self.reference,
            tolerance=row.implementation.tolerance,
            seed=self.options.seed + _CHECK_SEED,
            small=small,
        )
        error = None if outcome.check is None else outcome.check.max_relative_error
        row.note(check=outcome.check, max_relative_error=error)
        if outcome.status is not Status.OK:
            row.fail(Failure(outcome.status, outcome.reason or str(outcome.status)))
        elif outcome.check is None:
            row.unchecked = outcome.reason or "there is no reference"
        return outcome.outputs

    def check_interpreted(self, row: RunRow, fn: Callable[..., Any]) -> None:
        """In Triton's interpreter it is checked and not timed."""
        status, reason = Status.UNAVAILABLE, "runs only in Triton's interpreter here, which is for checks, "
        if not self.options.check:
            row.fail(Failure(status, f"{reason}and checks are off"))
            return
        self.check(row, fn, small=True)
        if row.unchecked is None:
            status = Status.CHECKED
            reason = "ran in Triton's interpreter on small inputs: checked, not timed"
        else:
            reason = f"runs only in Triton's interpreter; {row.unchecked}"
        if row.is_ready:
            row.fail(Failure(status, reason))

    def warm_up(self, row: RunRow, fn: Callable[..., Any]) -> None:
        """For its time and a few calls, unless these take very long."""
        row.bodies = self.timer.prepare(bodies(fn, self.sets, 1))
        durations_ns: list[int] = []
        began_ns, elapsed_ns = time.perf_counter_ns(), 0
        while (
            not durations_ns
            or (len(durations_ns) < _LEAST_WARMUP_CALLS and elapsed_ns < _LONG_WARMUP_NS)
            or elapsed_ns < self.options.warmup_s * NS_PER_S
        ):
            durations_ns.append(self.timer.measure(row.bodies[len(durations_ns) % len(row.bodies)]))
            elapsed_ns = time.perf_counter_ns() - began_ns
        row.call_ns = statistics.median(durations_ns[len(durations_ns) // 2 :])
        row.note(warmup_count=len(durations_ns), input_sets=len(row.bodies))

    def profile(self, row: RunRow, fn: Callable[..., Any], inspect: Inspector) -> None:
        try:
            profile = inspect(bodies(fn, self.sets[:1], 1)[0])
        except Exception as error:
            # The profiler's own trouble is no reason not to time it; the implementation's is.
            if is_out_of_memory(error) or lost_device(self.problem.device) is not None:
                raise
            row.profile_error = f"{type(error).__name__}: {first_line(error)}"
            return
        row.note(profile=profile, kernels_launched=profile.kernels_launched, device_ns=profile.device_ns)

    def measure_ceilings(self, measure: Callable[..., tuple[Ceiling, ...]]) -> None:
        ready = [row for row in self.rows.values() if row.is_ready]
        if not (self.options.ceilings and ready) or self.lost is not None:
            return
        names = ["copy", "copy_large"]
        if self.flop_count:
            names += sorted({name for row in ready if (name := self.matrix_ceiling(row.implementation))})
        try:
            self.ceilings = measure(
                self.problem.device, names, self.timer, seed=self.options.seed, copy_bytes=self.min_bytes
            )
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - fractions of a ceiling are worth less than the samples
            self.ceilings_error = f"{type(error).__name__}: {first_line(error)}"
        if self.ceilings_error is not None:
            release_memory()

    def matrix_ceiling(self, implementation: Implementation) -> str | None:
        return implementation.matrix_ceiling or self.problem.matrix_ceiling

    def repeated(self) -> list[RunRow]:
        """The rows to sample, each with as many calls in a sample as comparing them needs."""
        ready = [row for row in self.rows.values() if row.is_ready]
        counts = calls_per_sample([row.call_ns for row in ready], self.timer.resolution_ns)
        for row, calls in zip(ready, counts, strict=True):
            if calls == 1 or row.fn is None:
                continue
            row.bodies = ()  # CUDA graphs of single calls are not needed any more
            try:
                row.bodies = self.timer.prepare(bodies(row.fn, self.sets, calls))
                row.calls = calls
            except Exception as error:  # noqa: BLE001 - one implementation's error, the others go on
                row.fail(failure_of(error, "while its samples were prepared"))
            if not row.is_ready:
                self.release(row.name)
        return [row for row in ready if row.is_ready]

    def finished(self, *, is_interrupted: bool) -> BenchmarkResult:
        """The result at the end, with ratios, rates and findings."""
        began_ns = time.perf_counter_ns()
        rows = [self.ended(row) for row in self.sampled_rows(every=True)]
        reference = next((row for row in rows if row.name == self.problem.reference), None)
        if reference is not None and reference.status is Status.OK and reference.median_ns:
            for index, row in enumerate(rows):
                if row.status is Status.OK:
                    rows[index] = with_ratio(row, reference, self.options)
                elif row.status is Status.INTERRUPTED:
                    compared = with_ratio(row, reference, self.options)
                    rows[index] = msgspec.structs.replace(compared, verdict=None, verdict_reason=None)
        rows = [
            with_ceiling(
                row,
                min_bytes=self.min_bytes,
                flop_count=self.flop_count,
                ceilings=self.ceilings,
                matrix_ceiling=self.matrix_ceiling(implementation),
            )
            for row, implementation in zip(rows, self.problem.implementations, strict=True)
        ]
        ready = [row for row in self.rows.values() if row.is_ready]
        facts = RunFacts(
            clock=self.timer.clock,
            resolution_ns=self.timer.resolution_ns,
            options=self.options,
            reference=self.problem.reference,
            states=[] if self.rounds is None else [state for _, state in self.rounds.states],
            unread=self.unread,
            unchecked={row.name: row.unchecked for row in ready if row.unchecked},
            unprofiled={row.name: row.profile_error for row in ready if row.profile_error},
            lost=self.lost,
            is_interrupted=is_interrupted,
        )
        findings = list(benchmark_findings(rows, facts))
        if self.ceilings_error is not None:
            message = f"The device's ceilings could not be measured: {self.ceilings_error}"
            findings.append(Finding("bench.no_ceilings", Severity.INFO, message))
        if self.rounds is not None:
            self.statistics_ns = time.perf_counter_ns() - began_ns
        return self.result(rows, complete=not is_interrupted, findings=findings)

    def sampled_rows(self, *, every: bool = False) -> list[BenchmarkRow]:
        """Rows with their samples so far, in the problem's order; `every` one, or the prepared ones."""
        states = [] if self.rounds is None else self.rounds.states
        rows = []
        for implementation in self.problem.implementations:
            if implementation.name in self.rows:
                rows.append(with_samples(self.rows[implementation.name], states))
            elif every:
                reason = "stopped by the user before it was measured"
                rows.append(row_of(implementation, Status.INTERRUPTED, reason))
        return rows

    def ended(self, row: BenchmarkRow) -> BenchmarkRow:
        """The row with its last status: `ok` takes enough samples, and failed rows have no figures."""
        taken, least = len(row.samples_ns), self.options.min_samples
        if row.status is Status.OK and taken >= least:
            return row
        if row.status is Status.OK and self.lost is None:
            what = f"after {taken} of at least {least} samples" if taken else "before it was sampled"
            reason = f"stopped by the user {what}"
            return msgspec.structs.replace(row, status=Status.INTERRUPTED, reason=reason)
        if row.status is Status.OK:
            reason = f"has {taken} of {least} samples: {self.lost}"
            row = msgspec.structs.replace(row, status=Status.FAILED, reason=reason)
        return msgspec.structs.replace(row, outliers=(), median_ns=None, interval_ns=None)

    def result(
        self, rows: Sequence[BenchmarkRow], *, complete: bool, findings: Sequence[Finding] = ()
    ) -> BenchmarkResult:
        problem, rounds = self.problem, self.rounds
        states = [] if rounds is None else rounds.states
        return BenchmarkResult(
            opscope_version=self.environment.opscope,
            suite=problem.name,
            shape=problem.shape,
            dtype=problem.dtype,
            device=problem.device,
            parameters=dict(problem.parameters),
            reference=problem.reference,
            clock=self.timer.clock,
            cache_state=self.cache_state,
            options=self.options,
            environment=self.environment,
            created=self.created,
            setup_ns=self.setup_ns,
            sampling_ns=0 if rounds is None else rounds.elapsed_ns + self.statistics_ns,
            in_samples_ns=0 if rounds is None else rounds.in_samples_ns,
            complete=complete,
            device_state_before=states[0][1] if states else None,
            device_state_after=states[-1][1] if states else None,
            ceilings=self.ceilings,
            rows=tuple(rows),
            findings=tuple(findings),
        )


class Rounds:
    """The rounds and what they cost.

    A row leaves when it has the most samples allowed, or the fewest and no time left. The rounds end when
    every row has left or is precise, having the fewest. `watcher` is told that a row has failed and answers
    whether the others can go on, and that some rounds are done.
    """

    def __init__(
        self,
        rows: Sequence[RunRow],
        timer: Timer,
        options: BenchmarkOptions,
        watcher: Any,
        *,
        read_state: Callable[[], DeviceState | None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.rows = list(rows)
        self.states: list[tuple[int, DeviceState]] = []  # what was read, with the rounds done then
        self.elapsed_ns = 0  # wall time of the rounds
        self.in_samples_ns = 0  # the part of it in which samples were taken
        self._timer, self._options, self._watcher = timer, options, watcher
        self._read_state, self._now_ns = read_state, now_ns
        self._next_check = options.min_samples
        self._began_ns = self._poll_due_ns = self._report_due_ns = 0

    def run(self) -> None:
        """Take samples until every row is done."""
        self._began_ns = self._now_ns()
        self._report_due_ns = self._began_ns + _REPORT_NS
        random = np.random.default_rng(self._options.seed)
        active = list(self.rows)
        orders: list[list[int]] = []
        number = 0
        try:
            self._poll(number)
            while active:
                if not orders:  # drawn for many rounds, backwards: they are taken from the end
                    drawn = random.permuted(np.tile(np.arange(len(active)), (_ORDERS_AT_ONCE, 1)), axis=1)
                    orders = drawn[::-1].tolist()
                remaining = self._round(active, orders.pop(), number)
                number += 1
                remaining = self._still_wanted(remaining)
                now_ns = self._now_ns()
                if now_ns >= self._poll_due_ns:
                    self._poll(number)
                if now_ns >= self._report_due_ns:
                    self.elapsed_ns = now_ns - self._began_ns
                    self._watcher.progressed()
                    self._report_due_ns = self._after(now_ns, _REPORT_NS)
                if len(remaining) != len(active):
                    orders = []
                active = remaining
            self._poll(number)
        finally:
            self.elapsed_ns = self._now_ns() - self._began_ns

    def _round(self, active: list[RunRow], order: list[int], number: int) -> list[RunRow]:
        """One sample of each row; those that did not fail."""
        failed: list[str] = []
        for row in (active[index] for index in order):
            try:
                body = row.bodies[number % len(row.bodies)]
                began_ns = self._now_ns()
                duration_ns = self._timer.measure(body)
                took_ns = self._now_ns() - began_ns
                row.samples.append((number, duration_ns))
                row.spent_ns += took_ns
                self.in_samples_ns += took_ns
                continue
            except Exception as error:  # noqa: BLE001 - an implementation may raise anything
                failure = failure_of(error, "while it was sampled")
            # Here the error and the memory its frames hold are gone.
            failed.append(row.name)
            del body
            if not self._watcher.failed(row, failure):
                return []
        return [row for row in active if row.name not in failed]

    def _still_wanted(self, active: list[RunRow]) -> list[RunRow]:
        """The rows that need more samples."""
        options = self._options
        overhead_ns = (self._now_ns() - self._began_ns - self.in_samples_ns) / len(self.rows)
        budget_ns = options.time_budget_s * NS_PER_S
        wanted = [
            row
            for row in active
            if len(row.samples) < options.max_samples
            and (len(row.samples) < options.min_samples or row.spent_ns + overhead_ns < budget_ns)
        ]
        if wanted and len(wanted[0].samples) >= self._next_check:
            self._next_check = int(self._next_check * _CHECK_GROWTH) + 1
            for row in wanted:
                row.is_precise = relative_half_width(median_interval(row.samples_ns)) <= options.precision
            if all(row.is_precise for row in wanted):
                return []
        return wanted

    def _poll(self, number: int) -> None:
        began_ns = self._now_ns()
        state = self._read_state()
        if state is not None:
            self.states.append((number, state))
        self._poll_due_ns = self._after(began_ns, _POLL_NS)

    def _after(self, began_ns: int, every_ns: int) -> int:
        """When something that began then is due again: after a fixed time, and many times what it took."""
        ended_ns = self._now_ns()
        return ended_ns + max(every_ns, _REST * (ended_ns - began_ns))


def with_samples(one: RunRow, states: Sequence[tuple[int, DeviceState]] = ()) -> BenchmarkRow:
    """The row with its samples and, from two on, their median and its interval."""
    samples_ns, rounds = one.samples_ns, tuple(number for number, _ in one.samples)
    row = msgspec.structs.replace(
        one.row, inner_repeats=one.calls, samples_ns=samples_ns, sample_rounds=rounds
    )
    if len(samples_ns) < _FEWEST_SAMPLES:
        return row
    interval = median_interval(samples_ns)
    return msgspec.structs.replace(
        row,
        outliers=outliers(samples_ns),
        throttled=throttled_samples(rounds, states),
        median_ns=interval.median_ns,
        interval_ns=interval.bounds_ns,
    )


def throttled_samples(rounds: Sequence[int], states: Sequence[tuple[int, DeviceState]]) -> tuple[int, ...]:
    """Indices of the samples taken between two reads of which one showed a reason that lowers clocks."""
    suspect = [
        (before, after)
        for (before, one), (after, other) in itertools.pairwise(states)
        if one.throttle_reasons or other.throttle_reasons
    ]
    if not suspect:
        return ()
    begins, ends = np.array(suspect).T
    numbers = np.array(rounds, dtype=np.int64)
    interval = np.searchsorted(begins, numbers, side="right") - 1
    is_inside = (interval >= 0) & (numbers < ends[np.maximum(interval, 0)])
    return tuple(int(index) for index in np.flatnonzero(is_inside))


def with_ratio(row: BenchmarkRow, reference: BenchmarkRow, options: BenchmarkOptions) -> BenchmarkRow:
    """The row with its ratio to the reference and the verdict, over the rounds that hold both."""
    if row.name == reference.name:
        return msgspec.structs.replace(row, ratio=1.0, ratio_interval=(1.0, 1.0))
    theirs = dict(zip(reference.sample_rounds, reference.samples_ns, strict=True))
    ours = dict(zip(row.sample_rounds, row.samples_ns, strict=True))
    pairs = [(ours[number], theirs[number]) for number in ours if number in theirs]
    pairs = [pair for pair in pairs if min(pair) > 0]
    if len(pairs) < _FEWEST_SAMPLES:
        return row
    candidate_ns, reference_ns = zip(*pairs, strict=True)
    # Each name has its own seed, so that a candidate's interval does not depend on who else is measured.
    seed = zlib.crc32(row.name.encode()) ^ (options.seed & 0xFFFFFFFF)
    ratio = ratio_interval(candidate_ns, reference_ns, seed=seed)
    verdict, reason = judge(ratio, options.same_within)
    return msgspec.structs.replace(
        row, ratio=ratio.ratio, ratio_interval=ratio.bounds, verdict=verdict, verdict_reason=reason
    )


def with_ceiling(
    row: BenchmarkRow,
    *,
    min_bytes: int | None,
    flop_count: int | None,
    ceilings: Sequence[Ceiling],
    matrix_ceiling: str | None,
) -> BenchmarkRow:
    """The row with its rates, and the fraction it reaches of the ceiling whose time floor is longer."""
    row = msgspec.structs.replace(row, min_bytes=min_bytes, flop_count=flop_count)
    if not row.median_ns:
        return row
    amounts: Mapping[str | None, int | None] = {"copy": min_bytes, matrix_ceiling: flop_count}
    floors_ns = {
        ceiling.name: amount / ceiling.per_s * NS_PER_S
        for ceiling in ceilings
        if (amount := amounts.get(ceiling.name)) and ceiling.per_s > 0
    }
    binding = max(floors_ns, key=lambda name: floors_ns[name], default=None)
    return msgspec.structs.replace(
        row,
        bytes_per_s=None if min_bytes is None else min_bytes / row.median_ns * NS_PER_S,
        flop_per_s=None if flop_count is None else flop_count / row.median_ns * NS_PER_S,
        ceiling=binding,
        ceiling_fraction=None if binding is None else floors_ns[binding] / row.median_ns,
    )
