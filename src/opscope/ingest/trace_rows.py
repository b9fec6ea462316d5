"""One row of table `traces`, whatever kind of file it came from."""

from __future__ import annotations

import re
from typing import Any

from opscope.ingest.nesting import union_length
from opscope.model import schema
from opscope.model.session import Session

__all__ = ["integer", "valid_text", "write_devices", "write_trace"]


def write_trace(session: Session, **values: Any) -> None:
    """Insert a row into `traces`; columns that are not given are NULL."""
    columns = schema.table("traces").column_names
    row = [values.pop(name, None) for name in columns]
    assert not values, f"no columns of traces: {sorted(values)}"
    session.connection.execute(f"INSERT INTO traces VALUES ({', '.join('?' * len(row))})", row)


def integer(value: Any, *, bits: int = 32) -> int | None:
    """A value as a signed integer of that width; None if it is none."""
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << (bits - 1) else None


def valid_text(text: str) -> str:
    """The text without lone surrogates: half characters of JSON escapes, foreign bytes of file names."""
    return text.encode("utf-8", "replace").decode("utf-8")


# Keys of deviceProperties (libkineto/src/DeviceProperties.cpp), in the order of the columns.
_KEYS = (
    "name",
    "computeMajor",
    "computeMinor",
    "numSms",
    "totalGlobalMem",
    "warpSize",
    "maxThreadsPerBlock",
    "maxThreadsPerMultiprocessor",
    "regsPerBlock",
    "regsPerMultiprocessor",
    "sharedMemPerBlock",
    "sharedMemPerBlockOptin",
    "sharedMemPerMultiprocessor",
)
_DEVICE_ID = re.compile(r"[0-9]{1,9}")
_AMD_SHARED_PER_SM = "maxSharedMemoryPerMultiProcessor"


# What a trace says may be of any type; what does not fit its column is unknown.
_INSERT = "INSERT INTO devices SELECT " + ", ".join(
    f"TRY_CAST(? AS {column.type})" for column in schema.table("devices").columns
)


def write_devices(session: Session, trace_id: int, properties: Any) -> None:
    """Fill table `devices` for one trace.

    Args:
        session: The Session, with the trace's device activities.
        trace_id: The trace.
        properties: `deviceProperties` as the trace has it; anything else than a list of objects is ignored.
    """
    described = {
        int(entry["id"]): entry
        for entry in (properties if isinstance(properties, list) else [])
        if isinstance(entry, dict) and _DEVICE_ID.fullmatch(str(entry.get("id")))
    }
    used = _use(session, trace_id)
    for device in sorted(described.keys() | used.keys()):
        entry = described.get(device, {})
        facts = [_fact(key, entry.get(key)) for key in _KEYS]
        facts[-1] = facts[-1] if facts[-1] is not None else entry.get(_AMD_SHARED_PER_SM)
        session.connection.execute(
            _INSERT,
            [trace_id, device, *map(_text, facts), *used.get(device, (0, None, None, None, None, None))],
        )


def _fact(key: str, value: Any) -> Any:
    """None for a number of parts of a device that no device has."""
    is_count = key not in {"computeMajor", "computeMinor"} and isinstance(value, int | float)
    return None if is_count and value <= 0 else value


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _use(session: Session, trace_id: int) -> dict[int, tuple[int, ...]]:
    """activity_count, first_start, last_end, span, busy and idle of each device that was used."""
    columns = session.connection.execute(
        "SELECT device, start_ns, start_ns + duration_ns AS end_ns FROM device_activities "
        "WHERE trace_id = ? AND device IS NOT NULL ORDER BY device",
        [trace_id],
    ).fetchnumpy()
    devices, starts, ends = columns["device"], columns["start_ns"], columns["end_ns"]
    use: dict[int, tuple[int, ...]] = {}
    for device in sorted(set(devices.tolist())):
        mine = devices == device
        first, last = int(starts[mine].min()), int(ends[mine].max())
        busy = union_length(starts[mine], ends[mine])
        use[device] = (int(mine.sum()), first, last, last - first, busy, last - first - busy)
    return use
