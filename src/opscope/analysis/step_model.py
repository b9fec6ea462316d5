"""The steps of a Session as execution graphs: how long one takes without the profiler, and after a change.

A gain is the difference of two simulations of the same steps, both without what the recorder added to the
host. How much that was is known where steps were timed without it, else estimated from the events it wrote;
both and the error of what the change makes of kernels give the gain its interval.

A recording may lack correlation ids, the host's side, events, clocks that agree. It still simulates as
itself, each activity coming when it was recorded; but a gain is withheld where too many activities have no
edge that explains when they began, where too much of the step, as recorded or changed, is time that no edge
explains, or where the recording says that events are lost. A launch explains an activity that begins until
its call returns: the first call of a kernel loads its module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.arrays import Flags, Spans, columns, merge, overlap
from opscope.analysis.execution_graph import (
    NEVER_NS,
    TOLERANCE_NS,
    CriticalPath,
    Edge,
    ExecutionGraph,
    Ints,
    NodeKind,
    StepsWindow,
    Sync,
    build_graph,
    critical_path,
    simulate,
)
from opscope.analysis.measured_step import UnrecordedTime, measured_steps
from opscope.analysis.timeline.host import SessionRecords
from opscope.analysis.timeline.records import TraceRecords
from opscope.ingest.linking import gather, look_up
from opscope.ingest.nesting import Int64
from opscope.model.queries import grouped, sql
from opscope.model.session import Session, registered
from opscope.text_enum import MeaningEnum
from opscope.units import format_fraction

Float64 = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class HostSpeed(NamedTuple):
    """One way the host may have run without the profiler."""

    recorder: float  # how much of what recording is estimated to add is taken away
    share: float = 1.0  # what is left of the rest of the host's time near its launches
    work: float = 1.0  # what is left of its other time


# Where steps were not timed: as likely as not, less and more of what recording is estimated to cost. The
# estimate was made on the host of an H200, where it is within a third; on the host of an H100, five programs
# that the host held up lost 1.6 to 2.5 times as much, and one 0.9.
_UNTIMED = (HostSpeed(1.3), HostSpeed(0.7), HostSpeed(2.5))
# Of a step that was timed, what it takes with a host much faster than any.
_DEVICE_DECIDES = 0.95
# From one launch of an eager program to the next there are 10 to 75 µs. What takes longer is work of the
# program's own (random numbers, decoding, NumPy), which has no events that recording could slow.
_NEAR_LAUNCH_NS = 200_000
_LEAST_SHARE, _MOST_SHARE = 0.5, 2.0


class Gain(msgspec.Struct, frozen=True):
    """What a step gets shorter by a change, and the interval in which that lies."""

    ns: float
    low_ns: float
    high_ns: float


def strengths(error: float) -> tuple[float, ...]:
    """How much of a change may come true: the likely share first, then the ends."""
    return (1.0, 1.0 - error, 1.0 + error) if error else (1.0,)


class PathTotal(msgspec.Struct, frozen=True):
    """What a mean step's critical path holds of one kind and name."""

    # `kernel`, `communication`, `copy`, `host`, `launch latency`, `kernel gap`, `wait`, `stream event` or
    # `hand-over`
    kind: str
    name: str | None  # kernel; of host time, the operator that is launched at its end
    ns: float
    fraction: float


class PathPiece(NamedTuple):
    """A stretch of the critical path: kind and name as in `PathTotal`, when it began, how long it took."""

    kind: str
    name: str | None
    start_ns: int
    ns: int


_BALANCED = 0.05  # of the longer side: no nearer is what simulations of the two are worth
IN_TURNS = 1.25  # times the longer side: much of the step, one side waits for the other


class StepBound(MeaningEnum):
    """Which side decides how long a step takes."""

    DEVICE = "device", "GPU-bound"
    HOST = "host", "CPU-bound"
    BALANCE = "balance", "in balance"
    TURNS = "turns", "CPU and GPU wait for each other"


class StepExecution(msgspec.Struct, frozen=True):
    """The simulated step of one trace; times are of a mean step, in nanoseconds."""

    trace_id: int
    recorded_ns: float  # as recorded, in a row with others
    step_ns: float  # without what the recorder added to the host
    step_interval_ns: tuple[float, float]  # the same at least and at most, by how much that may have been
    host_ns: float  # what the host alone needs for that
    device_ns: float  # what the device alone needs
    recorded_error: float  # share of the recorded step that no known edge of the graph explains
    # How far the simulated step is off steps that were timed without the profiler; None if none were
    unrecorded_error: float | None
    # Nodes that come later than what they are known to depend on explains, and edges that would run backward
    # in time because clocks disagree
    missing_edges: int
    # What the step could not have gone faster without, the largest first: the step without the recorder where
    # such were timed, else the recorded one
    critical_path: tuple[PathTotal, ...]
    # Why no change is simulated, in words; None where enough is known of what ties the events
    missing: str | None = None

    @property
    def bound(self) -> StepBound:
        """Which side decides how long the step takes: neither, where both need about as long, or wait."""
        if self.step_ns > IN_TURNS * max(self.host_ns, self.device_ns):
            return StepBound.TURNS
        # A device that fills the recorded step is not held up, however long the host takes to hand it work.
        is_free = self.device_ns < (1 - _BALANCED) * self.recorded_ns
        if is_free and abs(self.host_ns - self.device_ns) <= _BALANCED * max(self.host_ns, self.device_ns):
            return StepBound.BALANCE
        return StepBound.HOST if is_free and self.host_ns > self.device_ns else StepBound.DEVICE


