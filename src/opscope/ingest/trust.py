"""What of a recording cannot be trusted, found among the staged events before any table is filled.

Each defect is a finding `recording.*` whose evidence says how many records it concerns (`count`), their
device time (`device_ns`) and what follows (`effect`). Records that cannot be right move into the table
`set_aside`; device times that differ from the host's by one offset are shifted by it. With a defect that
`withholds`, no report concludes anything about the device.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from opscope.ingest.kineto import Statements
from opscope.ingest.linking import OWN_LAUNCHES, CallKind, earliest_of_each, kind_of_call, look_up
from opscope.ingest.nesting import Extent, Int64
from opscope.ingest.staging import Columns, StagedEvents, columns, rows_of
from opscope.ingest.trace_rows import integer
from opscope.ingest.wording import finding
from opscope.model.finding import Finding
from opscope.model.session import Session
from opscope.units import format_duration

# A device record farther from all host times than the recording is long, and than a minute, is not of it.
_LEAST_DISTANCE_NS = 60_000_000_000
# Device clocks are converted with a small error; in sound recordings no kernel begins earlier than this.
_CLOCK_ERROR_NS = 1_000
# Skew is one offset if the parts of the recording in which kernels come before their launch agree on it.
_PARTS = 10
_OFFSET_ERROR_NS = 20_000
_STRAY_FRACTION = 0.01
# Launches at the end of a recording, and copies of nothing, have no record of the device in sound ones.
_MISSING_FRACTION = 0.1
# Of one stream, so many records never lie inside of another one: programmatic dependent launch overlaps
# neighbors.
_INSIDE = 16
_REASONS = ("outside_recording", "overruns_stream")


def distrust(session: Session, trace_id: int, events: StagedEvents) -> Iterator[Finding]:
    """Mend the staged events of a trace where that can be done, and say what cannot be trusted."""
    ignored = events.census.ignored
    named = {name: count for name, count in ignored.items() if name.endswith(("_op", "_runtime"))}
    if any(name.endswith("_op") for name in named):
        said = ", ".join(f"{count:,} of {name}" for name, count in sorted(named.items()))
        count = {"count": sum(named.values()), "device_ns": None}
        yield finding("recording.unknown_device", trace_id, count, events=said)
    if not events.census.categories.keys() & {"kernel", "cuda_runtime", "cuda_driver"}:
        return
    calls = columns(
        events.rows["call"], "start_ns", "correlation_id", kind=lambda part: part.told(kind_of_call, "name")
    )
    activities = columns(
        events.rows["activity"],
        *("row_id", "start_ns", "duration_ns", "correlation_id", "device", "stream", "graph_id"),
    )
    yield from _missing_records(trace_id, calls, activities)
    reason = _impossible(activities, _host_extent(events))
    if (reason >= 0).any():
        yield _set_aside(session, trace_id, events, reason, activities["duration_ns"])
        activities = {name: column[reason < 0] for name, column in activities.items()}
    yield from _skew(trace_id, events, calls, activities)


def end_steps(trace_id: int, events: StagedEvents) -> Iterator[Finding]:
    """End the steps that were never closed where the next one begins or the recording ends, and say so."""
    if "user_annotation" not in events.census.categories:
        return
    steps = columns(
        events.rows["annotation"], "row_id", "start_ns", "duration_ns",
        is_step=lambda part: part.told(
            lambda name, category: category == "user_annotation" and (name or "").startswith("ProfilerStep#"),
            "name", "category",
        ),
        is_span=lambda part: part.told(lambda ph: ph == "X", "ph"),
    )  # fmt: skip
    start_ns, duration_ns = steps["start_ns"], steps["duration_ns"]
    is_step = steps["is_step"].astype(bool) & (start_ns >= 0)
    endless = np.flatnonzero(is_step & steps["is_span"].astype(bool) & (duration_ns <= 0))
    if not len(endless):
        return
    starts_ns = np.append(np.unique(start_ns[is_step]), max(_host_extent(events)[1], 0))
    end_ns = starts_ns[np.searchsorted(starts_ns[:-1], start_ns[endless], side="right")]
    given = {"row_id": steps["row_id"][endless], "duration_ns": np.maximum(0, end_ns - start_ns[endless])}
    events.rows["annotation"].change(rows_of(given))
    timeless = int((duration_ns[endless] < 0).sum())
    events.census = replace(events.census, without_time=events.census.without_time - timeless)
    yield finding("recording.steps_without_end", trace_id, {"count": len(endless), "device_ns": None})


def _host_extent(events: StagedEvents) -> Extent:
    """From the first to the last moment of the host's events; the first is later where there are none."""
    first_ns, last_ns = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for part in (*events.rows["operator"], *events.rows["call"]):
        start_ns = part.integers("start_ns")
        first_ns = min(first_ns, int(start_ns.min(initial=first_ns)))
        last_ns = max(last_ns, int((start_ns + part.integers("duration_ns")).max(initial=last_ns)))
    return first_ns, last_ns


