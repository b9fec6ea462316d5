"""The time that a device's figures are of, its window, what it did then, and which steps are start-up.

Where steps were recorded, the window is theirs, and of a device goes on until the work that a step launched
is done. Where there are none, it is the span from the first event to the last; of a device that works on
something earlier first, or starts up, from its first work on. Of a process that was recorded from its start
to its end, it begins with the device's first work, ends with its last, and leaves out first launches that
load code. The parts of a window sum to it exactly, and with the work outside of it to all work. A first step
is start-up if it is slower than is usual of those after it that do the same work, and at least half of that
is time in calls and ranges that come once. It is left out of what is said of a mean step, and of no sum.
Where a single step was recorded, or none, nothing tells what recurs: the time in such calls is told alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from opscope.analysis.arrays import (
    NOTHING,
    Arrays,
    Flags,
    Spans,
    between,
    columns,
    covering,
    cut,
    distinct,
    median,
    merge,
    overlap,
    subtract,
    sum_by,
    total,
)
from opscope.analysis.timeline.records import COME_ONCE, CallRole, DeviceRecords, WorkKind, names_of
from opscope.analysis.timeline.values import DeviceStep, StartUp, TimePartition, WindowKind
from opscope.benchmarking.statistics import usual_and_limit
from opscope.ingest.nesting import Int64
from opscope.model.queries import grouped, sql
from opscope.model.session import Session


class Step(NamedTuple):
    """One step; its turn lasts `until_ns`, which includes what the recorder does before the next begins."""

    number: int
    start_ns: int
    end_ns: int
    until_ns: int
    kernels: int = 0
    thread_id: int = -1


class TraceWindow(msgspec.Struct, frozen=True, dict=True):
    """The window of one trace. `steps` come by start; the span holds every event; `start_ups` begin it.

    Without steps: until `held_until_ns` the device was at what was launched before, or starting up.
    `host_end_ns` is the end of the last event of the host; None if that is the span's. `loading` are first
    launches that are left out of a whole process's, whose span is from the device's first work to its last.
    """

    start_ns: int
    end_ns: int
    steps: tuple[Step, ...] = ()
    start_ups: tuple[StartUp, ...] = ()
    held_until_ns: int | None = None
    host_end_ns: int | None = None
    lead_in_ns: int = 0  # in which the device does next to nothing first, of a trace without steps
    is_whole: bool = False  # a process from its start to its end, and no steps
    loading: Spans = NOTHING

    @property
    def counted(self) -> TraceWindow:
        """The window of the steps that a mean step is of: without those that begin the program."""
        return msgspec.structs.replace(
            self, steps=self.steps[sum(one.is_left_out for one in self.start_ups) :], start_ups=()
        )

    def middle(self, share: float) -> TraceWindow:
        """The window of such a share of these steps, but one at least, from their middle."""
        steps = self.counted.steps
        count = max(1, int(share * len(steps)))
        first = (len(steps) - count) // 2
        return msgspec.structs.replace(self, steps=steps[first : first + count], start_ups=())

    @cached_property
    def numbers(self) -> frozenset[int]:
        return frozenset(step.number for step in self.steps)

    @cached_property
    def host(self) -> Spans:
        span = (self.start_ns, self.end_ns if self.host_end_ns is None else self.host_end_ns)
        return self._until([step.until_ns for step in self.steps], span)

    def of(self, device: DeviceRecords) -> Spans:
        """The window of a device: the host's, and what steps launched until it is done."""
        launched = device.step >= 0
        numbers = distinct(device.step[launched])
        done_ns = np.zeros(len(numbers), dtype=np.int64)
        np.maximum.at(done_ns, np.searchsorted(numbers, device.step[launched]), device.end_ns[launched])
        done = dict(zip(numbers.tolist(), done_ns.tolist(), strict=True))
        ends = [max(step.until_ns, done.get(step.number, 0)) for step in self.steps]
        steady_ns = self.start_ns if self.held_until_ns is None else self.held_until_ns
        return self._until(ends, (steady_ns, self.end_ns))

    def _until(self, ends: Sequence[int], span: tuple[int, int]) -> Spans:
        """The steps until these ends; the span where there are none."""
        bounds = [(step.start_ns, end_ns) for step, end_ns in zip(self.steps, ends, strict=True)]
        starts, until = zip(*bounds or [span], strict=True)
        whole = merge((np.array(starts, dtype=np.int64), np.array(until, dtype=np.int64)))
        return subtract(whole, self.loading)

    def step_at(self, time_ns: int) -> int | None:
        """Number of the step whose turn it is; None outside of steps."""
        return next(
            (step.number for step in reversed(self.steps) if step.start_ns <= time_ns < step.until_ns), None
        )


