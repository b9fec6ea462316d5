"""The longest gaps of each device, each with what the host was in and where in the program that was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from opscope.analysis.timeline.host import Host
from opscope.analysis.timeline.idle import CAUSES, IdleAccount
from opscope.analysis.timeline.places import NamedRanges
from opscope.analysis.timeline.records import DeviceRecords, TraceRecords
from opscope.analysis.timeline.values import IdleCause, IdleGap
from opscope.model.session import Session

__all__ = ["DeviceIdle", "longest_gaps"]

_LONGEST = 10


@dataclass(frozen=True)
class DeviceIdle:
    """The idle time of one device of a trace."""

    trace: TraceRecords
    host: Host
    device: DeviceRecords
    account: IdleAccount


@dataclass(frozen=True)
class _Gap:
    """One gap and whom the device waited for until `handed_ns`; `threads` has the launching one first."""

    index: int
    start_ns: int
    end_ns: int
    handed_ns: int
    cause: IdleCause
    blamed_call: int
    threads: tuple[int, ...]


class _Kind(IntEnum):
    """Tables of `ThreadEvents`, in its order."""

    OPERATOR = 0
    CALL = 1
    FRAME = 2
    ANNOTATION = 3
    RANGE = 4


class _OpenRange(NamedTuple):
    """A host range open in a gap; the name of an operator or frame is still to be looked up."""

    kind: _Kind
    key: int
    name: str | None
    is_own: bool
    duration_ns: int
    open_ns: int


def longest_gaps(
    session: Session, devices: Sequence[DeviceIdle], functions: NamedRanges
) -> list[tuple[IdleGap, ...]]:
    """The longest gaps of each device, the longest first; of equal ones the earlier."""
    gaps = [(idle, gap) for idle in devices for gap in _longest(idle)]
    ranges = [_telling(idle, gap) for idle, gap in gaps]
    names = _names(session, [one for one in ranges if one is not None])
    activities = dict(session.query("SELECT name_id, name FROM kernel_names"))
    found: dict[int, list[IdleGap]] = {id(idle): [] for idle in devices}
    for (idle, gap), telling in zip(gaps, ranges, strict=True):
        ended_by = int(idle.account.ended_by[gap.index])
        step = int(idle.device.step[ended_by])
        found[id(idle)].append(
            IdleGap(
                start_ns=gap.start_ns,
                duration_ns=gap.end_ns - gap.start_ns,
                cause=gap.cause,
                step=step if step >= 0 else None,
                host=_blamed(idle, gap) if telling is None else telling.name or names.get(telling[:2]),
                line=_line(idle.trace, gap, functions),
                ended_by=activities.get(int(idle.device.name_id[ended_by])),
            )
        )
    return [tuple(found[id(idle)]) for idle in devices]


def _longest(idle: DeviceIdle) -> list[_Gap]:
    account, calls = idle.account, idle.trace.calls
    durations = account.gaps.end_ns - account.gaps.start_ns
    gaps = []
    for index in np.lexsort((account.gaps.start_ns, -durations))[:_LONGEST].tolist():
        call = int(account.call[index])
        own = int(calls.thread_id[call]) if call >= 0 else None
        others = tuple(one for one in idle.trace.launch_threads if one != own)
        gaps.append(
            _Gap(
                index=index,
                start_ns=int(account.gaps.start_ns[index]),
                end_ns=int(account.gaps.end_ns[index]),
                handed_ns=int(account.handed_ns[index]),
                cause=CAUSES[int(account.by_cause[:, index].argmax())],
                blamed_call=account.blamed_call(index),
                threads=() if own is None else (own, *others),
            )
        )
    return gaps


def _blamed(idle: DeviceIdle, gap: _Gap) -> str | None:
    """The call or the recorder's doing that a gap is blamed on; None for other causes."""
    if gap.cause in (IdleCause.SYNCHRONIZATION, IdleCause.MEMORY_ALLOCATION):
        return idle.trace.call_name(gap.blamed_call)
    if gap.cause is IdleCause.PROFILER_OVERHEAD:
        common = [
            (min(one.end_ns, gap.end_ns) - max(one.start_ns, gap.start_ns), one.name)
            for one in idle.host.stalls
        ]
        return max(common)[1]
    return None


