"""Calls in which the host waited for a device, by name and place, and their cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from msgspec.structs import replace

from opscope.analysis.cuda_calls import CallRole
from opscope.analysis.timeline.device_windows import TraceWindow
from opscope.analysis.timeline.host import NamedRanges
from opscope.analysis.timeline.records import TraceRecords
from opscope.analysis.timeline.spans import covering
from opscope.analysis.timeline.values import WaitingCall
from opscope.ingest.nesting import Int64
from opscope.model.queries import sql
from opscope.model.session import Session


def waiting_calls(  # noqa: PLR0917 - what a place is told by
    session: Session,
    traces: Sequence[TraceRecords],
    windows: Mapping[int, TraceWindow],
    blamed_ns: Mapping[int, Int64],
    functions: NamedRanges,
    annotations: NamedRanges,
) -> tuple[WaitingCall, ...]:
    """Calls of launching threads that wait for the device, those that cost most idle time first.

    `windows`, and the idle time blamed on each call, are by trace id.
    """
    chosen: list[tuple[TraceRecords, Int64]] = []
    for trace in traces:
        calls = trace.calls
        if len(calls):
            waits = (calls.role == CallRole.WAITS) & np.isin(calls.thread_id, trace.launch_threads)
            is_inside = covering(windows[trace.trace_id].host, calls.start_ns) >= 0
            chosen.append((trace, np.flatnonzero(waits & (is_inside | (blamed_ns[trace.trace_id] > 0)))))
    operator_ids = {one for trace, found in chosen for one in trace.calls.operator_id[found].tolist()} - {-1}
    # What the program called: see `called_operators` in timeline.sql.
    called = sql(__package__, "timeline:called_operators")
    names = session.query(called, [sorted(operator_ids)]) if operator_ids else ()
    operators = {leaf: name for leaf, name in names if name}
    copies = dict(session.query("SELECT name_id, name FROM kernel_names WHERE kind = 'memcpy'"))
    copying = [
        int(one)
        for trace, found in chosen
        for one in trace.calls.call_id[found][trace.calls.copy_name[found] >= 0]
    ]
    sizes = dict(session.query(_SIZES_SQL, [copying])) if copying else {}
    waits_of_each = []
    for trace, found in chosen:
        calls = trace.calls.at(found)
        where = (calls.thread_id.tolist(), calls.start_ns.tolist())
        rows = zip(
            found.tolist(), calls.call_id.tolist(), calls.operator_id.tolist(), functions.at(*where),
            annotations.at(*where), (calls.end_ns - calls.start_ns).tolist(),
            blamed_ns[trace.trace_id][found].tolist(), calls.copy_name.tolist(), strict=True,
        )  # fmt: skip
        for index, call_id, operator_id, line, annotation, host_ns, idle_ns, copy in rows:
            name, operator = trace.call_name(index), operators.get(operator_id, annotation)
            size_bytes = sizes.get(call_id)
            waits_of_each.append(
                WaitingCall(
                    name, operator, line, 1, host_ns, idle_ns, copies.get(copy), size_bytes, (call_id,)
                )
            )
    return by_place(waits_of_each)


_SIZES_SQL = """SELECT runtime_call_id, sum(size_bytes)::BIGINT FROM device_activities
WHERE list_contains(?::BIGINT[], runtime_call_id) AND size_bytes IS NOT NULL GROUP BY ALL"""


def by_place(waits: Iterable[WaitingCall]) -> tuple[WaitingCall, ...]:
    groups: dict[Hashable, list[WaitingCall]] = defaultdict(list)
    for one in waits:
        groups[one.name, one.operator, one.line, one.copy].append(one)
    merged = []
    for alike in groups.values():
        sizes = [one.size_bytes for one in alike if one.size_bytes is not None]
        merged.append(
            replace(
                alike[0],
                calls=sum(one.calls for one in alike),
                host_ns=sum(one.host_ns for one in alike),
                idle_ns=sum(one.idle_ns for one in alike),
                size_bytes=sum(sizes) if sizes else None,
                call_ids=tuple(chain.from_iterable(one.call_ids for one in alike)),
            )
        )
    return tuple(sorted(merged, key=lambda row: (-row.idle_ns, -row.host_ns, row.name, row.operator or "")))
