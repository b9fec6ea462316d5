"""What the launching threads of a trace did: their recorded events, and sets of moments by thread.

Only threads that launched something count: others cannot make a device wait. Of the recorder's own intervals
only those count in which no launching thread got anywhere; a flush on a thread of its own harms nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.arrays import Arrays, Flags, Spans, columns, covering, merge
from opscope.analysis.program.places import program_functions
from opscope.analysis.timeline.records import TraceRecords, read_records
from opscope.analysis.timeline.windows import TraceWindow, read_windows
from opscope.ingest.nesting import Forest, Int64, enclosing, nest
from opscope.model.queries import sql
from opscope.model.session import Session

_LOADING = re.compile(r"(?:^|/)torch/utils/data/dataloader\.py\(\d+\): __next__$")
# Python functions that give the processor away until something happens elsewhere.
_SLEEPING = re.compile(
    r"<built-in (?:function (?:sleep|select)|method (?:acquire|poll|select|recv|accept) of .*)>$"
)


# What recording one event adds to the host, by kind.
RECORDED_EVENT_NS = {
    # What is left per operator: GPT-2 generating, 120 ms for 84 ms with 16,260 operators and 4,970 calls,
    # gives 1,990; BERT's forward, 6.2 ms of host time for 3.1 ms with 1,147 operators and 171 calls, 2,600.
    "operators with shapes": 2100,
    # With them, training steps of an encoder and of convolutions come out 12 to 15 % too high, an encoder's
    # forward 54 %, views that launch nothing 84 % (`benchmarks/results/h200_recorder_cost.json`): programs
    # that run much else between their operators pay more for each. Without shapes: 11 % too low to exact.
    "operators": 1200,
    # A kernel launch in a loop of 100,001, recorded by CUPTI: 324 ms for 250 ms without it.
    "runtime calls": 740,
    # Those steps took 0.49 to 0.52 µs more per frame with stacks; loops of calls alone, 0.23 to 0.26.
    "Python frames": 500,
}


# What CUPTI does for the recorder's sake; the other kinds (lazy loading of functions, compilation, a full
# command buffer) the program needs as well. Source: libkineto/src/cupti_strings.cpp, `overheadKindString`.
_RECORDER = ("Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource")


class Stall(NamedTuple):
    """One interval in which the recorder held the launching threads up."""

    name: str
    start_ns: int
    end_ns: int


class ThreadEvents(msgspec.Struct, frozen=True, dict=True):
    """Recorded events of one thread, as columns; all have `id`, `start_ns` and `end_ns`."""

    operators: Arrays  # of query `host_operators`
    calls: Arrays  # of query `calls`; `id` is the position among the trace's calls
    frames: Arrays  # of query `host_frames`
    annotations: Arrays  # of query `annotations`
    ranges: Arrays  # of query `host_ranges`

    @property
    def recorded_ns(self) -> dict[str, Int64]:
        """When events that cost the recorder time began, by kind of `RECORDED_EVENT_NS`.

        Not those inside of the launch of a CUDA graph, which are repeated from its capture.
        """
        replays = merge(_extents(self.calls, self.calls["is_replay"]))
        shaped, start_ns = self.operators["has_shapes"], self.operators["start_ns"]
        shapes, plain, frames = (
            times[covering(replays, times) < 0]
            for times in (start_ns[shaped], start_ns[~shaped], self.frames["start_ns"])
        )
        return dict(zip(RECORDED_EVENT_NS, (shapes, plain, self.calls["start_ns"], frames), strict=True))

    @cached_property
    def ran(self) -> Spans:
        """Moments in which an operator or a runtime call was open."""
        return merge(_extents(self.operators, self.operators["is_outermost"]), _extents(self.calls))

    @cached_property
    def named(self) -> Spans:
        return merge(_extents(self.frames, self.frames["is_outermost"]), _extents(self.annotations))

    @cached_property
    def loading(self) -> Spans:
        return merge(_extents(self.ranges, self.ranges["is_loading"]))

    @cached_property
    def asleep(self) -> Spans:
        return merge(_extents(self.ranges, ~self.ranges["is_loading"]))


class Host(msgspec.Struct, frozen=True, dict=True):
    """Launching threads of one trace, by id."""

    threads: Mapping[int, ThreadEvents] = msgspec.field(default_factory=dict)
    stalls: tuple[Stall, ...] = ()  # what the recorder held them up with, by start
    # When steps begin and end: moments at which it is known that the program ran
    step_edges_ns: tuple[int, ...] = ()

    @cached_property
    def recorder(self) -> Spans:
        starts, ends = (np.array([stall[edge] for stall in self.stalls], dtype=np.int64) for edge in (1, 2))
        return merge((starts, ends))

    @cached_property
    def ran(self) -> Spans:
        return merge(*(thread.ran for thread in self.threads.values()))

    @cached_property
    def loading(self) -> Spans:
        return merge(*(thread.loading for thread in self.threads.values()))

    @cached_property
    def named(self) -> Spans:
        return merge(*(thread.named for thread in self.threads.values()))


# Events of hosts; those of more are read again when they are needed again, for nothing else takes as much
# memory.
_MOST_KEPT = 1 << 22


class SessionRecords:
    """All that was recorded of a Session's traces: what the timeline and the execution graphs are made of."""

    def __init__(
        self,
        session: Session,
        traces: tuple[TraceRecords, ...],
        windows: dict[int, TraceWindow],
        hosts: dict[int, Host] | None = None,
    ) -> None:
        self._session, self._hosts = session, hosts
        self.traces, self.windows = traces, windows

    @cached_property
    def is_large(self) -> bool:
        counted = "SELECT (SELECT count(*) FROM operators) + (SELECT count(*) FROM frames)"
        return int(self._session.scalar(counted)) > _MOST_KEPT

    @property
    def hosts(self) -> dict[int, Host]:
        hosts = self._hosts or _hosts(self._session, self.traces, self.windows)
        self._hosts = None if self.is_large else hosts
        return hosts

    def within(self, windows: dict[int, TraceWindow]) -> SessionRecords:
        """The same in other windows."""
        return SessionRecords(self._session, self.traces, windows, self._hosts)

    def of(self, trace_id: int) -> SessionRecords:
        """The same of one trace."""
        traces = tuple(one for one in self.traces if one.trace_id == trace_id)
        windows = {one: window for one, window in self.windows.items() if one == trace_id}
        hosts = None if self._hosts is None else {trace_id: self._hosts[trace_id]}
        return SessionRecords(self._session, traces, windows, hosts)

    def of_each(self) -> Iterator[SessionRecords]:
        if not self.is_large:
            _ = self.hosts  # read at once
        return (self.of(one.trace_id) for one in self.traces)


