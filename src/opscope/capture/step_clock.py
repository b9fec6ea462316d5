"""Timing a program's steps while no profiler is attached.

A profiler stretches the host, so the step of a recording is not the step of the program. Between two steps
the host's clock is read and a CUDA event recorded on the current stream. Nothing waits for the device: events
are read when the program has waited for it anyway, or at its end. A loop may run ahead of the device, so both
clocks are kept, and whoever reads the samples takes the slower one. Taking both costs microseconds of the
host, with events made beforehand; where that is more than a few thousandths of a step, one sample covers
several steps. A few steps begin when the device has nothing left to do: then the host is held up by nothing.
Importing this module does not import torch.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from opscope.capture.attached import AttachedProfilers, attached_profilers
from opscope.model.sidecar import StepKind, StepPlace, UnrecordedStep

R = TypeVar("R")

# Of each place; before the recording the latest are kept, after it the first.
MOST_SAMPLES = 100
# Samples cover so many steps that taking all of a stretch costs no more of the host's time.
MOST_COST = 0.0025
# The steps of a sample at most: of the first few, of the next few and so on. A loop that runs ahead of the
# device does not tell yet how long its steps take, and a short one would leave too few samples.
_MOST_STEPS, _FEW = (1, 2, 4, 16, 64, 256), 4
_ALONE_EVERY, _MOST_ALONE = (3, 6), 5  # periods, of long and of short steps; steps in all
_SPARE = 8  # events: of stretches that were broken off, and the one that waits for its second
_LEAD_IN = 3  # calls of a loop of our own that warm up


class DeviceMark(Protocol):
    """A moment of a device's stream, as `torch.cuda.Event` is."""

    def query(self) -> bool:
        """Whether the device has passed it."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from this to a later one; both have passed."""
        ...


class _Mark(NamedTuple):
    step: int
    time_ns: int
    event: DeviceMark | None


class _Sample(NamedTuple):
    kind: StepKind
    place: StepPlace
    stretch: int
    begin: _Mark
    end: _Mark


class EventPool:
    """CUDA events that are made once and recorded again: making one costs several times as much."""

    def __init__(self) -> None:
        self._free: dict[int, list[DeviceMark]] = {}  # by device

    def record(self) -> DeviceMark | None:
        """An event on the current stream; None without CUDA, or where a CUDA graph is being captured."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return None
        try:
            if torch.cuda.is_current_stream_capturing():
                return None
            device = torch.cuda.current_device()
            if device not in self._free:
                self._free[device] = [_recorded(torch) for _ in range(MOST_SAMPLES + _SPARE)]
            free = self._free[device]
            if not free:
                return _recorded(torch)
            event = free.pop()
            event.record()  # type: ignore[attr-defined]
        except RuntimeError:  # the device is broken, which is the program's to find out
            return None
        return event

    def release(self, event: DeviceMark | None) -> None:
        """Nobody reads this one any more."""
        device = getattr(event, "device", None)
        if event is not None and device is not None:
            self._free.setdefault(device.index, []).append(event)


def _recorded(torch: Any) -> DeviceMark:
    """A new event; torch makes it where it is recorded first."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event  # type: ignore[no-any-return]


# Of the process: a later clock finds the events of an earlier one.
_pool = EventPool()


