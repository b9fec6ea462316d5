"""A Kineto file → rows of one trace: its events, and what it says of itself.

A trace either arrives wholly in the tables or not at all: the first error ends the load, with the file's name
and byte offset. Flaws that leave the rest usable become findings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import Any

from msgspec.structs import replace

from opscope.errors import InputError
from opscope.ingest import quality
from opscope.ingest.captured import Capture, Demangle, captured_phases, with_nodes
from opscope.ingest.kineto import fill_tables
from opscope.ingest.recorded import read_beside
from opscope.ingest.replays import open_replays
from opscope.ingest.source import EventArray, LocalText, TraceFile, local_text, mapped_text
from opscope.ingest.staging import StagedEvents, staged_events
from opscope.ingest.trace_rows import integer, recorded_release, valid_text, write_devices, write_trace
from opscope.ingest.trust import distrust, end_steps
from opscope.ingest.wording import finding
from opscope.model.finding import Finding, recorded_findings
from opscope.model.schema import ReplaySource
from opscope.model.session import Session
from opscope.model.sidecar import Sidecar


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
        open_graphs(trace_id, events, trace, sidecar=sidecar, given=captures, demangle=demangle)
        census = fill_tables(session, trace_id, events)
        array, repairs, size_bytes = events.array, events.flaws, len(mapped)
    _write_trace(
        session, trace_id, array, census, sidecar, source=valid_text(trace.name), size_bytes=size_bytes
    )
    is_explained = bool(defects) or array.lost_bytes > 0
    had_device = sidecar is None or bool(sidecar.environment.gpu or "cuda" in sidecar.settings.activities)
    described = (array.properties.get(key) for key in ("deviceProperties", "agents"))
    write_devices(session, trace_id, *described)
    session.add_findings((
        *defects,
        *quality.read_findings(
            trace_id, census, size_bytes=size_bytes, lost_bytes=array.lost_bytes, damage=local.damage,
            repairs=repairs,
        ),
        *quality.trace_findings(session, trace_id, is_explained=is_explained, had_device=had_device),
        *recorded_findings(array.properties, trace_id),
        *sidecar_findings,
        *graph_findings(session, trace_id, captures),
    ))  # fmt: skip
    return sidecar


def _write_trace(
    session: Session, trace_id: int, array: EventArray, census: quality.Census, sidecar: Sidecar | None,
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
    others = {key: value for key, value in properties.items() if key not in ("deviceProperties", "agents")}
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


_HAS_REPLAYS = "SELECT count(*) FROM call_events WHERE name LIKE '%GraphLaunch%'"


# Where the captures of a trace's CUDA graphs are known from: noted beside it, given, or in the trace itself.
#
# They are read only for a trace that replays graphs, each file once, into a Session of its own that is thrown
# away. A capture that cannot be read is an error where it was given, and a finding where it was noted.


class CaptureTraces:
    """Traces of captures that a user gives; read when first asked for."""

    def __init__(self, files: tuple[TraceFile, ...]) -> None:
        self.files = files

    @cached_property
    def captures(self) -> list[tuple[Capture, ...]]:
        return [_read(one, ReplaySource.CAPTURE_TRACE) for one in self.files]


def open_graphs(
    trace_id: int, events: StagedEvents, trace: TraceFile, *, sidecar: Sidecar | None, given: CaptureTraces,
    demangle: Demangle | None,
) -> None:  # fmt: skip
    """Open the replays of a staged trace by all that is known of its graphs."""
    session, census = events.session, events.census
    calls = {"cuda_runtime", "cuda_driver"} & census.categories.keys()
    if not calls or not session.scalar(_HAS_REPLAYS):
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
    added = open_replays(events, trace_id, [*captures, *chain.from_iterable(given.captures)])
    if unread:
        lost = finding("graphs.note_unreadable", trace_id, count=len(unread), reason=unread[0])
        session.add_findings([lost])
    # What is nested and written later depends on what the trace holds.
    counts = {"python_function": added.modules, **census.categories} if added.modules else census.categories
    events.census = replace(census, categories=counts, detailed_count=census.detailed_count + added.details)


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
