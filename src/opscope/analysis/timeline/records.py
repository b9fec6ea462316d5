"""What was recorded, as arrays: activities of each device, runtime calls of each trace, and how they link.

Loaded for the whole Session at once, then split by trace and device. An absent link is -1. Kinds of work come
from the decoded kernel names, what a call does from its own; HIP's names are CUDA's with another prefix, and
`_ptds`, `_ptsz` and `_v2` are endings of the same functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache

import msgspec
import numpy as np

from opscope.analysis.arrays import Arrays, Columns, Flags, columns, distinct, median
from opscope.ingest.linking import gather, look_up
from opscope.ingest.nesting import Int64
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.provenance.categories import kernel_category
from opscope.provenance.kernel_names.decoder import decode


class CallRole(IntEnum):
    """What a call does, most of all to the host thread that makes it."""

    OTHER = 0
    WAITS = 1  # for the device
    ALLOCATES = 2
    FREES = 3
    COPIES = 4  # waits, unless within the device
    COPIES_ASYNC = 5  # waits, if the host's memory is pageable
    POOLS = 6  # memory taken or given back in stream order
    LOADS = 7  # code, into the device
    SETS_UP = 8  # contexts, handles and graphs are made; kernels are asked for, or what they need
    LAUNCHES = 9


_ANY = "(?:cuda|hip|cu)"
_ROLES = (
    (CallRole.WAITS, rf"{_ANY}(?:Stream|Device|Event|Thread|Ctx)Synchronize"),
    (CallRole.COPIES_ASYNC, rf"{_ANY}Memcpy\w*(?:Async|Peer)"),
    (CallRole.COPIES, rf"{_ANY}Memcpy"),
    (CallRole.POOLS, r"(?:cuda|hip)(?:Malloc|Free)(?:From)?\w*Async|cuMem(?:Alloc|Free)\w*Async"),
    (CallRole.FREES, r"(?:cuda|hip)(?:Free|HostFree)|cuMemFree"),
    (
        CallRole.ALLOCATES,
        r"(?:cuda|hip)(?:Malloc|ExtMalloc|Host(?:Alloc|Malloc|Register|Unregister))"
        r"|cuMem(?:Alloc|Host(?:Alloc|Register|Unregister)|Create|Map|Unmap|SetAccess|Address|Release)",
    ),
    (CallRole.LOADS, rf"{_ANY}(?:Module|Library)(?:Load|Unload)"),
    (
        CallRole.SETS_UP,
        rf"{_ANY}(?:Init|SetDevice|DevicePrimaryCtxRetain|CtxCreate|GetDeviceCount|GetDeviceProperties"
        r"|(?:Stream|Event)Create|Stream(?:Begin|End)Capture|GraphInstantiate|GraphUpload"
        r"|(?:Module|Library)Get|Func(?:Get|Set)|Occupancy)",
    ),
    (CallRole.LAUNCHES, rf"{_ANY}\w*Launch"),
)

CALL_NAMES_SQL = "SELECT DISTINCT coalesce(name, '') AS name FROM runtime_calls ORDER BY name"
OF_DRIVER_MEMORY = (CallRole.ALLOCATES, CallRole.FREES)
# What a program does once, and again only where something is not kept.
COME_ONCE = (*OF_DRIVER_MEMORY, CallRole.POOLS, CallRole.LOADS, CallRole.SETS_UP)
# What holds a thread up that is no part of launching.
HOLD_UP = (CallRole.WAITS, CallRole.COPIES, CallRole.COPIES_ASYNC, *OF_DRIVER_MEMORY, CallRole.LOADS)


@lru_cache(maxsize=4096)
def role_of(name: str) -> CallRole:
    """The role of a call of this name, before it is known what it copied."""
    return next((role for role, pattern in _ROLES if re.match(pattern, name)), CallRole.OTHER)


def is_graph_launch(name: str) -> bool:
    return "GraphLaunch" in name


def names_of(session: Session, *roles: CallRole) -> list[str]:
    return [name for (name,) in session.known(CALL_NAMES_SQL) if role_of(name) in roles]


class WorkKind(IntEnum):
    """What an activity does, for the partition of time."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


class RuntimeCalls(Columns, frozen=True):
    call_id: Int64
    thread_id: Int64
    start_ns: Int64
    end_ns: Int64
    operator_id: Int64
    name_index: Int64
    role: Int64  # `CallRole` of each that holds its thread up, copies resolved to WAITS; OTHER of the others
    is_launch: Flags  # something that ran on a device was launched by it
    is_graph: Flags  # it replays a CUDA graph
    copy_name: Int64  # name id of the copy that makes it wait; -1 for none


class DeviceRecords(Columns, frozen=True):
    """Activities of one device of one trace, by start and then by launch."""

    trace_id: int
    device: int
    activity_id: Int64
    stream: Int64  # its stream; -1 if unknown
    start_ns: Int64
    end_ns: Int64
    name_id: Int64
    work: Int64  # `WorkKind` of each
    call: Int64  # position of the launch call among the trace's calls; -1 if it was not recorded
    is_page: Flags  # of managed memory, moved because something touched it
    is_early: Flags  # launched before the recording window opened
    is_kernel: Flags
    step: Int64  # step in which it was launched; -1 for none


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
        return self.call_names[int(self.calls.name_index[call])]


