"""The ranks of a job as one execution graph: a collective transfers once the last of its ranks has come.

There a kernel begins where its own rank lets it, all begin to transfer when the last one has, and each ends
so long after that as was recorded. A change is made on every rank and all are simulated together, so that a
rank that waits for another gains nothing by being faster. Where that cannot be, the middle rank tells of the
job; of too many events those ranks are in the graph for which the others wait most. What can be worked out of
one rank alone is, where it is read: the Summary takes it instead of working it out again.
"""

from __future__ import annotations

import pickle
import zlib
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from opscope.analysis.arrays import Spans
from opscope.analysis.collectives import JobCollectives, align
from opscope.analysis.execution_graph import (
    NEVER_NS,
    CriticalPath,
    ExecutionGraph,
    NodeKind,
    simulate,
)
from opscope.analysis.step_model import (
    NEXT_TO_NOTHING,
    Gain,
    GraphChange,
    HostSpeed,
    StepExecution,
    StepModel,
    gain_of,
    ranked_totals,
    step_models,
)
from opscope.analysis.straggler import Straggler
from opscope.analysis.timeline.host import read_session
from opscope.analysis.timeline.measure import measure_timeline
from opscope.analysis.timeline.values import Timeline
from opscope.ingest.nesting import Int64
from opscope.model.queries import grouped, summed
from opscope.model.session import Session
from opscope.text_enum import TextEnum

R = TypeVar("R")
_SLOTS = 3  # of what a node depends on


class JobPath(NamedTuple):
    """What a mean step's critical path across ranks holds of one rank, kind and name; as `PathTotal`."""

    trace_id: int
    kind: str
    name: str | None
    ns: float
    fraction: float


class JobGraph(NamedTuple):
    """The graphs of several ranks as one, to be simulated: as recorded but for what ranks waited.

    Nodes of the ranks come first, then where each collective's kernel begins, then what joins those.
    """

    kind: Int64
    time_ns: Int64
    lag_ns: Int64
    duration_ns: Int64
    order: Int64  # the other nodes, each after all that it depends on
    carried: dict[int, int]
    steps: int
    before: Int64  # int64[3, n], the nodes that each depends on
    given: Int64  # int64, nodes whose times are given
    bounds: tuple[int, ...]  # where each rank's nodes begin, and the last one's end
    begins: Int64  # int64[c], of each kernel of a collective the node at which it begins
    ends: Int64  # int64[c], that at which it ends
    transfer_ns: Int64  # int64[c], how long it took from when the last rank had come
    recorded_ns: Int64  # int64[c], how long it took, waiting included

    def edited(self, parts: Sequence[tuple[Int64, Int64]]) -> tuple[Int64, Int64]:
        lag_ns, duration_ns = self.lag_ns.copy(), self.duration_ns.copy()
        count = self.bounds[-1]
        lag_ns[:, :count] = np.concatenate([lags for lags, _ in parts], axis=1)
        duration_ns[:count] = np.concatenate([durations for _, durations in parts])
        # A collective's kernel begins as its rank lets it, and takes what is left of the transfer.
        left = duration_ns[self.ends] / np.maximum(self.recorded_ns, 1)
        lag_ns[:, self.begins] = lag_ns[:, self.ends]
        lag_ns[0, self.ends], lag_ns[2, self.ends] = 0, NEVER_NS
        lag_ns[1, self.ends] = np.where(left > 0, left * self.transfer_ns, NEVER_NS)
        duration_ns[self.ends] = 0
        return lag_ns, duration_ns


