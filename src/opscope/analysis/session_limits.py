"""Which limits a recording is held against: those of the one kind of GPU it was made on.

A file the user gives comes first, then the newest measurement of the same GPU in a folder, then the data
sheet. A recording of several kinds of GPU has no limits: a fraction would refer to one of them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from opscope.errors import InputError
from opscope.hardware.limits import DeviceLimits, match_limits
from opscope.hardware.measured import find_measured, mismatch, read_measured
from opscope.model.measured_limits import MeasuredLimits
from opscope.model.session import Session

# Devices in use; one that is only described did none of the work.
_USED_DEVICES = """
SELECT DISTINCT name, compute_major, compute_minor, sm_count, memory_bytes
FROM devices WHERE activity_count > 0 ORDER BY ALL
"""
_ALIKE_MEMORY = 0.01  # of devices of one kind, whose drivers reserve a little more or less


class _Device(msgspec.Struct, frozen=True):
    name: str | None
    compute_capability: str | None
    sm_count: int | None
    memory_bytes: int | None


def limits_of_session(
    session: Session, measured_dir: Path | None = None, ceilings_file: Path | None = None
) -> tuple[DeviceLimits | None, str | None]:
    """The limits of the GPU a Session was recorded on.

    Args:
        session: With its table `devices`.
        measured_dir: Folder of measurements, which may not exist; None to look in none.
        ceilings_file: A measurement to be used whatever the folder holds.

    Returns:
        The limits, or None; and why there are none, or which measurements were passed over, or None.

    Raises:
        InputError: The file cannot be used, or is of another GPU than the recording.
    """
    given = None if ceilings_file is None else read_measured(ceilings_file)
    device, reason = _device_of(session)
    if device is None:
        return None, reason
    if device.name is None:
        return _of_unnamed(given)
    facts: dict[str, Any] = {
        "compute_capability": device.compute_capability,
        "sm_count": device.sm_count,
        "memory_bytes": device.memory_bytes,
    }
    if given is not None and (difference := mismatch(given, device.name, **facts)) is not None:
        raise InputError(
            f"these limits are not those of the recording: {difference}",
            source=ceilings_file,
            hint="Measure the GPU it was recorded on, or leave the file out",
        )
    ignored: tuple[str, ...] = ()
    if given is None and measured_dir is not None:
        lookup = find_measured(measured_dir, device.name, **facts)
        given, ignored = lookup.measured, lookup.ignored
    match = match_limits(device.name, **facts, measured=given)
    return match.limits, match.reason or (
        f"measurements that could not be used: {'; '.join(ignored)}" if ignored else None
    )


def _of_unnamed(given: MeasuredLimits | None) -> tuple[DeviceLimits | None, str | None]:
    """Of a recording that does not name its GPU: those of the given file, on its user's word."""
    if given is None:
        return None, "the recording does not name its GPU"
    match = match_limits(
        given.device,
        compute_capability=given.compute_capability,
        sm_count=given.sm_count,
        memory_bytes=given.memory_bytes,
        measured=given,
    )
    return match.limits, match.reason or f"the recording does not name its GPU; '{given.device}' was given"


def _device_of(session: Session) -> tuple[_Device | None, str | None]:
    """The kind of GPU that did the recorded work, if it is one."""
    devices = [
        _Device(name, None if major is None else f"{major}.{minor or 0}", sm_count, memory_bytes)
        for name, major, minor, sm_count, memory_bytes in session.query(_USED_DEVICES)
    ]
    if not devices:
        return None, "no work of a GPU was recorded"
    first = devices[0]
    if all(_is_alike(first, other) for other in devices[1:]):
        return first, None
    return None, f"work of different GPUs was recorded: {_names(devices)}"


def _is_alike(one: _Device, other: _Device) -> bool:
    if (one.name, one.compute_capability, one.sm_count) != (
        other.name,
        other.compute_capability,
        other.sm_count,
    ):
        return False
    if one.memory_bytes is None or other.memory_bytes is None:
        return one.memory_bytes == other.memory_bytes
    return abs(one.memory_bytes - other.memory_bytes) <= _ALIKE_MEMORY * one.memory_bytes


def _names(devices: Sequence[_Device]) -> str:
    names = dict.fromkeys(_title(one) for one in devices)
    return ", ".join(names)


def _title(device: _Device) -> str:
    if device.name is None:
        return "one without a name"
    size = "" if device.sm_count is None else f" ({device.sm_count} multiprocessors)"
    return f"{device.name}{size}"
