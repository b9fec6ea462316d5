"""The device that all activities of a Session ran on, and the limits that these are held against.

A file the user gives comes first, then the newest measurement of the same GPU in a folder, then the data
sheet. A recording of several kinds of GPU has no limits: a fraction would refer to one of them only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from opscope.errors import InputError
from opscope.hardware.devices import DeviceSpec, cuda_capability, match_device
from opscope.hardware.limits import DeviceLimits, match_limits, mismatch, read_folder, read_measured
from opscope.launches.facts import DeviceFacts
from opscope.model.session import Session

# One that is only described did none of the work.
_USED_SQL = """
SELECT DISTINCT name, compute_major || '.' || coalesce(compute_minor, 0), sm_count, max_threads_per_sm,
    registers_per_sm, shared_memory_per_sm_bytes, memory_bytes
FROM devices WHERE activity_count > 0 ORDER BY ALL"""
_ALIKE_MEMORY = 0.01  # of devices of one kind, whose drivers reserve a little more or less


def used_devices(session: Session) -> list[tuple[DeviceFacts, int | None]]:
    """Facts of each device in use, and its memory in bytes."""
    return [(DeviceFacts(*facts), memory_bytes) for *facts, memory_bytes in session.query(_USED_SQL)]


def common_device(session: Session) -> DeviceFacts | None:
    """Facts of the devices in use, as CUDA counts; None where they differ or there is none."""
    devices = {device for device, _ in used_devices(session)}
    if len(devices) != 1:
        return None
    device = devices.pop()
    return replace(device, compute_capability=cuda_capability(device.name, device.compute_capability))


def common_spec(session: Session) -> DeviceSpec | None:
    """The GPU that all devices in use are; None where they differ or it is not known."""
    devices = {(device.name, device.sm_count) for device, _ in used_devices(session)}
    name, sm_count = devices.pop() if len(devices) == 1 else (None, None)
    return None if name is None else match_device(name, sm_count=sm_count).spec


def limits_of_session(
    session: Session, measured_dir: Path | None = None, ceilings_file: Path | None = None
) -> tuple[DeviceLimits | None, str | None]:
    """The limits of the GPU a Session was recorded on; and why there are none, or what was passed over.

    Raises:
        InputError: The file cannot be used, or is of another GPU than the recording.
    """
    given = None if ceilings_file is None else read_measured(ceilings_file)
    devices = used_devices(session)
    if not devices:
        return None, "no work of a GPU was recorded"
    device, memory_bytes = devices[0]
    if not all(_is_alike(devices[0], other) for other in devices[1:]):
        names = ", ".join(dict.fromkeys(_title(one) for one, _ in devices))
        return None, f"work of different GPUs was recorded: {names}"
    name, note = device.name, None
    facts: dict[str, Any] = {
        "compute_capability": device.compute_capability,
        "sm_count": device.sm_count,
        "memory_bytes": memory_bytes,
    }
    if name is None:
        # Of a recording that does not name its GPU: those of the given file, on its user's word.
        if given is None:
            return None, "the recording does not name its GPU"
        name, note = given.device, f"the recording does not name its GPU; '{given.device}' was given"
        facts = {fact: getattr(given, fact) for fact in facts}
    elif given is not None and (difference := mismatch(given, name, **facts)) is not None:
        raise InputError(
            f"these limits are not those of the recording: {difference}",
            source=ceilings_file,
            hint="Measure the GPU it was recorded on, or leave the file out",
        )
    elif given is None and measured_dir is not None:
        usable, ignored = read_folder(measured_dir)
        given = next((one for one in reversed(usable) if mismatch(one, name, **facts) is None), None)
        if ignored:
            note = f"measurements that could not be used: {'; '.join(ignored)}"
    limits, reason = match_limits(name, **facts, measured=given)
    return limits, reason or note


def _is_alike(one: tuple[DeviceFacts, int | None], other: tuple[DeviceFacts, int | None]) -> bool:
    kinds = {(device.name, device.compute_capability, device.sm_count) for device, _ in (one, other)}
    if len(kinds) > 1 or one[1] is None or other[1] is None:
        return len(kinds) == 1 and one[1] == other[1]
    return abs(one[1] - other[1]) <= _ALIKE_MEMORY * one[1]


def _title(device: DeviceFacts) -> str:
    size = "" if device.sm_count is None else f" ({device.sm_count} multiprocessors)"
    return "one without a name" if device.name is None else f"{device.name}{size}"
