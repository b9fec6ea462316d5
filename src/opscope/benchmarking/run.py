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

import numpy as np
from msgspec.structs import replace

from opscope.benchmarking import inputs
from opscope.benchmarking.check import check_output
from opscope.benchmarking.device_state import StateReader, state_reader
from opscope.benchmarking.findings import benchmark_findings
from opscope.benchmarking.limits import measure_ceilings as measure_device_ceilings
from opscope.benchmarking.problem import Implementation, Inputs, Problem, failure_of, first_line, lost_device
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
    Clock,
    DeviceState,
    Status,
)
from opscope.model.finding import Finding
from opscope.model.sidecar import Environment
from opscope.units import NS_PER_S
from opscope.workloads.runtime import is_out_of_memory, release_memory, require_torch, synchronize

Inspector = Callable[[Callable[[], object]], CallProfile]

# Added to the seed: the check has inputs that no call has seen.
_CHECK_SEED = 1_000_003
_LEAST_WARMUP_CALLS = 3
_LONG_WARMUP_NS = NS_PER_S
_CALL_LOOP_NS = 20_000_000
_MOST_CALLS = 1_000

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
    is_prepared: bool = False  # whether it was taken as far as it goes
    fn: Callable[..., Any] | None = None  # what it built; None before, and after it failed
    # What a sample runs, by the set of inputs it begins with: round i runs body i modulo their number.
    bodies: Sequence[Callable[[], object]] = ()
    calls: int = 1  # in each body
    call_ns: float = 0.0  # duration of one call by the timer
    samples: list[tuple[int, int]] = field(default_factory=list)  # round and duration, in the order taken
    spent_ns: int = 0  # wall time its samples took
    unprofiled: str | None = None  # why there is no profile, if there should be one
    unchecked: str | None = None  # why its outputs were not compared, if they should have been

    def __post_init__(self) -> None:
        one = self.implementation
        self.row = BenchmarkRow(  # its status is `ok` until it is known otherwise
            name=one.name, status=Status.OK, engine=one.engine, teaching=one.teaching, note=one.note
        )

    @property
    def name(self) -> str:
        return self.implementation.name

    @property
    def is_ready(self) -> bool:
        return self.row.status is Status.OK

    def note(self, **facts: Any) -> None:
        self.row = replace(self.row, **facts)

    def fail(self, status: Status, reason: str) -> None:
        """It cannot be sampled; what it holds is released."""
        self.note(status=status, reason=reason)
        self.fn, self.bodies = None, ()


