"""A Kineto file → rows of one trace: its events, what it says of itself, and what capture wrote beside it.

A trace either arrives wholly in the tables or not at all: the first error ends the load, with the file's name
and byte offset. Flaws that leave the rest usable become findings. So does a sidecar that cannot be read or
knows of gaps, parts of the window that were not recorded, and a window that ended early.

What cannot be trusted is found among the staged events before any table is filled. Each defect is a finding
`recording.*` whose evidence says how many records it concerns (`count`), their device time (`device_ns`) and
what follows (`effect`). Records that cannot be right move into the table `set_aside`; device times that
differ from the host's by one offset are shifted by it. With a defect that `withholds`, no report concludes
anything about the device.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain, product
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from opscope.errors import InputError
from opscope.ingest.kineto import Filler, write_rows
from opscope.ingest.linking import OWN_LAUNCHES, CallKind, earliest_of_each, kind_of_call, look_up
from opscope.ingest.nesting import Extent, Int64
from opscope.ingest.quality import (
    Census,
    integer,
    read_findings,
    recorded_release,
    trace_findings,
    valid_text,
    write_devices,
    write_trace,
)
from opscope.ingest.replays import Capture, Demangle, captured_phases, open_replays, with_nodes
from opscope.ingest.source import (
    EventArray,
    LocalText,
    TraceFile,
    foreign_json,
    local_text,
    mapped_text,
)
from opscope.ingest.staging import Columns, StagedEvents, columns, rows_of, staged_events
from opscope.ingest.wording import finding
from opscope.model.finding import Finding, recorded_findings
from opscope.model.queries import grouped
from opscope.model.schema import ReplaySource
from opscope.model.session import Session
from opscope.model.sidecar import SIZE_LIMIT, Sidecar, read_sidecar, sidecar_path
from opscope.units import counted, format_duration

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
# A wait near the start that takes so much of the recording, and during it the device's recorded work.
_OF_DEVICES = ("_op", "_ccp_events")  # categories of what devices do that nothing here knows: HPU, MTIA
_NEAR_START, _LONG_WAIT, _LONG_WAIT_NS, _BUSY_WAIT = 0.1, 0.1, 1_000_000, 0.5
# Silences of the host in compiled code, each, how many of them, and what they take of the recording.
_COMPILED = re.compile(r"(?:## Call )?Compiled(?:Fx|Function)|Torch-Compiled Region")
_STALL_NS, _STALLS, _STALLED = 500_000, 8, 0.2
# In sound recordings kernels begin 3 µs after their launch on a device with nothing to do, 15 at most.
_LATE_NS, _LATE_FRACTION, _LEAST_LATE, _FEWEST, _KEPT = 50_000, 0.01, 5, 20, 0.02
_REASONS = ("outside_recording", "overruns_stream")
_WAITS = re.compile(r"(?:Stream|Device|Event|Ctx)Synchronize|Memcpy")


def distrust(
    session: Session, trace_id: int, events: StagedEvents, *, recorder: str | None = None
) -> Iterator[Finding]:
    """Mend staged events, and say what cannot be trusted; under `nsys` (or `wsl2`) nothing ran before."""
    ignored = events.census.ignored
    named = {name: count for name, count in ignored.items() if name.endswith((*_OF_DEVICES, "_runtime"))}
    if any(name.endswith(_OF_DEVICES) for name in named):
        said = ", ".join(f"{count:,} of {name}" for name, count in sorted(named.items()))
        count = {"count": sum(named.values()), "device_ns": None}
        yield finding("recording.unknown_device", trace_id, count, events=said)
    if not events.census.categories.keys() & {"kernel", "cuda_runtime", "cuda_driver"}:
        return
    calls = columns(
        events.rows["call"],
        *("start_ns", "duration_ns", "correlation_id"),
        kind=lambda part: part.told(kind_of_call, "name"),
        waits=lambda part: part.told(lambda name: _WAITS.search(name or "") is not None, "name"),
    )
    activities = columns(
        events.rows["activity"],
        *("row_id", "start_ns", "duration_ns", "correlation_id", "device", "stream", "graph_id"),
    )
    kind, order = calls["kind"], np.argsort(calls["start_ns"], kind="stable")
    # What is launched while a graph is captured runs later. cuDNN's recurrent layers call memsets that the
    # device has no record of, where of all their kernels it has one.
    captures = (kind == CallKind.BEGIN_CAPTURE).astype(int) - (kind == CallKind.END_CAPTURE)
    is_captured = np.zeros(len(kind), dtype=bool)
    is_captured[order] = np.cumsum(captures[order]) > 0
    launched = np.isin(kind, (CallKind.KERNEL, CallKind.MEMCPY, CallKind.GRAPH)) & ~is_captured
    launches = int(launched.sum())
    known = np.sort(activities["correlation_id"])
    missing = launches - int((look_up(known, known, calls["correlation_id"][launched]) >= 0).sum())
    records = len(activities["row_id"])
    # Records that came with other ids are there, and unattributed.
    if min(missing, launches - records) > _MISSING_FRACTION * launches:
        code = "device_records_missing" if records else "no_device_records"
        evidence = {"count": missing, "device_ns": None}
        is_counting = "cuda_profiler_range" in ignored.keys() | events.census.categories.keys()
        variant = "counters" if is_counting and not records else recorder
        yield finding(f"recording.{code}", trace_id, evidence, kind=variant, launches=launches)
    captured = int((is_captured & (kind == CallKind.KERNEL)).sum())
    if captured > launches and not (kind == CallKind.GRAPH).any():
        yield finding("recording.captures_only", trace_id, {"count": captured, "device_ns": None})
    elif not launches + records and "cpu_op" not in events.census.categories:
        evidence = {"count": len(kind), "device_ns": None}
        yield finding("recording.empty", trace_id, evidence, kind=recorder and "nsys")
    reason = _impossible(activities, _host_extent(events))
    if (reason >= 0).any():
        yield _set_aside(session, trace_id, events, reason, activities["duration_ns"])
        activities = {name: column[reason < 0] for name, column in activities.items()}
    yield from _skew(trace_id, events, calls, activities)
    if recorder is None:
        yield from _waits_for_others(trace_id, calls, activities, _host_extent(events))


def _waits_for_others(trace_id: int, calls: Columns, activities: Columns, host: Extent) -> Iterator[Finding]:
    """Long waits at the start for a device that does nothing recorded: it is at work from before."""
    start_ns, duration_ns, span_ns = calls["start_ns"], calls["duration_ns"], host[1] - host[0]
    is_early = start_ns < host[0] + _NEAR_START * span_ns
    ends_ns, waited_ns = activities["start_ns"] + activities["duration_ns"], []
    is_long = calls["waits"].astype(bool) & (duration_ns >= max(_LONG_WAIT_NS, int(_LONG_WAIT * span_ns)))
    for call in np.flatnonzero(is_long):
        until_ns = np.minimum(ends_ns, start_ns[call] + duration_ns[call])
        busy_ns = int(np.maximum(until_ns - np.maximum(activities["start_ns"], start_ns[call]), 0).sum())
        if busy_ns < _BUSY_WAIT * duration_ns[call]:
            if not is_early[call]:
                return  # it waits so again and again
            waited_ns.append(int(duration_ns[call]) - busy_ns)
    if waited_ns:
        evidence = {"count": len(waited_ns), "device_ns": None, "host_ns": sum(waited_ns)}
        yield finding("recording.unrecorded_work", trace_id, evidence, time=format_duration(sum(waited_ns)))


def _stalls(trace_id: int, events: StagedEvents) -> Iterator[Finding]:
    """Long silences of the host inside of compiled code, each right before a kernel of its own."""
    is_compiled = columns(
        events.rows["operator"],
        of=lambda part: part.told(lambda name: _COMPILED.match(name or "") is not None, "name"),
    )["of"].astype(bool)
    if not is_compiled.any():
        return
    operators = columns(
        events.rows["operator"],
        *("thread_key", "start_ns", "duration_ns"),
        is_own=lambda part: part.told(lambda name: (name or "").isidentifier(), "name"),
    )
    calls = columns(events.rows["call"], "thread_key", "start_ns", "duration_ns")
    both = {name: np.concatenate((operators[name], calls[name])) for name in calls}
    silent_ns = []
    for thread in np.unique(operators["thread_key"][is_compiled]):
        start_ns, length_ns = (
            both[name][both["thread_key"] == thread] for name in ("start_ns", "duration_ns")
        )
        moments_ns = np.unique(np.concatenate((start_ns, start_ns + length_ns)))
        places = np.flatnonzero(np.diff(moments_ns) >= _STALL_NS)
        begun_ns, ended_ns = moments_ns[places], moments_ns[places + 1]
        mine = operators["thread_key"] == thread
        within = np.flatnonzero(mine & is_compiled)
        within = within[np.argsort(operators["start_ns"][within], kind="stable")]
        since_ns = operators["start_ns"][within]
        until_ns = np.maximum.accumulate(since_ns + operators["duration_ns"][within])
        around = np.searchsorted(since_ns, begun_ns, side="right") - 1
        is_own = np.isin(ended_ns, operators["start_ns"][mine & operators["is_own"].astype(bool)])
        silent_ns += (ended_ns - begun_ns)[is_own & (around >= 0) & (until_ns[around] > ended_ns)].tolist()
    first_ns, last_ns = _host_extent(events)
    if len(silent_ns) >= _STALLS and sum(silent_ns) >= _STALLED * (last_ns - first_ns):
        evidence = {"count": len(silent_ns), "device_ns": None, "host_ns": sum(silent_ns)}
        share = f"{100 * sum(silent_ns) / (last_ns - first_ns):.0f}"
        yield finding("recording.stalls", trace_id, evidence, share=share)


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
    write_rows(session, trace_id, "set_aside", lambda: rows)
    events.rows["activity"].drop(np.concatenate([part.integers("row_id") for part in rows]))
    count, device_ns = int((reason >= 0).sum()), int(duration_ns[reason >= 0].sum())
    evidence = {"count": count, "device_ns": device_ns}
    return finding("recording.impossible_times", trace_id, evidence, time=format_duration(device_ns))


def _shift(events: StagedEvents, device: int, offset_ns: int) -> None:
    def is_mark(category: str | None, process: str | None) -> bool:
        is_annotation = category == "gpu_user_annotation" and integer(process) == device
        return is_annotation or process == f"GPU {device} Counters"

    for name in ("activity", "annotation", "counter"):
        for part in events.rows[name]:
            marks = part.told(is_mark, "category", "pid")
            here = part.has("start_ns") & (part.integers("device") == device if name == "activity" else marks)
            moved = {"row_id": part.integers("row_id"), "start_ns": part.integers("start_ns") + offset_ns}
            events.rows[name].change(rows_of({key: column[here] for key, column in moved.items()}))


def _shared(trace_id: int, calls: Columns, call: Int64, activities: Columns) -> Iterator[Finding]:
    """Kernels that begin late though their device has nothing to do: it serves somebody else."""
    order = np.argsort(activities["start_ns"], kind="stable")
    begun_ns, launch = activities["start_ns"][order], call[order]
    free_ns = np.maximum.accumulate(begun_ns + activities["duration_ns"][order])
    is_kernel = (launch >= 0) & (calls["kind"][launch] == CallKind.KERNEL)
    idle = 1 + np.flatnonzero(is_kernel[:-1] & is_kernel[1:] & (free_ns[:-1] < calls["start_ns"][launch[1:]]))
    lag_ns = begun_ns[idle] - calls["start_ns"][launch[idle]] - calls["duration_ns"][launch[idle]]
    late = int((lag_ns > max(0, np.percentile(lag_ns, 5)) + _LATE_NS).sum()) if len(idle) >= _FEWEST else 0
    if late >= max(_LEAST_LATE, _LATE_FRACTION * len(idle)):
        share, evidence = f"{100 * late / len(idle):.0f}", {"count": late, "device_ns": None}
        yield finding("recording.shared_gpu", trace_id, evidence, share=share, starts=len(idle))


def _skew(trace_id: int, events: StagedEvents, calls: Columns, activities: Columns) -> Iterator[Finding]:
    """Device records that begin before their launch: one offset is taken out, a varying one withholds."""
    is_own = np.isin(calls["kind"], OWN_LAUNCHES)
    ids, first = earliest_of_each(calls["correlation_id"][is_own], calls["start_ns"][is_own])
    call = look_up(ids, np.flatnonzero(is_own)[first], activities["correlation_id"])
    devices = sorted(set(activities["device"][call >= 0].tolist()))
    for device in devices:
        of_device = (activities["device"] == device) & (call >= 0)
        start_ns, duration_ns = calls["start_ns"][call[of_device]], activities["duration_ns"][of_device]
        lag_ns = activities["start_ns"][of_device] - start_ns
        early = lag_ns < -_CLOCK_ERROR_NS
        # One record is broken by itself; a clock is behind for many.
        if early.sum() <= max(1, _STRAY_FRACTION * len(early)):
            # Several devices of one process wait for each other, and a sample of the events lacks others.
            if len(devices) == 1 and len(ids) > _KEPT * np.ptp(ids):
                yield from _shared(trace_id, calls, call, activities)
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


def read_kineto(
    session: Session,
    trace_id: int,
    trace: TraceFile,
    local: LocalText,
    *,
    captures: CaptureTraces,
    demangle: Demangle | None,
) -> Sidecar | None:
    """Read a Kineto file into the tables, as one trace; its sidecar, if it has one.

    `captures` are those of CUDA graphs that it may replay. An InputError names the file and the byte.
    """
    sidecar, sidecar_findings = read_beside(trace_id, trace)
    with (
        mapped_text(local.path, trace.name) as mapped,
        staged_events(session, mapped, trace.name, damage=local.damage) as events,
    ):
        defects = [*end_steps(trace_id, events), *distrust(session, trace_id, events)]
        if sidecar is None:  # which times steps without a profiler
            defects += _stalls(trace_id, events)
        open_graphs(trace_id, events, trace, sidecar=sidecar, given=captures, demangle=demangle)
        census = Filler(session, trace_id, events).fill()
        if not census.categories:
            what = f"{counted(census.event_count, 'event')}, but none that torch's profiler writes"
            raise foreign_json(mapped, what, trace.name)
        array, repairs, size_bytes = events.array, events.flaws, len(mapped)
    _write_trace(
        session, trace_id, array, census, sidecar, source=valid_text(trace.name), size_bytes=size_bytes
    )
    is_explained = bool(defects) or array.lost_bytes > 0
    had_device = sidecar is None or bool(sidecar.environment.gpu or "cuda" in sidecar.settings.activities)
    described = array.properties.get("deviceProperties")
    session.defer("devices", lambda session: write_devices(session, trace_id, described))
    session.defer("findings", lambda session: session.add_findings((
        *defects,
        *read_findings(
            trace_id, census, size_bytes=size_bytes, lost_bytes=array.lost_bytes, damage=local.damage,
            repairs=repairs,
        ),
        *trace_findings(session, trace_id, is_explained=is_explained, had_device=had_device),
        *recorded_findings(array.properties, trace_id),
        *sidecar_findings,
        *graph_findings(session, trace_id, captures),
    )))  # fmt: skip
    if census.reach_ns >= 1 << 63:  # then tables may not hold it, which is an error of the file
        session.prepare(None)
    return sidecar


def _write_trace(
    session: Session, trace_id: int, array: EventArray, census: Census, sidecar: Sidecar | None,
    **of_file: Any,
) -> None:  # fmt: skip
    properties = array.properties
    job = properties.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    backend = job.get("backend")
    rank, world_size = integer(job.get("rank")), integer(job.get("world_size"))
    if sidecar is None:
        versions = {"torch_version": recorded_release(properties)}
    else:
        if rank is None:
            # torch notes them only while the process group is there: a whole run is written when it is gone.
            rank, world_size = sidecar.rank, sidecar.world_size
        known = sidecar.environment
        versions = {
            "torch_version": known.torch, "torch_git_version": known.torch_git_version,
            "cuda_version": known.cuda_runtime, "driver_version": known.cuda_driver,
        }  # fmt: skip
    others = {key: value for key, value in properties.items() if key != "deviceProperties"}
    numbers = ("cuda_runtime_version", "cuda_driver_version", "cupti_version")
    write_trace(
        session,
        trace_id=trace_id,
        format="kineto_legacy" if census.is_legacy else "kineto",
        rank=rank,
        world_size=world_size,
        backend=valid_text(backend) if isinstance(backend, str) else None,
        base_time_ns=integer(properties.get("baseTimeNanoseconds"), bits=64),
        window_start_ns=census.window_start_ns,
        window_end_ns=census.window_end_ns,
        event_count=census.event_count,
        properties=valid_text(json.dumps(others, ensure_ascii=False)),
        **{name: integer(properties.get(name)) for name in numbers},
        **versions,
        **of_file,
    )


# Where the captures of a trace's CUDA graphs are known from: noted beside it, given, or in the trace itself.
#
# They are read only for a trace that replays graphs, each file once, into a Session of its own that is thrown
# away. A capture that cannot be read is an error where it was given, and a finding where it was noted.


class CaptureTraces(msgspec.Struct, frozen=True, dict=True):
    """Traces of captures that a user gives; read when first asked for."""

    files: tuple[TraceFile, ...]

    @cached_property
    def captures(self) -> list[tuple[Capture, ...]]:
        return [_read(one, ReplaySource.CAPTURE_TRACE) for one in self.files]


def open_graphs(
    trace_id: int, events: StagedEvents, trace: TraceFile, *, sidecar: Sidecar | None, given: CaptureTraces,
    demangle: Demangle | None,
) -> None:  # fmt: skip
    """Open the replays of a staged trace by all that is known of its graphs."""
    session, census = events.session, events.census
    if not any(CallKind.GRAPH in part.told(kind_of_call, "name") for part in events.rows["call"]):
        return
    graphs = () if sidecar is None else sidecar.graphs
    captures: list[Capture] = []
    unread: list[str] = []
    for graph in graphs:  # recorded beside the trace
        if graph.file is not None and trace.path is not None:
            path = trace.path.parent / graph.file
            try:
                found = _read(TraceFile(str(path), path), ReplaySource.NOTED_CAPTURE)[:1]
                captures += (with_nodes(one, graph.nodes, demangle) for one in found)
            except InputError as error:
                unread.append(str(error))
    # Those inside of it, with what the driver told of their nodes where each was noted.
    phases = captured_phases(events, ReplaySource.CAPTURE_PHASE, trace.name)
    nodes = [graph.nodes for graph in graphs if graph.file is None]
    told = nodes if len(nodes) == len(phases) else [None] * len(phases)
    captures += (with_nodes(one, known, demangle) for one, known in zip(phases, told, strict=True))
    modules, details = open_replays(events, trace_id, [*captures, *chain.from_iterable(given.captures)])
    if unread:
        lost = finding("graphs.note_unreadable", trace_id, count=len(unread), reason=unread[0])
        session.add_findings([lost])
    # What is nested and written later depends on what the trace holds.
    counts = {"python_function": modules, **census.categories} if modules else census.categories
    events.census = replace(census, categories=counts, detailed_count=census.detailed_count + details)


def _read(trace: TraceFile, source: ReplaySource) -> tuple[Capture, ...]:
    with (
        Session() as session,
        local_text(trace, session.temporary_directory) as local,
        mapped_text(local.path, trace.name) as mapped,
        staged_events(session, mapped, trace.name, damage=local.damage) as events,
    ):
        return captured_phases(events, source, trace.name)


def graph_findings(session: Session, trace_id: int, given: CaptureTraces) -> Iterator[Finding]:
    """What a reader should know of the trace's replays: which stay closed, and captures that were refused."""
    row = session.query(_SUMMARY, [trace_id])[0]
    replays, unopened, device_ns, unopened_ns, graphs, reason, sources = row
    if given.files and not replays:
        yield finding("graphs.none", trace_id)
    if not replays or not unopened:
        return
    empty = [one.name for one, found in zip(given.files, given.captures, strict=True) if not found]
    reason = "; ".join([reason, *(f"{name} holds no capture of a CUDA graph" for name in empty)])
    is_refused = bool(given.files) and ReplaySource.CAPTURE_TRACE.value not in sources
    yield finding(
        "graphs.capture_refused" if is_refused else "graphs.closed",
        trace_id,
        {"replay_count": replays, "unopened_count": unopened, "unopened_ns": unopened_ns},
        graphs=graphs,
        percent=f"{100 * unopened_ns / max(1, device_ns):.1f}",
        reason=reason,
    )


