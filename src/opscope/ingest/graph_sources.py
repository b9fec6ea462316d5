"""Where the captures of a trace's CUDA graphs are known from: noted beside it, given, or in the trace itself.

They are read only for a trace that replays graphs, each file once, into a Session of its own that is thrown
away. A capture that cannot be read is an error where it was given, and a finding where it was noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import chain

from msgspec.structs import replace

from opscope.errors import InputError
from opscope.ingest.captured import Capture, Demangle, captured_phases, with_nodes
from opscope.ingest.replays import open_replays
from opscope.ingest.source import TraceFile, local_text, mapped_text
from opscope.ingest.staging import StagedEvents, staged_events
from opscope.ingest.wording import finding
from opscope.model.finding import Finding
from opscope.model.schema import ReplaySource
from opscope.model.session import Session
from opscope.model.sidecar import Sidecar

_HAS_REPLAYS = "SELECT count(*) FROM call_events WHERE name LIKE '%GraphLaunch%'"


class CaptureTraces:
    """Traces of captures that a user gives; read when first asked for."""

    def __init__(self, files: tuple[TraceFile, ...]) -> None:
        self.files = files

    @cached_property
    def captures(self) -> list[tuple[Capture, ...]]:
        """Those of each file."""
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
