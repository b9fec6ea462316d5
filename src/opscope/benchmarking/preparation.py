"""Make one implementation ready to be sampled: built, called, checked, warmed up, profiled.

Whatever an implementation raises on the way becomes its row's status; only an interruption passes. Imports
torch lazily.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from opscope.benchmarking.check import check_output
from opscope.benchmarking.inputs import (
    bodies,
    count_flops,
    make_input_sets,
    min_bytes,
    peak_memory_bytes,
    tensors_of,
)
from opscope.benchmarking.problem import (
    Failure,
    Implementation,
    Inputs,
    Problem,
    failure_of,
    first_line,
    lost_device,
)
from opscope.benchmarking.timer import Timer
from opscope.model.benchmark import BenchmarkOptions, BenchmarkRow, CacheState, CallProfile, Status
from opscope.units import NS_PER_S
from opscope.workloads.runtime import is_out_of_memory, release_memory, synchronize

Inspector = Callable[[Callable[[], object]], CallProfile]

# Added to the seed: the check has inputs that no call has seen.
_CHECK_SEED = 1_000_003
_LEAST_WARMUP_CALLS = 3
_LONG_WARMUP_NS = NS_PER_S
_CALL_LOOP_NS = 20_000_000
_MOST_CALLS = 1_000


@dataclass
class Prepared:
    """An implementation on its way to being sampled."""

    implementation: Implementation  # As the problem has it
    row: BenchmarkRow  # What is known of it; its status is `ok` until it is known otherwise
    fn: Callable[..., Any] | None = None  # What it built; None before, and after it failed
    once: Sequence[Callable[[], object]] = ()  # One call on each set of inputs, as the timer measures them
    call_ns: float = 0.0  # Duration of one call by the timer
    profile_error: str | None = None  # Why it is not profiled, if it should have been
    unchecked: str | None = None  # Why its outputs were not compared, if they should have been

    @property
    def is_ready(self) -> bool:
        """Whether it can be sampled."""
        return self.row.status is Status.OK

    def fail(self, failure: Failure) -> None:
        """It cannot be sampled; what it holds is released."""
        self.row = replace(self.row, status=failure.status, reason=failure.reason)
        self.fn = None
        self.once = ()


class Preparation:
    """Prepares the implementations of a problem, one after another, the reference first."""

    def __init__(
        self,
        problem: Problem,
        options: BenchmarkOptions,
        timer: Timer,
        *,
        cache_state: CacheState,
        inspect: Inspector | None,
    ) -> None:
        self.min_bytes = problem.min_bytes
        self.flop_count = problem.flop_count
        self.lost: str | None = None
        self._problem = problem
        self._options = options
        self._timer = timer
        self._cache_state = cache_state
        self._inspect = inspect
        self._reference: Callable[..., Any] | None = None
        self._sets: tuple[Inputs, ...] = ()
        self._outputs: Any = None

    @property
    def sets(self) -> tuple[Inputs, ...]:
        """The inputs every implementation is timed with."""
        if not self._sets:
            self._sets = make_input_sets(self._problem, self._options.seed, self._cache_state)
        return self._sets

    def prepare(self, implementation: Implementation) -> Prepared:
        """Take an implementation as far as it goes."""
        prepared = Prepared(implementation, row_of(implementation))
        if self.lost is not None:
            prepared.fail(Failure(Status.FAILED, f"not measured: {self.lost}"))
            return prepared
        for stage, step in self._steps(implementation):
            failure = self._attempt(prepared, stage, step)
            if failure is not None:
                prepared.fail(failure)
            if not prepared.is_ready:
                self.release(implementation.name)
                break
        self._outputs = None
        return prepared

    def _steps(self, implementation: Implementation) -> Iterator[tuple[str, Callable[[Prepared], None]]]:
        yield "while it was built", self._build
        if implementation.is_interpreted:
            yield "while it was checked", self._check_interpreted
            return
        yield "at its first call", self._call_first
        if self._options.check:
            yield "while it was checked", self._check
        yield "while its cost was counted", self._count_costs
        yield "while it warmed up", self._warm_up
        yield "while its memory was measured", self._measure_memory
        if self._inspect is not None and self._options.profile:
            yield "while it was profiled", self._profile
        yield "while its calls were timed", self._time_calls

    def _attempt(self, prepared: Prepared, stage: str, step: Callable[[Prepared], None]) -> Failure | None:
        may_be_unavailable = stage in {"while it was built", "at its first call"}
        try:
            step(prepared)
        except Exception as error:  # noqa: BLE001 - an implementation may raise anything; the others go on
            return failure_of(error, stage, may_be_unavailable=may_be_unavailable)
        return None

    def release(self, name: str) -> None:
        """Give back a failed implementation's memory, and note if it took the device with it."""
        self._outputs = None
        reason = lost_device(self._problem.device)
        if reason is not None:
            self.lost = f"'{name}' ended this process's use of {self._problem.device} ({reason})"
        else:
            release_memory()

    def _build(self, prepared: Prepared) -> None:
        began_ns = time.perf_counter_ns()
        prepared.fn = prepared.implementation.build()
        prepared.row = replace(prepared.row, build_ns=time.perf_counter_ns() - began_ns)
        if prepared.implementation.name == self._problem.reference:
            self._reference = prepared.fn

    def _call_first(self, prepared: Prepared) -> None:
        # On inputs of its own: if it changes them, the others do not see it.
        inputs = self._problem.make_inputs(self._options.seed)
        synchronize()
        began_ns = time.perf_counter_ns()
        outputs = _built(prepared)(*inputs)
        synchronize()
        prepared.row = replace(prepared.row, first_call_ns=time.perf_counter_ns() - began_ns)
        if not tensors_of(outputs):
            what = "nothing" if outputs is None else f"{type(outputs).__name__} without tensors"
            prepared.fail(Failure(Status.NO_RESULT, f"returned {what}: there is nothing to check or to time"))
        elif not self._options.check:
            self._outputs = outputs

    def _check(self, prepared: Prepared, *, small: bool = False) -> None:
        outcome = check_output(
            _built(prepared),
            self._problem,
            reference=self._reference,
            tolerance=prepared.implementation.tolerance,
            seed=self._options.seed + _CHECK_SEED,
            small=small,
        )
        error = None if outcome.check is None else outcome.check.max_relative_error
        prepared.row = replace(prepared.row, check=outcome.check, max_relative_error=error)
        if outcome.status is not Status.OK:
            prepared.fail(Failure(outcome.status, outcome.reason or str(outcome.status)))
        elif outcome.check is None:
            prepared.unchecked = outcome.reason or "there is no reference"
        self._outputs = outcome.outputs

    def _check_interpreted(self, prepared: Prepared) -> None:
        if not self._options.check:
            reason = "runs only in Triton's interpreter here, which is for checks, and checks are off"
            prepared.fail(Failure(Status.UNAVAILABLE, reason))
            return
        self._check(prepared, small=True)
        if prepared.is_ready and prepared.unchecked is None:
            reason = "ran in Triton's interpreter on small inputs: checked, not timed"
            prepared.fail(Failure(Status.CHECKED, reason))
        elif prepared.is_ready:
            reason = f"runs only in Triton's interpreter; {prepared.unchecked}"
            prepared.fail(Failure(Status.UNAVAILABLE, reason))

    def _count_costs(self, prepared: Prepared) -> None:
        if self.min_bytes is None:
            self.min_bytes = min_bytes(self.sets[0], self._outputs)
        self._outputs = None
        if self.flop_count is None:
            self.flop_count = count_flops(_built(prepared), self.sets[0])

    def _warm_up(self, prepared: Prepared) -> None:
        prepared.once = self._timer.prepare(bodies(_built(prepared), self.sets, 1))
        began_ns = time.perf_counter_ns()
        durations_ns: list[int] = []
        while self._is_cold(len(durations_ns), time.perf_counter_ns() - began_ns):
            durations_ns.append(self._timer.measure(prepared.once[len(durations_ns) % len(prepared.once)]))
        prepared.call_ns = statistics.median(durations_ns[len(durations_ns) // 2 :])
        prepared.row = replace(prepared.row, warmup_count=len(durations_ns), input_sets=len(prepared.once))

    def _is_cold(self, calls: int, elapsed_ns: int) -> bool:
        """Whether the warm-up goes on: for its time and a few calls, unless these take very long."""
        is_short = calls < _LEAST_WARMUP_CALLS and elapsed_ns < _LONG_WARMUP_NS
        return calls == 0 or is_short or elapsed_ns < self._options.warmup_s * NS_PER_S

    def _measure_memory(self, prepared: Prepared) -> None:
        peak = peak_memory_bytes(bodies(_built(prepared), self.sets[:1], 1)[0], self._problem.device)
        prepared.row = replace(prepared.row, peak_memory_bytes=peak)

    def _profile(self, prepared: Prepared) -> None:
        assert self._inspect is not None
        try:
            profile = self._inspect(bodies(_built(prepared), self.sets[:1], 1)[0])
        except Exception as error:
            # The profiler's own trouble is no reason not to time it; the implementation's is.
            if is_out_of_memory(error) or lost_device(self._problem.device) is not None:
                raise
            prepared.profile_error = f"{type(error).__name__}: {first_line(error)}"
            return
        prepared.row = replace(
            prepared.row,
            profile=profile,
            kernels_launched=profile.kernels_launched,
            device_ns=profile.device_ns,
        )

    def _time_calls(self, prepared: Prepared) -> None:
        calls = bodies(_built(prepared), self.sets, 1)
        count = max(1, min(_MOST_CALLS, int(_CALL_LOOP_NS / max(prepared.call_ns, 1.0))))
        synchronize()
        began_ns = time.perf_counter_ns()
        for number in range(count):
            calls[number % len(calls)]()
        synchronize()
        prepared.row = replace(prepared.row, call_ns=(time.perf_counter_ns() - began_ns) / count)


def _built(prepared: Prepared) -> Callable[..., Any]:
    assert prepared.fn is not None
    return prepared.fn


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