def joined(models: Sequence[StepModel], collectives: Sequence[Mapping[int, int]]) -> JobGraph | None:
    """The graphs of these ranks as one; None where collectives (activities by trace id) contradict it."""
    graphs = [model.graph for model in models]
    bounds = tuple(np.cumsum([0, *map(len, graphs)]).tolist())
    # The node of each collective by rank's place, of those that lie in the steps of two ranks or more.
    known = [model.node_of_activity for model in models]
    places = {model.trace.trace_id: place for place, model in enumerate(models)}
    found = (
        {
            places[trace_id]: node
            for trace_id, activity_id in one.items()
            if trace_id in places and (node := known[places[trace_id]].get(activity_id)) is not None
        }
        for one in collectives
    )
    nodes = [one for one in found if len(one) > 1]
    if not nodes:
        return None
    # By one clock. Ranks that share no collective with the others have their own, compared with nothing.
    ended = [{rank: int(graphs[rank].time_ns[node]) for rank, node in one.items()} for one in nodes]
    offsets_ns = {rank: clock.offset_ns for rank, clock in align(ended).items()}
    ended_ns = np.array([ns - offsets_ns.get(rank, 0) for one in ended for rank, ns in one.items()])
    lasted_ns = np.array([graphs[rank].duration_ns[node] for one in nodes for rank, node in one.items()])
    of_collective = np.repeat(np.arange(len(nodes)), [len(one) for one in nodes])
    latest_ns = np.full(len(nodes), NEVER_NS)
    np.maximum.at(latest_ns, of_collective, ended_ns - lasted_ns)
    ends = np.array([bounds[rank] + node for one in nodes for rank, node in one.items()])
    begins = bounds[-1] + np.arange(len(ends))
    # Nodes that come when all kernels of a collective have begun, chained; and the last one of each.
    first = int(begins[-1]) + 1
    columns: list[tuple[int, int, int]] = []
    last = np.zeros(int(of_collective.max()) + 1, dtype=np.int64)
    for place, mine in enumerate(np.split(begins, np.flatnonzero(np.diff(of_collective)) + 1)):
        waiting = mine.tolist()
        while len(waiting) > 1:
            chosen, waiting = waiting[:_SLOTS], waiting[_SLOTS:]
            columns.append((*chosen, *[0] * (_SLOTS - len(chosen))))
            waiting.insert(0, first + len(columns) - 1)
        last[place] = waiting[0]
    joins = np.array(columns, dtype=np.int64).reshape(-1, _SLOTS).T
    before = np.concatenate([low + graph.before for graph, low in zip(graphs, bounds, strict=False)], axis=1)
    before = np.concatenate((before, before[:, ends], joins), axis=1)
    before[:, ends] = np.stack((begins, last[of_collective], np.zeros_like(ends)))
    of_ranks = list(zip(graphs, bounds, strict=False))
    given = np.concatenate([low + np.arange(graph.initial_count) for graph, low in of_ranks])
    sequence = _topological(before, given)
    if sequence is None:
        return None
    none = np.zeros(before.shape[1] - bounds[-1], dtype=np.int64)
    graph = JobGraph(
        kind=np.concatenate([*(graph.kind for graph in graphs), none + NodeKind.ACTIVITY]),
        time_ns=np.concatenate([*(graph.time_ns for graph in graphs), none]),
        lag_ns=np.zeros(before.shape, dtype=np.int64),
        duration_ns=np.zeros(before.shape[1], dtype=np.int64),
        order=np.array(sequence, dtype=np.int64),
        carried={low + one: low + later for graph, low in of_ranks for one, later in graph.carried.items()},
        steps=graphs[0].steps,
        before=before,
        given=given,
        bounds=bounds,
        begins=begins,
        ends=ends,
        transfer_ns=np.maximum(0, ended_ns - latest_ns[of_collective]),
        recorded_ns=np.concatenate([graph.duration_ns for graph in graphs])[ends],
    )
    lag_ns, duration_ns = graph.edited([(one.lag_ns, one.duration_ns) for one in graphs])
    return graph._replace(lag_ns=lag_ns, duration_ns=duration_ns)


def _topological(before: Int64, given: Int64) -> list[int] | None:
    """All but the given nodes, each after all that it depends on; None if some wait in a circle."""
    count = before.shape[1]
    is_given = np.zeros(count, dtype=np.bool_)
    is_given[given] = True
    depends = ~is_given[before] & ~is_given
    targets, sources = np.nonzero(depends)[1], before[depends]
    by_source = np.argsort(sources, kind="stable")
    first = np.searchsorted(sources[by_source], np.arange(count + 1)).tolist()
    followers, left = targets[by_source].tolist(), depends.sum(axis=0)
    ready = deque(np.flatnonzero((left == 0) & ~is_given).tolist())
    waits_for, sequence = left.tolist(), []
    while ready:
        node = ready.popleft()
        sequence.append(node)
        for follower in followers[first[node] : first[node + 1]]:
            waits_for[follower] -= 1
            if not waits_for[follower]:
                ready.append(follower)
    return sequence if len(sequence) + len(given) == count else None


class JobChange(NamedTuple):
    changes: tuple[GraphChange, ...]

    def __and__(self, other: JobChange) -> JobChange:
        return JobChange(tuple(one & two for one, two in zip(self.changes, other.changes, strict=True)))


