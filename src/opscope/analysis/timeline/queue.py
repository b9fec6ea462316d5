"""Launches on their way: how long they take to start, and how many are queued or running at a time."""

from __future__ import annotations

import numpy as np

from opscope.analysis.timeline.records import Calls, DeviceRecords, read_records
from opscope.analysis.timeline.values import LaunchLatency, QueueDepth, QueueSeries
from opscope.attribution.nesting import Int64
from opscope.errors import InputError
from opscope.model.session import Session

__all__ = ["launch_latency", "queue_depth", "queue_over_time", "queue_series"]


def launch_latency(device: DeviceRecords, calls: Calls) -> LaunchLatency | None:
    """How long kernels wait to begin; None where no launch of a kernel was recorded."""
    _, latency = _latencies(device, calls)
    if not len(latency):
        return None
    latency = np.sort(latency)
    return LaunchLatency(
        trace_id=device.trace_id,
        device=device.device,
        launches=len(latency),
        median_ns=_quantile(latency, 50),
        p95_ns=_quantile(latency, 95),
        negative_count=int((latency < 0).sum()),
    )


def _latencies(device: DeviceRecords, calls: Calls) -> tuple[Int64, Int64]:
    """Starts of launched kernels, and how long each had waited; of a graph replay its first kernel's."""
    launched = device.is_kernel & (device.call >= 0)
    # Activities come by start, so the first of each call is the first kernel of a graph replay.
    call, first = np.unique(device.call[launched], return_index=True)
    starts = device.start_ns[launched][first]
    return starts, starts - calls.start_ns[call]


def _quantile(ascending: Int64, percent: int) -> int:
    """The least value that at least `percent` of all do not exceed (nearest rank)."""
    return int(ascending[-(-len(ascending) * percent // 100) - 1])


def queue_depth(device: DeviceRecords, calls: Calls) -> QueueDepth | None:
    """How many activities are queued or running; None where no launch was recorded or the span is empty."""
    moments, depth = _depths(device, calls)
    if not len(moments) or not np.any(device.call >= 0):
        return None
    durations = np.diff(moments)
    span_ns = int(moments[-1] - moments[0])
    return QueueDepth(
        trace_id=device.trace_id,
        device=device.device,
        mean=float((depth * durations).sum()) / span_ns,
        maximum=int(depth[durations > 0].max()),
        empty_fraction=int(durations[depth == 0].sum()) / span_ns,
    )


def queue_series(session: Session, trace_id: int, device: int, *, points: int = 500) -> QueueSeries:
    """The depth of a queue over time, for plotting: its mean in each of `points` equal intervals.

    Raises:
        InputError: The Session has no launches on such a device.
    """
    for trace in read_records(session):
        for records in trace.devices if trace.trace_id == trace_id else ():
            if records.device == device:
                return queue_over_time(records, trace.calls, points)
    raise InputError(
        f"no activities of device {device} in trace {trace_id}", hint="Table `devices` lists what there is"
    )


def queue_over_time(device: DeviceRecords, calls: Calls, points: int) -> QueueSeries:
    """Depth and launch latency in each of `points` equal intervals; none of an empty span."""
    moments, depth = _depths(device, calls)
    if not len(moments):
        return QueueSeries(device.trace_id, device.device, int(device.start_ns[0]), 0.0, ())
    area = np.concatenate(([0], np.cumsum(depth * np.diff(moments))))
    span_ns = int(moments[-1] - moments[0])
    # Relative to the start, times are exact in float64.
    edges = np.linspace(0, span_ns, points + 1)
    mean = np.diff(np.interp(edges, moments - moments[0], area)) / (span_ns / points)
    starts, latency = _latencies(device, calls)
    interval = np.minimum((starts - moments[0]) / span_ns * points, points - 1).astype(np.int64)
    medians = [
        float(np.median(of_one)) if len(of_one := latency[interval == number]) else None
        for number in range(points)
    ]
    return QueueSeries(
        device.trace_id,
        device.device,
        int(moments[0]),
        span_ns / points,
        tuple(mean.tolist()),
        tuple(medians),
    )


def _depths(device: DeviceRecords, calls: Calls) -> tuple[Int64, Int64]:
    """Moments from the start of the span to its end, and the depth from each to the next."""
    first, last = int(device.start_ns[0]), int(device.end_ns.max())
    if last == first:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    queued = device.start_ns.copy()
    known = device.call >= 0
    queued[known] = np.minimum(queued[known], calls.start_ns[device.call[known]])
    queued[device.is_early] = first
    queued = np.maximum(queued, first)
    times = np.concatenate((queued, device.end_ns, [first, last]))
    change = np.concatenate(
        (np.ones(len(queued), dtype=np.int64), -np.ones(len(queued), dtype=np.int64), [0, 0])
    )
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(change[order])
    is_last = np.append(times[1:] > times[:-1], True)
    return times[is_last], depth[is_last][:-1]