_SUMMARY = """
SELECT count(*), count(*) FILTER (WHERE evidence IS NULL),
    (SELECT coalesce(sum(duration_ns), 0)::BIGINT FROM device_activities WHERE trace_id = $1),
    coalesce(sum(device_ns) FILTER (WHERE evidence IS NULL), 0)::BIGINT,
    count(DISTINCT graph) FILTER (WHERE evidence IS NULL),
    arg_max(reason, device_ns) FILTER (WHERE evidence IS NULL), coalesce(list(DISTINCT source), [])
FROM graph_replays WHERE trace_id = $1"""


def read_beside(trace_id: int, trace: TraceFile) -> tuple[Sidecar | None, list[Finding]]:
    """The sidecar of a local trace, and what is wrong with it; None if there is none to use."""
    if trace.path is None or not (path := sidecar_path(trace.path)).is_file():
        return None, []
    try:
        sidecar = read_sidecar(path)
    except InputError as error:
        return None, [finding("trace.sidecar_unreadable", trace_id, reason=error)]
    findings = []
    if sidecar.gaps:
        gaps = {gap.part: gap.reason for gap in sidecar.gaps}
        parts = "; ".join(f"{gap.part}: {gap.reason}" for gap in sidecar.gaps)
        findings.append(finding("trace.sidecar_incomplete", trace_id, gaps, parts=parts))
    return sidecar, [*findings, *_window_findings(trace_id, sidecar)]