class Job:
    """The mean step of all ranks of a Session.

    `ranks` are the steps of each, or of those that are simulated, `middle` that of the middle rank by its
    time, the slower of two (that of a trace id if it is given). `models` are the ranks that are simulated
    together, by `graph`; where they cannot be, the middle one alone.
    """

    def __init__(
        self,
        models: Sequence[StepModel],
        collectives: Sequence[Mapping[int, int]] = (),
        middle: int | None = None,
    ) -> None:
        self.ranks = tuple(models)
        chosen = [model for model in models if model.trace.trace_id == middle] or models
        self.middle = _middle(chosen, lambda model: model.step_ns)
        self.graph: JobGraph | None = None
        if collectives and len({model.graph.steps for model in models}) == 1:
            self.graph = joined(models, collectives)
        self.models = self.ranks if self.graph is not None else (self.middle,)

    @cached_property
    def execution(self) -> StepExecution:
        """What there is to say of its step: that of the middle rank, as long as all need together."""
        return replace(
            self.middle.execution,
            step_ns=self.step_ns,
            step_interval_ns=(min(self.steps_ns), max(self.steps_ns)),
            host_ns=self.host_ns,
            device_ns=self.device_ns,
        )

    @property
    def host_ns(self) -> float:
        return max(model.host_ns for model in self.models)

    @cached_property
    def device_ns(self) -> float:
        """What the devices need for a step if everything were launched at once."""
        if self.graph is None:
            return self.middle.device_ns
        lag_ns, duration_ns = self.graph.edited(
            [(model.lags_without_host, model.graph.duration_ns) for model in self.models]
        )
        return simulate(self.graph, lag_ns=lag_ns, duration_ns=duration_ns).step_ns

    @property
    def is_host_bound(self) -> bool:
        return self.host_ns > self.device_ns

    def changed(self, effect: Callable[[GraphChange], object]) -> JobChange:
        changes = tuple(model.change() for model in self.models)
        for one in changes:
            effect(one)
        return JobChange(changes)

    @cached_property
    def steps_ns(self) -> tuple[float, ...]:
        """A step without the profiler, the likely one first."""
        if self.graph is None:
            return self.middle.steps_ns
        unchanged, ways = self.changed(lambda _: None), max(len(model.hosts) for model in self.models)
        return tuple(self._apply(self.graph, unchanged, way) for way in range(ways))

    @property
    def step_ns(self) -> float:
        return self.steps_ns[0]

    def gain_ns(self, change: JobChange) -> float:
        if self.graph is None:
            return self.middle.gain_ns(change.changes[0])
        return self.step_ns - self._apply(self.graph, change, 0)

    def gain(self, change: JobChange, error: float = 0.0) -> Gain:
        graph = self.graph
        if graph is None:
            return self.middle.gain(change.changes[0], error)
        return gain_of(self.steps_ns, lambda way, strength: self._apply(graph, change, way, strength), error)

    def saved_device_ns(self, change: JobChange) -> float:
        """What the device of the middle rank loses of its work."""
        return change.changes[self.models.index(self.middle)].device_saved_ns

    def missing_for(self, change: JobChange) -> str | None:
        every = zip(self.models, change.changes, strict=True)
        return next((reason for model, one in every if (reason := model.missing_for(one))), None)

    @cached_property
    def path(self) -> tuple[JobPath, ...]:
        """The critical path of the recorded steps across ranks, the largest first; empty without a graph."""
        if self.graph is None:
            return ()
        total_ns = summed(
            ((self.models[place].trace.trace_id, *of), ns)
            for place, passed in sorted(_across_ranks(self.graph, self.models).items())
            for of, ns in self.models[place].path_totals(passed).items()
        )
        return tuple(JobPath(*row) for row in ranked_totals(total_ns, self.graph.steps))

    def as_fast_as_median(self, trace_id: int) -> JobChange | None:
        """One rank whose host and device take no longer than the median of the others; None if not known."""
        graph, places = self.graph, {one.trace.trace_id: place for place, one in enumerate(self.models)}
        if graph is None or trace_id not in places:
            return None
        late = self.models[places[trace_id]]
        of_hosts = [one.host_ns for one in self.models if one is not late]
        # What each device needs for a step if no other kept it waiting, with its gaps.
        of_devices = []
        for model, low, high in zip(self.models, graph.bounds, graph.bounds[1:], strict=False):
            mine = (graph.ends >= low) & (graph.ends < high)
            duration_ns = model.graph.duration_ns.copy()
            duration_ns[graph.ends[mine] - low] = graph.transfer_ns[mine]
            alone = simulate(model.graph, lag_ns=model.lags_without_host, duration_ns=duration_ns)
            of_devices.append(alone.step_ns)
        more_ns = of_devices.pop(places[trace_id]) - median(of_devices)
        host_share = min(1.0, median(of_hosts) / late.host_ns) if late.host_ns else 1.0
        own_ns = int(late.graph.duration_ns[~late.is_communication].sum()) / late.graph.steps
        device_share = 1.0 - min(own_ns, max(0.0, more_ns)) / own_ns if own_ns else 1.0
        changes = {one.trace.trace_id: one.change() for one in self.models}
        changes[trace_id].scale(~late.is_communication, device_share).host_scale *= host_share
        return JobChange(tuple(changes.values()))

    def overlapped(self, activities: Mapping[int, Collection[int]]) -> JobChange:
        """Collectives, by trace id and kernel, that move their data beside all else; ranks still meet."""

        def effect(change: GraphChange) -> object:
            ids = list(activities.get(change.model.trace.trace_id, ()))
            return change.scale(np.isin(change.model.ids["activity"], ids), NEXT_TO_NOTHING)

        return self.changed(effect)

    def _apply(self, graph: JobGraph, change: JobChange, way: int, strength: float = 1.0) -> float:
        """A mean step with a change, where all hosts ran in this way."""
        hosts = [model.hosts[way] if way < len(model.hosts) else model.host for model in self.models]
        lag_ns, duration_ns = graph.edited(
            [
                (one.lags(host), one.durations(strength))
                for one, host in zip(change.changes, hosts, strict=True)
            ]
        )
        step_ns = simulate(graph, lag_ns=lag_ns, duration_ns=duration_ns).step_ns
        return max(step_ns, *(one.least_ns for one in change.changes))