class GraphChange:
    """What a change makes of one trace's steps, told by operators, distinct calls, kernels or calls.

    Methods return the change itself. Ids of other traces are passed over.
    """

    def __init__(self, model: StepModel) -> None:
        count = len(model.graph)
        self.model = model
        self.duration_scale: Float64 = np.ones(count)
        self.host_scale: Float64 = np.ones(count)
        self.host_added_ns: Float64 = np.zeros(count)
        self.is_dropped = np.zeros(count, dtype=np.bool_)
        self.is_free = np.zeros(count, dtype=np.bool_)
        self.hand_over_scale = 1.0
        self.least_ns = 0.0

    def __and__(self, other: GraphChange) -> GraphChange:
        both = GraphChange(self.model)
        # What both make shorter is as short as the stronger makes it; what stands for others stays longer.
        mine, others = self.duration_scale, other.duration_scale
        both.duration_scale = np.where(np.maximum(mine, others) > 1, mine * others, np.minimum(mine, others))
        both.host_scale = np.minimum(self.host_scale, other.host_scale)
        both.host_added_ns = self.host_added_ns + other.host_added_ns
        both.is_dropped = self.is_dropped | other.is_dropped
        both.is_free = self.is_free | other.is_free
        both.hand_over_scale = min(self.hand_over_scale, other.hand_over_scale)
        both.least_ns = max(self.least_ns, other.least_ns)
        return both

    def scale(self, nodes: Flags | Sequence[int], factor: float) -> GraphChange:
        self.duration_scale[nodes] *= factor
        return self

    def scale_calls(self, factors: dict[int, float]) -> GraphChange:
        """Device time of distinct calls, by call id, times a factor."""
        calls, place = np.unique(self.model.call_of_node, return_inverse=True)
        self.duration_scale *= np.array([factors.get(one, 1.0) for one in calls.tolist()])[place]
        return self

    def drop(self, nodes: Flags) -> GraphChange:
        self.is_dropped |= nodes
        return self

    def drop_operators(self, operator_ids: Sequence[int]) -> GraphChange:
        """Operators that are no longer called: what they launched, and their time on the host."""
        return self.drop(self.model.is_launched_by(operator_ids)).drop_host_of(operator_ids)

    def merge_operators(self, operator_ids: Iterable[int], factor: float) -> GraphChange:
        """What operators launch becomes one activity per step, of their device time times a factor."""
        graph = self.model.graph
        mine = np.flatnonzero(self.model.is_launched_by(operator_ids))
        step = np.searchsorted(np.flatnonzero(graph.kind == NodeKind.MARK), mine)
        is_first = np.diff(step, prepend=-1) != 0
        total_ns = np.bincount(step, weights=graph.duration_ns[mine])[step[is_first]]
        first = mine[is_first]
        self.duration_scale[first] = factor * total_ns / np.maximum(graph.duration_ns[first], 1)
        self.is_dropped[mine[~is_first]] = True
        return self

    def run_beside(self, names: Sequence[str]) -> GraphChange:
        """Copies by name that run beside all else, and nobody waits for: a step lasts as long as they do."""
        graph, copies = self.model.graph, self.model.is_named(names)
        self.least_ns = max(self.least_ns, int(graph.duration_ns[copies].sum()) / graph.steps)
        return self.scale(copies, 0.0).free_launches(copies)

    def drop_launches(self, names: Iterable[str], *, but_of: Collection[int] = ()) -> GraphChange:
        """Activities by name that are no longer launched, but for those of some distinct calls, by id."""
        mine = self.model.is_named(names) & ~np.isin(self.model.call_of_node, list(but_of))
        self.scale(mine, 0.0)
        launches = self.model.call_id_of_activity
        # Replays of a graph launch others too.
        return self.drop_calls(np.setdiff1d(launches[mine], launches[~mine]).tolist())

    def drop_host_between(self, gaps: Iterable[tuple[int, int, int]], share: float = 1.0) -> GraphChange:
        """A share of the host's time in gaps of devices, by trace id, start and end, on all threads."""
        threads = self.model.trace.launch_threads
        mine = [gap[1:] for gap in gaps if gap[0] == self.model.trace.trace_id]
        return self.drop_host(as_extents([(thread, *gap) for thread in threads for gap in mine]), share)

    def drop_host(self, extents: dict[int, Spans], share: float = 1.0) -> GraphChange:
        """A share of the host's own time in intervals, by thread."""
        graph = self.model.graph
        for thread, spans in extents.items():
            nodes = np.flatnonzero(graph.thread_id == thread)
            if not len(nodes) or not len(spans.start_ns):
                continue
            until_ns = graph.time_ns[nodes] + self.model.origin_ns
            since_ns = np.concatenate(([self.model.origin_ns], until_ns[:-1]))
            common = overlap(spans, since_ns, until_ns) / np.maximum(until_ns - since_ns, 1)
            self.host_scale[nodes] *= np.clip(1.0 - share * common, 0.0, 1.0)
        return self

    def drop_host_of(self, operator_ids: Sequence[int]) -> GraphChange:
        return self.drop_host(self.model.extents(operator_ids))

    def add_host(self, ns_per_step: float) -> GraphChange:
        """Time that the host needs more, spread over its launches."""
        launches = self.model.graph.kind == NodeKind.LAUNCH
        if launches.any():
            self.host_added_ns[launches] += ns_per_step * self.model.graph.steps / launches.sum()
        return self

    def free_launches(self, nodes: Flags) -> GraphChange:
        """Activities whose launch, a copy for one, no longer waits for them."""
        return self.free_waits(self.model.call_id_of_activity[nodes].tolist())

    def free_waits(self, call_ids: Iterable[int]) -> GraphChange:
        """Runtime calls that no longer wait for the device, by id."""
        is_one = np.isin(self.model.ids["call"], list(call_ids))
        self.is_free |= is_one & (self.model.graph.kind == NodeKind.RETURN)
        return self

    def drop_calls(self, call_ids: Iterable[int]) -> GraphChange:
        calls = self.model.trace.calls
        found = np.flatnonzero(np.isin(calls.call_id, list(call_ids)))
        self.free_waits(calls.call_id[found].tolist())
        extents = (calls.thread_id[found], calls.start_ns[found], calls.end_ns[found])
        return self.drop_host(as_extents(zip(*(column.tolist() for column in extents), strict=True)))

    def drop_questions(self, call_ids: Sequence[int]) -> GraphChange:
        """Numbers that are no longer asked for: no waits (by id), no copies, none of their operators."""
        self.drop_calls(call_ids)
        self.drop(np.isin(self.model.call_id_of_activity, call_ids))
        return self.drop_host_of([one for (one,) in self.model.session.query(_ASKED_SQL, [list(call_ids)])])

    def replay(self, host_ns: float) -> GraphChange:
        """All launches of a step as one CUDA graph: the host needs so long per step, and waits as before.

        What it does besides launching, loading data for one, it goes on to do.
        """
        graph = self.model.graph
        besides = 1.0 - _NEAR_LAUNCH_NS / np.maximum(graph.own_ns, _NEAR_LAUNCH_NS)
        self.host_scale = np.where(graph.thread_id >= 0, besides, self.host_scale)
        self.hand_over_scale = 0.0
        self.host_added_ns[graph.kind == NodeKind.MARK] += host_ns
        return self

    @property
    def device_saved_ns(self) -> float:
        kept = np.where(self.is_dropped, 0.0, self.duration_scale)
        return float((self.model.graph.duration_ns * (1.0 - kept)).sum()) / self.model.graph.steps

    def apply(self, host: HostSpeed, strength: float = 1.0) -> float:
        """A mean step with the change, where so much of it comes true on the device."""
        return self.step_ns(self.lags(host), strength)

    def step_ns(self, lag_ns: Int64, strength: float) -> float:
        return max(
            simulate(self.model.graph, lag_ns=lag_ns, duration_ns=self.durations(strength)).step_ns,
            self.least_ns,
        )

    @property
    def unexplained_share(self) -> float:
        """What no known edge explains of a step with the change, of that step or of what it gains."""
        model = self.model
        if not model.graph.missing_edges:
            return 0.0
        lag_ns, duration_ns = self.lags(model.host), self.durations(1.0)
        step_ns = simulate(model.graph, lag_ns=lag_ns, duration_ns=duration_ns).step_ns
        lag_ns = model.explained_lags(lag_ns)
        explained_ns = simulate(model.graph, lag_ns=lag_ns, duration_ns=duration_ns).step_ns
        return (step_ns - explained_ns) / max(step_ns, model.step_ns - step_ns) if step_ns else 0.0

    def lags(self, host: HostSpeed) -> Int64:
        graph = self.model.graph
        lag_ns = self.model.unrecorded_lags(host)
        handed = self.model.is_handed_over
        lag_ns[2, handed] = (lag_ns[2, handed] * self.hand_over_scale).astype(np.int64)
        own_ns = np.where(self.is_free, np.minimum(lag_ns[0], graph.own_ns), lag_ns[0])
        lag_ns[0] = np.where(
            graph.thread_id >= 0, own_ns * self.host_scale + self.host_added_ns, lag_ns[0]
        ).astype(np.int64)
        lag_ns[0, self.is_dropped] = np.minimum(lag_ns[0, self.is_dropped], 0)
        lag_ns[1, self.is_dropped | self.is_free] = NEVER_NS
        return lag_ns

    def durations(self, strength: float) -> Int64:
        kept = np.maximum(0.0, 1.0 - (1.0 - self.duration_scale) * strength) * ~self.is_dropped
        return np.asarray((self.model.graph.duration_ns * kept).astype(np.int64))


