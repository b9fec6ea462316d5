"""What was recorded, as arrays: activities of each device, runtime calls of each trace, and how they link.

Loaded for the whole Session at once, then split by trace and device. An absent link is -1. Kinds of work come
from the decoded kernel names, as everywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.nesting import Int64
from opscope.model.queries import sql
from opscope.provenance.categories import kernel_category
from opscope.provenance.kernel_names import decode

if TYPE_CHECKING:
    from opscope.model.session import Session


class CallRole(IntEnum):
    """What a call does to the host thread that makes it."""

    OTHER = 0
    WAITS = 1
    ALLOCATES = 2
    FREES = 3
    COPIES = 4
    COPIES_ASYNC = 5


# Names of HIP are CUDA's with another prefix; `_ptds`, `_ptsz` and `_v2` are endings of the same functions.
_ROLES = (
    (CallRole.WAITS, r"(?:cuda|hip|cu)(?:Stream|Device|Event|Thread|Ctx)Synchronize"),
    (CallRole.COPIES_ASYNC, r"(?:cuda|hip|cu)Memcpy\w*(?:Async|Peer)"),
    (CallRole.COPIES, r"(?:cuda|hip|cu)Memcpy"),
    (CallRole.OTHER, r"(?:cuda|hip)(?:Malloc|Free)(?:From)?\w*Async|cuMem(?:Alloc|Free)\w*Async"),
    (CallRole.FREES, r"(?:cuda|hip)(?:Free|HostFree)|cuMemFree"),
    (
        CallRole.ALLOCATES,
        r"(?:cuda|hip)(?:Malloc|ExtMalloc|Host(?:Alloc|Malloc|Register|Unregister))"
        r"|cuMem(?:Alloc|Host(?:Alloc|Register|Unregister)|Create|Map|Unmap|SetAccess|Address|Release)",
    ),
)
_PATTERNS = tuple((role, re.compile(pattern)) for role, pattern in _ROLES)


@lru_cache(maxsize=4096)
def role_of(name: str) -> CallRole:
    """The role of a call of this name, before it is known what it copied."""
    return next((role for role, pattern in _PATTERNS if pattern.match(name)), CallRole.OTHER)


def is_graph_launch(name: str) -> bool:
    """Whether a call of this name replays a CUDA graph."""
    return "GraphLaunch" in name


Columns = dict[str, npt.NDArray[Any]]


def columns(session: Session, name: str, parameters: Any = None) -> Columns:
    """The columns that a query of `timeline.sql` selects, as arrays; none of them may hold NULL."""
    found = session.connection.execute(sql(__package__, f"timeline:{name}"), parameters or []).fetchnumpy()
    return {column: np.asarray(values) for column, values in found.items()}


def by_thread(found: Columns) -> dict[int, Columns]:
    """Rows by their `thread_id`, in the order in which they came; `found` is used up."""
    thread = found["thread_id"]
    if np.any(thread[1:] < thread[:-1]):
        order = np.argsort(thread, kind="stable")
        # One after the other, so that no more than one column is there twice.
        found = {name: found.pop(name)[order] for name in tuple(found)}
        thread = found["thread_id"]
    del found["thread_id"]
    bounds = [*np.flatnonzero(np.diff(thread, prepend=-1)).tolist(), len(thread)]
    return {
        int(thread[low]): {name: column[low:high] for name, column in found.items()}
        for low, high in pairwise(bounds)
    }


def distinct(values: Int64) -> Int64:
    """Every value once, ascending."""
    values = np.sort(values)  # numpy's own unique hashes first, and takes ten times as long
    is_new = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return values[is_new]


Flags = npt.NDArray[np.bool_]
_NEVER = np.iinfo(np.int64).max


class WorkKind(IntEnum):
    """What an activity does, for the partition of time."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


class RuntimeCalls(msgspec.Struct, frozen=True):
    """Runtime calls of one trace, by id.

    Attributes:
        role: `CallRole` of each, copies resolved to WAITS or OTHER.
        is_launch: Something that ran on a device was launched by it.
        is_graph: It replays a CUDA graph.
        copy_name: Name id of the copy that makes it wait; -1 for none.
    """

    call_id: Int64
    thread_id: Int64
    start_ns: Int64
    end_ns: Int64
    operator_id: Int64
    name_index: Int64
    role: Int64
    is_launch: Flags
    is_graph: Flags
    copy_name: Int64

    def __len__(self) -> int:
        return len(self.call_id)


