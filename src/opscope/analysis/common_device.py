"""The device that all activities of a Session ran on, where all devices in use are alike."""

from __future__ import annotations

from opscope.launches.facts import DeviceFacts
from opscope.model.session import Session

_DEVICE_SQL = """
SELECT DISTINCT name, compute_major, compute_minor, sm_count, max_threads_per_sm, registers_per_sm,
    shared_memory_per_sm_bytes
FROM devices WHERE activity_count > 0"""


def common_device(session: Session) -> DeviceFacts | None:
    """Facts of the devices in use; None where they differ or there is none."""
    rows = session.records(_DEVICE_SQL)
    if len(rows) != 1:
        return None
    row = rows[0]
    major, minor = row.pop("compute_major"), row.pop("compute_minor")
    return DeviceFacts(compute_capability=None if major is None else f"{major}.{minor}", **row)