class StepClock:
    """Takes samples of steps, and none while a profiler is attached.

    Args:
        place: Where all its samples belong; if None, to before or after the first profiler.
        record: Records a moment of the device; by default CUDA events.
        now_ns: The host's clock.
        profilers: Who knows what is attached.
        around_ns: What a mark costs the host beyond itself.
    """

    def __init__(
        self,
        place: StepPlace | None = None,
        *,
        record: Callable[[], DeviceMark | None] | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        profilers: AttachedProfilers = attached_profilers,
        around_ns: int = 0,
    ) -> None:
        self._around_ns = around_ns
        self._place = place
        self._record = record or _pool.record
        self._now_ns = now_ns
        self._profilers = profilers
        self._changes = -1
        self._first_changes = 0
        self._last: _Mark | None = None
        self._cost_ns = 0
        self._period_ns = 0
        self._began_ns = self._spent_ns = 0
        self._next_step = 0
        self._stretch, self._periods = -1, 0  # the periods of this stretch
        self._samples: list[_Sample] = []
        self._is_idle, self._alone = False, 0  # whether the device had nothing to do at the last mark
        self._taken = dict.fromkeys(StepPlace, 0)

    @property
    def is_full(self) -> bool:
        """Whether it takes no more samples."""
        return self._taken[self._place or StepPlace.AFTER] >= MOST_SAMPLES

    @property
    def next_step(self) -> int:
        """The step that it marks next, unless a profiler comes or goes before."""
        return self._next_step

    @property
    def sample_count(self) -> int:
        """Samples taken and not read, but for those of the host alone."""
        return sum(one.kind is not StepKind.ALONE for one in self._samples)

    @property
    def is_free(self) -> bool:
        """Whether no profiler is attached."""
        return not self._profilers.is_attached

    def start(self) -> None:
        """Look out for profilers."""
        self._profilers.watch(self._break)
        self._first_changes = self._profilers.changes

    def stop(self) -> None:
        """Look out no longer; what was taken can still be read."""
        self._profilers.unwatch(self._break)
        self._last = None

    def mark(self, step: int) -> None:
        """A step begins, and the one before it has ended."""
        if step < self._next_step and self._profilers.changes == self._changes:
            return
        began_ns = self._now_ns()
        last, has_changed = self._last, self._has_changed()
        if has_changed or not self.is_free or self.is_full:
            last = self._last = None
            self._next_step = 0
        if not self.is_free or self.is_full:
            return
        self._last = mark = self._take(step)
        was_idle, self._is_idle = self._is_idle, False
        if last is None:
            self._stretch += 1
            self._next_step, self._period_ns, self._periods = step + 1, 0, 0
            self._began_ns, self._spent_ns = mark.time_ns, 0
            self._cost_ns = self._now_ns() - began_ns + self._around_ns
            return
        self._add(StepKind.ALONE if was_idle else StepKind.PERIOD, last, mark)
        if was_idle:
            self._alone += 1
            self._next_step = step + 1
            return
        self._periods += 1
        before_ns, self._period_ns = self._period_ns, (mark.time_ns - last.time_ns) // (step - last.step)
        # Of two marks the cheaper, for at times the host does something else in between; of two steps the
        # longer, for a single quick one says little.
        earlier_ns, self._cost_ns = self._cost_ns, self._now_ns() - began_ns + self._around_ns
        usual_ns = min(earlier_ns, self._cost_ns)
        self._spent_ns = (self._spent_ns or usual_ns) + usual_ns  # the first mark counts too
        affordable_after_ns = (self._spent_ns + usual_ns) / MOST_COST - (mark.time_ns - self._began_ns)
        if affordable_after_ns < 0:  # a pause of the program is no reason to hurry afterwards
            self._began_ns -= int(affordable_after_ns)
        wanted = math.ceil(affordable_after_ns / max(1, before_ns, self._period_ns))
        most = _MOST_STEPS[min(self._periods // _FEW, len(_MOST_STEPS) - 1)]
        self._next_step = step + max(1, min(most, wanted))
        is_due = self._periods > 1 and self._periods % _ALONE_EVERY[wanted > 1] == 1
        if mark.event is not None and is_due and self._alone < _MOST_ALONE:
            mark.event.synchronize()
            self._is_idle, self._last, self._next_step = True, self._take(step), step + 1
            self._spent_ns += 2 * usual_ns

    def call(self, number: int, fn: Callable[[], R]) -> R:
        """The result of a call; its time becomes a sample unless it raises, or a profiler is attached."""
        if self._has_changed():
            self._stretch += 1
        if not self.is_free or self.is_full:
            return fn()
        begin = self._take(number)
        result = fn()
        if self._profilers.changes == self._changes:
            self._add(StepKind.CALL, begin, self._take(number + 1))
        return result

    def is_ready(self) -> bool:
        """Whether the device has passed all events, so that reading them waits for nothing."""
        event = self._last_event
        try:
            return event is None or event.query()
        except RuntimeError:
            return True  # They will never be read.

    def read(self) -> tuple[UnrecordedStep, ...]:
        """The samples taken since it was last asked; those of a broken device are dropped.

        Waits for the last event. The devices should be idle, or the program over.
        """
        event = self._last_event
        samples, self._samples = self._samples, []
        try:
            if event is not None:
                event.synchronize()
            found = tuple(map(_step_of, samples))
        except RuntimeError:
            return ()
        for sample in samples:
            self._release(sample)
        return found

    @property
    def _last_event(self) -> DeviceMark | None:
        return self._samples[-1].end.event if self._samples else None

    def _has_changed(self) -> bool:
        """Whether a profiler started or ended since this was last asked."""
        before, self._changes = self._changes, self._profilers.changes
        return before != self._changes

    def _break(self) -> None:
        """A profiler starts: the open step will be recorded in part."""
        self._last, self._next_step = None, 0

    def _take(self, step: int) -> _Mark:
        return _Mark(step, self._now_ns(), self._record())

    def _add(self, kind: StepKind, begin: _Mark, end: _Mark) -> None:
        place = self._place
        if place is None:
            is_before = self._profilers.changes == self._first_changes
            place = StepPlace.BEFORE if is_before else StepPlace.AFTER
        self._taken[place] += 1
        self._samples.append(_Sample(kind, place, self._stretch, begin, end))
        if self._taken[place] > MOST_SAMPLES:
            self._release(self._samples.pop(0))

    def _release(self, sample: _Sample) -> None:
        """Its events may be recorded again; where one period ends, the next begins."""
        _pool.release(sample.begin.event)
        if sample.kind is StepKind.CALL:
            _pool.release(sample.end.event)


def _step_of(sample: _Sample) -> UnrecordedStep:
    begin, end = sample.begin, sample.end
    return UnrecordedStep(
        sample.kind,
        sample.place,
        sample.stretch,
        begin.step,
        end.step - begin.step,
        end.time_ns - begin.time_ns,
        _device_ns(begin.event, end.event),
    )


def _device_ns(begin: DeviceMark | None, end: DeviceMark | None) -> int | None:
    if begin is None or end is None:
        return None
    try:
        return max(0, round(begin.elapsed_time(end) * 1e6))
    except (RuntimeError, ValueError):  # of two devices
        return None


def time_calls(fn: Callable[[], object], count: int) -> tuple[UnrecordedStep, ...]:
    """Call a function back to back, without a profiler, until there are `count` samples after the warm-up.

    Args:
        fn: What a step calls.
        count: Samples; 0 calls it never.

    Returns:
        The samples, those of the warm-up too; the device has finished. None if a profiler is attached.
    """
    if count < 1:
        return ()
    clock = StepClock(StepPlace.BEFORE)
    clock.start()
    step = 0
    try:
        clock.mark(step)
        while clock.is_free and clock.sample_count < min(count + _LEAD_IN, MOST_SAMPLES):
            fn()
            step += 1
            clock.mark(step)
    finally:
        clock.stop()
    return clock.read()