class DeviceRecords(msgspec.Struct, frozen=True):
    """Activities of one device of one trace, by start and then by launch.

    Attributes:
        work: `Work` of each.
        call: Position of the launch call among the trace's calls; -1 if it was not recorded.
        is_early: Launched before the recording window opened.
        stream: Its stream; -1 if unknown.
        step: Step in which it was launched; -1 for none.
    """

    trace_id: int
    device: int
    activity_id: Int64
    stream: Int64
    start_ns: Int64
    end_ns: Int64
    name_id: Int64
    work: Int64
    call: Int64
    is_early: Flags
    is_kernel: Flags
    step: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


class TraceRecords(msgspec.Struct, frozen=True):
    """One trace. `launch_threads` are the host threads that launched something, ascending."""

    trace_id: int
    rank: int | None
    calls: RuntimeCalls
    devices: tuple[DeviceRecords, ...]
    launch_threads: tuple[int, ...]
    call_names: tuple[str, ...]
    is_nsys: bool = False

    def call_name(self, call: int) -> str:
        """Name of one of its calls."""
        return self.call_names[int(self.calls.name_index[call])]


def read_records(session: Session) -> tuple[TraceRecords, ...]:
    """Every trace of the Session, with or without device activities."""
    names = session.query("SELECT DISTINCT coalesce(name, '') AS name FROM runtime_calls ORDER BY name")
    call_names = tuple(name for (name,) in names)
    calls = columns(session, "calls", [list(call_names)])
    activities = columns(session, "activities")
    launcher = _positions(calls["call_id"], activities["call_id"])
    all_calls = _calls(calls, launcher, activities["name_id"], call_names, _copy_kinds(session))
    activities["launcher"] = launcher
    activities["work"] = _work_of_names(session)[activities["name_id"]]
    found = []
    traces = "SELECT trace_id, rank, format = 'nsys' FROM traces ORDER BY trace_id"
    for trace_id, rank, is_nsys in session.query(traces):
        first, last = np.searchsorted(calls["trace_id"], [trace_id, trace_id + 1]).tolist()
        mine = RuntimeCalls(
            *(getattr(all_calls, name)[first:last] for name in RuntimeCalls.__struct_fields__)
        )
        devices = tuple(_devices(activities, trace_id, mine, first))
        threads = tuple(distinct(mine.thread_id[mine.is_launch]).tolist())
        found.append(TraceRecords(trace_id, rank, mine, devices, threads, call_names, is_nsys))
    return tuple(found)


# A driver accepts some 1024 launches ahead of the device and then lets the host wait in the launch call: a
# trace of a busy V100 has 1012 to 1022 unfinished ones at each of its 700 launches that took longer than 0.1
# ms.
_FULL_QUEUE = 1000


def blocked_launches(trace: TraceRecords) -> tuple[Int64, int]:
    """Launches in which the host waited for a place in a full queue, and what a launch takes as a rule."""
    calls = trace.calls
    launches = np.flatnonzero(calls.is_launch & ~calls.is_graph)
    if not len(launches):
        return launches, 0
    finished = np.full(len(calls), -1, dtype=np.int64)
    for device in trace.devices:
        known = device.call >= 0
        np.maximum.at(finished, device.call[known], device.end_ns[known])
    start_ns, end_ns = calls.start_ns[launches], calls.end_ns[launches]
    queued = np.searchsorted(np.sort(start_ns), start_ns) - np.searchsorted(
        np.sort(finished[launches]), start_ns
    )
    usual_ns = int(np.median(end_ns - start_ns))
    return launches[(queued >= _FULL_QUEUE) & (end_ns - start_ns > 2 * usual_ns)], usual_ns


def _positions(ids: Int64, wanted: Int64) -> Int64:
    """Position of each wanted id among ascending ids; -1 where it is absent."""
    if not len(ids):
        return np.full(len(wanted), -1, dtype=np.int64)
    slot = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[slot] == wanted, slot, -1)


