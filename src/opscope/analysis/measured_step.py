"""How long a step takes without the profiler, beside how long it took recorded.

Recordings of opscope also time steps while nothing is attached (`capture.step_clock`); of other traces what
depends on that is None. Of a stretch of steps that followed each other the first sample is warm-up, and of
the earlier half of the rest everything up to the last sample that is slower than is usual of the later half
(`usual_and_limit`): compilation comes in bursts, with quick steps in between. Steps before a profiler was
first attached count alone if there are six of them in three samples, for what it leaves behind may slow later
ones (by 1.3 where the host decides, on an H100).

A step's time is the longer of two. A loop that does not wait runs ahead of the device until the launch queue
is full, and then only the device's period is true; a device that works off its queue is quicker than the
loop, and then only the host's is. Where both took as long altogether, the device's events tell how the time
was spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
import numpy as np

from opscope.analysis.timeline.values import HostTime
from opscope.analysis.timeline.windows import TraceWindow
from opscope.benchmarking.statistics import CONFIDENCE, FEWEST_ROUNDS, median_interval, usual_and_limit
from opscope.model.queries import grouped
from opscope.model.session import Session
from opscope.model.sidecar import StepKind, StepPlace, UnrecordedStep
from opscope.text_enum import TextEnum

# Of steps before the recording, for an interval; one sample may cover several.
_FEWEST_STEPS, _FEWEST_SAMPLES = FEWEST_ROUNDS, 3


class StepClockKind(TextEnum):
    HOST = "host"
    DEVICE = "device"


class UnrecordedTime(msgspec.Struct, frozen=True):
    """A step of the program without a recorder."""

    median: float  # nanoseconds
    # Lower end of the distribution-free 95 % interval of the median; with fewer than six samples the least of
    # them
    low: float
    high: float  # upper end; the largest
    samples: int  # how many there are, the warm-up left out
    coverage: float  # probability that the interval holds the median of the program's steps
    warmup_samples: int  # left out as warm-up
    clock: StepClockKind  # the slower one
    kind: StepKind  # what was timed
    place: StepPlace | None = None  # when; None if some ran before the recording and some after it
    # The shortest step by the host's clock alone, warm-up included: the host was no slower
    least_host_ns: float | None = None
    # Least, median and most of the steps that began with an idle device, by the host's clock
    alone_ns: tuple[float, float, float] | None = None

    @property
    def has_interval(self) -> bool:
        return self.coverage >= CONFIDENCE


class MeasuredStep(msgspec.Struct, frozen=True):
    trace_id: int | None = None  # the trace
    recorded_ns: float | None = None  # mean of the recorded steps; None if no steps were recorded
    busy_ns: float | None = None  # busy time of the busiest device in a recorded step; None if unknown
    unrecorded_ns: UnrecordedTime | None = None  # a step without the profiler; None if unknown
    merged: int = 1  # steps of the program in one: more where they come in cycles

    @property
    def host_stretch(self) -> float | None:
        if self.recorded_ns is None or self.unrecorded_ns is None or not self.unrecorded_ns.median:
            return None
        return self.recorded_ns / self.unrecorded_ns.median

    @property
    def busy_fraction(self) -> float | None:
        """Device busy time over the unrecorded step; None too where it is clearly longer than that step.

        Device times hardly change while they are recorded, so the recorded busy time is the program's; clocks
        that wander by a few percent make it longer than a step without waits.
        """
        step = self.unrecorded_ns
        # So far do device times wander between a recording and what surrounds it.
        if self.busy_ns is None or step is None or not step.median or self.busy_ns > 1.05 * step.high:
            return None
        return min(1.0, self.busy_ns / step.median)

    @property
    def recorder_idle_ns(self) -> float | None:
        """What a recorded step waited only because it was recorded."""
        if self.recorded_ns is None or self.unrecorded_ns is None:
            return None
        return max(0.0, self.recorded_ns - self.unrecorded_ns.median)


def measured_steps(
    session: Session, windows: Mapping[int, TraceWindow], hosts: Iterable[HostTime]
) -> tuple[MeasuredStep, ...]:
    """The step of each trace that tells one, by trace, without steps that begin the program."""
    recorded_ns = {
        trace_id: sum(step.end_ns - step.start_ns for step in steps) / len(steps)
        for trace_id, window in windows.items()
        if (steps := window.counted.steps)
    }
    samples, merged = _samples(session), dict(session.known(_MERGED_SQL))
    busy_ns = {host.trace_id: host.device_busy_ns for host in hosts}
    partial = session.known("SELECT trace_id FROM findings WHERE code = 'capture.partial_collection'")
    used = session.known("SELECT DISTINCT trace_id FROM device_activities")
    return tuple(
        MeasuredStep(
            trace_id,
            recorded_ns.get(trace_id),
            None if (trace_id,) in partial else busy_ns.get(trace_id),
            unrecorded_time(samples.get(trace_id, ()), has_device=(trace_id,) in used),
            merged.get(trace_id, 1),
        )
        for trace_id in sorted({*recorded_ns, *samples})
    )


_MERGED_SQL = """
SELECT try_cast(substr(key, 9) AS INTEGER), try_cast(value ->> '$.schedule.merged' AS INTEGER) AS merged
FROM metadata WHERE starts_with(key, 'sidecar:') AND json_valid(value) AND merged > 1"""

_SAMPLES_SQL = """
SELECT trace_id, kind, place, stretch, step, step_count, host_ns, device_ns
FROM unrecorded_steps ORDER BY trace_id, sample"""


def _samples(session: Session) -> Mapping[int, list[UnrecordedStep]]:
    return grouped(
        (trace_id, UnrecordedStep(StepKind(kind), StepPlace(place), *numbers))
        for trace_id, kind, place, *numbers in session.known(_SAMPLES_SQL)
    )


def unrecorded_time(samples: Sequence[UnrecordedStep], *, has_device: bool) -> UnrecordedTime | None:
    """A step's time by these samples; None if none is left after the warm-up.

    `samples` are in the order taken, all of one kind, but for those of the host alone. Where the program uses
    a device, the host's clock alone tells nothing.
    """
    found = _decisive(samples, has_device=has_device)
    if found is None:
        return None
    chosen, warmup, clock, times_ns = found
    interval = median_interval(times_ns)
    alone = sorted(float(one.host_ns) for one in samples if one.kind is StepKind.ALONE)
    return UnrecordedTime(
        median=interval.median_ns,
        low=interval.low_ns,
        high=interval.high_ns,
        samples=len(times_ns),
        coverage=interval.coverage,
        warmup_samples=warmup,
        clock=clock,
        kind=chosen[0].kind,
        place=chosen[0].place if len({one.place for one in chosen}) == 1 else None,
        least_host_ns=min(one.host_ns / one.step_count for one in samples),
        alone_ns=(alone[0], float(np.median(alone)), alone[-1]) if len(alone) >= _FEWEST_SAMPLES else None,
    )


def unrecorded_samples(session: Session) -> tuple[float, ...]:
    """Times in ns of steps without the profiler, of the trace with the longest steps; empty if unknown."""
    has_device = bool(session.scalar("SELECT count(*) FROM device_activities"))
    found = (_decisive(samples, has_device=has_device) for samples in _samples(session).values())
    by_trace = [tuple(one[3]) for one in found if one is not None]
    return max(by_trace, key=lambda times_ns: float(np.median(times_ns)), default=())


def _decisive(
    samples: Sequence[UnrecordedStep], *, has_device: bool
) -> tuple[Sequence[UnrecordedStep], int, StepClockKind, list[float]] | None:
    """The samples that count, how many were warm-up, and the slower clock with their times by it."""
    timed = [one for one in samples if one.kind is not StepKind.ALONE]
    settled: list[UnrecordedStep] = []
    for _, stretch in groupby(timed, key=lambda one: (one.place, one.stretch)):
        of_one = list(stretch)
        settled += of_one[max(map(warmup_count, _clocks(of_one))) :]
    warmup = len(timed) - len(settled)
    # Those before a profiler, if they are enough.
    before = [one for one in settled if one.place is StepPlace.BEFORE]
    is_enough = sum(one.step_count for one in before) >= _FEWEST_STEPS and len(before) >= _FEWEST_SAMPLES
    chosen = before if is_enough else settled
    if not chosen:
        return None
    on_device = [one for one in chosen if one.device_ns is not None]
    if 2 * len(on_device) >= len(chosen):
        # By both clocks as long, altogether.
        if sum(one.device_ns or 0 for one in on_device) >= 0.98 * sum(one.host_ns for one in on_device):
            return chosen, warmup, StepClockKind.DEVICE, list(_clocks(on_device))[1]
    elif has_device:
        return None
    return chosen, warmup, StepClockKind.HOST, next(_clocks(chosen))


def _clocks(samples: Sequence[UnrecordedStep]) -> Iterator[list[float]]:
    yield [one.host_ns / one.step_count for one in samples]
    device = [one.device_ns / one.step_count for one in samples if one.device_ns is not None]
    if len(device) == len(samples):
        yield device


def warmup_count(times_ns: Sequence[float]) -> int:
    """How many of the samples of one stretch, from the first on, are warm-up."""
    rest = np.asarray(times_ns[1:], dtype=np.float64)
    if not len(rest):
        return len(times_ns)
    _, limit = usual_and_limit(rest[len(rest) // 2 :])
    slow = np.flatnonzero(rest[: len(rest) // 2] > limit)
    return 1 + (int(slow[-1]) + 1 if len(slow) else 0)
