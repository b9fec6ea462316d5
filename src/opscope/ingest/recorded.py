"""What opscope's own capture wrote beside a trace → the tables that keep it with the Session.

A sidecar that cannot be read, or that knows of gaps, is a finding; the trace is as good as without it. So is
what the sidecar says of the window: that parts of it were not recorded, or that it ended early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from opscope.errors import InputError
from opscope.ingest.source import TraceFile
from opscope.ingest.wording import finding
from opscope.model.finding import Finding
from opscope.model.origin import RecordedKernel
from opscope.model.sidecar import SIZE_LIMIT, RecordedRegion, Sidecar, read_sidecar, sidecar_path
from opscope.units import format_duration

if TYPE_CHECKING:
    from opscope.model.session import Session


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
        session.set_metadata(f"sidecar:{trace_id}", msgspec.json.encode(sidecar).decode())
        if sidecar.partial and sidecar.steps:
            _leave_open_step(session, trace_id, sidecar.steps)
    ids = dict(session.query("SELECT name, name_id FROM kernel_names WHERE kind = 'kernel'"))
    kept = sidecars.values()
    origins = (row for one in kept for kernel in one.kernels for row in _origin_rows(kernel, ids))
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
        if distinct := _distinct(rows):
            session.replace_rows(table, distinct)


def _leave_open_step(session: Session, trace_id: int, whole: int) -> None:
    """What follows the last whole step is outside of steps: it would count as one that is too short."""
    open_steps = session.query("SELECT step FROM steps WHERE trace_id = ? ORDER BY start_ns", [trace_id])[
        whole:
    ]
    for (step,) in open_steps:
        for table in ("operators", "runtime_calls", "device_activities"):
            session.connection.execute(
                f"UPDATE {table} SET step = NULL WHERE trace_id = ? AND step = ?", [trace_id, step]
            )
        session.connection.execute("DELETE FROM steps WHERE trace_id = ? AND step = ?", [trace_id, step])


def _origin_rows(kernel: RecordedKernel, ids: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """One row per unit; one without a unit where the library alone is known."""
    if kernel.library is None or kernel.name not in ids:
        return
    library = {"name_id": ids[kernel.name], "library": kernel.library, "build_id": kernel.build_id}
    for unit in kernel.units:
        yield {**library, "unit": unit.name, "module_id": unit.module_id, "source_path": unit.source_path}
    if not kernel.units:
        yield library


def _distinct(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({msgspec.json.encode(row): row for row in rows}.values())


def _window_findings(trace_id: int, sidecar: Sidecar) -> Iterator[Finding]:
    regions: dict[tuple[str, ...], list[RecordedRegion]] = defaultdict(list)
    for region in sidecar.regions:
        regions[region.off].append(region)
    for off, same in sorted(regions.items()):
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
