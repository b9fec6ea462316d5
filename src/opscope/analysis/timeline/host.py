"""What the launching threads of a trace did: their recorded events, and sets of moments by thread.

Only threads that launched something count: others cannot make a device wait. Of the recorder's own intervals
only those count in which no launching thread got anywhere; a flush on a thread of its own harms nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from opscope.analysis.timeline.device_windows import Step, TraceWindow, read_windows
from opscope.analysis.timeline.records import (
    Columns,
    Flags,
    RuntimeCalls,
    TraceRecords,
    by_thread,
    columns,
    read_records,
)
from opscope.analysis.timeline.spans import Spans, covering, merge
from opscope.ingest.nesting import Forest, Int64, enclosing, nest
from opscope.model.location import is_program_file, parse_frame
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


class FrameNames(msgspec.Struct, frozen=True):
    """Names of frames by what they are; all empty where stacks were not recorded.

    Attributes:
        loading: A DataLoader's wait for its next batch.
        asleep: Functions in which the thread sleeps.
        program: The program's own functions, each with its title `file:line function`.
    """

    loading: tuple[str, ...] = ()
    asleep: tuple[str, ...] = ()
    program: Mapping[str, str] = msgspec.field(default_factory=dict)


def _frame_names(session: Session) -> FrameNames:
    """The names of a Session's frames."""
    names = [name for (name,) in session.query("SELECT DISTINCT name FROM frames WHERE name IS NOT NULL")]
    program = {}
    for name in names:
        frame = parse_frame(name)
        if frame is not None and is_program_file(frame.file):
            program[name] = f"{frame.file}:{frame.line} {frame.function}"
    return FrameNames(
        loading=tuple(name for name in names if _LOADING.search(name)),
        asleep=tuple(name for name in names if _SLEEPING.match(name)),
        program=program,
    )


# What CUPTI does for the recorder's sake; the other kinds (lazy loading of functions, compilation, a full
# command buffer) the program needs as well. Source: libkineto/src/cupti_strings.cpp, `overheadKindString`.
_RECORDER = ("Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource")


class Stall(NamedTuple):
    """One interval in which the recorder held the launching threads up."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class ThreadEvents:
    """Recorded events of one thread, as columns; all have `id`, `start_ns` and `end_ns`.

    Attributes:
        operators: Of query `host_operators`.
        calls: Of query `calls`; `id` is the position among the trace's calls.
        frames: Of query `host_frames`.
        annotations: Of query `annotations`.
        ranges: Of query `host_ranges`.
    """

    operators: Columns
    calls: Columns
    frames: Columns
    annotations: Columns
    ranges: Columns

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
        """Moments in which a Python frame was open, or a range that the program named."""
        return merge(_extents(self.frames, self.frames["is_outermost"]), _extents(self.annotations))

    @cached_property
    def loading(self) -> Spans:
        """Moments of waiting for a DataLoader's next batch."""
        return merge(_extents(self.ranges, self.ranges["is_loading"]))

    @cached_property
    def asleep(self) -> Spans:
        """Moments in which a Python function slept."""
        return merge(_extents(self.ranges, ~self.ranges["is_loading"]))

    def has_edge_in(self, start_ns: Int64, end_ns: Int64) -> Flags:
        """Whether an operator or call begins or ends inside each interval."""
        moved = np.zeros(len(start_ns), dtype=np.bool_)
        for events in (self.operators, self.calls):
            for edges in _extents(events):
                ascending = np.sort(edges)
                first = np.searchsorted(ascending, start_ns, "right")
                moved |= first < np.searchsorted(ascending, end_ns, "left")
        return moved