def _telling(idle: DeviceIdle, gap: _Gap) -> _OpenRange | None:
    """Of a gap of the host's own, the range that tells most: the shortest one open for at least half of it.

    Operators and calls tell more than frames and named ranges, the launching thread more than others. Where
    several operators share a gap, the one open longest.
    """
    if gap.cause is IdleCause.DATA_LOADING:
        loading = [one for thread in gap.threads for one in _open(idle, gap, thread, (_Kind.RANGE,))]
        return max(loading, key=_most_open, default=None)
    if gap.cause not in (IdleCause.HOST_LAUNCH, IdleCause.NOTHING_SCHEDULED):
        return None
    half_ns = (gap.handed_ns - gap.start_ns) / 2
    candidates: list[_OpenRange] = []
    for kinds in ((_Kind.OPERATOR, _Kind.CALL), (_Kind.FRAME, _Kind.ANNOTATION)):
        found = [one for thread in gap.threads for one in _open(idle, gap, thread, kinds)]
        most = [one for one in found if one.open_ns >= half_ns]
        if most:
            return min(most, key=lambda one: (not one.is_own, one.duration_ns, one.kind, one.key))
        candidates += found
    return None if gap.cause is IdleCause.NOTHING_SCHEDULED else max(candidates, key=_most_open, default=None)


def _most_open(one: _OpenRange) -> tuple[int, int, int, int]:
    return one.open_ns, -one.duration_ns, -one.kind, -one.key


def _open(idle: DeviceIdle, gap: _Gap, thread: int, kinds: Sequence[_Kind]) -> Iterator[_OpenRange]:
    """Of each kind of ranges of a thread, the one open longest, and the shortest open for at least half.

    Of the gap until its end was launched.
    """
    events, trace = idle.host.threads[thread], idle.trace
    tables = (events.operators, events.calls, events.frames, events.annotations, events.ranges)
    for kind in kinds:
        found = tables[kind]
        start_ns, end_ns = found["start_ns"], found["end_ns"]
        hits = np.flatnonzero((start_ns < gap.handed_ns) & (end_ns > gap.start_ns))
        open_ns = np.minimum(end_ns[hits], gap.handed_ns) - np.maximum(start_ns[hits], gap.start_ns)
        duration_ns = end_ns[hits] - start_ns[hits]
        covering = 2 * open_ns >= gap.handed_ns - gap.start_ns
        shortest_first, longest_first = np.argsort(duration_ns), np.lexsort((duration_ns, -open_ns))
        for order, chosen in ((shortest_first, covering), (longest_first, ~covering)):
            for best in order[chosen[order]][:1].tolist():
                key = int(found["id"][hits[best]])
                name = found["name"][hits[best]] if "name" in found else None
                name = trace.call_name(key) if kind is _Kind.CALL else name
                extent = int(duration_ns[best]), int(open_ns[best])
                yield _OpenRange(kind, key, name, thread == gap.threads[0], *extent)


_NAMES_SQL = {
    _Kind.OPERATOR: "SELECT operator_id, name FROM operators WHERE list_contains(?::BIGINT[], operator_id)",
    _Kind.FRAME: "SELECT frame_id, name FROM frames WHERE list_contains(?::BIGINT[], frame_id)",
}


def _names(session: Session, ranges: Sequence[_OpenRange]) -> dict[tuple[int, int], str]:
    """Names of operators and frames, by kind and key."""
    found: dict[tuple[int, int], str] = {}
    for kind, query in _NAMES_SQL.items():
        keys = sorted({one.key for one in ranges if one.kind is kind})
        if keys:
            found |= {(kind, key): name for key, name in session.query(query, [keys])}
    return found


def _line(trace: TraceRecords, gap: _Gap, functions: NamedRanges) -> str | None:
    """The program's function around the blamed call, else the middle of the gap; of any launching thread."""
    if not gap.threads or gap.cause in (IdleCause.DEPENDENCY, IdleCause.UNKNOWN):
        return None
    time_ns = (gap.start_ns + gap.handed_ns) // 2
    if gap.blamed_call >= 0:
        time_ns = int(trace.calls.start_ns[gap.blamed_call])
    lines = functions.at(gap.threads, [time_ns] * len(gap.threads))
    return next((line for line in lines if line is not None), None)