def read_records(session: Session) -> tuple[TraceRecords, ...]:
    call_names = tuple(name for (name,) in session.known(CALL_NAMES_SQL))
    calls = columns(session, sql(__package__, "timeline:calls"), [list(call_names)])
    activities = columns(session, sql(__package__, "timeline:activities"))
    # Position of the launch call of each activity; -1 for none.
    launcher = look_up(calls["call_id"], np.arange(len(calls["call_id"])), activities.pop("call_id"))
    # What kernels, and copies, are by their names; nobody launches what moves managed memory.
    work = np.full(int(activities["name_id"].max(initial=-1)) + 1, WorkKind.COPY, dtype=np.int64)
    pageable, within_device, moving = [], [], []
    for name_id, name, kind in session.query("SELECT name_id, name, kind FROM kernel_names"):
        decoded = decode(name)
        if kind == "kernel" and name_id < len(work):
            is_communication = kernel_category(decoded) == "communication"
            work[name_id] = WorkKind.COMMUNICATION if is_communication else WorkKind.COMPUTE
        elif kind == "memcpy":
            moving += [name_id] if name.startswith("Memcpy Unified") else []
            pageable += [name_id] if decoded.host_memory == "pageable" else []
            within_device += [name_id] if decoded.copy_direction == "device_to_device" else []
    # What calls do, by their names and, of copies, by the names of what they copied.
    roles = np.array([role_of(name) for name in call_names], dtype=np.int64)[calls["name_index"]]
    graphs = np.array([is_graph_launch(name) for name in call_names], dtype=np.bool_)
    copied = np.full(len(roles), -1, dtype=np.int64)
    copied[launcher[launcher >= 0]] = activities["name_id"][launcher >= 0]
    waits_to_copy = (roles == CallRole.COPIES) & ~np.isin(copied, within_device)
    waits_to_copy |= (roles == CallRole.COPIES_ASYNC) & np.isin(copied, pageable)
    held = np.where(np.isin(roles, (CallRole.WAITS, *OF_DRIVER_MEMORY)), roles, CallRole.OTHER)
    trace_of_call, is_launch = calls.pop("trace_id"), np.zeros(len(roles), dtype=np.bool_)
    is_launch[launcher[launcher >= 0]] = True
    calls["thread_id"] = calls["thread_id"].astype(np.int64)
    all_calls = RuntimeCalls(
        **calls,
        role=np.where(waits_to_copy, CallRole.WAITS, held).astype(np.int64),
        is_launch=is_launch,
        is_graph=graphs[calls["name_index"]],
        copy_name=np.where(waits_to_copy, copied, -1),
    )
    activities["launcher"], activities["work"] = launcher, work[activities["name_id"]]
    activities["is_page"] = np.isin(activities["name_id"], moving)
    found = []
    for trace_id, rank, is_nsys in session.query(
        "SELECT trace_id, rank, format = 'nsys' FROM traces ORDER BY trace_id"
    ):
        first, last = np.searchsorted(trace_of_call, [trace_id, trace_id + 1]).tolist()
        mine = all_calls.at(slice(first, last))
        devices = tuple(_devices(activities, trace_id, mine, first))
        threads = tuple(distinct(mine.thread_id[mine.is_launch]).tolist())
        found.append(TraceRecords(trace_id, rank, mine, devices, threads, call_names, is_nsys))
    return tuple(found)


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
    begun = np.searchsorted(np.sort(start_ns), start_ns)
    queued = begun - np.searchsorted(np.sort(finished[launches]), start_ns)
    usual_ns = int(median(end_ns - start_ns))
    # A driver accepts some 1024 launches ahead of the device and then lets the host wait in the launch call:
    # a trace of a busy V100 has 1012 to 1022 unfinished ones at each of its 700 launches that took longer
    # than 0.1 ms.
    return launches[(queued >= 1000) & (end_ns - start_ns > 2 * usual_ns)], usual_ns


def _devices(
    activities: Arrays, trace_id: int, calls: RuntimeCalls, first_call: int
) -> Iterator[DeviceRecords]:
    """The trace's devices; within one, activities that start together come in the order of their launches."""
    low, high = np.searchsorted(activities["trace_id"], [trace_id, trace_id + 1])
    for device in distinct(activities["device"][low:high]).tolist():
        first, last = low + np.searchsorted(activities["device"][low:high], [device, device + 1])
        mine = {name: column[first:last] for name, column in activities.items()}
        launcher = mine.pop("launcher")
        call = np.where(launcher >= 0, launcher - first_call, -1)
        launch_ns = np.where(call >= 0, gather(calls.start_ns, call), np.iinfo(np.int64).max)
        del mine["trace_id"], mine["device"]
        yield DeviceRecords(trace_id=trace_id, device=device, call=call, **mine).at(
            np.lexsort((launch_ns, mine["start_ns"]))
        )