def read_session(session: Session) -> SessionRecords:
    return SessionRecords(session, read_records(session), read_windows(session))


def _hosts(
    session: Session, traces: Sequence[TraceRecords], windows: Mapping[int, TraceWindow]
) -> dict[int, Host]:
    threads = [thread for trace in traces for thread in trace.launch_threads]
    operators, frames, annotations = (
        _by_thread(session, query, [threads]) for query in ("host_operators", "host_frames", "annotations")
    )
    names = [name for (name,) in session.query("SELECT DISTINCT name FROM frames WHERE name IS NOT NULL")]
    loading, asleep = filter(_LOADING.search, names), filter(_SLEEPING.match, names)
    ranges = _by_thread(
        session, "host_ranges", {"threads": threads, "loading": list(loading), "asleep": list(asleep)}
    )
    overheads = session.query(sql(__package__, "timeline:overheads"), [list(_RECORDER)])
    hosts = {}
    for trace in traces:
        events, calls = {}, trace.calls
        for thread in trace.launch_threads:
            own = np.flatnonzero(calls.thread_id == thread)
            events[thread] = ThreadEvents(
                operators=operators.get(thread, _NONE),
                calls={
                    "id": own, "start_ns": calls.start_ns[own], "end_ns": calls.end_ns[own],
                    "is_replay": calls.is_graph[own],
                },
                frames=frames.get(thread, _NONE),
                annotations=annotations.get(thread, _NONE),
                ranges=ranges.get(thread, _NONE),
            )  # fmt: skip
        steps = windows[trace.trace_id].steps if trace.trace_id in windows else ()
        candidates = [Stall(*row) for trace_id, *row in overheads if trace_id == trace.trace_id]
        # What the recorder does itself between one step and the next.
        candidates += [
            Stall("torch.profiler between steps", step.end_ns, step.until_ns)
            for step in steps
            if step.until_ns > step.end_ns
        ]
        edges_ns = tuple(edge_ns for step in steps for edge_ns in (step.start_ns, step.end_ns))
        hosts[trace.trace_id] = Host(events, _stalls(candidates, events.values()), edges_ns)
    return hosts