def _calls(
    found: Columns, launcher: Int64, name_id: Int64, names: tuple[str, ...], copies: tuple[Int64, Int64]
) -> RuntimeCalls:
    """Calls with their roles; `copies` are name ids of pageable copies and of copies within a device."""
    count = len(found["call_id"])
    by_name = np.array([role_of(name) for name in names] or [CallRole.OTHER], dtype=np.int64)
    roles = by_name[found["name_index"]]
    copied = np.full(count, -1, dtype=np.int64)
    linked = launcher >= 0
    copied[launcher[linked]] = name_id[linked]
    is_pageable, is_within_device = (np.isin(copied, names_of) for names_of in copies)
    waits = roles == CallRole.WAITS
    waits |= (roles == CallRole.COPIES) & ~is_within_device
    waits |= (roles == CallRole.COPIES_ASYNC) & is_pageable
    role = np.where(waits, CallRole.WAITS, np.where(roles >= CallRole.COPIES, CallRole.OTHER, roles))
    is_launch = np.zeros(count, dtype=bool)
    is_launch[launcher[linked]] = True
    graphs = np.array([is_graph_launch(name) for name in names] or [False])
    return RuntimeCalls(
        call_id=found["call_id"],
        thread_id=found["thread_id"].astype(np.int64),
        start_ns=found["start_ns"],
        end_ns=found["end_ns"],
        operator_id=found["operator_id"],
        name_index=found["name_index"],
        role=role.astype(np.int64),
        is_launch=is_launch,
        is_graph=graphs[found["name_index"]],
        copy_name=np.where(waits & (roles >= CallRole.COPIES), copied, -1),
    )


def _devices(
    activities: Columns, trace_id: int, calls: RuntimeCalls, first_call: int
) -> Iterator[DeviceRecords]:
    """The trace's devices; within one, activities that start together come in the order of their launches."""
    low, high = np.searchsorted(activities["trace_id"], [trace_id, trace_id + 1])
    for device in distinct(activities["device"][low:high]).tolist():
        first, last = low + np.searchsorted(activities["device"][low:high], [device, device + 1])
        mine = {name: column[first:last] for name, column in activities.items()}
        call = np.where(mine["launcher"] >= 0, mine["launcher"] - first_call, -1)
        launch_ns = np.full(len(call), _NEVER)
        launch_ns[call >= 0] = calls.start_ns[call[call >= 0]]
        order = np.lexsort((launch_ns, mine["start_ns"]))
        mine = {name: column[order] for name, column in mine.items()}
        yield DeviceRecords(
            trace_id=trace_id,
            device=device,
            activity_id=mine["activity_id"],
            stream=mine["stream"],
            start_ns=mine["start_ns"],
            end_ns=mine["end_ns"],
            name_id=mine["name_id"],
            work=mine["work"],
            call=call[order],
            is_early=mine["is_early"],
            is_kernel=mine["is_kernel"],
            step=mine["step"],
        )


def _work_of_names(session: Session) -> Int64:
    """`Work` by name id."""
    rows = session.query("SELECT name_id, name, kind FROM kernel_names")
    work = np.full(max((name_id for name_id, _, _ in rows), default=-1) + 1, WorkKind.COPY, dtype=np.int64)
    for name_id, name, kind in rows:
        if kind == "kernel":
            is_communication = kernel_category(decode(name)) == "communication"
            work[name_id] = WorkKind.COMMUNICATION if is_communication else WorkKind.COMPUTE
    return work


def _copy_kinds(session: Session) -> tuple[Int64, Int64]:
    """Name ids of copies of pageable host memory, and of copies within one device."""
    rows = session.query("SELECT name_id, name FROM kernel_names WHERE kind = 'memcpy'")
    decoded = [(name_id, decode(name)) for name_id, name in rows]
    pageable = [name_id for name_id, copy in decoded if copy.host_memory == "pageable"]
    within = [name_id for name_id, copy in decoded if copy.copy_direction == "device_to_device"]
    return np.array(pageable, dtype=np.int64), np.array(within, dtype=np.int64)
