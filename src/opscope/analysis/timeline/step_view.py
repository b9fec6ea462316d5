"""What is drawn of time: every step of a device cut into its parts, and one step event by event.

The steps of a device tile its window: a step lasts until the next begins, the last until its work is done.
So their parts sum to those of the `TimePartition`; cutting a gap where a step begins may move a little of it
from one cause to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.analysis.arrays import Spans, columns, covering, cut
from opscope.analysis.step_model import PathPiece
from opscope.analysis.timeline.host import Host, SessionRecords
from opscope.analysis.timeline.idle import CAUSES, account_for_idle
from opscope.analysis.timeline.records import DeviceRecords, TraceRecords, WorkKind
from opscope.analysis.timeline.values import IdleCause
from opscope.analysis.timeline.windows import TraceWindow, occupation
from opscope.ingest.nesting import Int64
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.text_enum import TextEnum

# Titles of the rows of a thread; its first has the thread's name.
_NESTED = ("", "nested", "nested twice")
_DEEPEST = len(_NESTED)  # operators within operators that are drawn
_MOST_ARROWS = 250


class StepTime(msgspec.Struct, frozen=True):
    """The time of one device from the start of a step to the next; the parts sum to `end_ns - start_ns`."""

    trace_id: int
    rank: int | None
    device: int
    step: int | None  # its number; None where no steps were recorded, and this is the whole recording
    start_ns: int
    end_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_by_cause: Mapping[IdleCause, int]
    gaps: Spans  # its idle time
    gap_causes: Int64  # of each gap the cause of most of it, as a position in `CAUSES`

    @property
    def is_used(self) -> bool:
        busy_ns = self.compute_ns + self.exposed_communication_ns + self.exposed_copy_ns
        return busy_ns > 0 or len(self.gaps.start_ns) != 1


class LaneKind(TextEnum):
    OPERATORS = "operators"
    CALLS = "runtime calls"
    STREAM = "stream"
    IDLE = "idle"
    PATH = "critical path"


class Lane(msgspec.Struct, frozen=True):
    kind: LaneKind
    title: str  # what the row is of; rows of one thread follow each other
    start_ns: Int64  # start_ns, end_ns: of each event
    end_ns: Int64
    group: Int64  # what each is, as a position in `groups`: its color
    groups: tuple[str, ...]  # names of these
    name: Int64  # what each is called, as a position in `names`
    names: tuple[str, ...]  # those
    owner: tuple[int, ...] = ()  # thread of calls; device and stream of a stream; else nothing


class Arrow(NamedTuple):
    """From the start of a launch call to that of what it launched; rows are positions in `StepView.lanes`."""

    call_row: int
    call_ns: int
    row: int
    start_ns: int


class StepView(msgspec.Struct, frozen=True):
    """One step of one trace, or all of a recording without steps; lanes from top to bottom.

    `arrows` are of the longest activities that were launched within it.
    """

    trace_id: int
    step: int | None
    start_ns: int
    end_ns: int
    lanes: tuple[Lane, ...]
    arrows: tuple[Arrow, ...]


def step_times(records: SessionRecords, *, most: int) -> tuple[StepTime, ...]:
    """The first steps of every device that did anything, `most` of them in all, in order."""
    found: list[StepTime] = []
    devices = [(trace, device) for trace in records.traces for device in trace.devices]
    hosts = records.hosts
    each = max(1, most // max(1, len(devices)))
    for trace, device in devices:
        window, host = records.windows[trace.trace_id], hosts[trace.trace_id]
        mine = list(_device_steps(trace, device, window, host, each))
        if any(one.is_used for one in mine):
            found += mine
    return tuple(found[:most])


def _device_steps(
    trace: TraceRecords, device: DeviceRecords, window: TraceWindow, host: Host, most: int
) -> Iterator[StepTime]:
    whole = occupation(device, window)
    begins = [step.start_ns for step in window.steps] or [window.start_ns]
    _, starts_ns, ends_ns = cut(whole.idle.start_ns, whole.idle.end_ns, np.array(begins, dtype=np.int64))
    account = account_for_idle(device, Spans(starts_ns, ends_ns), trace.calls, host)
    account = account.part(covering(whole.window, starts_ns) >= 0)
    gap_ns, causes = account.gaps, account.by_cause.argmax(axis=0)
    numbers: list[int | None] = [*(step.number for step in window.steps)] or [None]
    for number, start_ns, next_ns in zip(numbers[:most], begins, [*begins[1:], None], strict=False):
        place = covering(whole.window, np.array([start_ns]))[0]
        if place < 0:  # a step of no time
            continue
        end_ns = int(whole.window.end_ns[place])
        end_ns = end_ns if next_ns is None else min(end_ns, next_ns)
        mine = (gap_ns.start_ns >= start_ns) & (gap_ns.end_ns <= end_ns)
        by_cause = account.by_cause[:, mine].sum(axis=1).tolist()
        parts = occupation(device, TraceWindow(start_ns, end_ns)).parts
        yield StepTime(
            trace.trace_id,
            trace.rank,
            device.device,
            number,
            start_ns,
            end_ns,
            parts.compute_ns,
            parts.exposed_communication_ns,
            parts.exposed_copy_ns,
            {cause: ns for cause, ns in zip(CAUSES, by_cause, strict=True) if ns},
            Spans(gap_ns.start_ns[mine], gap_ns.end_ns[mine]),
            causes[mine],
        )


def step_view(
    session: Session, records: SessionRecords, times: Sequence[StepTime], path: Sequence[PathPiece]
) -> StepView:
    """One step on each device of its trace, event by event; the path is empty if unknown."""
    first = times[0]
    start_ns, end_ns = first.start_ns, max(one.end_ns for one in times)
    trace = next(one for one in records.traces if one.trace_id == first.trace_id)
    lanes = [*_host_lanes(session, trace, start_ns, end_ns), *_path_lane(path, start_ns, end_ns)]
    for time in times:
        device = next(one for one in trace.devices if one.device == time.device)
        lanes += _device_lanes(session, device, time, has_several=len(times) > 1)
    arrows = tuple(_arrows(trace, times, lanes, start_ns))
    return StepView(first.trace_id, first.step, start_ns, end_ns, tuple(lanes), arrows)


def _arrows(
    trace: TraceRecords, times: Sequence[StepTime], lanes: Sequence[Lane], start_ns: int
) -> Iterator[Arrow]:
    rows = {lane.owner: row for row, lane in enumerate(lanes) if lane.owner}
    found: list[tuple[int, Arrow]] = []
    for time in times:
        device = next(one for one in trace.devices if one.device == time.device)
        launched = (device.start_ns >= start_ns) & (device.start_ns < time.end_ns) & (device.call >= 0)
        inside = np.flatnonzero(launched)
        inside = inside[trace.calls.start_ns[device.call[inside]] >= start_ns]
        lasted_ns = device.end_ns[inside] - device.start_ns[inside]
        for one in inside[np.argsort(-lasted_ns, kind="stable")[:_MOST_ARROWS]].tolist():
            call = int(device.call[one])
            call_row = rows.get((int(trace.calls.thread_id[call]),))
            row = rows.get((device.device, int(device.stream[one])))
            if call_row is not None and row is not None:
                begin_ns, end_ns = int(device.start_ns[one]), int(device.end_ns[one])
                arrow = Arrow(call_row, int(trace.calls.start_ns[call]), row, begin_ns)
                found.append((begin_ns - end_ns, arrow))
    return (arrow for _, arrow in sorted(found)[:_MOST_ARROWS])


def _host_lanes(session: Session, trace: TraceRecords, start_ns: int, end_ns: int) -> Iterator[Lane]:
    threads = {row[0]: row[1:] for row in session.query("SELECT thread_id, name, native_thread FROM threads")}
    for thread in trace.launch_threads:
        name, native = threads.get(thread, (None, None))
        title = name or f"thread {native or thread}"
        parameters = [trace.trace_id, thread, end_ns, start_ns]
        operators = columns(session, sql(__package__, "timeline:drawn_operators"), [*parameters, _DEEPEST])
        for depth in range(_DEEPEST):
            mine = operators["depth"] == depth
            if mine.any():
                yield _lane(LaneKind.OPERATORS, _NESTED[depth] or title, operators, mine)
        calls = columns(session, sql(__package__, "timeline:drawn_calls"), parameters)
        if len(calls["start_ns"]):
            yield msgspec.structs.replace(
                _lane(LaneKind.CALLS, str(LaneKind.CALLS), calls, slice(None)), owner=(thread,)
            )


def _path_lane(path: Sequence[PathPiece], start_ns: int, end_ns: int) -> Iterator[Lane]:
    mine = [one for one in path if one.ns and one.start_ns < end_ns and one.start_ns + one.ns > start_ns]
    if mine:
        starts = np.array([one.start_ns for one in mine], dtype=np.int64)
        found = {
            "start_ns": starts,
            "end_ns": starts + np.array([one.ns for one in mine], dtype=np.int64),
            "name": np.array([one.name or one.kind for one in mine]),
        }
        yield _lane(LaneKind.PATH, "critical path", found, slice(None), np.array([one.kind for one in mine]))


def _device_lanes(
    session: Session, device: DeviceRecords, time: StepTime, *, has_several: bool
) -> Iterator[Lane]:
    of = f"device {device.device}, " if has_several else ""
    inside = np.flatnonzero((device.start_ns < time.end_ns) & (device.end_ns > time.start_ns))
    names = dict(session.known("SELECT name_id, name FROM kernel_names"))
    for stream in np.unique(device.stream[inside]).tolist():
        mine = inside[device.stream[inside] == stream]
        ids, index = np.unique(device.name_id[mine], return_inverse=True)
        yield Lane(
            LaneKind.STREAM,
            f"{of}stream {stream}" if stream >= 0 else f"{of}unknown stream",
            device.start_ns[mine],
            device.end_ns[mine],
            device.work[mine].astype(np.int64),
            tuple(kind.name.lower() for kind in WorkKind),
            index.astype(np.int64),
            tuple(names[one] for one in ids.tolist()),
            (device.device, stream),
        )
    of_gap, causes = time.gap_causes, tuple(str(cause) for cause in CAUSES)
    meanings = tuple(cause.meaning for cause in CAUSES)
    yield Lane(LaneKind.IDLE, f"{of}idle", *time.gaps, of_gap, causes, of_gap, meanings)


def _lane(
    kind: LaneKind,
    title: str,
    found: Mapping[str, npt.NDArray[Any]],
    chosen: Any,
    groups: npt.NDArray[Any] | None = None,
) -> Lane:
    names, name = np.unique(found["name"][chosen].astype(str), return_inverse=True)
    starts, ends = found["start_ns"][chosen], found["end_ns"][chosen]
    if groups is None:
        groups = np.full(len(starts), str(kind))
    of, group = np.unique(groups, return_inverse=True)
    return Lane(kind, title, starts, ends, group, tuple(of.tolist()), name, tuple(names.tolist()))