def _across_ranks(graph: JobGraph, models: Sequence[StepModel]) -> dict[int, CriticalPath]:
    """The critical path of the recorded steps, cut to ranks, by their place; the last node first."""
    times = simulate(graph, rounds=1).times
    slots = (times[graph.before] + graph.lag_ns).argmax(axis=0)
    came_from = np.take_along_axis(graph.before, slots[None], axis=0)[0]
    of_begin = dict(zip(graph.begins.tolist(), graph.ends.tolist(), strict=True))
    given, ends = set(graph.given.tolist()), set(graph.ends.tolist())
    passed: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    node = max(graph.carried.values(), key=lambda one: int(times[one]))
    while node not in given and node > 1:
        earlier = int(came_from[node])
        own = of_begin.get(node, node)
        if own < graph.bounds[-1]:  # else where ranks meet
            place = bisect_right(graph.bounds, own) - 1
            at = own - graph.bounds[place]
            lasted_ns = int(graph.duration_ns[node])
            came_ns = int(times[node] - times[earlier]) - lasted_ns
            if node in ends:
                lasted_ns, came_ns = came_ns, 0
            passed[place].append((at, int(models[place].graph.edge[slots[node], at]), came_ns, lasted_ns))
        node = earlier
    # Node, edge and their times, as columns.
    return {place: CriticalPath(*np.array(rows, dtype=np.int64).T) for place, rows in passed.items()}


def choose_ranks(
    steps_ns: Mapping[int, float], nodes: Mapping[int, int], awaited_ns: Mapping[int, int]
) -> tuple[frozenset[int], int | None]:
    """All ranks, or of too many the middle one and those for which the others wait most; and the middle one.

    All by trace id: the step of each rank alone, how many nodes its graph has, how long others waited for it.
    """
    if not steps_ns:
        return frozenset(), None
    middle = _middle(sorted(steps_ns), steps_ns.__getitem__)
    order = sorted(steps_ns, key=lambda one: (one != middle, -awaited_ns.get(one, 0), -steps_ns[one], one))
    # Nodes of all ranks together, for which a simulation takes some tenth of a second.
    count = max(1, int((np.cumsum([nodes[one] for one in order]) <= 200_000).sum()))
    return frozenset(order[:count]), middle


