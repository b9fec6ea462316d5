"""Rounds of samples: in each, every implementation is sampled once, in random order.

Interleaved like this, whatever changes with time (clocks, temperature, other load) hits all alike. All
samples are kept, and what was taken stays whole if the loop is interrupted anywhere. What the samples of an
implementation say goes into its row by the functions at the end. Imports no torch.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from opscope.benchmarking.problem import Failure, failure_of
from opscope.benchmarking.statistics import (
    judge,
    median_interval,
    outliers,
    ratio_interval,
    relative_half_width,
)
from opscope.benchmarking.timer import Timer
from opscope.model.benchmark import BenchmarkOptions, BenchmarkRow, Ceiling, DeviceState
from opscope.units import NS_PER_S

_ORDERS_AT_ONCE = 64
# Convergence is looked at when a series has so many times the samples it had at the last look.
_CHECK_GROWTH = 1.25
_POLL_NS = 50_000_000
_REPORT_NS = 1_000_000_000
# Polling and reporting wait so many times what they last cost: each takes at most 2.5 % of the time.
_REST = 40


class Watcher(Protocol):
    """Is told what happens between rounds."""

    def failed(self, series: SampleSeries, failure: Failure) -> bool:
        """A series has failed and left the rounds. Returns whether the others can go on."""
        ...

    def progressed(self) -> None:
        """Some rounds are done."""
        ...


@dataclass
class SampleSeries:
    """One implementation in the rounds."""

    name: str  # Of the implementation
    # What a sample runs, by the set of inputs it begins with: round i runs body i modulo their number
    bodies: Sequence[Callable[[], object]]
    calls: int = 1  # Calls in each body
    # Round and duration in nanoseconds of each sample, in the order taken
    samples: list[tuple[int, int]] = field(default_factory=list)
    spent_ns: int = 0  # Wall time its samples took
    is_precise: bool = False  # Whether its median was known well enough at the last look

    @property
    def samples_ns(self) -> tuple[float, ...]:
        """Duration of each sample per call."""
        return tuple(duration / self.calls for _, duration in self.samples)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The round of each sample."""
        return tuple(number for number, _ in self.samples)


