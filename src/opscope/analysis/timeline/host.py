"""What the launching threads of a trace did: their recorded events, and sets of moments by thread.

Only threads that launched something count: others cannot make a device wait. Of the recorder's own intervals
only those count in which no launching thread got anywhere; a flush on a thread of its own harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from opscope.analysis.timeline.frame_names import FrameNames
from opscope.analysis.timeline.queries import Columns, by_thread, columns, sql
from opscope.analysis.timeline.records import Calls, Flags, TraceRecords
from opscope.analysis.timeline.spans import Spans, merge
from opscope.attribution.nesting import Int64
from opscope.model.session import Session

__all__ = ["Host", "Stall", "ThreadEvents", "read_hosts"]

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
    """

    threads: Mapping[int, ThreadEvents] = field(default_factory=dict)
    stalls: tuple[Stall, ...] = ()

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


def read_hosts(session: Session, traces: Sequence[TraceRecords], names: FrameNames) -> dict[int, Host]:
    """The host of each trace, by trace id."""
    threads = [thread for trace in traces for thread in trace.launch_threads]
    operators, frames, annotations = (
        by_thread(columns(session, query, [threads]))
        for query in ("host_operators", "host_frames", "annotations")
    )
    chosen = {"threads": threads, "loading": list(names.loading), "asleep": list(names.asleep)}
    ranges = by_thread(columns(session, "host_ranges", chosen))
    overheads = session.query(sql("overheads"), [list(_RECORDER)])
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
        hosts[trace.trace_id] = Host(events, _stalls(candidates, events.values()))
    return hosts


_NONE: Columns = {
    **dict.fromkeys(("id", "start_ns", "end_ns"), np.empty(0, dtype=np.int64)),
    **dict.fromkeys(("is_outermost", "has_shapes", "is_loading"), np.empty(0, dtype=np.bool_)),
    "name": np.empty(0, dtype=object),
}


def _calls_of(calls: Calls, thread: int) -> Columns:
    own = np.flatnonzero(calls.thread_id == thread)
    return {"id": own, "start_ns": calls.start_ns[own], "end_ns": calls.end_ns[own]}


def _extents(events: Columns, chosen: Flags | None = None) -> tuple[Int64, Int64]:
    if chosen is None:
        return events["start_ns"], events["end_ns"]
    return events["start_ns"][chosen], events["end_ns"][chosen]


def _stalls(overheads: list[Stall], threads: Iterable[ThreadEvents]) -> tuple[Stall, ...]:
    """The intervals in which nothing began or ended on any launching thread."""
    if not overheads:
        return ()
    start_ns, end_ns = (np.array([one[edge] for one in overheads], dtype=np.int64) for edge in (1, 2))
    moved = np.zeros(len(overheads), dtype=np.bool_)
    for thread in threads:
        moved |= thread.has_edge_in(start_ns, end_ns)
    return tuple(one for one, is_moved in zip(overheads, moved.tolist(), strict=True) if not is_moved)