class StepModel:
    """The mean step of one trace; `hosts` is how fast its host may have been, the likely way first."""

    waiting_ns = 0.0  # of a recorded step, for other ranks: it is in what communication takes

    def __init__(
        self,
        session: Session,
        trace: TraceRecords,
        graph: ExecutionGraph,
        *,
        origin_ns: int,
        loading: dict[int, Spans],
        timed: UnrecordedTime | None = None,
    ) -> None:
        self.session, self.trace, self.graph = session, trace, graph
        self.origin_ns, self.loading, self.timed = origin_ns, loading, timed
        self.hosts: tuple[HostSpeed, ...] = (HostSpeed(0.0),) if trace.is_nsys else _UNTIMED
        if timed is not None:
            self.hosts = self._fitted(timed)

    @property
    def host(self) -> HostSpeed:
        return self.hosts[0]

    @cached_property
    def elsewhere(self) -> tuple[tuple[HostSpeed, float], ...]:
        """How fast the host may be in another process, where the change is made, and the step then."""
        likely = self.host
        # Of a step that the host decides, what it takes in another process of the same program: of 44
        # programs on H100s and H200s a tenth took less, a tenth more.
        speeds = (0.91, 1.23) if self.timed is not None else ()
        hosts = [HostSpeed(likely.recorder, one * likely.share, one * likely.work) for one in speeds]
        return tuple((one, self._step_ns(one)) for one in hosts)

    def _fitted(self, timed: UnrecordedTime) -> tuple[HostSpeed, ...]:
        """How fast the host was, by the step that was timed.

        Where the device decides, that step tells only that the host is no slower; how fast it is show steps
        that began with an idle device. Without those it is estimated from what was recorded.
        """
        alone_ns, device_ns = timed.alone_ns, self.device_ns
        by_alone: tuple[HostSpeed, ...] = ()
        # Within a step whose own waits take as long, nothing shows of the host.
        if (
            alone_ns is not None
            and alone_ns[1] < _DEVICE_DECIDES * timed.low
            and alone_ns[0] > self._alone_ns(HostSpeed(0.0, 0.0, 0.0))
        ):
            by_alone = self._taking(alone_ns, self._alone_ns)
        longest_ns = timed.high / _DEVICE_DECIDES
        if by_alone and self._step_ns(by_alone[0]) > longest_ns:
            # Recorded steps held pauses of the host that the timed ones did not.
            by_alone = tuple(one._replace(work=self._least_work(one, timed.median)) for one in by_alone)
        if by_alone and _DEVICE_DECIDES * timed.low <= self._step_ns(by_alone[0]) <= longest_ns:
            return by_alone
        if device_ns <= _DEVICE_DECIDES * timed.median:
            # Where both disagree, the host was one or the other.
            return (*self._taking((timed.low, timed.median, timed.high), self._step_ns), *by_alone[:1])
        enough_ns = self._host_ns(self._slowed(0.0, device_ns / _DEVICE_DECIDES, self._step_ns))
        quick_ns = timed.least_host_ns or self.recorded_host_ns
        likely, least, most = _UNTIMED
        goals = [min(self._host_ns(one), quick_ns, enough_ns) for one in (most, likely, least)]
        return self._taking(goals, self._host_ns)

    def _least_work(self, host: HostSpeed, step_ns: float) -> float:
        """What may be left of the host's work away from its launches for a step to take no longer."""
        return _bisect(step_ns, 0.0, host.work, lambda work: self._step_ns(host._replace(work=work)))

    def _taking(
        self, goals_ns: Sequence[float], time_of: Callable[[HostSpeed], float]
    ) -> tuple[HostSpeed, ...]:
        """The ways of the host that make a time of the step what it should be: least, likely, most.

        What recording took may lie in its events alone, or in all that the host did; likely are both.
        """
        low_ns, goal_ns, high_ns = goals_ns
        # A recorder costs at most four times its estimate.
        whole = _bisect(-goal_ns, 0.0, 4.0, lambda one: -time_of(HostSpeed(one)))
        likely = min(1.0, whole)
        wanted = ((likely, goal_ns), (0.0, goal_ns), (whole, goal_ns), (likely, low_ns), (likely, high_ns))
        return tuple(self._slowed(*one, time_of) for one in dict.fromkeys(wanted))

    @staticmethod
    def _slowed(recorder: float, time_ns: float, time_of: Callable[[HostSpeed], float]) -> HostSpeed:
        """The host whose share of the rest makes a time of the step what it should be.

        Where launching twice as fast is not enough, all that it does was faster; where it was slower than
        recorded, all that it does was.
        """

        def faster(work: float) -> HostSpeed:
            return HostSpeed(recorder, _LEAST_SHARE * work, work)

        def slower(share: float) -> HostSpeed:
            return HostSpeed(recorder, share, max(1.0, share))

        if time_of(faster(1.0)) > time_ns:
            return faster(_bisect(time_ns, 0.0, 1.0, lambda work: time_of(faster(work))))
        return slower(_bisect(time_ns, _LEAST_SHARE, _MOST_SHARE, lambda one: time_of(slower(one))))

    def _host_ns(self, host: HostSpeed) -> float:
        """What the host needs for a step if no device ever kept it waiting."""
        nothing = np.zeros_like(self.graph.duration_ns)
        return simulate(self.graph, lag_ns=self.unrecorded_lags(host), duration_ns=nothing).step_ns

    def _alone_ns(self, host: HostSpeed) -> float:
        """When the host is through with a usual step that begins with an idle device."""
        begin, end, duration_ns = self._usual_step
        times = simulate(
            self.graph, lag_ns=self.unrecorded_lags(host), duration_ns=duration_ns, is_idle=True
        ).times
        return float(times[end] - times[begin])

    @cached_property
    def _usual_step(self) -> tuple[int, int, Int64]:
        """The step that takes the host the median time: where it begins and ends, and durations (int64[n]).

        What was launched before it takes no time.
        """
        graph = self.graph
        ends = np.flatnonzero(graph.kind == NodeKind.MARK)
        begins = np.concatenate(([1], ends[:-1]))
        nothing = np.zeros_like(graph.duration_ns)
        times = simulate(graph, duration_ns=nothing, is_idle=True).times
        place = int(np.argsort(times[ends] - times[begins], kind="stable")[(len(ends) - 1) // 2])
        began_ns = graph.time_ns[begins[place]] + self.origin_ns
        is_earlier = (graph.call >= 0) & (self.trace.calls.start_ns[graph.call] < began_ns)
        return int(begins[place]), int(ends[place]), np.where(is_earlier, nothing, graph.duration_ns)

    @cached_property
    def is_handed_over(self) -> Flags:
        """Nodes at which a thread goes on because another has handed over."""
        return np.asarray((self.graph.edge[2] == Edge.HAND_OVER) & (self.graph.before[2] > 0))

    def unrecorded_lags(self, host: HostSpeed) -> Int64:
        """Lags of the graph without the profiler's part, to be changed."""
        lag_ns: Int64 = self.graph.lag_ns.copy()
        for slot, on_host in ((0, self.graph.thread_id >= 0), (2, self.is_handed_over)):
            chosen = on_host & (lag_ns[slot] > 0)
            own_ns = np.maximum(lag_ns[slot] - host.recorder * self.graph.recorder_ns[slot], 0)
            near_ns = np.minimum(own_ns, _NEAR_LAUNCH_NS)
            own_ns = host.share * near_ns + host.work * (own_ns - near_ns)
            lag_ns[slot] = np.where(chosen, own_ns, lag_ns[slot]).astype(np.int64)
        return lag_ns

    def _step_ns(self, host: HostSpeed) -> float:
        return simulate(self.graph, lag_ns=self.unrecorded_lags(host)).step_ns

    @cached_property
    def steps_ns(self) -> tuple[float, ...]:
        return tuple(map(self._step_ns, self.hosts))

    @property
    def step_ns(self) -> float:
        return self.steps_ns[0]

    @cached_property
    def recorded_ns(self) -> float:
        return simulate(self.graph).step_ns

    @cached_property
    def host_ns(self) -> float:
        return self._host_ns(self.host)

    @cached_property
    def device_ns(self) -> float:
        """What the device needs for a step if everything were launched at once."""
        return simulate(self.graph, lag_ns=self.lags_without_host).step_ns

    @property
    def lags_without_host(self) -> Int64:
        lag_ns: Int64 = self.graph.lag_ns.copy()
        crosses = np.isin(self.graph.edge, (Edge.LAUNCH, Edge.WAIT, Edge.STREAM))
        # From a launch to its kernel on an idle device, or from its end to the call that waits for it, there
        # are 2 to 70 µs. In what takes longer the host loads code or allocates.
        lag_ns[crosses] = np.minimum(lag_ns[crosses], 100_000)
        lag_ns[self.graph.edge == Edge.HAND_OVER] = 0
        lag_ns[0, self.graph.thread_id >= 0] = 0
        return lag_ns

    @cached_property
    def recorded_error(self) -> float:
        explained_ns = simulate(self.graph, lag_ns=self.explained_lags(self.graph.lag_ns), rounds=1).step_ns
        recorded_ns = self.graph.recorded_ns / self.graph.steps
        return (recorded_ns - explained_ns) / recorded_ns if recorded_ns else 0.0

    def explained_lags(self, lag_ns: Int64) -> Int64:
        """These lags, or those of a change, without what no known edge explains."""
        graph = self.graph
        # What has no edge at all could come at once.
        excess_ns = np.minimum(graph.excess_ns, graph.lag_ns.max(axis=0))
        nodes = np.flatnonzero(excess_ns > TOLERANCE_NS)
        slots = (graph.lag_ns[:, nodes] + graph.time_ns[graph.before[:, nodes]]).argmax(axis=0)
        explained_ns: Int64 = lag_ns.copy()
        explained_ns[slots, nodes] = np.minimum(
            lag_ns[slots, nodes], graph.lag_ns[slots, nodes] - excess_ns[nodes]
        )
        return explained_ns

    @cached_property
    def missing(self) -> str | None:
        return (
            missing_edges(self.session, self.trace, self.graph, self.origin_ns)
            or unexplained(self.recorded_error, "the recorded step")
            or self.waits
        )

    @property
    def waits(self) -> str | None:
        """Why the step without the profiler cannot be told either: others decide it; None if they do not."""
        return awaited(self.waiting_ns / max(1.0, self.recorded_ns))

    def missing_for(self, change: GraphChange) -> str | None:
        return self.missing or unexplained(change.unexplained_share, "the step with the change")

    @property
    def launches(self) -> float:
        """Launches of a step; a replay of a graph is one."""
        return int((self.graph.kind == NodeKind.LAUNCH).sum()) / self.graph.steps

    @cached_property
    def launch_ns(self) -> float | None:
        """Host time from one launch of a thread to the next where no Python lies between; None for none.

        The first quartile: operators that others call follow each other more quickly than those of Python.
        """
        lag_ns = self.unrecorded_lags(self.host)[0, self.graph.kind == NodeKind.LAUNCH]
        return float(np.percentile(lag_ns, 25)) if len(lag_ns) else None

    @property
    def busy_ns(self) -> float:
        return int(self.graph.duration_ns.sum()) / self.graph.steps

    @cached_property
    def recorded_host_ns(self) -> float:
        """What the host alone needs for a step, as recorded."""
        return simulate(self.graph, duration_ns=np.zeros_like(self.graph.duration_ns)).step_ns

    @property
    def recorder_ns(self) -> float:
        """What recording added to that."""
        return max(0.0, self.recorded_host_ns - self.host_ns)

    @cached_property
    def host_range_ns(self) -> tuple[float, float]:
        """What the host alone needs at least and at most, by how much the recorder may have taken."""
        found = [self.host_ns, *map(self._host_ns, self.hosts[1:])]
        return min(found), max(found)

    @property
    def is_host_bound(self) -> bool:
        return self.host_ns > self.device_ns

    @property
    def unrecorded_share(self) -> float:
        return self.host_ns / self.recorded_host_ns if self.recorded_host_ns else 1.0

    @property
    def execution(self) -> StepExecution:
        return StepExecution(
            self.trace.trace_id,
            self.recorded_ns,
            self.step_ns,
            (min(self.steps_ns), max(self.steps_ns)),
            self.host_ns,
            self.device_ns,
            self.recorded_error,
            self.unrecorded_error,
            self.graph.missing_edges + self.graph.dropped_edges,
            self.path,
            self.missing,
        )

    @property
    def unrecorded_error(self) -> float | None:
        return None if self.timed is None else self.step_ns / self.timed.median - 1.0

    def gain_ns(self, change: GraphChange) -> float:
        """What a step gets shorter by a change, as far as is known."""
        return min(self.step_ns - change.apply(self.host), self._most_ns(change)[0])

    def gain(self, change: GraphChange, error: float = 0.0) -> Gain:
        """What a step gets shorter by a change; `error` is how far the device time it saves may be off."""
        ways, steps_ns = zip(*zip(self.hosts, self.steps_ns, strict=True), *self.elsewhere, strict=True)
        gains = [
            step_ns - change.step_ns(lag_ns, strength)
            for way, step_ns in zip(ways, steps_ns, strict=True)
            for lag_ns in [change.lags(way)]
            for strength in strengths(error)
        ]
        most = [self._most_ns(change, one) for one in strengths(error)]
        gain_ns = min(gains[0], most[0][0])
        low_ns = min(*gains, *(by_median for by_median, _ in most))
        high_ns = max(gain_ns, min(max(gains), max(high for _, high in most)))
        if self.timed is not None and 2 * change.device_saved_ns < gain_ns:
            high_ns = max(high_ns, self.timed.median - self._needed_ns(self.timed, change))
        return Gain(gain_ns, low_ns, high_ns)

    def _most_ns(self, change: GraphChange, strength: float = 1.0) -> tuple[float, float]:
        """What the timed step can lose, by its median and at most: all but what either side then needs.

        A simulated step that is longer than the timed one holds waits that are not there.
        """
        if self.timed is None or max(self.steps_ns) <= self.timed.high:
            return np.inf, np.inf
        needed_ns = self._needed_ns(self.timed, change, strength)
        return max(0.0, self.timed.median - needed_ns), max(0.0, self.timed.high - needed_ns)

    def _needed_ns(self, timed: UnrecordedTime, change: GraphChange, strength: float = 1.0) -> float:
        """What the slower side alone needs for a step with a change."""
        lag_ns, duration_ns = change.lags(self.host), change.durations(strength)
        needed_ns = simulate(self.graph, lag_ns=self.lags_without_host, duration_ns=duration_ns).step_ns
        if self.host_ns < timed.median:  # else what is taken for the host's holds such waits too
            host_ns = simulate(self.graph, lag_ns=lag_ns, duration_ns=np.zeros_like(duration_ns)).step_ns
            needed_ns = max(needed_ns, host_ns)
        return needed_ns

    def _of_activities(self, column: str) -> Ints:
        """A column of the device records by node; -1 of nodes of the host."""
        graph, found = self.graph, np.full(len(self.graph), -1, dtype=np.int64)
        for row, device in enumerate(self.trace.devices):
            mine = np.flatnonzero(graph.device_row == row)
            found[mine] = getattr(device, column)[graph.activity[mine]]
        return found

    @cached_property
    def ids(self) -> dict[str, Ints]:
        """What each node is of: operator, activity, call (its activity's launch) and name id; -1 for none."""
        calls = self.trace.calls
        return {
            "activity": self._of_activities("activity_id"),
            "name": self._of_activities("name_id"),
            "operator": gather(calls.operator_id, self.graph.call),
            "call": gather(calls.call_id, self.graph.call),
        }

    @cached_property
    def node_of_activity(self) -> dict[int, int]:
        nodes = np.flatnonzero(self.graph.activity >= 0)
        return dict(zip(self.ids["activity"][nodes].tolist(), nodes.tolist(), strict=True))

    @cached_property
    def operator_of_node(self) -> Ints:
        """Operator that launched each activity; -1 of others."""
        return np.where(self.graph.activity >= 0, self.ids["operator"], -1)

    @property
    def call_id_of_activity(self) -> Ints:
        """Runtime call that launched each activity; -1 of others."""
        return np.where(self.graph.activity >= 0, self.ids["call"], -1)

    def launching(self, names: Iterable[str]) -> list[int]:
        return [int(one) for one in np.unique(self.operator_of_node[self.is_named(names)]) if one >= 0]

    @cached_property
    def call_of_node(self) -> Int64:
        """Distinct call (`call_costs.call_id`) of each activity; -1 of others."""
        costs = columns(
            self.session, "SELECT activity_id, call_id::BIGINT AS call_id FROM activity_costs ORDER BY 1"
        )
        return look_up(costs["activity_id"], costs["call_id"], self.ids["activity"])

    def is_named(self, names: Iterable[str]) -> Flags:
        wanted = self.session.query(
            "SELECT name_id FROM kernel_names WHERE list_contains(?::VARCHAR[], name)", [list(names)]
        )
        return np.isin(self.ids["name"], [name_id for (name_id,) in wanted]) & (self.graph.activity >= 0)

    def is_launched_by(self, operator_ids: Iterable[int]) -> Flags:
        """Activities that operators launched themselves."""
        return np.isin(self.operator_of_node, list(operator_ids)) & (self.graph.activity >= 0)

    def extents(self, operator_ids: Sequence[int]) -> dict[int, Spans]:
        """When operators ran on the host, by thread."""
        places = self.session.query(_PLACES_SQL, [self.trace.trace_id, list(operator_ids)])
        return as_extents(place[1:] for place in places)

    def between(
        self, first_ids: Sequence[int], last_ids: Sequence[int], until: Literal["start", "end"] = "end"
    ) -> dict[int, Spans]:
        """From the start of operators to the start or end of others, pair by pair, by thread."""
        ids = [*first_ids, *last_ids]
        found = {one: rest for one, *rest in self.session.query(_PLACES_SQL, [self.trace.trace_id, ids])}
        edge = 1 if until == "start" else 2
        pairs = [
            (found[one], found[other]) for one, other in zip(first_ids, last_ids, strict=True) if one in found
        ]
        return as_extents([(one[0], one[1], other[edge]) for one, other in pairs if one[0] == other[0]])

    def change(self, effect: Callable[[GraphChange], object] = lambda _: None) -> GraphChange:
        change = GraphChange(self)
        effect(change)
        return change

    @cached_property
    def path(self) -> tuple[PathTotal, ...]:
        """The critical path of the steps by kind and name, the largest first; fractions sum to 1.

        Of the step that was timed without the profiler, else of the recorded one, which is known.
        """
        lag_ns = None if self.timed is None else self.unrecorded_lags(self.host)
        passed = critical_path(self.graph, lag_ns)
        rows = self._told(
            passed, "SELECT kind, name, sum(ns)::BIGINT FROM told GROUP BY ALL HAVING sum(ns) > 0"
        )
        parts = [(_PATH_KINDS[kind], name, ns) for kind, name, ns in rows]
        whole_ns = sum(ns for *_, ns in parts)
        return tuple(
            PathTotal(kind, name, ns / self.graph.steps, ns / whole_ns)
            for kind, name, ns in sorted(parts, key=lambda one: (-one[2], one[0], one[1] or ""))
        )

    @property
    def recorded_path(self) -> list[PathPiece]:
        """The critical path of the steps as recorded, piece by piece."""
        rows = self._told(critical_path(self.graph), "SELECT kind, name, start_ns, ns FROM told ORDER BY nr")
        return [PathPiece(_PATH_KINDS[kind], *rest) for kind, *rest in rows]

    def _told(self, passed: CriticalPath, asked: str) -> list[tuple[Any, ...]]:
        """What is asked of the edge of each node (of the host, by the operator launched at its end)."""
        nodes, edge, ids = passed.node[::-1], passed.edge[::-1], self.ids
        launched = np.where(edge == Edge.THREAD, ids["operator"][nodes], -1)
        none, ns = np.full(len(nodes), -1), np.stack((passed.edge_ns[::-1], passed.own_ns[::-1]), 1).ravel()
        path = {
            "nr": np.arange(2 * len(nodes)),
            "kind": np.stack((edge, len(Edge) + self._of_activities("work")[nodes]), 1).ravel(),
            "operator_id": np.stack((launched, none), 1).ravel(),
            "name_id": np.stack((none, ids["name"][nodes]), 1).ravel(),
            "start_ns": self.origin_ns + passed.end_ns - np.cumsum(ns[::-1])[::-1],
            "ns": ns,
        }
        with registered(self.session, path=path):
            return self.session.query(f"""WITH told AS (
                SELECT path.*, coalesce(o.name, k.name) AS name FROM path
                LEFT JOIN operators o USING (operator_id) LEFT JOIN kernel_names k USING (name_id)
                WHERE ns > 0 OR nr % 2 = 0) {asked}""")


# By `Edge`, then by `WorkKind`.
_PATH_KINDS = (
    *("host", "kernel gap", "launch latency", "wait", "stream event", "hand-over"),
    *("kernel", "communication", "copy"),
)


def _bisect(goal: float, low: float, high: float, function: Callable[[float], float]) -> float:
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < goal else (low, middle)
    return (low + high) / 2


_ASKED_SQL = """SELECT DISTINCT coalesce(o.parent_id, o.operator_id) FROM runtime_calls r
JOIN operators o USING (operator_id) WHERE list_contains(?::BIGINT[], r.runtime_call_id)"""
_PLACES_SQL = """SELECT operator_id, thread_id, start_ns, start_ns + duration_ns FROM operators
WHERE trace_id = ? AND list_contains(?::BIGINT[], operator_id)"""


def as_extents(rows: Iterable[tuple[int, int, int]]) -> dict[int, Spans]:
    """Intervals of thread, start and end as sets of moments, by thread."""
    by_thread = grouped((thread, (start_ns, end_ns)) for thread, start_ns, end_ns in rows)
    found = {thread: np.array(extents, dtype=np.int64).T for thread, extents in by_thread.items()}
    return {thread: merge((starts, ends)) for thread, (starts, ends) in found.items()}


def step_model(session: Session, records: SessionRecords) -> StepModel | None:
    """The step of one trace; None where it launched nothing in one."""
    (trace,) = records.traces
    window = records.windows.get(trace.trace_id)
    # A process as a whole, its start and its end included, is no step.
    if window is None or window.is_whole or not len(window.host.start_ns) or _is_filtered(trace):
        return None
    steps, held_ns = window.counted.steps, window.held_until_ns
    began_ns = tuple(step.start_ns for step in steps) or (int(window.host.start_ns[0]),)
    end_ns = max((step.end_ns for step in steps), default=int(window.host.end_ns[-1]))
    thread_id = min((step.thread_id for step in steps), default=None)
    place = StepsWindow(thread_id, began_ns, end_ns, NEVER_NS if held_ns is None else held_ns)
    host = records.hosts[trace.trace_id]
    graph = build_graph(trace, host, place, _syncs(session, trace))
    if graph is None:
        return None
    # Where no steps were recorded, a timed step and what was recorded are different things.
    timed = {
        one.trace_id: one.unrecorded_ns
        for one in measured_steps(session, records.windows, ())
        if one.recorded_ns is not None
    }
    loading = {thread: events.loading for thread, events in host.threads.items()}
    own = timed.get(trace.trace_id)
    return StepModel(session, trace, graph, origin_ns=began_ns[0], loading=loading, timed=own)


def _is_filtered(trace: TraceRecords) -> bool:
    """Whether the launches of most of the device's work are not in it."""
    whole_ns, free_ns = 0, 0
    for one in trace.devices:
        lengths_ns, is_free = one.end_ns - one.start_ns, (one.call < 0) & ~one.is_early & ~one.is_page
        whole_ns, free_ns = whole_ns + int(lengths_ns.sum()), free_ns + int(lengths_ns[is_free].sum())
    # Nearly all of the device's time has no launch.
    return free_ns > 0.8 * whole_ns


def _syncs(session: Session, trace: TraceRecords) -> dict[int, Sync]:
    """Synchronizations whose stream was recorded, by position of the call."""
    if not len(trace.calls):
        return {}
    first_id = int(trace.calls.call_id[0])  # ids of one trace's calls are consecutive
    return {
        call_id - first_id: Sync(
            stream,
            source if source is not None and source >= 0 else None,
            None if source_call is None else source_call - first_id,
        )
        for call_id, stream, source, source_call in session.query(_SYNCS_SQL, [trace.trace_id])
    }


_SYNCS_SQL = """
SELECT r.runtime_call_id, s.stream, s.wait_on_stream, e.runtime_call_id FROM syncs s
JOIN runtime_calls r ON r.trace_id = s.trace_id AND r.correlation_id = s.correlation_id
LEFT JOIN runtime_calls e ON e.trace_id = s.trace_id AND e.correlation_id = s.wait_on_event_correlation_id
WHERE s.kind IN ('Stream Sync', 'Stream Wait Event') AND s.stream IS NOT NULL AND s.trace_id = ?"""


# Of 36 recordings that lack nothing, the worst has 0.5 % of its activities untied; two of which only a sample
# of the events was kept, 46 %.
MOST_UNTIED = 0.1
# The same recordings are short of 4.4 % at most; gains below 2 % of a step are not told.
MOST_UNEXPLAINED = 0.05


def missing_edges(session: Session, trace: TraceRecords, graph: ExecutionGraph, origin_ns: int) -> str | None:
    """Why no change of a trace's steps can be simulated, in words; None if nothing much is missing."""
    reasons = [one for (one,) in session.query(sql(__package__, "missing_edges:lost"), [trace.trace_id])]
    reasons += [
        f"steps {one} and {other} overlap"
        for one, other in session.query(
            sql(__package__, "missing_edges:overlapping"), [trace.trace_id, TOLERANCE_NS]
        )
    ]
    # Activities that begin at a moment that no edge explains, by what is wrong with them.
    mine = np.flatnonzero(graph.activity >= 0)
    call = graph.call[mine]
    begins_ns = graph.time_ns[mine] - graph.duration_ns[mine] + origin_ns
    has_launch = call >= 0
    is_early, is_later = np.zeros((2, len(mine)), dtype=np.bool_)
    is_early[has_launch] = begins_ns[has_launch] < trace.calls.start_ns[call[has_launch]]
    is_later[has_launch] = begins_ns[has_launch] > trace.calls.end_ns[call[has_launch]] + TOLERANCE_NS
    is_late = is_later & (graph.excess_ns[mine] > TOLERANCE_NS)
    untied = {
        "have no recorded launch": int((~has_launch).sum()),
        "start before their launch, so that clocks disagree": int(is_early.sum()),
        "start later than their known dependencies allow": int(is_late.sum()),
    }
    if sum(untied.values()) >= MOST_UNTIED * len(mine):
        reasons += [
            f"{count:,} of {len(mine):,} activities {what}" for what, count in untied.items() if count
        ]
    waits, contradicted = graph.event_waits, graph.contradicted_waits
    if contradicted and contradicted >= MOST_UNTIED * waits:
        reasons.append(
            f"{contradicted:,} of {waits:,} waits of streams for each other contradict the times recorded"
        )
    return "; ".join(reasons) or None


def unexplained(share: float, what: str) -> str | None:
    """The same of a simulated step, by the share of it that no known edge explains."""
    if share < MOST_UNEXPLAINED:
        return None
    return f"no known dependency explains {format_fraction(share)} of {what}"


def awaited(share: float) -> str | None:
    """The same of a rank, by the share of its step that it waits for others, which may change with it."""
    if share < MOST_UNEXPLAINED:
        return None
    return f"the rank waits for others for {format_fraction(share)} of the recorded step"