def run_benchmark(
    problem: Problem,
    options: BenchmarkOptions,
    *,
    environment: Environment,
    timer: Timer | None = None,
    read_state: StateReader | None = None,
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
    if not 1 <= options.min_samples <= options.max_samples:
        raise InputError(
            f"min_samples={options.min_samples}, max_samples={options.max_samples} cannot be measured",
            hint="Need 1 <= min_samples <= max_samples",
        )
    limits = ("warmup_s", "time_budget_s", "precision", "same_within")
    negative = [name for name in limits if not getattr(options, name) >= 0]
    if negative:
        raise InputError(f"{', '.join(negative)} must not be negative")
    is_cuda = problem.device.startswith("cuda")
    read, unread = (read_state, None) if read_state is not None else state_reader(problem.device)
    chosen = timer or benchmark_timer(problem.device, options.clock, options.cache_state)
    run = Run(problem, options, environment, chosen, read, on_change, inspect=inspect)
    run.unread = unread if is_cuda else None
    # The device is the current one: kernels that are not torch's run there.
    with require_torch().cuda.device(problem.device) if is_cuda else nullcontext():
        return run.execute(measure_ceilings)


class Run:
    def __init__(  # noqa: PLR0917 - what a run is made of
        self,
        problem: Problem,
        options: BenchmarkOptions,
        environment: Environment,
        timer: Timer,
        read_state: StateReader,
        on_change: Callable[[BenchmarkResult], object],
        *,
        inspect: Inspector | None = None,  # profiles a call without arguments; None leaves profiles out
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.problem, self.options, self.environment = problem, options, environment
        self.timer, self.read_state, self.on_change = timer, read_state, on_change
        self.inspect, self._now_ns = inspect, now_ns
        self.unread: str | None = None  # why the device's state is not read
        self.rows = [RunRow(one) for one in problem.implementations]
        self.states: list[tuple[int, DeviceState]] = []  # what was read, with the rounds done then
        self.reference: Callable[..., Any] | None = None  # what the others are checked against
        self.lost: str | None = None  # why the device cannot be used any more
        self.is_interrupted = False  # by the user
        self.ceilings: tuple[Ceiling, ...] = ()
        self.ceilings_error: str | None = None
        self.in_samples_ns = 0  # the part of the rounds in which samples were taken
        is_controlled = problem.device.startswith("cuda") and timer.clock is not Clock.WALL
        self.cache_state = options.cache_state if is_controlled else CacheState.UNCONTROLLED
        self.min_bytes = problem.min_bytes  # None until an implementation has returned something
        self.flop_count = problem.flop_count  # None while no implementation's operations are known
        self.created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._next_check = options.min_samples
        self._began_ns = self._poll_due_ns = self._report_due_ns = 0

    def execute(self, measure_ceilings: Callable[..., tuple[Ceiling, ...]]) -> BenchmarkResult:
        try:
            # The reference first, because the others are checked against it.
            for row in sorted(self.rows, key=lambda one: one.name != self.problem.reference):
                self.prepare(row)
                row.is_prepared = True
                self.progressed()
            if self.options.ceilings and self.lost is None:
                self.measure_ceilings(measure_ceilings)
            ready = self.repeated()
            if ready and self.lost is None:
                self.sample(ready)
        except KeyboardInterrupt:
            self.is_interrupted = True
        result = self.finished()
        self.on_change(result)
        return result

    @property
    def ready(self) -> list[RunRow]:
        return [row for row in self.rows if row.is_prepared and row.is_ready]

    def release(self, failed: str) -> None:
        """Give back a failed implementation's memory, and note if it took the device with it."""
        reason = lost_device(self.problem.device)
        if reason is not None:
            self.lost = f"'{failed}' ended this process's use of {self.problem.device} ({reason})"
        else:
            release_memory()

    def progressed(self) -> None:
        rows = [with_samples(row, self.states) for row in self.rows if row.is_prepared]
        self.on_change(self.result(rows, complete=False))

    @cached_property
    def sets(self) -> tuple[Inputs, ...]:
        """The inputs every implementation is timed with."""
        return inputs.make_input_sets(self.problem, self.options.seed, self.cache_state)

    def prepare(self, row: RunRow) -> None:
        """Take an implementation as far as it goes."""
        if self.lost is not None:
            row.fail(Status.FAILED, f"not measured: {self.lost}")
            return
        stage = ""
        try:
            for stage in self.steps(row):  # noqa: B007 - an error is of the last one
                if not row.is_ready:
                    break
        except Exception as error:  # noqa: BLE001 - an implementation may raise anything; the others go on
            is_early = stage in {"while it was built", "at its first call"}
            row.fail(*failure_of(error, stage, may_be_unavailable=is_early))
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
        arguments = problem.make_inputs(options.seed)
        synchronize()
        began_ns = time.perf_counter_ns()
        outputs = fn(*arguments)
        synchronize()
        row.note(first_call_ns=time.perf_counter_ns() - began_ns)
        del arguments
        if not inputs.tensors_of(outputs):
            what = "nothing" if outputs is None else f"{type(outputs).__name__} without tensors"
            row.fail(Status.NO_RESULT, f"returned {what}: there is nothing to check or to time")
        yield "while it was checked"
        if options.check:
            del outputs  # the check needs the room
            outputs = self.check(row, fn)

        yield "while its cost was counted"
        if self.min_bytes is None:
            self.min_bytes = inputs.min_bytes(self.sets[0], outputs)
        del outputs
        if self.flop_count is None:
            self.flop_count = inputs.count_flops(fn, self.sets[0])

        yield "while it warmed up"
        self.warm_up(row, fn)
        yield "while its memory was measured"
        calls = inputs.bodies(fn, self.sets, 1)
        row.note(peak_memory_bytes=inputs.peak_memory_bytes(calls[0], problem.device))
        if self.inspect is not None and options.profile:
            yield "while it was profiled"
            self.profile(row, calls[0], self.inspect)

        yield "while its calls were timed"
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
            row.fail(outcome.status, outcome.reason or str(outcome.status))
        elif outcome.check is None:
            row.unchecked = outcome.reason or "there is no reference"
        return outcome.outputs

    def check_interpreted(self, row: RunRow, fn: Callable[..., Any]) -> None:
        if not self.options.check:
            why = "runs only in Triton's interpreter here, which is for checks, and checks are off"
            row.fail(Status.UNAVAILABLE, why)
            return
        self.check(row, fn, small=True)
        if row.is_ready and row.unchecked is not None:
            row.fail(Status.UNAVAILABLE, f"runs only in Triton's interpreter; {row.unchecked}")
        elif row.is_ready:
            row.fail(Status.CHECKED, "ran in Triton's interpreter on small inputs: checked, not timed")

    def warm_up(self, row: RunRow, fn: Callable[..., Any]) -> None:
        """For its time and a few calls, unless these take very long."""
        row.bodies = inputs.bodies(fn, self.sets, 1)
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

    def profile(self, row: RunRow, call: Callable[[], object], inspect: Inspector) -> None:
        try:
            profile = inspect(call)
        except Exception as error:
            # The profiler's own trouble is no reason not to time it; the implementation's is.
            if is_out_of_memory(error) or lost_device(self.problem.device) is not None:
                raise
            row.unprofiled = f"{type(error).__name__}: {first_line(error)}"
            return
        row.note(profile=profile, kernels_launched=profile.kernels_launched, device_ns=profile.device_ns)

    def measure_ceilings(self, measure: Callable[..., tuple[Ceiling, ...]]) -> None:
        if not self.ready:
            return
        names = ["copy", "copy_large"]
        if self.flop_count:
            names += sorted({name for row in self.ready if (name := self.matrix_ceiling(row))})
        try:
            self.ceilings = measure(self.problem.device, names, self.timer, copy_bytes=self.min_bytes)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - fractions of a ceiling are worth less than the samples
            self.ceilings_error = f"{type(error).__name__}: {first_line(error)}"

    def matrix_ceiling(self, row: RunRow) -> str | None:
        return row.implementation.matrix_ceiling or self.problem.matrix_ceiling

    def repeated(self) -> list[RunRow]:
        """The rows to sample, each with as many calls in a sample as comparing them needs."""
        ready = self.ready
        counts = inputs.calls_per_sample([row.call_ns for row in ready], self.timer.resolution_ns)
        for row, calls in zip(ready, counts, strict=True):
            if calls > 1 and row.fn is not None:
                row.bodies, row.calls = inputs.bodies(row.fn, self.sets, calls), calls
        return ready

    def sample(self, rows: Sequence[RunRow]) -> None:
        """Rounds of samples until every row is done.

        A row leaves when it has the most samples allowed, or the fewest and no time left. The rounds end when
        every row has left or is precise, having the fewest.
        """
        self._began_ns = self._now_ns()
        self._report_due_ns = self._began_ns + _REPORT_NS
        random = np.random.default_rng(self.options.seed)
        active, number = list(rows), 0
        self._poll(number)
        while active:
            for index in random.permutation(len(active)).tolist():
                if self.lost is None:
                    self._sample(active[index], number)
            number += 1
            remaining = [row for row in active if row.is_ready and self.lost is None]
            active = self._still_wanted(remaining, len(rows))
            now_ns = self._now_ns()
            if now_ns >= self._poll_due_ns:
                self._poll(number)
            if now_ns >= self._report_due_ns:
                self.progressed()
                self._report_due_ns = self._after(now_ns, _REPORT_NS)
        self._poll(number)

    def _sample(self, row: RunRow, number: int) -> None:
        try:
            began_ns = self._now_ns()
            duration_ns = self.timer.measure(row.bodies[number % len(row.bodies)])
            took_ns = self._now_ns() - began_ns
            row.samples.append((number, duration_ns))
            row.spent_ns += took_ns
            self.in_samples_ns += took_ns
        except Exception as error:  # noqa: BLE001 - an implementation may raise anything
            row.fail(*failure_of(error, "while it was sampled"))
        # Here the error and the memory its frames hold are gone.
        if not row.is_ready:
            self.release(row.name)

    def _still_wanted(self, active: list[RunRow], count: int) -> list[RunRow]:
        """The rows that need more samples, of so many at the beginning."""
        options = self.options
        overhead_ns = (self._now_ns() - self._began_ns - self.in_samples_ns) / count
        budget_ns = options.time_budget_s * NS_PER_S
        wanted = [
            row
            for row in active
            if len(row.samples) < options.max_samples
            and (len(row.samples) < options.min_samples or row.spent_ns + overhead_ns < budget_ns)
        ]
        if wanted and len(wanted[0].samples) >= self._next_check:
            self._next_check = int(self._next_check * _CHECK_GROWTH) + 1
            intervals = [median_interval([ns for _, ns in row.samples]) for row in wanted]
            if all(relative_half_width(one) <= options.precision for one in intervals):
                return []
        return wanted

    def _poll(self, number: int) -> None:
        began_ns = self._now_ns()
        state = self.read_state()
        if state is not None:
            self.states.append((number, state))
        self._poll_due_ns = self._after(began_ns, _POLL_NS)

    def _after(self, began_ns: int, every_ns: int) -> int:
        """When something that began then is due again: after a fixed time, and many times what it took."""
        ended_ns = self._now_ns()
        return ended_ns + max(every_ns, _REST * (ended_ns - began_ns))

    def finished(self) -> BenchmarkResult:
        rows = [self.ended(row) for row in self.rows]
        reference = next((row for row in rows if row.name == self.problem.reference), None)
        if reference is not None and reference.status is Status.OK and reference.median_ns:
            rows = [with_ratio(row, reference, self.options) for row in rows]
        rows = [
            with_ceiling(
                row,
                min_bytes=self.min_bytes,
                flop_count=self.flop_count,
                ceilings=self.ceilings,
                matrix_ceiling=self.matrix_ceiling(one),
            )
            for one, row in zip(self.rows, rows, strict=True)
        ]
        return self.result(rows, complete=not self.is_interrupted, findings=benchmark_findings(rows, self))

    def ended(self, one: RunRow) -> BenchmarkRow:
        """The row with its last status: `ok` takes enough samples, and failed rows have no figures."""
        row = with_samples(one, self.states)
        taken, least = len(row.samples_ns), self.options.min_samples
        if not one.is_prepared:
            reason = "stopped by the user before it was measured"
            return replace(one.row, status=Status.INTERRUPTED, reason=reason)
        if row.status is Status.OK and taken >= least:
            return row
        if row.status is Status.OK and self.lost is None:
            what = f"after {taken} of at least {least} samples" if taken else "before it was sampled"
            return replace(row, status=Status.INTERRUPTED, reason=f"stopped by the user {what}")
        if row.status is Status.OK:
            reason = f"has {taken} of {least} samples: {self.lost}"
            row = replace(row, status=Status.FAILED, reason=reason)
        return replace(row, outliers=(), median_ns=None, interval_ns=None)

    def result(
        self, rows: Sequence[BenchmarkRow], *, complete: bool, findings: Sequence[Finding] = ()
    ) -> BenchmarkResult:
        problem, states = self.problem, self.states
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
            sampling_ns=self._now_ns() - self._began_ns if self._began_ns else 0,
            in_samples_ns=self.in_samples_ns,
            complete=complete,
            device_state_before=states[0][1] if states else None,
            device_state_after=states[-1][1] if states else None,
            ceilings=self.ceilings,
            rows=tuple(rows),
            findings=tuple(findings),
        )


def with_samples(one: RunRow, states: Sequence[tuple[int, DeviceState]] = ()) -> BenchmarkRow:
    """The row with its samples and, from two on, their median and its interval."""
    samples_ns = tuple(duration / one.calls for _, duration in one.samples)
    rounds = tuple(number for number, _ in one.samples)
    row = replace(one.row, inner_repeats=one.calls, samples_ns=samples_ns, sample_rounds=rounds)
    if len(samples_ns) < _FEWEST_SAMPLES:
        return row
    interval = median_interval(samples_ns)
    return replace(
        row,
        outliers=outliers(samples_ns),
        throttled=throttled_samples(rounds, states),
        median_ns=interval.median_ns,
        interval_ns=interval.bounds_ns,
    )


def throttled_samples(rounds: Sequence[int], states: Sequence[tuple[int, DeviceState]]) -> tuple[int, ...]:
    """Indices of the samples taken between two reads of which one showed a reason that lowers clocks."""
    suspect: set[int] = set()
    for (before, one), (after, other) in itertools.pairwise(states):
        if one.throttle_reasons or other.throttle_reasons:
            suspect.update(range(before, after))
    return tuple(index for index, number in enumerate(rounds) if number in suspect)


def with_ratio(row: BenchmarkRow, reference: BenchmarkRow, options: BenchmarkOptions) -> BenchmarkRow:
    """The row with its ratio to the reference and, if it is whole, the verdict, of rounds that hold both."""
    if row.status not in {Status.OK, Status.INTERRUPTED}:
        return row
    if row.name == reference.name:
        return replace(row, ratio=1.0, ratio_interval=(1.0, 1.0))
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
    row = replace(row, ratio=ratio.ratio, ratio_interval=ratio.bounds)
    if row.status is Status.INTERRUPTED:
        return row
    verdict, reason = judge(ratio, options.same_within)
    return replace(row, verdict=verdict, verdict_reason=reason)


def with_ceiling(
    row: BenchmarkRow,
    *,
    min_bytes: int | None,
    flop_count: int | None,
    ceilings: Sequence[Ceiling],
    matrix_ceiling: str | None,
) -> BenchmarkRow:
    """The row with its rates, and the fraction it reaches of the ceiling whose time floor is longer."""
    row = replace(row, min_bytes=min_bytes, flop_count=flop_count)
    if not row.median_ns:
        return row
    amounts: Mapping[str | None, int | None] = {"copy": min_bytes, matrix_ceiling: flop_count}
    floors_ns = {
        ceiling.name: amount / ceiling.per_s * NS_PER_S
        for ceiling in ceilings
        if (amount := amounts.get(ceiling.name)) and ceiling.per_s > 0
    }
    binding = max(floors_ns, key=lambda name: floors_ns[name], default=None)
    return replace(
        row,
        bytes_per_s=None if min_bytes is None else min_bytes / row.median_ns * NS_PER_S,
        flop_per_s=None if flop_count is None else flop_count / row.median_ns * NS_PER_S,
        ceiling=binding,
        ceiling_fraction=None if binding is None else floors_ns[binding] / row.median_ns,
    )