def read_windows(session: Session) -> dict[int, TraceWindow]:
    rows = session.query(sql(__package__, "timeline:steps"))
    steps = grouped((trace_id, Step(*numbers)) for trace_id, *numbers in rows)
    found = {}
    spans = session.query(sql(__package__, "timeline:spans"))
    for trace_id, start_ns, end_ns, host_end_ns, is_of_process in spans:
        mine = tuple(steps[trace_id])
        window = TraceWindow(start_ns, end_ns, mine, host_end_ns=host_end_ns)
        if not mine:
            window = _without_steps(session, trace_id, window, is_of_process)
        examined = session.examined.get(trace_id)
        start_ups = (
            tuple(find_start_ups(session, trace_id, mine, (start_ns, end_ns), window.lead_in_ns))
            if examined is None
            else examined.start_ups
        )
        found[trace_id] = msgspec.structs.replace(window, start_ups=start_ups)
    return found


# A device to which nothing else was handed takes µs to begin. One that takes longer is at what was launched
# before the recording began, or is starting up.
_LONGEST_LATENCY_NS = 1_000_000


def _without_steps(session: Session, trace_id: int, window: TraceWindow, is_of_process: bool) -> TraceWindow:
    """The window of a trace without steps, by its first work."""
    found = session.query(sql(__package__, "timeline:first_work"), [trace_id])
    if not found:
        return window
    ((begun_ns, launched_ns, end_ns, steady_ns),) = found
    is_held_up = begun_ns - launched_ns > _LONGEST_LATENCY_NS
    if not is_of_process:
        held_until_ns = begun_ns if is_held_up else None
        lead_in_ns = steady_ns - (held_until_ns or window.start_ns)
        return msgspec.structs.replace(window, held_until_ns=held_until_ns, lead_in_ns=max(0, lead_in_ns))
    loading = _first_runs(session, trace_id, with_operators=False)
    return msgspec.structs.replace(
        window,
        start_ns=begun_ns if is_held_up else min(begun_ns, launched_ns),
        held_until_ns=begun_ns,
        end_ns=end_ns,
        host_end_ns=end_ns,
        is_whole=True,
        loading=subtract(merge((loading["start_ns"], loading["end_ns"])), _busy(session, trace_id)),
    )


def _busy(session: Session, trace_id: int) -> Spans:
    return merge(Spans(*columns(session, sql(__package__, "timeline:busy"), [trace_id]).values()))


class Occupation(msgspec.Struct, frozen=True):
    """What one device did in its window, and outside of it; why it was idle is not yet known."""

    parts: TimePartition
    window: Spans
    idle: Spans  # idle moments of the whole recording, cut where the window begins and ends
    is_inside: Flags  # whether each of them is in the window


def occupation(device: DeviceRecords, trace: TraceWindow) -> Occupation:
    window = trace.of(device)

    def measure(spans: Spans) -> int:
        return int(overlap(spans, *window).sum())

    def of(chosen: Flags) -> Spans:
        return merge((device.start_ns[chosen], device.end_ns[chosen]))

    by_work = {work: of(device.work == work) for work in WorkKind}
    computing = by_work[WorkKind.COMPUTE]
    in_kernels = merge(computing, by_work[WorkKind.COMMUNICATION])
    busy = merge(in_kernels, by_work[WorkKind.COPY])
    compute_ns, kernels_ns, busy_ns = measure(computing), measure(in_kernels), measure(busy)
    is_unknown = (device.call < 0) & ~device.is_early
    of_steps = of(np.isin(device.step, [*trace.numbers]) | is_unknown) if trace.steps else busy
    # All idle moments of the recording; pieces touch where the window begins or ends in one.
    first, last = np.array([trace.start_ns]), np.array([trace.end_ns])
    gaps = between(Spans(*(np.concatenate((first, edges, last)) for edges in busy)))
    keep = gaps.end_ns > gaps.start_ns
    _, *pieces = cut(gaps.start_ns[keep], gaps.end_ns[keep], np.concatenate(window))
    idle = Spans(*pieces)
    parts = TimePartition(
        trace_id=device.trace_id,
        rank=None,
        device=device.device,
        span_ns=total(window),
        compute_ns=compute_ns,
        exposed_copy_ns=busy_ns - kernels_ns,
        exposed_communication_ns=kernels_ns - compute_ns,
        idle_ns=total(window) - busy_ns,
        copy_ns=measure(by_work[WorkKind.COPY]),
        communication_ns=measure(by_work[WorkKind.COMMUNICATION]),
        window=WindowKind.STEPS if trace.steps else WindowKind.WORK if trace.is_whole else WindowKind.SPAN,
        outside_steps_ns=total(busy) - busy_ns,
        launched_outside_ns=busy_ns - measure(of_steps),
    )
    return Occupation(parts, window, idle, covering(window, idle.start_ns) >= 0)


