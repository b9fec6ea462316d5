"""What the timeline says: the values that reports and advice read. All times are integer nanoseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from opscope.model.queries import summed
from opscope.text_enum import MeaningEnum, TextEnum


class WindowKind(TextEnum):
    """The time that figures are of: the recorded steps, or where there are none everything recorded.

    Of a whole process that is from the device's first work to its last.
    """

    STEPS = "steps"
    SPAN = "span"
    WORK = "work"


class IdleCause(MeaningEnum):
    """Why a device waited. A closed set."""

    HOST_LAUNCH = "host_launch", "the GPU ran out of queued kernels"
    SYNCHRONIZATION = "synchronization", "the host waited for the device before it launched on"
    DATA_LOADING = "data_loading", "the host waited for the next batch"
    MEMORY_ALLOCATION = "memory_allocation", "the host was allocating or freeing memory"
    PROFILER_OVERHEAD = "profiler_overhead", "the profiler itself was busy"
    DEPENDENCY = "dependency", "queued work waited for an event, another stream or its launch"
    NOTHING_SCHEDULED = (
        "nothing_scheduled",
        "the host ran nothing that was recorded, or had no work for this device",
    )
    UNKNOWN = "unknown", "the trace does not tell"


class IdleGap(msgspec.Struct, frozen=True):
    """One gap in which a device did nothing, by the cause of most of it."""

    start_ns: int
    duration_ns: int
    cause: IdleCause
    step: int | None = None  # the step that launched what ended it; else the one it begins in
    host: str | None = None  # operator, call or frame that the launching thread was in for most of the gap
    # The program's own Python function around it, `file:line function` (the line it begins at), where stacks
    # were recorded
    line: str | None = None
    ended_by: str | None = None  # name of the activity that ended it; None if the window did


class TimePartition(msgspec.Struct, frozen=True):
    """The window of one device of one trace, each nanosecond in exactly one part.

    compute + exposed copy + exposed communication + idle = span; Σ idle_by_cause = idle. Compute is time in
    which a kernel that does not communicate ran; a copy is exposed where neither runs beside it.
    """

    trace_id: int
    rank: int | None
    device: int
    span_ns: int  # length of the window
    compute_ns: int
    exposed_copy_ns: int
    exposed_communication_ns: int
    idle_ns: int
    idle_by_cause: Mapping[IdleCause, int] = msgspec.field(default_factory=dict)
    longest_gaps: tuple[IdleGap, ...] = ()
    copy_ns: int = 0
    communication_ns: int = 0
    # What it is. The steps' window ends with the work that steps launched, where that ends later.
    window: WindowKind = WindowKind.SPAN
    # Busy time outside of the steps' window; with the three parts, all of the device's
    outside_steps_ns: int = 0
    # Part of the busy time in the steps' window: what ran was all launched outside of steps, most often
    # before the first. What has no recorded launch is not counted.
    launched_outside_ns: int = 0

    @property
    def busy_ns(self) -> int:
        return self.span_ns - self.idle_ns

    @property
    def own_ns(self) -> int:
        """The window without the time in which what ran was launched outside of its steps."""
        return self.span_ns - self.launched_outside_ns


class DeviceStep(msgspec.Struct, frozen=True):
    """The parts of a device's busy time, of what one step launched on it, whenever it ran."""

    trace_id: int
    device: int
    step: int
    compute_ns: int
    exposed_copy_ns: int
    exposed_communication_ns: int

    @property
    def busy_ns(self) -> int:
        return self.compute_ns + self.exposed_copy_ns + self.exposed_communication_ns


class WaitingCall(msgspec.Struct, frozen=True):
    """Calls in the steps by which the host waited for the device, of one name and one place.

    Without steps, all calls. A call outside of steps is there too if idle time of their window is its fault.
    """

    name: str  # runtime call, e.g. `cudaStreamSynchronize`.
    # What the program called, e.g. `aten::item`: the outermost ATen operator around it, else the innermost
    # operator, else the innermost named range, e.g. `DistributedDataParallel.forward`.
    operator: str | None
    # The program's own Python function around it, `file:line function` (the line it begins at), where stacks
    # were recorded
    line: str | None
    calls: int
    host_ns: int  # time the host spent in the calls
    # Idle time of devices that the calls are blamed for: inside them, and after them as far as the host had
    # lost that time in them
    idle_ns: int
    copy: str | None = None  # name of the copy by which it waits, e.g. `Memcpy HtoD (Pageable -> Device)`.
    size_bytes: int | None = None  # what those copies moved
    call_ids: tuple[int, ...] = ()  # the runtime calls


class LaunchLatency(msgspec.Struct, frozen=True):
    """Kernel start minus start of its launch call, over all launches of a trace, on one device.

    A graph replay counts once, by its first kernel. `negative_count` of them begin before their launch, which
    cannot be: clocks of host and device disagree.
    """

    trace_id: int
    device: int
    launches: int
    median_ns: int
    p95_ns: int
    negative_count: int


class QueueDepth(msgspec.Struct, frozen=True):
    """Launched and not yet finished activities: time-weighted mean, most, and share of the window with none.

    From the start of the launch call; where that was not recorded, from the start of the activity, or of the
    window if it was launched before the recording began.
    """

    trace_id: int
    device: int
    mean: float
    maximum: int
    empty_fraction: float