@dataclass(frozen=True)
class Host:
    """Launching threads of one trace, by id.

    Attributes:
        stalls: What the recorder held them up with, by start.
        step_edges_ns: When steps begin and end: moments at which it is known that the program ran.
    """

    threads: Mapping[int, ThreadEvents] = field(default_factory=dict)
    stalls: tuple[Stall, ...] = ()
    step_edges_ns: tuple[int, ...] = ()

    @cached_property
    def recorder(self) -> Spans:
        """Moments in which the recorder held the threads up."""
        starts, ends = (np.array([stall[edge] for stall in self.stalls], dtype=np.int64) for edge in (1, 2))
        return merge((starts, ends))

    @cached_property
    def ran(self) -> Spans:
        """Moments in which an operator or a call was open on any of the threads."""
        return merge(*(thread.ran for thread in self.threads.values()))

    @cached_property
    def loading(self) -> Spans:
        """Moments in which any of them waited for data."""
        return merge(*(thread.loading for thread in self.threads.values()))

    @cached_property
    def named(self) -> Spans:
        """Moments in which any of them had a Python frame or a named range open."""
        return merge(*(thread.named for thread in self.threads.values()))

    @property
    def first_ns(self) -> int | None:
        """When the first recorded operator or call began; None if there is none."""
        return int(self.ran.start_ns[0]) if len(self.ran.start_ns) else None


# Events of hosts; those of more are read again when they are needed again, for nothing else takes as much
# memory.
_MOST_KEPT = 1 << 22


class SessionRecords:
    """All that was recorded of a Session's traces: what the timeline and the execution graphs are made of.

    Attributes:
        traces: Calls and device activities.
        windows: By trace id, of traces that hold any event.
        frame_names: Names of Python frames by what they are.
    """

    def __init__(
        self,
        session: Session,
        traces: tuple[TraceRecords, ...],
        windows: dict[int, TraceWindow],
        frame_names: FrameNames,
    ) -> None:
        self._session = session
        self.traces, self.windows, self.frame_names = traces, windows, frame_names
        self._hosts: dict[int, Host] | None = None

    @cached_property
    def is_large(self) -> bool:
        """Whether hosts are too many events to be kept."""
        counted = self._session.scalar(
            "SELECT (SELECT count(*) FROM operators) + (SELECT count(*) FROM frames)"
        )
        return int(counted) > _MOST_KEPT

    @property
    def hosts(self) -> dict[int, Host]:
        """By trace id."""
        if self._hosts is not None:
            return self._hosts
        hosts = _hosts(self._session, self.traces, self.windows, self.frame_names)
        if not self.is_large:
            self._hosts = hosts
        return hosts

    def within(self, windows: dict[int, TraceWindow]) -> SessionRecords:
        """The same in other windows."""
        found = SessionRecords(self._session, self.traces, windows, self.frame_names)
        found._hosts = self._hosts
        return found

    def of_each(self) -> Iterator[SessionRecords]:
        """Those of each trace."""
        hosts = None if self.is_large else self.hosts
        for trace in self.traces:
            window = {one: self.windows[one] for one in (trace.trace_id,) if one in self.windows}
            found = SessionRecords(self._session, (trace,), window, self.frame_names)
            found._hosts = None if hosts is None else {trace.trace_id: hosts[trace.trace_id]}
            yield found


def read_session(session: Session) -> SessionRecords:
    """Read them, once for all that is derived."""
    return SessionRecords(session, read_records(session), read_windows(session), _frame_names(session))


def _hosts(
    session: Session, traces: Sequence[TraceRecords], windows: Mapping[int, TraceWindow], names: FrameNames
) -> dict[int, Host]:
    """The host of each trace, by trace id."""
    threads = [thread for trace in traces for thread in trace.launch_threads]
    operators, frames, annotations = (
        by_thread(_narrow(columns(session, query, [threads])))
        for query in ("host_operators", "host_frames", "annotations")
    )
    chosen = {"threads": threads, "loading": list(names.loading), "asleep": list(names.asleep)}
    ranges = by_thread(columns(session, "host_ranges", chosen))
    overheads = session.query(sql(__package__, "timeline:overheads"), [list(_RECORDER)])
    hosts = {}
    for trace in traces:
        events = {
            thread: ThreadEvents(
                operators=operators.get(thread, _NONE),
                calls=_calls_of(trace.calls, thread),
                frames=frames.get(thread, _NONE),
                annotations=annotations.get(thread, _NONE),
                ranges=ranges.get(thread, _NONE),
            )
            for thread in trace.launch_threads
        }
        candidates = [Stall(*row) for trace_id, *row in overheads if trace_id == trace.trace_id]
        steps = windows[trace.trace_id].steps if trace.trace_id in windows else ()
        candidates += _between(steps)
        edges_ns = tuple(edge_ns for step in steps for edge_ns in (step.start_ns, step.end_ns))
        hosts[trace.trace_id] = Host(events, _stalls(candidates, events.values()), edges_ns)
    return hosts


