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

from opscope.ingest.quality import Census
from opscope.ingest.staging import StagedEvents, rows_of
from opscope.model.finding import Finding, Severity
from opscope.model.queries import sql
from opscope.model.session import Session
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


def distrust(session: Session, trace_id: int, events: StagedEvents) -> Iterator[Finding]:
    """Mend the staged events of a trace where that can be done, and say what cannot be trusted."""
    yield from _unknown_devices(trace_id, events.census)
    if not events.census.categories.keys() & {"kernel", "cuda_runtime", "cuda_driver"}:
        return
    yield from _missing_records(session, trace_id)
    yield from _impossible_times(session, trace_id, events)
    yield from _skew(session, trace_id, events)


def end_steps(session: Session, trace_id: int, events: StagedEvents) -> list[Finding]:
    """End the steps that were never closed, and say that this was done."""
    if "user_annotation" not in events.census.categories:
        return []
    query = sql(__package__, "kineto:endless_steps")
    found = session.connection.execute(query).fetchnumpy()
    ended, timeless = len(found["row_id"]), int(found.pop("is_timeless").sum())
    if not ended:
        return []
    events.rows["annotation"].change(rows_of(found))
    events.census = replace(events.census, without_time=events.census.without_time - timeless)
    finding = _defect(
        trace_id,
        "steps_without_end",
        f"{counted(ended, 'step')} without an end: taken to last to the next one, or to the end of the "
        "recording.",
        "Close the profiler before the program ends; kernels of the last step may be missing.",
        count=ended,
        device_ns=None,
        effect="their lengths are upper bounds",
    )
    return [finding]


def _defect(
    trace_id: int, code: str, message: str, suggestion: str | None,
    *, count: int, device_ns: int | None, effect: str, withholds: bool = False,
) -> Finding:  # fmt: skip
    evidence = {"count": count, "device_ns": device_ns, "effect": effect, "withholds": withholds}
    return Finding(f"recording.{code}", Severity.WARNING, message, suggestion, trace_id, evidence)


def _unknown_devices(trace_id: int, census: Census) -> Iterator[Finding]:
    named = {name: count for name, count in census.ignored.items() if name.endswith(("_op", "_runtime"))}
    if not any(name.endswith("_op") for name in named):
        return
    events = ", ".join(f"{count:,} of {name}" for name, count in sorted(named.items()))
    yield _defect(
        trace_id,
        "unknown_device",
        f"Events of a device that opscope does not know: {events}. Their times are in no figure.",
        "Read only what is said of the CPU.",
        count=sum(named.values()),
        device_ns=None,
        effect="no conclusion is drawn about the device",
        withholds=True,
    )


def _impossible_times(session: Session, trace_id: int, events: StagedEvents) -> Iterator[Finding]:
    query = sql(__package__, "kineto:set_aside").format(distance=_LEAST_DISTANCE_NS)
    totals = f"SELECT count(*), coalesce(sum(duration_ns), 0)::BIGINT FROM ({query})"
    count, device_ns = session.query(totals)[0]
    if not count:
        return
    session.connection.execute(f"INSERT INTO set_aside SELECT {trace_id}, * EXCLUDE row_id FROM ({query})")
    judged = session.connection.execute(f"SELECT row_id FROM ({query})").fetchnumpy()
    events.rows["activity"].drop(judged["row_id"])
    yield _defect(
        trace_id,
        "impossible_times",
        f"{counted(count, 'device activity')} of {format_duration(device_ns)} cannot be right (far outside "
        "of the recording, or over what their stream did next); they are set aside, in no other figure.",
        "Record again; if it stays so, update the driver: its records are broken.",
        count=count,
        device_ns=device_ns,
        effect="set aside; no bound, idle time or gain is given",
        withholds=True,
    )


def _missing_records(session: Session, trace_id: int) -> Iterator[Finding]:
    missing, launches, activities = session.query(sql(__package__, "kineto:launches_without_records"))[0]
    # Records that came with other ids are there, and unattributed.
    if min(missing, launches - activities) <= _MISSING_FRACTION * launches:
        return
    yield _defect(
        trace_id,
        "device_records_missing" if activities else "no_device_records",
        f"{counted(launches, 'launch')}, {missing:,} of them without a device record: figures "
        "of the GPU would be of the rest alone."
        if activities
        else f"{counted(launches, 'launch')}, 0 device records: none was delivered; no figure of the GPU can "
        "be given.",
        "Record again with no other profiler attached (nsys, ncu, DCGM), permission to profile "
        "(NVreg_RestrictProfilingToAdminUsers=0) and a driver not older than the CUDA runtime.",
        count=missing,
        device_ns=None,
        effect="no conclusion is drawn about the device",
        withholds=True,
    )


def _skew(session: Session, trace_id: int, events: StagedEvents) -> Iterator[Finding]:
    """Device records that begin before their launch: one offset is taken out, a varying one withholds."""
    lags = session.connection.execute(sql(__package__, "kineto:launch_lags")).fetchnumpy()
    for device in np.unique(lags["device"]).tolist():
        of_device = lags["device"] == device
        start_ns, lag_ns, duration_ns = (
            lags[name][of_device] for name in ("start_ns", "lag_ns", "duration_ns")
        )
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
            for name in ("activity", "annotation"):
                query = sql(__package__, f"kineto:shifted_{name}").format(device=device, offset=offset_ns)
                events.rows[name].change(rows_of(session.connection.execute(query).fetchnumpy()))
        records, most = counted(int(early.sum()), "device activity"), format_duration(offset_ns)
        early_by = f"{records} begin before their launch, by up to {most}"
        yield _defect(
            trace_id,
            "device_clock_offset" if is_constant else "device_clock_drift",
            f"The device's clock is behind the host's: {early_by}. Its times were moved by that, the least "
            "that makes them possible."
            if is_constant
            else f"The clocks of device and host drift apart: {early_by}. No idle time, bound or gain is "
            "given.",
            None if is_constant else "Record again; times of kernels alone are right.",
            count=int(early.sum()),
            device_ns=int(duration_ns[early].sum()),
            effect="device times are shifted" if is_constant else "no bound, idle time or gain is given",
            withholds=not is_constant,
        )