def _middle(ranks: Sequence[R], step_ns: Callable[[R], float]) -> R:
    return sorted(ranks, key=step_ns)[len(ranks) // 2]


class RankExamination(msgspec.Struct, frozen=True):
    execution: StepExecution | None = None  # its simulated step; None where nothing was launched in one
    hosts: tuple[HostSpeed, ...] = ()  # how fast its host may have been, as `StepModel.hosts`
    node_count: int = 0  # of its execution graph
    timeline: Timeline = Timeline()  # of this rank alone
    packed: bytes = b""  # what `unpacked` gives, compressed: few of many ranks are simulated together
    first_thread: int = 0  # what to add to the threads in there

    def unpacked(self) -> tuple[ExecutionGraph | None, dict[int, Spans]]:
        """Its execution graph, and when its threads waited for data."""
        if self.execution is None:
            return None, {}
        graph, loading = pickle.loads(zlib.decompress(self.packed))
        threads = np.where(graph.thread_id >= 0, graph.thread_id + self.first_thread, -1)
        graph = replace(graph, trace_id=self.execution.trace_id, thread_id=threads)
        return graph, {self.first_thread + thread: spans for thread, spans in loading.items()}

    def moved(self, ids: Mapping[str, int]) -> RankExamination:
        """The same in a Session where ids are larger by this, by table."""
        own = self.execution
        return replace(
            self,
            execution=own and replace(own, trace_id=own.trace_id + ids["traces"]),
            timeline=self.timeline.moved(ids["traces"], ids["runtime_calls"]),
            first_thread=self.first_thread + ids["threads"],
        )


def examine_ranks(session: Session) -> dict[int, RankExamination]:
    records = read_session(session)
    # First: what they take beside the graphs of a long trace is too much.
    timelines = [measure_timeline(session, one) for one in records.of_each()]
    models = {model.trace.trace_id: model for model in step_models(session, records)}
    found = {}
    for trace, timeline in zip(records.traces, timelines, strict=True):
        model = models.get(trace.trace_id)
        one = RankExamination() if model is None else examination_of(model)
        packed = b"" if model is None else zlib.compress(pickle.dumps((model.graph, model.loading)), 1)
        found[trace.trace_id] = replace(one, timeline=timeline, packed=packed)
    return found


def examination_of(model: StepModel) -> RankExamination:
    return RankExamination(model.execution, model.hosts, len(model.graph))


class WhatIfKind(TextEnum):
    RANK_AS_MEDIAN = "rank_as_fast_as_median"
    OVERLAPPED = "collective_overlapped"


class WhatIf(msgspec.Struct, frozen=True):
    """A change of one rank, or of collectives of one group and name, and what a step would get shorter."""

    kind: WhatIfKind
    gain: Gain
    rank: int | None = None
    process_group: str | None = None
    name: str | None = None


class JobOutlook(msgspec.Struct, frozen=True):
    ranks: int  # how many the job has here
    simulated: int  # how many of them are in the simulation
    step_ns: float  # a step of them without the profiler
    path: tuple[JobPath, ...]  # the critical path of the recorded steps across ranks, the largest first
    what_ifs: tuple[WhatIf, ...]  # changes by kind, the most worth first


def look_at_job(
    job: Job | None, collectives: JobCollectives, straggler: Straggler | None
) -> JobOutlook | None:
    """What is known of the ranks together; without a straggler the one that is waited for most is tried."""
    if job is None or job.graph is None:
        return None
    what_ifs = []
    most = max(collectives.skews, key=lambda one: one.awaited_ns, default=None)
    late = straggler or (most if most is not None and most.awaited_ns else None)
    if late is not None and (change := job.as_fast_as_median(late.trace_id)) is not None:
        gain = job.gain(change)
        if straggler is None or straggler.is_explained_by(gain.high_ns):
            what_ifs.append(WhatIf(WhatIfKind.RANK_AS_MEDIAN, gain, rank=late.rank))
    # By process group and name of the collective; activities by trace.
    kernels = grouped(
        ((of_one[0].members, of_one[0].title or ""), (one.trace_id, one.activity_id))
        for of_one in collectives.matched
        for one in of_one
    )
    what_ifs += [
        WhatIf(
            WhatIfKind.OVERLAPPED,
            job.gain(job.overlapped(grouped(kernels[one.members, one.name]))),
            process_group=one.process_group,
            name=one.name,
        )
        for one in collectives.totals[:5]
    ]
    what_ifs.sort(key=lambda one: -one.gain.ns)
    return JobOutlook(len(collectives.ranks), len(job.models), job.step_ns, job.path, tuple(what_ifs))