def device_steps(device: DeviceRecords) -> tuple[DeviceStep, ...]:
    """The busy parts of what was launched in each step, whenever it ran."""
    launched = device.step >= 0
    steps = distinct(device.step[launched])
    rank = np.searchsorted(steps, device.step[launched])
    if not len(steps):
        return ()
    origin = device.start_ns[0]
    reach = int(device.end_ns.max() - origin) + 1
    # Steps are laid one after the other, so that work of different steps never counts as beside each other.
    shift = rank * reach - origin
    start_ns, end_ns = device.start_ns[launched] + shift, device.end_ns[launched] + shift
    work = device.work[launched]
    bounds = np.arange(len(steps) + 1) * reach

    def union_ns(*kinds: WorkKind) -> Int64:
        chosen = np.isin(work, kinds)
        spans = merge((start_ns[chosen], end_ns[chosen]))
        owner = np.searchsorted(bounds, spans.start_ns, side="right") - 1
        return sum_by(owner, spans.end_ns - spans.start_ns, len(steps))

    compute = union_ns(WorkKind.COMPUTE)
    kernels = union_ns(WorkKind.COMPUTE, WorkKind.COMMUNICATION)
    rows = zip(steps, compute, union_ns(*WorkKind) - kernels, kernels - compute, strict=True)
    return tuple(DeviceStep(device.trace_id, device.device, *map(int, row)) for row in rows)


# Code is made, and communicators: once, as patterns of whole names.
_MAKING = (
    r"(?i).*(?:dynamo|inductor|compile_inner|compile_fx|frame_compile"
    r"|backward_compile|autotun|triton.*compil).*|(?:cublas|cudnn|nccl)\w*(?:Create|Init)\w*"
)
# What calls of compiled functions hold: TorchScript, Triton, inductor.
_COMPILED = (
    r"fallback_function|prim::.*|DifferentiableGraph.*|TensorExpr.*|aten::_autocast_to_\w+|triton_.*"
    r"|Torch-Compiled Region.*|(?:## Call )?Compiled(?:Fx|Function).*"
)
_LONG_SILENCE_NS = 10_000_000
# Shorter launches load nothing: they take 3 to 10 µs.
_LONG_LAUNCH_NS = 100_000
_LOADING_NS = 1_000_000  # at least, of a launch that no other step tells of
_LEAST_ONCE = 0.5  # of what the step takes beyond the usual
_COLD = 0.3  # of all that was recorded: what else there is says little of a warm program
# A step that launches much less than the one before does not do the same work, and tells nothing of it.
_SAME_WORK = 0.5
_NAMES = 3
_MANY = 256  # calls of a name
_LEAST_OF_NAME = 0.05  # of the time in all such calls


def find_start_ups(
    session: Session,
    trace_id: int,
    steps: Sequence[Step],
    span_ns: tuple[int, int],
    lead_in_ns: int,
) -> Iterator[StartUp]:
    """The steps of a trace that begin the program, by start; its span is used where there are none."""
    bounds = [(step.start_ns, step.end_ns) for step in steps] or [span_ns]
    durations = [end_ns - start_ns for start_ns, end_ns in bounds]
    if len(steps) < 2:
        number = steps[0].number if steps else None
        ((begin_ns, end_ns),) = bounds
        once = _once(session, trace_id, [*bounds, (begin_ns + lead_in_ns, end_ns)], recurs=False)
        is_cold = lead_in_ns + int(once[0][1]) >= _COLD * durations[0]
        one = StartUp(trace_id, number, durations[0], None, 0, (), is_cold, lead_in_ns)
        yield from _told(once, 0, [], one) or ([one] if is_cold else [])
        return
    of_steps: _Once | None = None
    for place, step in enumerate(steps[:-1]):
        least = _SAME_WORK * step.kernels
        later = [other for other in range(place + 1, len(steps)) if steps[other].kernels >= least]
        usual_ns, limit_ns = usual_and_limit([durations[other] for other in later] or durations)
        if not later or durations[place] <= limit_ns:
            break
        of_steps = of_steps or _once(session, trace_id, bounds, recurs=True)
        one = StartUp(trace_id, step.number, durations[place], round(usual_ns), 0)
        told = _told(of_steps, place, later, one)
        if not told or told[0].once_ns < _LEAST_ONCE * (durations[place] - usual_ns):
            break
        yield from told


