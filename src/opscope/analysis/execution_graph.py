"""The execution graph of a recorded program: simulated, it says how long a step takes, and would take.

Nodes are moments of the recording: a launch call begins, a waiting call returns, a step begins or ends on a
host thread, an activity ends on a device. A node comes when the last of what it depends on (`Edge`) has come,
after the lag of that edge, and its own duration. A lag is what was recorded of the edge that explains the
node best, and what is typical of its kind of the others: so the recording simulates as itself, and a change
finds what lies behind. A node that none of its edges explains is counted: there an edge is missing.

The recorded steps are simulated several times in a row, as a program runs them; the last round is the step.
All times are integer nanoseconds. For the idea see Daydream (Zhu et al., USENIX ATC 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.analysis.arrays import Columns, Flags, covering, median
from opscope.analysis.timeline.host import RECORDED_EVENT_NS, Host
from opscope.analysis.timeline.records import OF_DRIVER_MEMORY, CallRole, TraceRecords, blocked_launches
from opscope.ingest.linking import gather
from opscope.ingest.nesting import Int64
from opscope.ingest.scan import native_library

Ints = npt.NDArray[np.signedinteger[Any]]  # as small as they may be
NEVER_NS = -(1 << 60)
# An activity that comes later than its edges let expect by more than this depends on something unknown.
TOLERANCE_NS = 20_000
# Lags where a recording has too few of a kind to tell, as on an H200.
_LAUNCH_NS = 6_000
_GRAPH_LAUNCH_NS = 20_000
_GAP_NS = 1_000
_EVENT_NS = 3_000
_RETURN_NS = 10_000


class NodeKind(IntEnum):
    ORIGIN = 0
    TAIL = 1  # of a stream: the end of what was launched on it before
    MARK = 2  # a step begins or ends
    LAUNCH = 3
    RETURN = 4  # of a call that waits
    ACTIVITY = 5


class Edge(IntEnum):
    """Why a node comes no earlier; each node has at most one of each slot: 0, 1 and 2."""

    THREAD = 0  # what the host runs from one node of a thread to the next, waits left out
    STREAM = 1  # the activity before it on its stream has ended
    LAUNCH = 2  # it was launched
    WAIT = 3  # the activity that a blocking call waits for has ended
    EVENT = 4  # another stream got so far, after `cudaStreamWaitEvent`
    HAND_OVER = 5  # a thread paused while another ran (backward), which is done


class ExecutionGraph(msgspec.Struct, frozen=True):
    """One trace's steps as nodes in an order in which all that a node depends on comes before it.

    Node 0 is what nothing waits for, node 1 the beginning of the first step, then the tails of the streams.
    """

    trace_id: int
    kind: Ints  # `NodeKind`[n]
    time_ns: Int64  # int64[n], when it was recorded, from the beginning of the first step
    duration_ns: Int64  # int64[n], of activities; 0 of others
    before: Int64  # int64[3, n], the nodes it depends on; 0 for none
    lag_ns: Int64  # int64[3, n], from each of them to the node's beginning
    edge: Ints  # `Edge`[3, n]
    excess_ns: Int64  # int64[n], what the edges leave unexplained of the time recorded
    own_ns: Int64  # int64[n], the thread's lag (slot 0) without what a call waited, explained or not
    # int64[3, n], what recording is estimated to have added to the host's lags: to those of the thread (slot
    # 0) and of the hand-over from another (slot 2)
    recorder_ns: Int64
    thread_id: Ints  # int64[n], -1 on devices
    call: Ints  # int64[n], position of the runtime call among the trace's; -1 for none
    device_row: Ints  # int64[n], position of the device among the trace's; -1 on the host
    activity: Ints  # int64[n], position of the activity among its device's; -1 for none
    order: Int64  # the nodes whose times are not given, each after all that it depends on
    # Nodes that end a round, by the TAIL node that they replace: the last activity of each stream
    tails: dict[int, int]
    end: int  # node at which the last step ends
    steps: int  # how many steps it holds; 1 where none were recorded
    dropped_edges: int = 0  # edges that would run backward in time
    event_waits: int = 0  # waits of streams for others of which both streams were recorded
    # Of these, those whose stream went on before the other had got so far: clocks disagree, or streams are
    # said to wait for each other
    contradicted_waits: int = 0

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def initial_count(self) -> int:
        """Nodes whose times are given, not simulated."""
        return 2 + len(self.tails)

    @property
    def carried(self) -> dict[int, int]:
        """Given nodes of a round, by what they are at the end of the one before."""
        return {1: self.end, **self.tails}

    @property
    def missing_edges(self) -> int:
        """Nodes that come later than what they are known to depend on explains."""
        return int((self.excess_ns > TOLERANCE_NS).sum())

    @property
    def recorded_ns(self) -> int:
        """From the beginning of the first step to the end of all its work, as recorded."""
        return int(self.time_ns[list(self.carried.values())].max())


class Simulation(NamedTuple):
    """Times of the nodes in the last of the rounds, and the mean step of that round."""

    times: Int64
    step_ns: float


def simulate(
    graph: ExecutionGraph,
    *,
    lag_ns: Int64 | None = None,
    duration_ns: Int64 | None = None,
    rounds: int | None = None,
    is_idle: bool = False,
) -> Simulation:
    """The graph with other lags or durations than its own; as often in a row as makes the step steady.

    A node ends at `max(end[before] + lag over its edges) + duration`. One round begins with streams as
    occupied as they were recorded; `is_idle`: one, with streams that have nothing to do.
    """
    simulated = _round(
        graph,
        np.ascontiguousarray(graph.lag_ns if lag_ns is None else lag_ns, dtype=np.int64),
        np.ascontiguousarray(graph.duration_ns if duration_ns is None else duration_ns, dtype=np.int64),
    )
    given, ends = list(graph.carried), list(graph.carried.values())
    times = graph.time_ns.copy()
    if rounds is None or is_idle:
        # Six steps and more, so that what the first one finds empty counts for nothing.
        rounds = 1 if is_idle else max(2, -(-6 // graph.steps))
        times[given] = np.where(graph.kind[given] == NodeKind.TAIL, NEVER_NS, 0)
    reached_ns, began_ns = 0, 0
    for number in range(rounds):
        if number:
            times[given] = times[ends]
            began_ns = reached_ns
        simulated(times)
        reached_ns = int(times[ends].max())
    return Simulation(times, (reached_ns - began_ns) / graph.steps)


def _round(graph: ExecutionGraph, lag_ns: Int64, duration_ns: Int64) -> Callable[[Int64], None]:
    """What replaces times of nodes by those of one round."""
    order, before, library = graph.order, np.ascontiguousarray(graph.before), native_library()
    if library is not None:
        return lambda times: library.simulate_nodes(
            order.ctypes.data, len(order), before.shape[1], before.ctypes.data, lag_ns.ctypes.data,
            duration_ns.ctypes.data, times.ctypes.data,
        )  # fmt: skip
    columns = (order, *before[:, order], *lag_ns[:, order], duration_ns[order])
    rows = list(zip(*(column.tolist() for column in columns), strict=True))

    def in_python(times: Int64) -> None:
        ended = times.tolist()
        for node, one, other, third, lag, other_lag, third_lag, own in rows:
            ended[node] = max(ended[one] + lag, ended[other] + other_lag, ended[third] + third_lag) + own
        times[:] = ended

    return in_python


class CriticalPath(NamedTuple):
    node: Int64  # int64[n], its nodes
    edge: Ints  # int64[n], the `Edge` by which each came
    edge_ns: Int64  # int64[n], how long that took
    own_ns: Int64  # int64[n], how long each lasted itself
    end_ns: int = 0  # when the last one came, from the beginning of the first step


def critical_path(graph: ExecutionGraph, lag_ns: Int64 | None = None) -> CriticalPath:
    """The critical path as recorded, or with other lags.

    It sums to `graph.recorded_ns`, or to what the steps take with those lags, less what streams were still
    busy with at the beginning.
    """
    lag_ns = graph.lag_ns if lag_ns is None else lag_ns
    times = simulate(graph, lag_ns=lag_ns, rounds=1).times
    slot = (times[graph.before] + lag_ns).argmax(axis=0)
    before = np.take_along_axis(graph.before, slot[None], axis=0)[0]
    came_from = np.ascontiguousarray(before).data
    node = max(graph.carried.values(), key=lambda one: (times[one], one == graph.end))
    end_ns, passed = int(times[node]), []
    while node >= graph.initial_count:
        passed.append(node)
        node = came_from[node]
    nodes = np.array(passed, dtype=np.int64)
    own_ns = graph.duration_ns[nodes]
    edge_ns = times[nodes] - own_ns - times[before[nodes]]
    return CriticalPath(nodes, graph.edge[slot[nodes], nodes], edge_ns, own_ns, end_ns)


class StepsWindow(NamedTuple):
    """The steps of a trace: streams are busy with what was not recorded until `held_until_ns`."""

    thread_id: int | None
    began_ns: tuple[int, ...]
    end_ns: int
    held_until_ns: int = NEVER_NS


class Sync(NamedTuple):
    stream: int  # the stream that waits; where the host waits, the one it waits for
    source: int | None = None  # the stream waited for by another one; None where the host waits
    source_call: int | None = None  # position of the call that recorded the event waited for; None if unknown


def build_graph(
    trace: TraceRecords, host: Host, window: StepsWindow, syncs: Mapping[int, Sync] | None = None
) -> ExecutionGraph | None:
    """The graph of one trace's steps (`syncs` by position of the call); None where they launched nothing."""
    work, tail_ns = _work(trace, window)
    if not len(work) or not trace.launch_threads:
        return None
    builder = _Builder(trace, host, window, syncs or {}, work, tail_ns)
    builder.tie_threads()
    builder.tie_streams()
    builder.tie_events()
    builder.tie_late()
    builder.tie_waits()
    builder.tie_pauses()
    return builder.graph()


