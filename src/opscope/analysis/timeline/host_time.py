"""What the host needs per step to launch what a step launches, waits for the device left out.

The launching threads take turns (the autograd thread works while the main thread waits for it), so their work
is one path: a step's wall time less the moments in which one of them waits for the device and none works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opscope.analysis.timeline.host import Host
from opscope.analysis.timeline.measure import Step
from opscope.analysis.timeline.records import CallRole, TraceRecords
from opscope.analysis.timeline.spans import NOTHING, Spans, merge, overlap, subtract
from opscope.analysis.timeline.values import DeviceStep, HostTime
from opscope.attribution.nesting import Int64

__all__ = [
    "CALL_NS",
    "FRAME_NS",
    "OPERATOR_NS",
    "SHAPED_OPERATOR_NS",
    "HostEvents",
    "RecorderEstimate",
    "count_host_events",
    "estimate_recorder",
    "host_time",
]


# A kernel launch in a loop of 100,001, recorded by CUPTI: 324 ms for 250 ms without it.
CALL_NS = 740
# What is left per operator with shapes: GPT-2 generating, 120 ms for 84 ms with 16,260 operators and 4,970
# calls, gives 1,990; BERT's forward, 6.2 ms of host time for 3.1 ms with 1,147 operators and 171 calls, gives
# 2,600.
SHAPED_OPERATOR_NS = 2100
# With them, training steps of an encoder and of convolutions come out 12 to 15 % too high, an encoder's
# forward 54 %, views that launch nothing 84 % (`benchmarks/results/h200_recorder_cost.json`): programs that
# run much else between their operators pay more for each. Without shapes: 11 % too low to exact.
OPERATOR_NS = 1200
# Those steps took 0.49 to 0.52 µs more per frame with stacks; loops that do nothing but call, 0.23 to 0.26.
FRAME_NS = 500
_UNCERTAINTY = "within a third on that host, a factor of two on others"


@dataclass(frozen=True)
class HostEvents:
    """Host events recorded on the launching threads of a trace, in all of its steps together."""

    shaped_operators: int = 0
    operators: int = 0
    calls: int = 0
    frames: int = 0


@dataclass(frozen=True)
class RecorderEstimate:
    """Time that the recording added to a step, and how it was estimated."""

    ns: float
    basis: str


def estimate_recorder(events: HostEvents, steps: int, *, most_ns: float) -> RecorderEstimate | None:
    """What recording added to each of the steps; None if nothing was recorded.

    Args:
        events: What was recorded in them.
        steps: How many there are.
        most_ns: What it cannot exceed.
    """
    terms = (
        (events.shaped_operators, "operators with shapes", SHAPED_OPERATOR_NS),
        (events.operators, "operators", OPERATOR_NS),
        (events.calls, "runtime calls", CALL_NS),
        (events.frames, "Python frames", FRAME_NS),
    )
    parts = [term for term in terms if term[0]]
    if not parts or steps < 1:
        return None
    estimate_ns = sum(count * cost_ns for count, _, cost_ns in parts) / steps
    text = " + ".join(f"{count / steps:,.0f} {what} × {cost_ns / 1e3:g} µs" for count, what, cost_ns in parts)
    bound = ", bounded by what the step leaves" if estimate_ns > most_ns else ""
    return RecorderEstimate(
        min(estimate_ns, max(most_ns, 0.0)),
        f"{text} per step, as measured on the host of an H200{bound}; {_UNCERTAINTY}",
    )


def count_host_events(host: Host, start_ns: int, end_ns: int) -> HostEvents:
    """Events of the launching threads that began in `[start_ns, end_ns)`."""
    counts = np.zeros(4, dtype=np.int64)
    for thread in host.threads.values():
        began = thread.operators["start_ns"]
        inside = (began >= start_ns) & (began < end_ns)
        shaped = int(thread.operators["has_shapes"][inside].sum())
        counts += (shaped, int(inside.sum()) - shaped, 0, 0)
        for column, events in ((2, thread.calls), (3, thread.frames)):
            counts[column] += ((events["start_ns"] >= start_ns) & (events["start_ns"] < end_ns)).sum()
    return HostEvents(*counts.tolist())


# A driver accepts some 1024 launches ahead of the device and then lets the host wait in the launch call: a
# trace of a busy V100 has 1012 to 1022 unfinished ones at each of its 700 launches that took longer than 0.1
# ms.
_FULL_QUEUE = 1000


def host_time(
    trace: TraceRecords,
    host: Host,
    steps: Sequence[Step],
    device_steps: Sequence[DeviceStep],
    busy_ns: Mapping[int, int],
) -> HostTime | None:
    """The host time of a trace's step; None where no launch was recorded.

    Args:
        trace: The trace.
        host: What its launching threads did.
        steps: Its steps; where there are none, all that was recorded counts as one.
        device_steps: What they launched.
        busy_ns: Busy time by device.
    """
    if not trace.launch_threads:
        return None
    window = _window(trace, steps)
    bounds = [(start_ns, end_ns) for _, start_ns, end_ns in steps] or [window]
    start_ns, end_ns = (np.array(edge, dtype=np.int64) for edge in zip(*bounds, strict=True))
    wall_ns = int((end_ns - start_ns).sum())
    waited_ns = _waited(trace, host, start_ns, end_ns)
    launched = trace.calls.start_ns[trace.calls.is_launch]
    slot = np.searchsorted(start_ns, launched, side="right") - 1
    launches = int(((slot >= 0) & (launched < end_ns[slot])).sum())
    count = len(bounds)
    in_calls = merge(
        *((thread.calls["start_ns"], thread.calls["end_ns"]) for thread in host.threads.values())
    )
    outside_calls_ns = wall_ns - int(overlap(in_calls, start_ns, end_ns).sum())
    recorder = None
    if not trace.is_nsys:  # what an event costs was measured of torch's profiler
        recorder = estimate_recorder(
            count_host_events(host, *window), count, most_ns=outside_calls_ns / count
        )
    return HostTime(
        trace_id=trace.trace_id,
        steps=count,
        step_ns=wall_ns / count,
        device_busy_ns=_busiest(device_steps, busy_ns, has_steps=bool(steps)) / count,
        launch_path_ns=(wall_ns - waited_ns) / count,
        launches=launches / count,
        recorder_ns=None if recorder is None else recorder.ns,
        recorder_basis=None if recorder is None else recorder.basis,
    )


def _window(trace: TraceRecords, steps: Sequence[Step]) -> tuple[int, int]:
    """From the first step's start to the last one's end; all that was recorded, if there are no steps."""
    if steps:
        return steps[0][1], max(end_ns for _, _, end_ns in steps)
    starts = [int(trace.calls.start_ns.min()), *(int(device.start_ns[0]) for device in trace.devices)]
    ends = [int(trace.calls.end_ns.max()), *(int(device.end_ns.max()) for device in trace.devices)]
    return min(starts), max(ends)


def _busiest(device_steps: Sequence[DeviceStep], busy_ns: Mapping[int, int], *, has_steps: bool) -> int:
    """Busy time of the busiest device, of all steps together."""
    if not has_steps:
        return max(busy_ns.values(), default=0)
    by_device: dict[int, int] = {}
    for one in device_steps:
        by_device[one.device] = by_device.get(one.device, 0) + one.busy_ns
    return max(by_device.values(), default=0)


def _waited(trace: TraceRecords, host: Host, start_ns: Int64, end_ns: Int64) -> int:
    """Time of the steps in which a launching thread waits for a device and none of them works."""
    calls = trace.calls
    queue_full = _waits_for_queue(trace)
    waits, working = [], []
    for thread, events in host.threads.items():
        blocked = (calls.thread_id == thread) & (calls.role == CallRole.WAITS)
        waiting = merge((calls.start_ns[blocked], calls.end_ns[blocked]), queue_full.get(thread, NOTHING))
        waits.append(waiting)
        working.append(subtract(events.ran, waiting))
    at_work = merge(*working)
    either = merge(at_work, *waits)
    return int((overlap(either, start_ns, end_ns) - overlap(at_work, start_ns, end_ns)).sum())


def _waits_for_queue(trace: TraceRecords) -> dict[int, Spans]:
    """Waits for a place in the launch queue, by thread: what a launch then takes beyond the usual."""
    calls = trace.calls
    launches = np.flatnonzero(calls.is_launch & ~calls.is_graph)
    if not len(launches):
        return {}
    finished = np.full(len(calls), -1, dtype=np.int64)
    for device in trace.devices:
        known = device.call >= 0
        np.maximum.at(finished, device.call[known], device.end_ns[known])
    start_ns, end_ns = calls.start_ns[launches], calls.end_ns[launches]
    queued = np.searchsorted(np.sort(start_ns), start_ns) - np.searchsorted(
        np.sort(finished[launches]), start_ns
    )
    usual_ns = int(np.median(end_ns - start_ns))
    waits = (queued >= _FULL_QUEUE) & (end_ns - start_ns > 2 * usual_ns)
    thread = calls.thread_id[launches]
    return {
        one: merge((start_ns[waits & (thread == one)] + usual_ns, end_ns[waits & (thread == one)]))
        for one in trace.launch_threads
    }