def _impossible(activities: Columns, host: Extent) -> Int64:
    """Why each device record cannot be right, as a place among the reasons; -1 where it can be."""
    start_ns, end_ns = activities["start_ns"], activities["start_ns"] + activities["duration_ns"]
    reason = np.full(len(start_ns), -1)
    order = np.lexsort((activities["row_id"], start_ns, activities["stream"], activities["device"]))
    one, later = order[:-_INSIDE], order[_INSIDE:]
    is_inside = end_ns[later] <= end_ns[one]
    for name in ("device", "stream"):
        is_inside &= activities[name][one] == activities[name][later]
    # Replays of a graph with branches do overlap.
    _, place, launched = np.unique(activities["correlation_id"], return_inverse=True, return_counts=True)
    is_alone = (launched[place] == 1) & (activities["graph_id"] == -1)
    reason[one[is_inside & is_alone[one]]] = 1
    first_ns, last_ns = host
    if first_ns <= last_ns:
        room_ns = max(_LEAST_DISTANCE_NS, last_ns - first_ns)
        reason[(end_ns < first_ns - room_ns) | (end_ns > last_ns + room_ns)] = 0
    return reason


def _set_aside(
    session: Session, trace_id: int, events: StagedEvents, reason: Int64, duration_ns: Int64
) -> Finding:
    """Move device records that cannot be right into a table of their own."""
    first, rows = 0, []
    for part in events.rows["activity"]:
        own = reason[first : first + part.row_count]
        first += part.row_count
        aside = part.given({"reason": own}).taken(own >= 0)
        aside = aside.retold("kind", lambda category: category.removeprefix("gpu_"), "category")
        rows.append(aside.retold("reason", lambda one: _REASONS[one], "reason"))
    Statements(session.connection, trace_id, np.empty(0, dtype=np.int64)).write("set_aside", rows)
    events.rows["activity"].drop(np.concatenate([part.integers("row_id") for part in rows]))
    count, device_ns = int((reason >= 0).sum()), int(duration_ns[reason >= 0].sum())
    evidence = {"count": count, "device_ns": device_ns}
    return finding("recording.impossible_times", trace_id, evidence, time=format_duration(device_ns))


def _missing_records(trace_id: int, calls: Columns, activities: Columns) -> Iterator[Finding]:
    kind, order = calls["kind"], np.argsort(calls["start_ns"], kind="stable")
    # What is launched while a graph is captured runs later. cuDNN's recurrent layers call memsets that the
    # device has no record of, where of all their kernels it has one.
    captures = (kind == CallKind.BEGIN_CAPTURE).astype(int) - (kind == CallKind.END_CAPTURE)
    is_captured = np.zeros(len(kind), dtype=bool)
    is_captured[order] = np.cumsum(captures[order]) > 0
    launched = np.isin(kind, (CallKind.KERNEL, CallKind.MEMCPY, CallKind.GRAPH)) & ~is_captured
    launches = int(launched.sum())
    ids = calls["correlation_id"][launched]
    missing = launches - int(np.isin(ids[ids >= 0], activities["correlation_id"]).sum())
    records = len(activities["row_id"])
    # Records that came with other ids are there, and unattributed.
    if min(missing, launches - records) > _MISSING_FRACTION * launches:
        code = "device_records_missing" if records else "no_device_records"
        evidence = {"count": missing, "device_ns": None}
        yield finding(f"recording.{code}", trace_id, evidence, launches=launches)


def _shift(events: StagedEvents, device: int, offset_ns: int) -> None:
    def is_mark(category: str | None, process: str | None) -> bool:
        return category == "gpu_user_annotation" and integer(process) == device

    for name in ("activity", "annotation"):
        for part in events.rows[name]:
            here = part.has("start_ns")
            here &= (
                part.integers("device") == device
                if name == "activity"
                else part.told(is_mark, "category", "pid")
            )
            moved = {"row_id": part.integers("row_id"), "start_ns": part.integers("start_ns") + offset_ns}
            events.rows[name].change(rows_of({key: column[here] for key, column in moved.items()}))


def _skew(trace_id: int, events: StagedEvents, calls: Columns, activities: Columns) -> Iterator[Finding]:
    """Device records that begin before their launch: one offset is taken out, a varying one withholds."""
    is_own = np.isin(calls["kind"], OWN_LAUNCHES)
    ids, first = earliest_of_each(calls["correlation_id"][is_own], calls["start_ns"][is_own])
    call = look_up(ids, np.flatnonzero(is_own)[first], activities["correlation_id"])
    for device in np.unique(activities["device"][call >= 0]).tolist():
        of_device = (activities["device"] == device) & (call >= 0)
        start_ns, duration_ns = calls["start_ns"][call[of_device]], activities["duration_ns"][of_device]
        lag_ns = activities["start_ns"][of_device] - start_ns
        early = lag_ns < -_CLOCK_ERROR_NS
        # One record is broken by itself; a clock is behind for many.
        if early.sum() <= max(1, _STRAY_FRACTION * len(early)):
            continue
        offset_ns = -int(lag_ns.min())
        edges = np.linspace(start_ns.min(), start_ns.max() + 1, _PARTS + 1)
        part = np.searchsorted(edges, start_ns, side="right") - 1
        least = [int(lag_ns[part == one].min()) for one in np.unique(part[early])]
        is_constant = max(least) - min(least) <= max(_OFFSET_ERROR_NS, offset_ns // 2)
        if is_constant:
            _shift(events, device, offset_ns)
        evidence = {"count": int(early.sum()), "device_ns": int(duration_ns[early].sum())}
        code = "device_clock_offset" if is_constant else "device_clock_drift"
        yield finding(f"recording.{code}", trace_id, evidence, most=format_duration(offset_ns))