class _Work(Columns, frozen=True):
    """Activities of all devices of a trace, by device, stream and start; `lane` numbers the streams."""

    device_row: Int64
    activity: Int64
    stream: Int64
    start_ns: Int64
    end_ns: Int64
    call: Int64
    launched_ns: Int64
    lane: Int64


def _work(trace: TraceRecords, window: StepsWindow) -> tuple[_Work, Int64]:
    """What was launched in the window, and until when each stream was busy with what was launched before."""
    parts = []
    for row, device in enumerate(trace.devices):
        launched_ns = gather(trace.calls.start_ns, device.call)
        launched_ns = np.where(device.call >= 0, launched_ns, device.start_ns)
        launched_ns[device.is_early] = NEVER_NS
        at = np.full(len(device), row), np.arange(len(device))
        parts.append((*at, device.stream, device.start_ns, device.end_ns, device.call, launched_ns))
    if not parts:
        return _Work(*(np.empty(0, dtype=np.int64),) * 8), np.empty(0, dtype=np.int64)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    columns.append(np.zeros(len(columns[0]), dtype=np.int64))
    work = _Work(*columns)
    work = work.at(np.lexsort((work.start_ns, work.stream, work.device_row)))
    is_new = np.diff(work.stream, prepend=work.stream[0]) != 0
    is_new |= np.diff(work.device_row, prepend=0) != 0
    np.cumsum(is_new, out=work.lane)
    began_ns = window.began_ns[0]
    is_before = work.launched_ns < began_ns
    tail_ns = np.full(int(work.lane[-1]) + 1, max(NEVER_NS, window.held_until_ns - began_ns), dtype=np.int64)
    np.maximum.at(tail_ns, work.lane[is_before], work.end_ns[is_before] - began_ns)
    return work.at(~is_before & (work.launched_ns < window.end_ns)), tail_ns


