"""The timeline of a Session: what its devices did at every nanosecond of their windows, and why they waited.

For each device the parts of its window and the causes of its idle time are exact sums. Everything is computed
from the tables; the Session is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from msgspec.structs import replace

from opscope.analysis.arrays import Spans, covering, median, merge, overlap, subtract
from opscope.analysis.timeline.host import (
    RECORDED_EVENT_NS,
    Host,
    SessionRecords,
    called_functions,
    named_ranges,
    read_session,
)
from opscope.analysis.timeline.idle import (
    CAUSES,
    DeviceIdle,
    account_for_idle,
    by_place,
    longest_gaps,
    waiting_calls,
)
from opscope.analysis.timeline.records import (
    CallRole,
    DeviceRecords,
    RuntimeCalls,
    TraceRecords,
    blocked_launches,
)
from opscope.analysis.timeline.values import (
    DeviceStep,
    HostTime,
    LaunchLatency,
    QueueDepth,
    RankSkew,
    StepStatistics,
    Timeline,
)
from opscope.analysis.timeline.windows import TraceWindow, device_steps, occupation
from opscope.ingest.linking import gather
from opscope.model.queries import grouped, summed
from opscope.model.session import Session

_UNCERTAINTY = "within a third on that host, a factor of two on others"


def estimate_recorder(
    events: Mapping[str, int], steps: int, *, most_ns: float
) -> tuple[float | None, str | None]:
    """What recording added to each of the steps, `most_ns` at most, and how that is known; None for nothing.

    `events` are how many were recorded in all of them, by kind of `RECORDED_EVENT_NS`.
    """
    parts = [(events[what], what, cost_ns) for what, cost_ns in RECORDED_EVENT_NS.items() if events[what]]
    if not parts or steps < 1:
        return None, None
    estimate_ns = sum(count * cost_ns for count, _, cost_ns in parts) / steps
    text = " + ".join(f"{count / steps:,.0f} {what} × {cost_ns / 1e3:g} µs" for count, what, cost_ns in parts)
    bound = ", bounded by what the step leaves" if estimate_ns > most_ns else ""
    basis = f"{text} per step, as measured on the host of an H200{bound}; {_UNCERTAINTY}"
    return min(estimate_ns, max(most_ns, 0.0)), basis


_EVENTS_AT_ONCE = 1 << 20


def count_host_events(host: Host, window: Spans) -> dict[str, int]:
    """Events of the launching threads that began in a window, by kind."""
    counts = dict.fromkeys(RECORDED_EVENT_NS, 0)
    for thread in host.threads.values():
        for what, start_ns in thread.recorded_ns.items():
            for low in range(0, len(start_ns), _EVENTS_AT_ONCE):
                counts[what] += int((covering(window, start_ns[low : low + _EVENTS_AT_ONCE]) >= 0).sum())
    return counts


def _host_time(
    trace: TraceRecords, host: Host, window: TraceWindow, busy_ns: Mapping[int, int]
) -> HostTime | None:
    """The host time of a trace's step (all that was recorded, without steps); None where no launch was."""
    if not trace.launch_threads:
        return None
    start_ns, end_ns = window.host
    if window.steps:
        start_ns, end_ns = np.array([(step.start_ns, step.end_ns) for step in window.steps], dtype=np.int64).T
    count, wall_ns = len(window.steps) or 1, int((end_ns - start_ns).sum())
    launched = trace.calls.start_ns[trace.calls.is_launch]
    launches = int((covering(merge((start_ns, end_ns)), launched) >= 0).sum())
    in_calls = merge(*((one.calls["start_ns"], one.calls["end_ns"]) for one in host.threads.values()))
    outside_calls_ns = wall_ns - int(overlap(in_calls, start_ns, end_ns).sum())
    recorder_ns, basis = None, None
    if not trace.is_nsys:  # what an event costs was measured of torch's profiler
        recorder_ns, basis = estimate_recorder(
            count_host_events(host, window.host), count, most_ns=outside_calls_ns / count
        )
    # Time of the steps in which a launching thread waits for a device and none of them works. A place in
    # the launch queue is waited for too: what a launch takes beyond the usual where that is full.
    calls = trace.calls
    full, usual_ns = blocked_launches(trace)
    waits, working = [], []
    for thread, events in host.threads.items():
        blocked = (calls.thread_id == thread) & (calls.role == CallRole.WAITS)
        queued = full[calls.thread_id[full] == thread]
        waiting = merge(
            (calls.start_ns[blocked], calls.end_ns[blocked]),
            (calls.start_ns[queued] + usual_ns, calls.end_ns[queued]),
        )
        waits.append(waiting)
        working.append(subtract(events.ran, waiting))
    at_work = merge(*working)
    either = merge(at_work, *waits)
    waited_ns = int((overlap(either, start_ns, end_ns) - overlap(at_work, start_ns, end_ns)).sum())
    return HostTime(
        trace_id=trace.trace_id,
        steps=count,
        step_ns=(wall_ns if window.steps else window.end_ns - window.start_ns) / count,
        device_busy_ns=max(busy_ns.values(), default=0) / count,
        launch_path_ns=(wall_ns - waited_ns) / count,
        launches=launches / count,
        recorder_ns=recorder_ns,
        recorder_basis=basis,
    )