def _first_calls(session: Session, trace_id: int) -> Arrays:
    """Silences of the host before first calls of compiled functions, by start: they were compiled then."""
    names = session.known("SELECT DISTINCT name FROM operators WHERE name IS NOT NULL ORDER BY name")
    compiled = [name for (name,) in names if re.fullmatch(_COMPILED, name)]
    if not compiled:  # to plan the query takes longer than all other queries of a start-up
        return dict.fromkeys(("name", "start_ns", "end_ns"), np.empty(0, dtype=np.int64))
    parameters = {"trace": trace_id, "long": _LONG_SILENCE_NS, "compiled": compiled}
    return columns(session, sql(__package__, "timeline:first_calls"), parameters)


def _first_runs(session: Session, trace_id: int, *, with_operators: bool) -> Arrays:
    parameters = {
        "trace": trace_id,
        "with_operators": with_operators,
        "loads": [] if with_operators else names_of(session, CallRole.LOADS),
        "loading": _LOADING_NS if with_operators else _LONG_LAUNCH_NS,
    }
    return columns(session, sql(__package__, "timeline:first_runs"), parameters)


# Time of each interval in what comes once: in all, and by name, where one may lie in another.
_Once = tuple[Int64, dict[str, Int64]]


def _told(once: _Once, place: int, later: list[int], one: StartUp) -> tuple[StartUp, ...]:
    """A step with its time in what comes once, beyond what is usual of others; nothing if that is none."""

    def beyond(ns: Int64) -> int:
        usual = round(median(ns[later])) if later else 0
        return max(0, int(ns[place]) - usual)

    once_ns = beyond(once[0])
    least_ns = max(1, _LEAST_OF_NAME * once_ns)
    named = sorted((-beyond(ns), name) for name, ns in once[1].items() if ns[place])
    names = tuple(name for ns, name in named if -ns >= least_ns)[:_NAMES]
    return (msgspec.structs.replace(one, once_ns=once_ns, names=names),) if once_ns else ()


def _once(session: Session, trace_id: int, bounds: Sequence[tuple[int, int]], *, recurs: bool) -> _Once:
    """What comes once, in each interval; of launches and the recorder, only what steps tell to recur."""
    parameters = {
        "trace": trace_id,
        "calls": names_of(session, *COME_ONCE),
        # The first launch of a kernel loads it.
        "launches": names_of(session, CallRole.LAUNCHES) if recurs else [],
        "long": _LONG_LAUNCH_NS,
        # What was compiled is made when it is called first, and runs in each call.
        "ranges": rf"{_MAKING}|torch-compiled region.*" if recurs else _MAKING,
        "recurs": recurs,
    }
    parts = [columns(session, sql(__package__, "timeline:once"), parameters), _first_calls(session, trace_id)]
    busy = NOTHING
    if not recurs:
        # Where no other step tells, what a call waits for the device is no part of what it does once.
        busy = _busy(session, trace_id)
        parts.append(_first_runs(session, trace_id, with_operators=True))
    found = {key: np.concatenate([part[key] for part in parts]) for key in ("name", "start_ns", "end_ns")}
    starts, ends = (np.array(bound, dtype=np.int64) for bound in zip(*bounds, strict=True))
    spans = {
        str(name): subtract(merge((found["start_ns"][mine], found["end_ns"][mine])), busy)
        for name in sorted(set(found["name"]))
        for mine in [found["name"] == name]
        # What comes all along comes again, of which no other step tells.
        if recurs
        or mine.sum() < _MANY
        or 2 * np.sort(found["start_ns"][mine])[3 * mine.sum() // 4] < starts[0] + ends[-1]
    }
    whole_ns = overlap(merge(*spans.values()), starts, ends)
    return whole_ns, {name: overlap(span, starts, ends) for name, span in spans.items()}