class _Builder:
    """Nodes of a graph in their order, and the edges that are found for them one kind after the other."""

    def __init__(  # noqa: PLR0917 - all of them make the graph
        self,
        trace: TraceRecords,
        host: Host,
        window: StepsWindow,
        syncs: Mapping[int, Sync],
        work: _Work,
        tail_ns: Int64,
    ) -> None:
        self.trace, self.calls, self.host, self.window = trace, trace.calls, host, window
        self.syncs, self.work, self.tail_ns = syncs, work, tail_ns
        self.origin_ns = window.began_ns[0]
        calls = self.calls
        within = np.isin(calls.thread_id, trace.launch_threads)
        within &= (calls.start_ns >= self.origin_ns) & (calls.start_ns < window.end_ns)
        launches = np.flatnonzero(within & calls.is_launch)
        # Where that of the steps launches nothing, the thread that launches most, if any does within them.
        threads, counts = np.unique(calls.thread_id[launches], return_counts=True)
        busiest = int(threads[counts.argmax()]) if len(threads) else trace.launch_threads[0]
        # Without steps, the one that is through last.
        last = int(calls.thread_id[np.where(within, calls.end_ns, NEVER_NS).argmax()])
        usual = last if window.thread_id is None and within.any() else busiest
        self.main = window.thread_id if window.thread_id in trace.launch_threads else usual
        holds = np.isin(calls.role, (CallRole.WAITS, *OF_DRIVER_MEMORY))
        holds[blocked_launches(trace)[0]] = True
        waits = np.flatnonzero(
            within & holds & ((calls.thread_id != self.main) | (calls.end_ns <= window.end_ns))
        )
        marks = np.array([*window.began_ns[1:], window.end_ns], dtype=np.int64)
        # Of what comes at once: ends of activities, returns from waits for them, then what the host does
        # next.
        launched_on, returned_on = calls.thread_id[launches], calls.thread_id[waits]
        kinds = (
            _nodes(NodeKind.LAUNCH, 2, calls.start_ns[launches], thread=launched_on, call=launches),
            _nodes(NodeKind.RETURN, 1, self._returned_ns(waits), thread=returned_on, call=waits),
            _nodes(NodeKind.MARK, 3, marks, thread=np.full(len(marks), self.main)),
            _nodes(NodeKind.ACTIVITY, np.where(work.end_ns > work.start_ns, 0, 4), work.end_ns,
                   call=work.call, row=np.arange(len(work))),
        )  # fmt: skip
        rank, kind, time_ns, thread, call, row = map(np.concatenate, zip(*kinds, strict=True))
        order = np.lexsort((rank, time_ns))
        none = np.full(2 + len(tail_ns), -1, dtype=np.int64)
        self.kind = np.concatenate(
            (np.repeat([NodeKind.ORIGIN, NodeKind.TAIL], [2, len(tail_ns)]), kind[order])
        )
        self.time_ns = np.concatenate(([NEVER_NS, 0], tail_ns, time_ns[order] - self.origin_ns))
        self.thread_id, self.call, self.row = (
            np.concatenate((none, one[order])) for one in (thread, call, row)
        )
        self.end = int(np.flatnonzero(self.kind == NodeKind.MARK)[-1])
        self.launch_node = _positions(self.call, self.kind == NodeKind.LAUNCH, len(calls))
        self.work_node = _positions(self.row, self.row >= 0, len(work))
        self.duration_ns = np.zeros(len(self.kind), dtype=np.int64)
        self.duration_ns[self.work_node] = work.end_ns - work.start_ns
        self.before, self.typical_ns = np.zeros((2, 3, len(self.kind)), dtype=np.int64)
        self.edge = np.zeros((3, len(self.kind)), dtype=np.int8)
        self.recorder_ns = np.zeros((3, len(self.kind)), dtype=np.int64)
        self.cost_ns: dict[int, Int64] = {}  # of recording a thread's events until each node
        self.held_ns = np.zeros(len(self.kind), dtype=np.int64)
        self.unexplained_ns = np.zeros(len(self.kind), dtype=np.int64)
        self.event_waits = self.contradicted_waits = 0

    def _returned_ns(self, waits: Int64) -> Int64:
        """When each call returned.

        A copy from pageable memory returns when its last part lies in the driver's own buffer, some µs before
        that part is on the device: it counts as waiting for the copy's end, unless its thread went on before.
        """
        calls, work = self.calls, self.work
        returned_ns: Int64 = calls.end_ns[waits].copy()
        copied_ns = np.full(len(calls), NEVER_NS, dtype=np.int64)
        np.maximum.at(copied_ns, work.call[work.call >= 0], work.end_ns[work.call >= 0])
        later_ns = copied_ns[waits] - returned_ns
        is_copy = (calls.role[waits] == CallRole.WAITS) & calls.is_launch[waits]
        for one in np.flatnonzero(is_copy & (later_ns > 0) & (later_ns <= TOLERANCE_NS)).tolist():
            thread, copied = int(calls.thread_id[waits[one]]), int(copied_ns[waits[one]])
            is_next = (calls.thread_id == thread) & (calls.start_ns >= returned_ns[one])
            goes_on_ns = np.where(calls.role == CallRole.WAITS, calls.end_ns, calls.start_ns)[is_next]
            if not (goes_on_ns < copied).any():
                returned_ns[one] = copied
        return returned_ns

    def tie_threads(self) -> None:
        """Slot 0 of host nodes: the node before on the thread; the first ones follow the origin."""
        for thread, events in self.host.threads.items():
            nodes = np.flatnonzero(self.thread_id == thread)
            if not len(nodes):
                continue
            before = np.concatenate(([1], nodes[:-1]))
            self.before[0, nodes], self.edge[0, nodes] = before, Edge.THREAD
            self.typical_ns[0, nodes] = self.time_ns[nodes] - self.time_ns[before]
            cost_ns = np.zeros(len(self.kind), dtype=np.int64)
            for what, began_ns in events.recorded_ns.items():
                cost_ns += RECORDED_EVENT_NS[what] * np.searchsorted(
                    np.sort(began_ns), self.time_ns + self.origin_ns
                )
            self.cost_ns[thread] = cost_ns
            self.recorder_ns[0, nodes] = np.diff(cost_ns[nodes], prepend=cost_ns[1])

    def tie_streams(self) -> None:
        """Slots 0 and 1 of activities: the one before on the stream, and the launch (of a replay: once)."""
        work, nodes = self.work, self.work_node
        is_first = np.diff(work.lane, prepend=-1) != 0
        before = np.where(is_first, 2 + work.lane, np.concatenate(([0], nodes[:-1])))
        self.before[0, nodes], self.edge[0, nodes] = before, Edge.STREAM
        launch = np.where(work.call >= 0, self.launch_node[work.call], 0)
        by_start = np.lexsort((work.start_ns, work.call))
        launch[by_start[1:][np.diff(work.call[by_start]) == 0]] = 0
        self.before[1, nodes], self.edge[1, nodes] = launch, Edge.LAUNCH
        ended_ns = self.time_ns[before] + self.origin_ns
        gap_ns, latency_ns = work.start_ns - ended_ns, work.start_ns - work.launched_ns
        queued = (work.call >= 0) & (work.launched_ns + 2 * _LAUNCH_NS < ended_ns)
        self.typical_ns[0, nodes] = _typical(gap_ns[queued & (gap_ns < TOLERANCE_NS)], _GAP_NS)
        is_graph = (work.call >= 0) & self.calls.is_graph[work.call]
        waited_for_launch = (launch > 0) & (ended_ns < work.launched_ns)
        for chosen, default_ns in ((is_graph, _GRAPH_LAUNCH_NS), (~is_graph, _LAUNCH_NS)):
            self.typical_ns[1, nodes[chosen]] = _typical(latency_ns[waited_for_launch & chosen], default_ns)

    def tie_events(self) -> None:
        """Slot 2 of activities: what another stream had to finish, by an event wait or within a replay."""
        work, calls, origin_ns = self.work, self.calls, self.origin_ns
        if int(work.lane.max()) == int(work.lane.min()):
            return
        by_launch = np.argsort(work.launched_ns, kind="stable")
        launched_ns = work.launched_ns[by_launch]
        lanes = _Lanes(work)
        waits_for_event = np.array(["StreamWaitEvent" in name for name in self.trace.call_names] or [False])
        waits = np.flatnonzero(waits_for_event[calls.name_index] & (calls.start_ns >= origin_ns))
        for wait in waits.tolist():
            wait_ns = int(calls.start_ns[wait])
            sync = self.syncs.get(wait)
            if sync is not None:
                target = lanes.first_launched_after(wait_ns, sync.stream)
            else:
                slot = int(np.searchsorted(launched_ns, wait_ns))
                target = int(by_launch[slot]) if slot < len(by_launch) else -1
            if target < 0:
                continue
            until_ns, began_ns = wait_ns, int(work.start_ns[target])
            if sync is not None and sync.source_call is not None:
                until_ns = int(calls.start_ns[sync.source_call])
                due = lanes.last_launched(until_ns, stream=sync.source)
                if due >= 0:
                    self.event_waits += 1
                    self.contradicted_waits += int(work.end_ns[due] > began_ns + TOLERANCE_NS)
            stream, lane = None if sync is None else sync.source, int(work.lane[target])
            source = lanes.last_ended(until_ns, began_ns, stream=stream, other_than=lane)
            if source >= 0:
                self._tie_event(target, source)
        # Within one replay on several streams, the first on each follows the last that ended elsewhere.
        replays = np.flatnonzero((work.call >= 0) & calls.is_graph[work.call])
        replays = replays[np.argsort(work.call[replays], kind="stable")]
        for mine in np.split(replays, np.flatnonzero(np.diff(work.call[replays])) + 1):
            for first in mine[np.diff(work.lane[mine], prepend=-1) != 0].tolist():
                ended = mine[work.end_ns[mine] <= work.start_ns[first]]
                if len(ended):
                    self._tie_event(first, int(ended[work.end_ns[ended].argmax()]))

    def _tie_event(self, target: int, source: int) -> None:
        node, before = self.work_node[target], self.work_node[source]
        if self.time_ns[before] >= self.time_ns[self.before[2, node]]:
            self.before[2, node], self.edge[2, node], self.typical_ns[2, node] = before, Edge.EVENT, _EVENT_NS

    def tie_waits(self) -> None:
        """Slot 1 of returns: the activity that the call waited for; the thread's own lag without the wait."""
        calls, lanes = self.calls, _Lanes(self.work)
        nodes = np.flatnonzero(self.kind == NodeKind.RETURN)
        nodes = nodes[~self._is_beside_work(self.call[nodes])]
        own_copy = np.full(len(calls), -1, dtype=np.int64)
        own_copy[self.work.call[self.work.call >= 0]] = np.flatnonzero(self.work.call >= 0)
        latest = {thread: _last_lane(self, thread) for thread in self.trace.launch_threads}
        late_ns, found = [], []
        for node in nodes.tolist():
            call = int(self.call[node])
            start_ns, end_ns = int(calls.start_ns[call]), int(calls.end_ns[call])
            name = self.trace.call_name(call)
            sync = self.syncs.get(call)
            is_wait = int(calls.role[call]) == CallRole.WAITS
            if is_wait and calls.is_launch[call]:
                source = int(own_copy[call])
                returned_ns = int(self.time_ns[node]) + self.origin_ns
                source = source if self.work.end_ns[source] <= returned_ns else -1
            else:
                stream = None if sync is None else sync.stream
                source = lanes.last_ended(start_ns, end_ns, stream=stream)
                is_inside = source >= 0 and self.work.end_ns[source] > start_ns
                if not is_inside and (not is_wait or "EventSynchronize" in name):
                    source = -1
                elif not is_inside and stream is None and "StreamSynchronize" in name:
                    source = lanes.last_ended(
                        start_ns, end_ns, lane=latest[int(calls.thread_id[call])](start_ns)
                    )
            inside_ns = min(end_ns - start_ns, int(self.time_ns[node] - self.time_ns[self.before[0, node]]))
            # A wait takes the host so long if nothing is left to wait for.
            waited_ns = max(0, inside_ns - 5_000)
            self.held_ns[node] = waited_ns
            before, ended_ns = int(self.work_node[source]), int(self.work.end_ns[source])
            if source < 0:
                # What was launched before the steps ends no later than this: in a row, what the step before
                # left.
                tails_ns = self.tail_ns + self.origin_ns
                inside = np.flatnonzero(
                    (self.tail_ns > NEVER_NS) & (tails_ns > start_ns) & (tails_ns <= end_ns)
                )
                last = int(inside[tails_ns[inside].argmax()]) if len(inside) else -1
                before, ended_ns = (2 + last, int(tails_ns[last])) if len(inside) else (-1, 0)
            if before < 0:
                self.unexplained_ns[node] = waited_ns if is_wait else 0
                continue
            found.append((node, before))
            if ended_ns > start_ns:
                late_ns.append(max(0, end_ns - ended_ns))
                self.typical_ns[0, node] -= waited_ns
        return_ns = _typical(np.array([one for one in late_ns if one < 10 * _RETURN_NS]), _RETURN_NS)
        for node, before in found:
            self.before[1, node], self.edge[1, node], self.typical_ns[1, node] = before, Edge.WAIT, return_ns

    def _is_beside_work(self, call: Int64) -> Flags:
        """Calls for the driver's memory during which work went on: they wait for all of it, or for none."""
        calls, work = self.calls, self.work
        found = np.isin(calls.role[call], OF_DRIVER_MEMORY)
        if found.any():
            by_launch = np.argsort(work.launched_ns, kind="stable")
            through_ns = np.maximum.accumulate(np.append(NEVER_NS, work.end_ns[by_launch]))
            launched = np.searchsorted(work.launched_ns[by_launch], calls.start_ns[call])
            found &= through_ns[launched] > calls.end_ns[call]
        return found

    def tie_pauses(self) -> None:
        """Slot 2 of host nodes: where a thread paused while another ran, the other's last node."""
        threads = {thread: np.flatnonzero(self.thread_id == thread) for thread in self.host.threads}
        for thread, nodes in threads.items():
            ran = self.host.threads[thread].ran
            others = [one for one in threads if one != thread and len(threads[one])]
            if not others or not len(nodes) or not len(ran.start_ns):
                continue
            pause_ns = np.concatenate(([self.origin_ns], ran.end_ns))
            resume_ns = np.concatenate((ran.start_ns, [self.window.end_ns]))
            # Shorter pauses of a thread are its own Python.
            chosen = (resume_ns - pause_ns >= 20_000) & (pause_ns >= self.origin_ns)
            place = np.searchsorted(self.time_ns[nodes], resume_ns - self.origin_ns)
            chosen &= place < len(nodes)
            pause_ns, resume_ns, place = pause_ns[chosen], resume_ns[chosen], place[chosen]
            sources = np.max(
                [self._last_of_burst(one, threads[one], pause_ns, resume_ns) for one in others], axis=0
            )
            for pause in np.flatnonzero(sources > 0).tolist():
                source, node = int(sources[pause]), int(nodes[place[pause]])
                if source > self.before[2, node]:
                    self.before[2, node], self.edge[2, node] = source, Edge.HAND_OVER
                    self.typical_ns[0, node] -= min(
                        int(resume_ns[pause] - pause_ns[pause]), int(self.typical_ns[0, node])
                    )
                    # From then on as long as the thread itself needs, without what it waits for the device.
                    resumed_ns = int(resume_ns[pause]) - self.origin_ns
                    own_ns = min(int(self.time_ns[node]) - resumed_ns, int(self.typical_ns[0, node]))
                    self.typical_ns[2, node] = resumed_ns - self.time_ns[source] + own_ns
                    self.recorder_ns[2, node] = sum(
                        int(self.cost_ns[one][node] - self.cost_ns[one][source])
                        for one in (thread, int(self.thread_id[source]))
                    )

    def _last_of_burst(self, thread: int, nodes: Int64, pause_ns: Int64, resume_ns: Int64) -> Int64:
        """Last node of a thread that ran within pauses of another and at neither of their ends; 0 if none."""
        ran = self.host.threads[thread].ran
        runs_on = (covering(ran, pause_ns) >= 0) | (covering(ran, resume_ns) >= 0)
        times_ns = self.time_ns[nodes] + self.origin_ns
        place = np.searchsorted(times_ns, resume_ns) - 1
        return np.where((place >= 0) & (times_ns[place] > pause_ns) & ~runs_on, nodes[place], 0)

    def tie_late(self) -> None:
        """Activities that nothing explains, behind one of another stream that ended just then.

        Which stream an event wait holds up is not recorded as a rule, so the nearest one was tied first.
        """
        work = self.work
        before = self.before[:, self.work_node]
        is_there = (before > 0) & (self.time_ns[before] > NEVER_NS // 2)
        late_ns = work.start_ns - self.origin_ns - self.time_ns[before] - self.typical_ns[:, self.work_node]
        excess_ns = np.where(is_there, late_ns, -NEVER_NS).min(axis=0)
        lanes = _Lanes(work)
        for target in np.flatnonzero(excess_ns > TOLERANCE_NS).tolist():
            start_ns, launched_ns = int(work.start_ns[target]), int(work.launched_ns[target])
            # What one replay launched counts too.
            source = lanes.last_ended(launched_ns + 1, start_ns, other_than=int(work.lane[target]))
            if source >= 0 and start_ns - work.end_ns[source] <= TOLERANCE_NS:
                self._tie_event(target, source)

    def graph(self) -> ExecutionGraph:
        """The graph, its lags as recorded where an edge explains its node, else typical ones."""
        count = len(self.kind)
        is_backward = self.before >= np.arange(count)
        self.before[is_backward] = 0
        began_ns = self.time_ns - self.duration_ns
        is_there = self.before > 0
        is_there[0] |= self.time_ns[self.before[0]] > NEVER_NS // 2
        is_there &= self.time_ns[self.before] > NEVER_NS // 2
        recorded_ns = began_ns - self.time_ns[self.before]
        np.clip(self.recorder_ns, 0, np.maximum(self.typical_ns, 0), out=self.recorder_ns)
        excess_ns = np.where(is_there, np.maximum(recorded_ns - self.typical_ns, 0), -NEVER_NS)
        best = excess_ns.argmin(axis=0)
        lag_ns = np.where(is_there, np.minimum(recorded_ns, self.typical_ns), self.typical_ns)
        everything = np.arange(count)
        has_any = is_there.any(axis=0)
        lag_ns[best[has_any], everything[has_any]] = recorded_ns[best[has_any], everything[has_any]]
        first = 2 + len(self.tail_ns)
        unexplained_ns = np.where(has_any, excess_ns[best, everything], 0)
        unexplained_ns[self.thread_id >= 0] = 0
        unexplained_ns = np.maximum(unexplained_ns, self.unexplained_ns)
        unexplained_ns[:first] = 0
        # What nothing is known of comes when it was recorded.
        lost = np.flatnonzero(~has_any)
        lost = lost[lost >= first]
        self.before[0, lost], lag_ns[0, lost] = 1, began_ns[lost]
        unexplained_ns[lost] = -NEVER_NS
        dropped_edges = int(is_backward[:, first:].sum()) + self.contradicted_waits
        device_row, activity = np.full((2, count), -1, dtype=np.int32)
        device_row[self.work_node], activity[self.work_node] = self.work.device_row, self.work.activity
        is_last = np.diff(self.work.lane, append=-1) != 0
        tails = {2 + lane: 2 + lane for lane in range(len(self.tail_ns))}
        tails |= {
            2 + int(self.work.lane[one]): int(self.work_node[one]) for one in np.flatnonzero(is_last).tolist()
        }
        return ExecutionGraph(
            trace_id=self.trace.trace_id,
            kind=self.kind.astype(np.int8),
            time_ns=self.time_ns,
            duration_ns=self.duration_ns,
            before=self.before,
            lag_ns=lag_ns,
            edge=self.edge,
            excess_ns=unexplained_ns,
            own_ns=np.minimum(lag_ns[0], self.time_ns - self.time_ns[self.before[0]] - self.held_ns),
            recorder_ns=self.recorder_ns,
            thread_id=self.thread_id.astype(np.int32),
            call=self.call.astype(np.int32),
            device_row=device_row,
            activity=activity,
            order=np.arange(first, count),
            tails=tails,
            end=self.end,
            steps=len(self.window.began_ns),
            dropped_edges=dropped_edges,
            event_waits=self.event_waits,
            contradicted_waits=self.contradicted_waits,
        )


class _Lanes:
    """The streams of a trace: what was launched or ended on them by when, as rows of the work."""

    def __init__(self, work: _Work) -> None:
        bounds = np.flatnonzero(np.diff(work.lane, prepend=-1, append=-1) != 0).tolist()
        self._lanes = [
            (int(work.lane[low]), int(work.stream[low]), low,
             np.maximum.accumulate(work.launched_ns[low:high]), np.maximum.accumulate(work.end_ns[low:high]))
            for low, high in pairwise(bounds)
        ]  # fmt: skip

    def last_ended(
        self,
        launched_ns: int,
        ended_ns: int,
        *,
        stream: int | None = None,
        lane: int | None = None,
        other_than: int = -1,
    ) -> int:
        """Of what was launched before a moment and ended by another, the last to end; -1 for none."""
        best, best_ns = -1, NEVER_NS
        for number, its_stream, low, launches, ends in self._lanes:
            if stream not in (None, its_stream) or lane not in (None, number) or number == other_than:
                continue
            row = min(int(launches.searchsorted(launched_ns)), int(ends.searchsorted(ended_ns, "right"))) - 1
            if row >= 0 and int(ends[row]) > best_ns:
                best, best_ns = low + row, int(ends[row])
        return best

    def last_launched(self, until_ns: int, *, stream: int | None) -> int:
        """The last launched on a stream before a moment; -1 for none, or where the stream is unknown."""
        rows = [
            low + int(launches.searchsorted(until_ns)) - 1
            for _, its_stream, low, launches, _ in self._lanes
            if its_stream == stream and launches[0] < until_ns
        ]
        return max(rows, default=-1)

    def first_launched_after(self, time_ns: int, stream: int) -> int:
        """The first launched on a stream from a moment on; -1 for none."""
        for _, its_stream, low, launches, _ in self._lanes:
            row = int(launches.searchsorted(time_ns))
            if its_stream == stream and row < len(launches):
                return int(low + row)
        return -1


def _nodes(
    kind: NodeKind, rank: int | Int64, time_ns: Int64, *,
    thread: Int64 | None = None, call: Int64 | None = None, row: Int64 | None = None,
) -> tuple[Int64, ...]:  # fmt: skip
    """Columns of nodes: rank among what comes at once, kind, time, thread, call, row of the work."""
    none = np.full(len(time_ns), -1, dtype=np.int64)
    known = [none if column is None else column for column in (thread, call, row)]
    return (none * 0 + rank, none * 0 + kind, time_ns, *known)


def _positions(keys: Int64, chosen: Flags, count: int) -> Int64:
    """Node of each key below `count`; 0 for none."""
    found = np.zeros(count, dtype=np.int64)
    found[keys[chosen]] = np.flatnonzero(chosen)
    return found


def _last_lane(builder: _Builder, thread: int) -> Callable[[int], int | None]:
    """By moment, the stream on which a thread launched last."""
    work, calls = builder.work, builder.calls
    mine = np.flatnonzero(np.where(work.call >= 0, calls.thread_id[work.call], -1) == thread)
    mine = mine[np.argsort(work.launched_ns[mine], kind="stable")]
    launched_ns, lanes = work.launched_ns[mine], work.lane[mine]

    def at(time_ns: int) -> int | None:
        position = int(launched_ns.searchsorted(time_ns)) - 1
        return int(lanes[position]) if position >= 0 else None

    return at


def _typical(samples_ns: Int64, default_ns: int) -> int:
    return int(median(samples_ns)) if len(samples_ns) >= 5 else default_ns  # of fewer nothing is typical
