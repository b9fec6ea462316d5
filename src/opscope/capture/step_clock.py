"""Timing a program's steps while no profiler is attached.

A profiler stretches the host, so the step of a recording is not the step of the program. Between two steps
the host's clock is read and a CUDA event recorded on the current stream. Nothing waits for the device: events
are read when the program has waited for it anyway, or at its end. A loop may run ahead of the device, so both
clocks are kept, and whoever reads the samples takes the slower one. A few steps begin when the device has
nothing left to do: then the host is held up by nothing. Importing this module does not import torch.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from opscope.capture.recording import AttachedProfilers, attached_profilers
from opscope.model.sidecar import StepKind, StepPlace, UnrecordedStep

# Of each place, one a step; before the recording the latest are kept, after it the first.
MOST_SAMPLES = 100
_ALONE_EVERY, _MOST_ALONE = 4, 5  # periods; steps that begin with an idle device in all
# Of a cycle: its steps, how often it must be seen, how much longer than others its long step is, and what
# that takes of the time of all; of what is above the usual, how much is these steps'.
_LONGEST_CYCLE, _FEWEST_CYCLES, _LONGER, _LEAST_OF_CYCLE, _OF_LONG = 32, 3, 2.0, 0.15, 0.8


class _Mark(NamedTuple):
    step: int
    reached_ns: int
    left_ns: int  # what taking the mark cost the host lies in no step
    event: Any  # a `torch.cuda.Event`, or None


# CUDA events by device, made once and recorded again: making one costs several times as much. Of the process:
# a later clock finds the events of an earlier one.
_free: dict[int, list[Any]] = {}


def _record() -> Any:
    """An event on the current stream; None without CUDA, or where a CUDA graph is being captured."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        if torch.cuda.is_current_stream_capturing():
            return None
        device = torch.cuda.current_device()
        if device not in _free:
            # Eight more for stretches that were broken off, and the one that waits for its second.
            _free[device] = [torch.cuda.Event(enable_timing=True) for _ in range(MOST_SAMPLES + 8)]
            for event in _free[device]:
                event.record()  # torch makes it where it is recorded first
        event = _free[device].pop() if _free[device] else torch.cuda.Event(enable_timing=True)
        event.record()
    except RuntimeError:  # the device is broken, which is the program's to find out
        return None
    return event


def _release(event: Any) -> None:
    device = getattr(event, "device", None)
    if event is not None and device is not None:
        _free.setdefault(device.index, []).append(event)


