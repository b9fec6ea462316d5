"""What the timeline says: the values that reports and advice read. All times are integer nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opscope.text_enum import TextEnum

__all__ = [
    "HostTime",
    "IdleCause",
    "IdleGap",
    "LaunchLatency",
    "QueueDepth",
    "StepStatistics",
    "TimePartition",
    "Timeline",
    "WaitingCall",
]


class IdleCause(TextEnum):
    """Why a device waited. A closed set."""

    HOST_LAUNCH = "host_launch"
    SYNCHRONIZATION = "synchronization"
    DATA_LOADING = "data_loading"
    MEMORY_ALLOCATION = "memory_allocation"
    PROFILER_OVERHEAD = "profiler_overhead"
    DEPENDENCY = "dependency"
    NOTHING_SCHEDULED = "nothing_scheduled"
    UNKNOWN = "unknown"

    @property
    def meaning(self) -> str:
        """One phrase for people."""
        return _MEANINGS[self]


_MEANINGS = {
    IdleCause.HOST_LAUNCH: "nothing was queued while the host ran operators: it launches too slowly",
    IdleCause.SYNCHRONIZATION: "the host waited for the device before it launched on",
    IdleCause.DATA_LOADING: "the host waited for the next batch",
    IdleCause.MEMORY_ALLOCATION: "the host was allocating or freeing device memory",
    IdleCause.PROFILER_OVERHEAD: "the recorder was busy with itself",
    IdleCause.DEPENDENCY: "work was queued, and waited for an event, another stream or the launch itself",
    IdleCause.NOTHING_SCHEDULED: "the host ran nothing that was recorded",
    IdleCause.UNKNOWN: "the trace does not tell",
}


@dataclass(frozen=True)
class IdleGap:
    """One gap in which a device did nothing. `host` names the operator, call or frame open longest in it."""

    start_ns: int
    duration_ns: int
    cause: IdleCause
    step: int | None = None
    host: str | None = None
    line: str | None = None


@dataclass(frozen=True)
class TimePartition:
    """The span of one device of one trace, each nanosecond in exactly one part.

    compute + exposed copy + exposed communication + idle = span; Σ idle_by_cause = idle. Compute is time in
    which a kernel that does not communicate ran; a copy is exposed where neither runs beside it.
    """

    trace_id: int
    rank: int | None
    device: int
    span_ns: int
    compute_ns: int
    exposed_copy_ns: int
    exposed_communication_ns: int
    idle_ns: int
    idle_by_cause: Mapping[IdleCause, int] = field(default_factory=dict)
    longest_gaps: tuple[IdleGap, ...] = ()
    copy_ns: int = 0
    communication_ns: int = 0


@dataclass(frozen=True)
class WaitingCall:
    """Calls by which the host waited for the device, of one name and one place.

    `line` is the user's Python line, `file:line function`, where stacks were recorded; `operator` the
    operator it happened in, e.g. `aten::item`. `idle_ns` is device idle time that it caused.
    """

    name: str
    operator: str | None
    line: str | None
    calls: int
    host_ns: int
    idle_ns: int


@dataclass(frozen=True)
class LaunchLatency:
    """Kernel start minus start of its launch call, over all launches of a trace, on one device."""

    trace_id: int
    device: int
    launches: int
    median_ns: int
    p95_ns: int
    negative_count: int


@dataclass(frozen=True)
class QueueDepth:
    """Launched and not yet finished kernels: time-weighted mean, most, and share of the span with none."""

    trace_id: int
    device: int
    mean: float
    maximum: int
    empty_fraction: float


@dataclass(frozen=True)
class StepStatistics:
    """Durations of a trace's steps; outliers lie beyond the quartiles by more than 1.5 times their range."""

    trace_id: int
    count: int
    mean_ns: int
    median_ns: int
    min_ns: int
    max_ns: int
    outliers: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostTime:
    """What the host needs per step to launch what a step launches.

    Attributes:
        steps: Steps it was averaged over; the whole window counts as one where none were recorded.
        step_ns: Mean wall time of a step.
        device_busy_ns: Mean busy time of the device in a step.
        launch_path_ns: Mean time in which the host ran, waits for the device left out: as recorded.
        launches: Mean launches (graph launches count once).
        recorder_ns: The part of `launch_path_ns` that the recording itself is estimated to have added; None
            if unknown. `launch_path_ns - recorder_ns` is what the host needs without a recorder.
        recorder_basis: How that was estimated.
    """

    trace_id: int
    steps: int
    step_ns: float
    device_busy_ns: float
    launch_path_ns: float
    launches: float
    recorder_ns: float | None = None
    recorder_basis: str | None = None


@dataclass(frozen=True)
class Timeline:
    """Everything the timeline of a Session says."""

    partitions: tuple[TimePartition, ...] = ()
    waits: tuple[WaitingCall, ...] = ()
    latencies: tuple[LaunchLatency, ...] = ()
    queues: tuple[QueueDepth, ...] = ()
    steps: tuple[StepStatistics, ...] = ()
    host: tuple[HostTime, ...] = ()
