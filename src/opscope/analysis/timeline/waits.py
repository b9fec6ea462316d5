"""Calls in which the host waited for a device, by name and place, and their cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from opscope.analysis.timeline.device_windows import TraceWindow
from opscope.analysis.timeline.host import NamedRanges, called_operators
from opscope.analysis.timeline.records import CallRole, TraceRecords
from opscope.analysis.timeline.spans import covering
from opscope.analysis.timeline.values import WaitingCall
from opscope.ingest.nesting import Int64
from opscope.model.session import Session

_Place = tuple[str, str | None, str | None, str | None]  # call, operator, line, copy


class Places(msgspec.Struct, frozen=True):
    """What tells where in the program a moment was."""

    functions: NamedRanges
    annotations: NamedRanges


@dataclass
class _Total:
    calls: int = 0
    host_ns: int = 0
    idle_ns: int = 0
    size_bytes: int | None = None
    call_ids: list[int] = field(default_factory=list)


def waiting_calls(
    session: Session,
    traces: Sequence[TraceRecords],
    windows: Mapping[int, TraceWindow],
    blamed_ns: Mapping[int, Int64],
    places: Places,
) -> tuple[WaitingCall, ...]:
    """Calls of launching threads that wait for the device, those that cost most idle time first.

    Args:
        session: The Session.
        traces: Its traces.
        windows: Their windows, by trace id.
        blamed_ns: Idle time blamed on each call, by trace id.
        places: The program's functions and ranges.
    """
    chosen = [
        (trace, _chosen(trace, windows[trace.trace_id], blamed_ns[trace.trace_id]))
        for trace in traces
        if len(trace.calls)
    ]
    operators = called_operators(
        session, (int(one) for trace, found in chosen for one in trace.calls.operator_id[found] if one >= 0)
    )
    copies = dict(session.query("SELECT name_id, name FROM kernel_names WHERE kind = 'memcpy'"))
    sizes = _copy_sizes(session, chosen)

    def each() -> Iterator[WaitingCall]:
        for trace, found in chosen:
            calls = trace.calls
            where = (calls.thread_id[found].tolist(), calls.start_ns[found].tolist())
            rows = zip(
                found.tolist(),
                calls.call_id[found].tolist(),
                calls.operator_id[found].tolist(),
                places.functions.at(*where),
                places.annotations.at(*where),
                (calls.end_ns - calls.start_ns)[found].tolist(),
                blamed_ns[trace.trace_id][found].tolist(),
                calls.copy_name[found].tolist(),
                strict=True,
            )
            for index, call_id, operator_id, line, annotation, host_ns, idle_ns, copy in rows:
                yield WaitingCall(
                    trace.call_name(index),
                    operators.get(operator_id, annotation),
                    line,
                    1,
                    host_ns,
                    idle_ns,
                    copies.get(copy),
                    sizes.get(call_id),
                    (call_id,),
                )

    return by_place(each())


def by_place(waits: Iterable[WaitingCall]) -> tuple[WaitingCall, ...]:
    """Those of one name and place together, what costs most idle time first."""
    totals: dict[_Place, _Total] = defaultdict(_Total)
    for one in waits:
        total = totals[one.name, one.operator, one.line, one.copy]
        total.calls += one.calls
        total.host_ns += one.host_ns
        total.idle_ns += one.idle_ns
        total.call_ids += one.call_ids
        if one.size_bytes is not None:
            total.size_bytes = (total.size_bytes or 0) + one.size_bytes
    merged = [
        WaitingCall(
            name,
            operator,
            line,
            total.calls,
            total.host_ns,
            total.idle_ns,
            copy,
            total.size_bytes,
            tuple(total.call_ids),
        )
        for (name, operator, line, copy), total in totals.items()
    ]
    return tuple(sorted(merged, key=lambda row: (-row.idle_ns, -row.host_ns, row.name, row.operator or "")))


def _chosen(trace: TraceRecords, window: TraceWindow, blamed_ns: Int64) -> Int64:
    calls = trace.calls
    waits = (calls.role == CallRole.WAITS) & np.isin(calls.thread_id, trace.launch_threads)
    return np.flatnonzero(waits & ((covering(window.host, calls.start_ns) >= 0) | (blamed_ns > 0)))


def _copy_sizes(session: Session, chosen: list[tuple[TraceRecords, Int64]]) -> dict[int, int]:
    """Bytes moved by the calls that wait by copying, by call id."""
    ids = [
        int(one)
        for trace, found in chosen
        for one in trace.calls.call_id[found][trace.calls.copy_name[found] >= 0]
    ]
    if not ids:
        return {}
    return dict(
        session.query(
            "SELECT runtime_call_id, sum(size_bytes)::BIGINT FROM device_activities "
            "WHERE list_contains(?::BIGINT[], runtime_call_id) AND size_bytes IS NOT NULL GROUP BY ALL",
            [ids],
        )
    )