class StepClock:
    """Takes samples of steps, before or after the first profiler, and none while one is attached."""

    def __init__(
        self,
        *,
        most: int = MOST_SAMPLES,  # after the recording
        record: Callable[[], Any] = _record,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        profilers: AttachedProfilers = attached_profilers,
    ) -> None:
        self._record, self._now_ns, self._profilers, self._most = record, now_ns, profilers, most
        self._changes, self._first_changes = -1, 0
        self._last: _Mark | None = None
        self._stretch, self._periods = -1, 0  # the periods of this stretch
        # Without the time of the device, which the events around a step tell later.
        self._samples: list[tuple[UnrecordedStep, Any, Any]] = []
        self.sample_count = 0  # taken so far, but for those of the host alone
        self._is_idle, self._alone = False, 0  # whether the device had nothing to do at the last mark
        self._taken = dict.fromkeys(StepPlace, 0)

    @property
    def is_full(self) -> bool:
        return self._taken[StepPlace.AFTER] >= self._most

    @property
    def is_free(self) -> bool:
        return not self._profilers.is_attached

    def start(self) -> None:
        self._profilers.watch(self._break)
        self._first_changes = self._profilers.changes

    def stop(self) -> None:
        """Look out no longer; what was taken can still be read."""
        self._profilers.unwatch(self._break)
        self._last = None

    def mark(self, step: int) -> None:
        """A step begins, and the one before it has ended; one that was not marked is in no sample."""
        last, self._last = self._last, None
        # Whether a profiler started or ended since the last mark.
        has_changed, self._changes = self._changes != self._profilers.changes, self._profilers.changes
        if not self.is_free or self.is_full:
            return
        mark = self._take(step)
        was_idle, self._is_idle = self._is_idle, False
        if has_changed or last is None or last.step + 1 != step:
            self._stretch, self._periods = self._stretch + 1, 0
        elif was_idle:
            self._add(StepKind.ALONE, last, mark)
            self._alone += 1
        else:
            self._add(StepKind.PERIOD, last, mark)
            self._periods += 1
            is_due = self._periods > 1 and self._periods % _ALONE_EVERY == 1
            if mark.event is not None and is_due and self._alone < _MOST_ALONE:
                mark.event.synchronize()
                self._is_idle, mark = True, self._take(step)
        self._last = mark

    def cycle(self) -> tuple[int, int] | None:
        """The cycle of steps after the recording; by the device, if any, which a host may run ahead of."""
        if self._taken[StepPlace.AFTER] not in {self._most // of for of in (8, 4, 2, 1)}:
            return None
        ours = [sample for sample in self._samples if sample[0].place is StepPlace.AFTER]
        times_ns = {one.step: _between_ns(*events) if events[0] else one.host_ns for one, *events in ours}
        return cycle_of({step: ns for step, ns in times_ns.items() if ns is not None})

    def read(self) -> tuple[UnrecordedStep, ...]:
        """The samples taken since it was last asked; those of a broken device are dropped.

        Waits for the last event. The devices should be idle, or the program over.
        """
        samples, self._samples = self._samples, []
        try:
            if samples and (last := samples[-1][2]) is not None:
                last.synchronize()
        except RuntimeError:
            return ()
        found = tuple(replace(step, device_ns=_between_ns(begin, end)) for step, begin, end in samples)
        for _, begin, _ in samples:  # where one ends, the next begins
            _release(begin)
        return found

    def _break(self) -> None:
        """A profiler starts: the open step will be recorded in part."""
        self._last = None

    def _take(self, step: int) -> _Mark:
        reached_ns = self._now_ns()
        event = self._record()
        return _Mark(step, reached_ns, self._now_ns(), event)

    def _add(self, kind: StepKind, begin: _Mark, end: _Mark) -> None:
        place = StepPlace.BEFORE if self._profilers.changes == self._first_changes else StepPlace.AFTER
        self._taken[place] += 1
        self.sample_count += kind is not StepKind.ALONE
        host_ns = max(0, end.reached_ns - begin.left_ns)
        step = UnrecordedStep(kind, place, self._stretch, begin.step, end.step - begin.step, host_ns)
        self._samples.append((step, begin.event, end.event))
        if self._taken[place] > MOST_SAMPLES:
            _release(self._samples.pop(0)[1])


def cycle_of(times_ns: Mapping[int, int]) -> tuple[int, int] | None:
    """Steps of a cycle, and the number of a long one: where one is long each time and hardly another is."""
    usual_ns = statistics.median(times_ns.values()) if times_ns else 0
    above_ns = {number: max(0, ns - usual_ns) for number, ns in times_ns.items()}
    whole_ns = sum(above_ns.values())
    if whole_ns < _LEAST_OF_CYCLE * sum(times_ns.values()):
        return None
    for steps in range(2, min(_LONGEST_CYCLE, len(times_ns) // _FEWEST_CYCLES) + 1):
        for first in range(steps):
            long = [number for number in times_ns if number % steps == first]
            if (
                len(long) >= _FEWEST_CYCLES
                and min(times_ns[one] for one in long) > _LONGER * usual_ns
                and sum(above_ns[one] for one in long) > _OF_LONG * whole_ns
            ):
                return steps, long[0]
    return None


def _between_ns(begin: Any, end: Any) -> int | None:
    if begin is None or end is None:
        return None
    try:
        return int(max(0, round(begin.elapsed_time(end) * 1e6)))
    except (RuntimeError, ValueError):  # of two devices
        return None


def time_calls(fn: Callable[[], object], count: int) -> tuple[UnrecordedStep, ...]:
    """Call a function back to back, without a profiler, until there are `count` samples after the warm-up.

    Its samples are among those returned; the device has finished. None if a profiler is attached.
    """
    if count < 1:
        return ()
    clock = StepClock()
    clock.start()
    step = 0
    try:
        clock.mark(step)
        # Calls of a loop of our own warm up first.
        while clock.is_free and clock.sample_count < min(count + 3, MOST_SAMPLES):
            fn()
            step += 1
            clock.mark(step)
    finally:
        clock.stop()
    return clock.read()