class StepStatistics(msgspec.Struct, frozen=True):
    """Durations of a trace's steps.

    `outliers` are the numbers of steps whose duration lies beyond the quartiles by more than 1.5 times the
    distance between them (Tukey); of fewer than four steps none is told. `left_out` is how many steps that
    begin the program are in none of these figures.
    """

    trace_id: int
    count: int
    mean_ns: int
    median_ns: int
    min_ns: int
    max_ns: int
    outliers: tuple[int, ...] = ()
    left_out: int = 0


class StartUp(msgspec.Struct, frozen=True):
    """A step that begins the program, for the calls and ranges in it that come once: see `windows.py`."""

    trace_id: int
    step: int | None  # its number; None of a recording without steps
    duration_ns: int
    # Median of the steps after it; None where there are none, so that nothing tells what recurs
    usual_ns: int | None
    once_ns: int  # its time in what comes once, beyond what the steps after it have of that
    names: tuple[str, ...] = ()  # what took most of it, the longest first
    # No other step tells what recurs, and much of the time is in such calls, or before the device does much.
    is_cold: bool = False
    lead_in_ns: int = 0  # before that, of a recording without steps

    @property
    def is_left_out(self) -> bool:
        return self.usual_ns is not None


class HostTime(msgspec.Struct, frozen=True):
    """What the host needs per step to launch what a step launches."""

    trace_id: int
    steps: int  # steps it was averaged over; everything recorded counts as one where there are none
    step_ns: float  # mean wall time of a step
    device_busy_ns: float  # mean busy time of the device in a step
    launch_path_ns: float  # mean time in which the host ran, waits for the device left out: as recorded
    launches: float  # mean launches (graph launches count once)
    # The part of `launch_path_ns` that the recording itself is estimated to have added; None if unknown.
    # `launch_path_ns - recorder_ns` is what the host needs without a recorder.
    recorder_ns: float | None = None
    recorder_basis: str | None = None  # how that was estimated


class SkewEvidence(TextEnum):
    SEQUENCE = "sequence"
    ORDER = "order"


class RankSkew(msgspec.Struct, frozen=True):
    """How one rank arrived at the collectives that all ranks took part in.

    A rank that arrives early waits in the collective's kernel, so the last to arrive has the shortest one. A
    wait is what a kernel takes longer than the shortest of the same collective; no clocks are compared.
    """

    trace_id: int
    rank: int | None
    collectives: int  # collectives matched across ranks; of traces with steps, those launched in steps
    last_count: int  # of those, how often it was the last to arrive
    waiting_ns: int  # time its kernels waited for others
    awaited_ns: int  # time the kernels of the others waited for it, summed over the other ranks
    evidence: SkewEvidence  # how the collectives were matched


def trace_name(rank: int | None, trace_id: int) -> str:
    """`rank 3`; of a recording that tells none, `trace 1`."""
    return f"trace {trace_id}" if rank is None else f"rank {rank}"


class Timeline(msgspec.Struct, frozen=True):
    """Everything the timeline of a Session says.

    `waits` are blamed for all idle time of cause SYNCHRONIZATION. `skews` are empty unless
    several ranks are in the Session. `steps` and `host` are of the steps that count for a mean one: those of
    `start_ups` are left out; the other parts are of all.
    """

    partitions: tuple[TimePartition, ...] = ()
    waits: tuple[WaitingCall, ...] = ()
    latencies: tuple[LaunchLatency, ...] = ()
    queues: tuple[QueueDepth, ...] = ()
    steps: tuple[StepStatistics, ...] = ()
    host: tuple[HostTime, ...] = ()
    skews: tuple[RankSkew, ...] = ()
    device_steps: tuple[DeviceStep, ...] = ()
    start_ups: tuple[StartUp, ...] = ()

    def moved(self, ids: Mapping[str, int]) -> Timeline:
        """The same in a Session where ids are larger by this, by table."""
        parts = {
            name: tuple(
                msgspec.structs.replace(one, trace_id=one.trace_id + ids["traces"])
                for one in getattr(self, name)
            )
            for name in self.__struct_fields__
            if name != "waits"
        }
        waits = (
            msgspec.structs.replace(
                one, call_ids=tuple(call_id + ids["runtime_calls"] for call_id in one.call_ids)
            )
            for one in self.waits
        )
        return Timeline(waits=tuple(waits), **parts)

    @property
    def exposed_ns(self) -> Counter[int]:
        """Communication that no other kernel hid, by trace; where there are steps, what they launched."""
        parts: list[DeviceStep | TimePartition] = [*self.device_steps]
        parts += [one for one in self.partitions if one.window is not WindowKind.STEPS]
        return summed((one.trace_id, one.exposed_communication_ns) for one in parts)

    @property
    def left_out(self) -> frozenset[tuple[int, int | None]]:
        """Trace and number of the steps that are no part of a mean step."""
        return frozenset((one.trace_id, one.step) for one in self.start_ups if one.is_left_out)

    @property
    def in_use(self) -> tuple[TimePartition, ...]:
        """The devices that did anything in their windows; all of them if none did.

        A device that a program only touches, outside of its steps, is not one that its steps leave idle.
        """
        return tuple(one for one in self.partitions if one.busy_ns) or self.partitions