def keep_sidecars(session: Session, sidecars: Mapping[int, Sidecar]) -> None:
    """Keep sidecars, by trace id, under metadata keys `sidecar:<trace_id>`, and fill the tables made of them.

    Facts are about kernel names, which several ranks share: what they agree on is kept once.
    """
    if not sidecars:
        return
    for trace_id, sidecar in sidecars.items():
        encoded = [trace_id, msgspec.json.encode(sidecar).decode()]
        session.execute("INSERT INTO metadata VALUES ('sidecar:' || ?, ?)", encoded)
        if sidecar.partial and sidecar.steps:
            # What follows the last whole step is outside of steps: it would count as one that is too short.
            recorded = session.query(
                "SELECT step FROM steps WHERE trace_id = ? ORDER BY start_ns", [trace_id]
            )
            of_events = ("operators", "runtime_calls", "device_activities")
            forget = ("DELETE FROM steps", *(f"UPDATE {table} SET step = NULL" for table in of_events))
            for (open_step,), statement in product(recorded[sidecar.steps :], forget):
                session.execute(f"{statement} WHERE trace_id = ? AND step = ?", [trace_id, open_step])
    ids = dict(session.query("SELECT name, name_id FROM kernel_names WHERE kind = 'kernel'"))
    kept = sidecars.values()
    # One for each unit; one without a unit where the library alone is known.
    origins = (
        {
            "name_id": ids[kernel.name], "library": kernel.library, "build_id": kernel.build_id,
            "unit": unit and unit.name, "module_id": unit and unit.module_id,
            "source_path": unit and unit.source_path,
        }
        for one in kept
        for kernel in one.kernels
        if kernel.library is not None and kernel.name in ids
        for unit in kernel.units or (None,)
    )  # fmt: skip
    sources = (
        {"name_id": ids[source.kernel], **msgspec.structs.asdict(source)}
        for one in kept
        for source in one.kernel_sources
        if source.kernel in ids
    )
    registrations = (msgspec.structs.asdict(row) for one in kept for row in one.registrations)
    steps = (
        {"trace_id": trace_id, **msgspec.structs.asdict(step), "sample": number}
        for trace_id, sidecar in sidecars.items()
        for number, step in enumerate(sidecar.unrecorded_steps)
    )
    for table, rows in (
        ("unrecorded_steps", steps),
        ("kernel_origins", origins),
        ("kernel_sources", sources),
        ("operator_registrations", registrations),
    ):
        if distinct := {msgspec.json.encode(row): row for row in rows}:
            session.replace_rows(table, list(distinct.values()))


def _window_findings(trace_id: int, sidecar: Sidecar) -> Iterator[Finding]:
    for off, same in sorted(grouped((region.off, region) for region in sidecar.regions).items()):
        duration_ns = sum(region.end_ns - region.start_ns for region in same)
        steps = sorted({region.step for region in same})
        evidence = {
            "off": list(off), "region_count": len(same), "duration_ns": duration_ns, "steps": steps,
        }  # fmt: skip
        is_half = set(off) < set(sidecar.settings.activities)
        yield finding(
            "capture.partial_collection",
            trace_id,
            evidence,
            kind=(off[0] if len(off) == 1 else "part") if is_half else None,
            what=" and ".join(off),
            duration=format_duration(duration_ns),
            step_count=len(steps),
        )
    planned = sidecar.schedule.active
    counts = {"step_count": sidecar.steps, "planned_step_count": planned}
    if sidecar.ended_by == SIZE_LIMIT and (sidecar.partial or sidecar.steps < planned):
        yield finding("capture.size_limit", trace_id, counts, kind="program" if sidecar.partial else None)
    elif sidecar.partial:
        cause = f" by {sidecar.ended_by}" if sidecar.ended_by else ""
        yield finding("capture.partial_window", trace_id, counts, cause=cause)
