"""A Kineto file → rows of one trace: its events, and what it says of itself.

A trace either arrives wholly in the tables or not at all: the first error ends the load, with the file's name
and byte offset. Flaws that leave the rest usable become findings.
"""

from __future__ import annotations

import json
from typing import Any

from opscope.ingest import quality
from opscope.ingest.captured import Demangle
from opscope.ingest.graph_sources import CaptureTraces, graph_findings, open_graphs
from opscope.ingest.kineto import fill_tables
from opscope.ingest.recorded import read_beside
from opscope.ingest.source import EventArray, LocalText, TraceFile, mapped_text
from opscope.ingest.staging import staged_events
from opscope.ingest.trace_rows import integer, recorded_release, valid_text, write_devices, write_trace
from opscope.ingest.trust import distrust, end_steps
from opscope.model.finding import recorded_findings
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