def _launch_latency(device: DeviceRecords, calls: RuntimeCalls) -> LaunchLatency | None:
    """How long kernels wait to begin; None where no launch of a kernel was recorded."""
    launched = device.is_kernel & (device.call >= 0)
    # Activities come by start, so the first of each call is the first kernel of a graph replay.
    call, first = np.unique(device.call[launched], return_index=True)
    latency = np.sort(device.start_ns[launched][first] - calls.start_ns[call])
    count = len(latency)
    if not count:
        return None
    # The least value that at least so many percent of all do not exceed (nearest rank).
    median_ns, p95_ns = (int(latency[-(-count * percent // 100) - 1]) for percent in (50, 95))
    return LaunchLatency(
        device.trace_id, device.device, count, median_ns, p95_ns, negative_count=int((latency < 0).sum())
    )


def _queue_depth(device: DeviceRecords, calls: RuntimeCalls, window: Spans) -> QueueDepth | None:
    """How many activities are queued or running; None where no launch was recorded or the window is empty."""
    edges = np.concatenate((device.start_ns, device.end_ns, *window))
    first, last = int(edges.min()), int(edges.max())
    launched = np.minimum(device.start_ns, gather(calls.start_ns, device.call))
    queued = np.where(device.call >= 0, launched, device.start_ns)
    queued[device.is_early] = first
    queued = np.maximum(queued, first)
    times = np.concatenate((queued, device.end_ns, [first, last]))
    change = np.repeat(np.array([1, -1, 0]), [len(queued), len(queued), 2])
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(change[order])
    is_last = np.append(times[1:] > times[:-1], True)
    moments, depth = (times[is_last], depth[is_last][:-1])
    duration_ns = overlap(window, moments[:-1], moments[1:])
    window_ns = int(duration_ns.sum())
    if not window_ns or not np.any(device.call >= 0):
        return None
    mean = float((depth * duration_ns).sum()) / window_ns
    most, empty = int(depth[duration_ns > 0].max()), int(duration_ns[depth == 0].sum()) / window_ns
    return QueueDepth(device.trace_id, device.device, mean, most, empty)


def _step_statistics(trace_id: int, window: TraceWindow) -> StepStatistics | None:
    """Statistics of a trace's steps, without those that begin the program; None if there are none."""
    steps = window.counted.steps
    if not steps:
        return None
    durations = np.array([step.end_ns - step.start_ns for step in steps], dtype=np.int64)
    outliers: tuple[int, ...] = ()
    # Below this number the quartiles are the values themselves, and none can lie beyond them.
    if len(steps) >= 4:
        low, high = np.quantile(durations.astype(np.float64), (0.25, 0.75))
        # Tukey's fence. Source: J. W. Tukey, Exploratory Data Analysis, 1977
        reach = 1.5 * (high - low)
        beyond = (durations < low - reach) | (durations > high + reach)
        outliers = tuple(steps[place].number for place in np.flatnonzero(beyond).tolist())
    return StepStatistics(
        trace_id=trace_id,
        count=len(steps),
        mean_ns=int(durations.sum()) // len(steps),
        median_ns=int(median(durations)),
        min_ns=int(durations.min()),
        max_ns=int(durations.max()),
        outliers=outliers,
        left_out=len(window.steps) - len(steps),
    )


def measure_timeline(session: Session, records: SessionRecords, skews: tuple[RankSkew, ...] = ()) -> Timeline:
    """The timeline of every device and host of a Session; empty where no activity was recorded."""
    traces, windows, hosts = records.traces, records.windows, records.hosts
    devices = []
    for trace in traces:
        for device in trace.devices:
            window, host = windows[trace.trace_id], hosts[trace.trace_id]
            occupied = occupation(device, window)
            account = account_for_idle(device, occupied.idle, trace.calls, host).part(occupied.is_inside)
            account = account if occupied.parts.busy_ns else account.unused()
            devices.append(DeviceIdle(trace, window, host, device, occupied, account))
    threads = [thread for host in hosts.values() for thread in host.threads]
    functions, annotations = called_functions(session, threads), named_ranges(session, threads)
    names, partitions = dict(session.known("SELECT name_id, name FROM kernel_names")), []
    for one in devices:
        by_cause = one.account.by_cause.sum(axis=1).tolist()
        partitions.append(
            replace(
                one.occupation.parts,
                rank=one.trace.rank,
                idle_ns=sum(by_cause),
                idle_by_cause={cause: ns for cause, ns in zip(CAUSES, by_cause, strict=True) if ns},
                longest_gaps=tuple(longest_gaps(session, one, functions, names)),
            )
        )
    blamed = {trace.trace_id: np.zeros(len(trace.calls), dtype=np.int64) for trace in traces}
    for one in devices:
        blamed[one.trace.trace_id] += one.account.blamed_ns(len(one.trace.calls))
    stepped = tuple(
        step for one in devices for step in device_steps(one.device) if step.step in one.window.numbers
    )
    by_device = [(one.device, one.trace.calls, one.occupation.window) for one in devices]
    return Timeline(
        partitions=tuple(partitions),
        waits=waiting_calls(session, traces, windows, blamed, functions, annotations),
        latencies=tuple(filter(None, (_launch_latency(device, calls) for device, calls, _ in by_device))),
        queues=tuple(filter(None, (_queue_depth(*args) for args in by_device))),
        steps=tuple(filter(None, (_step_statistics(*item) for item in windows.items()))),
        host=tuple(filter(None, _hosts(devices, stepped))),
        skews=skews,
        device_steps=stepped,
        start_ups=tuple(one for window in windows.values() for one in window.start_ups),
    )


def measure_each(session: Session) -> dict[int, Timeline]:
    """The timeline of each trace alone."""
    each = read_session(session).of_each()
    return {one.traces[0].trace_id: measure_timeline(session, one) for one in each}


def join_timelines(timelines: Sequence[Timeline], skews: tuple[RankSkew, ...]) -> Timeline:
    """The timeline of a Session, of those of its traces: what `measure_timeline` would find."""
    parts = {
        name: tuple(chain.from_iterable(getattr(one, name) for one in timelines))
        for name in Timeline.__struct_fields__
    }
    return Timeline(**{**parts, "waits": by_place(parts["waits"]), "skews": skews})


def _hosts(devices: Sequence[DeviceIdle], device_steps: Sequence[DeviceStep]) -> Iterator[HostTime | None]:
    for trace_id, mine in grouped((one.trace.trace_id, one) for one in devices).items():
        window = mine[0].window.counted
        busy_ns = {one.device.device: one.occupation.parts.busy_ns for one in mine}
        if window.steps:
            busy_ns = summed(
                (step.device, step.busy_ns)
                for step in device_steps
                if step.trace_id == trace_id and step.step in window.numbers
            )
        yield _host_time(mine[0].trace, mine[0].host, window, busy_ns)