def _narrow(found: Columns) -> Columns:
    """Ids in half the memory, where they are small enough: there is no more of anything."""
    if found["id"].max(initial=0) < 1 << 31:
        found["id"] = found["id"].astype(np.int32)
    return found


_NONE: Columns = {
    **dict.fromkeys(("id", "start_ns", "end_ns"), np.empty(0, dtype=np.int64)),
    **dict.fromkeys(("is_outermost", "has_shapes", "is_loading"), np.empty(0, dtype=np.bool_)),
    "name": np.empty(0, dtype=object),
}


def _calls_of(calls: RuntimeCalls, thread: int) -> Columns:
    own = np.flatnonzero(calls.thread_id == thread)
    return {
        "id": own, "start_ns": calls.start_ns[own], "end_ns": calls.end_ns[own],
        "is_replay": calls.is_graph[own],
    }  # fmt: skip


def _extents(events: Columns, chosen: Flags | None = None) -> tuple[Int64, Int64]:
    if chosen is None:
        return events["start_ns"], events["end_ns"]
    return events["start_ns"][chosen], events["end_ns"][chosen]


def _between(steps: Sequence[Step]) -> list[Stall]:
    """What the recorder does itself between one step and the next."""
    return [
        Stall("torch.profiler between steps", step.end_ns, step.until_ns)
        for step in steps
        if step.until_ns > step.end_ns
    ]


def _stalls(overheads: list[Stall], threads: Iterable[ThreadEvents]) -> tuple[Stall, ...]:
    """The intervals in which nothing began or ended on any launching thread."""
    if not overheads:
        return ()
    start_ns, end_ns = (np.array([one[edge] for one in overheads], dtype=np.int64) for edge in (1, 2))
    moved = np.zeros(len(overheads), dtype=np.bool_)
    for thread in threads:
        moved |= thread.has_edge_in(start_ns, end_ns)
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


def program_functions(session: Session, hosts: Iterable[Host], titles: Mapping[str, str]) -> NamedRanges:
    """Calls of the program's own functions, titled; none where stacks were not recorded."""
    rows = session.query(
        "SELECT thread_id, start_ns, duration_ns, frame_id, name FROM frames "
        "WHERE list_contains(?::VARCHAR[], name) AND list_contains(?::INTEGER[], thread_id)",
        [list(titles), [thread for host in hosts for thread in host.threads]],
    )
    return _nested([(*row[:4], titles[row[4]]) for row in rows])


def named_ranges(hosts: Iterable[Host]) -> NamedRanges:
    """Ranges that the program, or a library, named; steps are the recorder's."""
    return _nested(
        [
            (thread, start_ns, end_ns - start_ns, number, name)
            for host in hosts
            for thread, events in host.threads.items()
            for number, start_ns, end_ns, name in zip(
                *(events.annotations[column].tolist() for column in ("id", "start_ns", "end_ns", "name")),
                strict=True,
            )
        ]
    )


def _nested(rows: list[tuple[int, int, int, int, str]]) -> NamedRanges:
    """Ranges of rows of thread, start, duration, id and name."""
    numbers = np.array([row[:4] for row in rows], dtype=np.int64).reshape(-1, 4)
    forest = nest(*(np.ascontiguousarray(column) for column in numbers.T))
    return NamedRanges(forest, tuple(rows[index][4] for index in forest.order.tolist()))


def called_operators(session: Session, operator_ids: Iterable[int]) -> dict[int, str]:
    """By operator id, the name of what the program called: see `called_operators.sql`."""
    wanted = sorted(set(operator_ids))
    if not wanted:
        return {}
    return {
        leaf: name
        for leaf, name in session.query(sql(__package__, "timeline:called_operators"), [wanted])
        if name
    }
