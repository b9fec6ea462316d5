"""The timeline of a Session: what its devices did at every nanosecond of their spans, and why they waited.

For each device the parts of its span and the causes of its idle time are exact sums. Everything is computed
from the tables; the Session is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from opscope.analysis.timeline.frame_names import read_frame_names
from opscope.analysis.timeline.host import Host, read_hosts
from opscope.analysis.timeline.host_calls import CallRole
from opscope.analysis.timeline.host_time import host_time
from opscope.analysis.timeline.idle import CAUSES, account_for_idle
from opscope.analysis.timeline.longest_gaps import DeviceIdle, longest_gaps
from opscope.analysis.timeline.partition import Occupation, device_steps, occupation
from opscope.analysis.timeline.places import named_ranges, program_functions
from opscope.analysis.timeline.queue import launch_latency, queue_depth, queue_over_time
from opscope.analysis.timeline.records import TraceRecords, read_records
from opscope.analysis.timeline.skew import rank_skews
from opscope.analysis.timeline.steps import Step, read_steps, step_statistics
from opscope.analysis.timeline.values import DeviceStep, HostTime, IdleGap, Timeline, TimePartition
from opscope.analysis.timeline.waits import Places, waiting_calls
from opscope.model.session import Session

__all__ = ["measure_timeline"]

T = TypeVar("T")


@dataclass(frozen=True)
class _DeviceTime:
    """One device of one trace, measured."""

    idle: DeviceIdle
    occupation: Occupation


_SERIES_POINTS = 60  # intervals of what is shown over time


def measure_timeline(session: Session) -> Timeline:
    """The timeline of every device and host of a Session; empty where no activity was recorded."""
    traces = read_records(session)
    names = read_frame_names(session)
    hosts = read_hosts(session, traces, names)
    steps = read_steps(session)
    devices = [
        _measure(trace, number, hosts[trace.trace_id])
        for trace in traces
        for number in range(len(trace.devices))
    ]
    functions = program_functions(session, hosts.values(), names.program)
    places = Places(functions, named_ranges(hosts.values()))
    gaps = longest_gaps(session, [one.idle for one in devices], functions)
    blamed = {trace.trace_id: np.zeros(len(trace.calls), dtype=np.int64) for trace in traces}
    for one in devices:
        trace = one.idle.trace
        blamed[trace.trace_id] += one.idle.account.blamed_ns(len(trace.calls))
    stepped = tuple(step for one in devices for step in device_steps(one.idle.device))
    by_device = [(one.idle.device, one.idle.trace.calls) for one in devices]
    return Timeline(
        partitions=tuple(_partition(one, longest) for one, longest in zip(devices, gaps, strict=True)),
        waits=waiting_calls(session, traces, blamed, places, roles=(CallRole.WAITS,)),
        latencies=_known(launch_latency(*args) for args in by_device),
        queues=_known(queue_depth(*args) for args in by_device),
        steps=_known(step_statistics(trace.trace_id, steps.get(trace.trace_id, ())) for trace in traces),
        host=_hosts(steps, devices, stepped),
        series=tuple(queue_over_time(*args, _SERIES_POINTS) for args in by_device),
        allocations=waiting_calls(
            session, traces, blamed, places, roles=(CallRole.ALLOCATES, CallRole.FREES)
        ),
        device_steps=stepped,
        skews=rank_skews(session, {trace.trace_id: trace.rank for trace in traces}),
    )


def _known(found: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(one for one in found if one is not None)


def _measure(trace: TraceRecords, number: int, host: Host) -> _DeviceTime:
    device = trace.devices[number]
    occupied = occupation(device)
    account = account_for_idle(device, occupied.gaps, trace.calls, host)
    return _DeviceTime(DeviceIdle(trace, host, device, account), occupied)


def _partition(one: _DeviceTime, longest: tuple[IdleGap, ...]) -> TimePartition:
    parts, account = one.occupation, one.idle.account
    by_cause = account.by_cause.sum(axis=1).tolist()
    return TimePartition(
        trace_id=one.idle.trace.trace_id,
        rank=one.idle.trace.rank,
        device=one.idle.device.device,
        span_ns=parts.span_ns,
        compute_ns=parts.compute_ns,
        exposed_copy_ns=parts.exposed_copy_ns,
        exposed_communication_ns=parts.exposed_communication_ns,
        idle_ns=sum(by_cause),
        idle_by_cause={cause: ns for cause, ns in zip(CAUSES, by_cause, strict=True) if ns},
        longest_gaps=longest,
        copy_ns=parts.copy_ns,
        communication_ns=parts.communication_ns,
    )


def _hosts(
    steps: Mapping[int, tuple[Step, ...]], devices: Sequence[_DeviceTime], device_steps: Sequence[DeviceStep]
) -> tuple[HostTime, ...]:
    by_trace: dict[int, list[_DeviceTime]] = {}
    for one in devices:
        by_trace.setdefault(one.idle.trace.trace_id, []).append(one)
    return _known(
        host_time(
            mine[0].idle.trace,
            mine[0].idle.host,
            steps.get(trace_id, ()),
            [step for step in device_steps if step.trace_id == trace_id],
            {one.idle.device.device: one.occupation.busy_ns for one in mine},
        )
        for trace_id, mine in by_trace.items()
    )