class Sampling:
    """The rounds and what they cost.

    A series leaves when it has the most samples allowed, or the fewest and no time left. The rounds
    end when every series has left or is precise, having the fewest.
    """

    def __init__(
        self,
        all_series: Sequence[SampleSeries],
        timer: Timer,
        options: BenchmarkOptions,
        watcher: Watcher,
        *,
        read_state: Callable[[], DeviceState | None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.all_series = list(all_series)
        self.states: list[tuple[int, DeviceState]] = []
        self.elapsed_ns = 0
        self.in_samples_ns = 0
        self._timer = timer
        self._options = options
        self._watcher = watcher
        self._now_ns = now_ns
        self._read_state = read_state
        self._budget_ns = options.time_budget_s * NS_PER_S
        self._next_check = options.min_samples
        self._random = np.random.default_rng(options.seed)
        self._poll = _Rhythm(_POLL_NS)
        self._report = _Rhythm(_REPORT_NS)
        self._began_ns = 0

    def run(self) -> None:
        """Take samples until every series is done."""
        self._began_ns = self._now_ns()
        self._report.wait(self._began_ns, self._began_ns)
        active = list(self.all_series)
        number = 0
        try:
            self._poll_state(number)
            while active:
                orders = self._random.permuted(np.tile(np.arange(len(active)), (_ORDERS_AT_ONCE, 1)), axis=1)
                number, active = self._rounds(active, orders.tolist(), number)
            self._poll_state(number)
        finally:
            self.elapsed_ns = self._now_ns() - self._began_ns

    def throttled(self, series: SampleSeries) -> tuple[int, ...]:
        """Indices of the samples taken between two reads of which one showed a reason that lowers clocks."""
        suspect = [
            (before, after)
            for (before, one), (after, other) in zip(self.states, self.states[1:], strict=False)
            if one.throttle_reasons or other.throttle_reasons
        ]
        if not suspect:
            return ()
        begins, ends = np.array(suspect).T
        rounds = np.array(series.rounds, dtype=np.int64)
        interval = np.searchsorted(begins, rounds, side="right") - 1
        is_inside = (interval >= 0) & (rounds < ends[np.maximum(interval, 0)])
        return tuple(int(index) for index in np.flatnonzero(is_inside))

    def _rounds(
        self, active: list[SampleSeries], orders: list[list[int]], number: int
    ) -> tuple[int, list[SampleSeries]]:
        """Rounds in these orders, until one changes who takes part: the next round and its series."""
        for order in orders:
            remaining = self._round(active, order, number)
            number += 1
            remaining = self._still_wanted(remaining)
            self._between_rounds(number)
            if len(remaining) != len(active):
                return number, remaining
        return number, active

    def _round(self, active: list[SampleSeries], order: list[int], number: int) -> list[SampleSeries]:
        """One sample of each series; those that did not fail."""
        failed: list[str] = []
        for index in order:
            series = active[index]
            try:
                self._sample(series, number)
                continue
            except Exception as error:  # noqa: BLE001 - an implementation may raise anything
                failure = failure_of(error, "while it was sampled")
            # Here the error and the memory its frames hold are gone.
            failed.append(series.name)
            if not self._watcher.failed(series, failure):
                return []
        return [series for series in active if series.name not in failed] if failed else active

    def _sample(self, series: SampleSeries, number: int) -> None:
        body = series.bodies[number % len(series.bodies)]
        began_ns = self._now_ns()
        duration_ns = self._timer.measure(body)
        took_ns = self._now_ns() - began_ns
        series.samples.append((number, duration_ns))
        series.spent_ns += took_ns
        self.in_samples_ns += took_ns

    def _still_wanted(self, active: list[SampleSeries]) -> list[SampleSeries]:
        """The series that need more samples."""
        options = self._options
        overhead_ns = (self._now_ns() - self._began_ns - self.in_samples_ns) / len(self.all_series)
        most = options.max_samples
        wanted = [
            series
            for series in active
            if len(series.samples) < most
            and (len(series.samples) < options.min_samples or series.spent_ns + overhead_ns < self._budget_ns)
        ]
        if wanted and len(wanted[0].samples) >= self._next_check:
            self._next_check = int(self._next_check * _CHECK_GROWTH) + 1
            for series in wanted:
                series.is_precise = is_precise(series, options.precision)
            if all(series.is_precise for series in wanted):
                return []
        return wanted

    def _between_rounds(self, number: int) -> None:
        now_ns = self._now_ns()
        if self._poll.is_due(now_ns):
            self._poll_state(number)
        if self._report.is_due(now_ns):
            self.elapsed_ns = now_ns - self._began_ns
            self._watcher.progressed()
            self._report.wait(now_ns, self._now_ns())

    def _poll_state(self, number: int) -> None:
        began_ns = self._now_ns()
        state = self._read_state()
        if state is not None:
            self.states.append((number, state))
        self._poll.wait(began_ns, self._now_ns())


def is_precise(series: SampleSeries, precision: float) -> bool:
    """Whether half the width of the interval of a series' median is within `precision` of it."""
    return relative_half_width(median_interval(series.samples_ns)) <= precision


class _Rhythm:
    """When something is due again: after a fixed time, and after many times what it last took."""

    def __init__(self, every_ns: int) -> None:
        self._every_ns = every_ns
        self._due_ns = 0

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._due_ns

    def wait(self, began_ns: int, ended_ns: int) -> None:
        self._due_ns = ended_ns + max(self._every_ns, _REST * (ended_ns - began_ns))


_FEWEST_SAMPLES = 2


def with_samples(row: BenchmarkRow, series: SampleSeries, throttled: tuple[int, ...] = ()) -> BenchmarkRow:
    """The row with a series' samples and, from two on, their median and its interval."""
    samples_ns = series.samples_ns
    row = replace(row, inner_repeats=series.calls, samples_ns=samples_ns, sample_rounds=series.rounds)
    if len(samples_ns) < _FEWEST_SAMPLES:
        return row
    interval = median_interval(samples_ns)
    return replace(
        row,
        outliers=outliers(samples_ns),
        throttled=throttled,
        median_ns=interval.median_ns,
        interval_ns=interval.bounds_ns,
    )


def with_ratio(row: BenchmarkRow, reference: BenchmarkRow, options: BenchmarkOptions) -> BenchmarkRow:
    """The row with its ratio to the reference and the verdict, over the rounds that hold both."""
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
    verdict, reason = judge(ratio, options.same_within)
    return replace(
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
    row = replace(row, min_bytes=min_bytes, flop_count=flop_count)
    if not row.median_ns:
        return row
    rates = {"copy": min_bytes, matrix_ceiling: flop_count}
    floors_ns = _floors_ns(rates, ceilings)
    binding = max(floors_ns, key=lambda name: floors_ns[name], default=None)
    return replace(
        row,
        bytes_per_s=_per_s(min_bytes, row.median_ns),
        flop_per_s=_per_s(flop_count, row.median_ns),
        ceiling=binding,
        ceiling_fraction=None if binding is None else floors_ns[binding] / row.median_ns,
    )


def _floors_ns(amounts: Mapping[str | None, int | None], ceilings: Sequence[Ceiling]) -> dict[str, float]:
    """Least time that each ceiling allows for its amount of bytes or operations."""
    return {
        ceiling.name: amount / ceiling.per_s * NS_PER_S
        for ceiling in ceilings
        if (amount := amounts.get(ceiling.name)) and ceiling.per_s > 0
    }


def _per_s(amount: int | None, duration_ns: float) -> float | None:
    return None if amount is None else amount / duration_ns * NS_PER_S