def _by_thread(session: Session, query: str, parameters: Any) -> dict[int, Arrays]:
    """Rows of a query of `timeline.sql` by their thread, in the order in which they came."""
    found = columns(session, sql(__package__, f"timeline:{query}"), parameters, order_by="thread_id")
    if found["id"].max(initial=0) < 1 << 31:
        # In half the memory: there is no more of anything.
        found["id"] = found["id"].astype(np.int32)
    thread = found.pop("thread_id")
    return {
        int(thread[low]): {name: column[low:high] for name, column in found.items()}
        for low, high in pairwise([*np.flatnonzero(np.diff(thread, prepend=-1)).tolist(), len(thread)])
    }


_NONE: Arrays = {
    **dict.fromkeys(("id", "start_ns", "end_ns"), np.empty(0, dtype=np.int64)),
    **dict.fromkeys(("is_outermost", "has_shapes", "is_loading"), np.empty(0, dtype=np.bool_)),
    "name": np.empty(0, dtype=object),
}


def _extents(events: Arrays, chosen: Flags | None = None) -> tuple[Int64, Int64]:
    if chosen is None:
        return events["start_ns"], events["end_ns"]
    return events["start_ns"][chosen], events["end_ns"][chosen]


def _stalls(overheads: list[Stall], threads: Iterable[ThreadEvents]) -> tuple[Stall, ...]:
    """The intervals in which no operator or call began or ended on any launching thread."""
    starts_ns, ends_ns = (np.array([one[edge] for one in overheads], dtype=np.int64) for edge in (1, 2))
    moved = np.zeros(len(overheads), dtype=np.bool_)
    for edges in (edges for one in threads for of in (one.operators, one.calls) for edges in _extents(of)):
        ascending = np.sort(edges)
        moved |= np.searchsorted(ascending, starts_ns, "right") < np.searchsorted(ascending, ends_ns, "left")
    held = [one for one, is_moved in zip(overheads, moved.tolist(), strict=True) if not is_moved]
    return tuple(sorted(held, key=lambda one: (one.start_ns, one.end_ns, one.name)))


class NamedRanges(msgspec.Struct, frozen=True):
    """Nested host ranges on some threads."""

    ranges: Forest
    names: tuple[str, ...]

    def at(self, thread_id: Sequence[int], time_ns: Sequence[int]) -> list[str | None]:
        """Name of the innermost range open at each moment on its thread; None where none is."""
        threads, times = np.array(thread_id, dtype=np.int64), np.array(time_ns, dtype=np.int64)
        found = enclosing(self.ranges, threads, times).tolist()
        return [self.names[index] if index >= 0 else None for index in found]


def called_functions(session: Session, threads: Sequence[int]) -> NamedRanges:
    """Calls of the program's own functions, titled; none where stacks were not recorded."""
    titles = {
        name: f"{one.file}:{one.line} {one.function}" for name, one in program_functions(session).items()
    }
    rows = session.query(
        "SELECT thread_id, start_ns, duration_ns, frame_id, name FROM frames "
        "WHERE list_contains(?::VARCHAR[], name) AND list_contains(?::INTEGER[], thread_id)",
        [list(titles), list(threads)],
    )
    return _nested([(*row[:4], titles[row[4]]) for row in rows])


def named_ranges(session: Session, threads: Sequence[int]) -> NamedRanges:
    """Ranges that the program, or a library, named; steps are the recorder's."""
    found = session.query(sql(__package__, "timeline:annotations"), [list(threads)])
    return _nested([(thread, start, end - start, id_, name) for id_, thread, start, end, name in found])


def _nested(rows: Sequence[tuple[Any, ...]]) -> NamedRanges:
    """Ranges of rows of thread, start, duration, id and name."""
    numbers = np.array([row[:4] for row in rows], dtype=np.int64).reshape(-1, 4)
    forest = nest(*(np.ascontiguousarray(column) for column in numbers.T))
    return NamedRanges(forest, tuple(rows[index][4] for index in forest.order.tolist()))
