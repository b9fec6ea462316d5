"""Measured limits as files, and the newest one of a GPU in a folder.

A file is replaced in one step. One that is damaged, of another version or about another GPU is never used:
`read_measured` raises, `read_folder` passes it over and says so.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from opscope.errors import InputError
from opscope.hardware.devices import DeviceSpec, is_same_name, match_device
from opscope.model.files import UNREADABLE_JSON, finite, write_text
from opscope.model.measured_limits import MEASURED_LIMITS_SCHEMA_VERSION, MeasuredLimits

LIMITS_FOLDER = "limits"  # in the user's cache folder
_HINT = "Measure with opscope devices --measure --save FILE"
_SAME_MEMORY = 0.01  # devices of one name differ in memory by more, one device's reports by less
_LARGEST_FILE_BYTES = 1 << 20  # ours have a few kilobytes


def save_measured(path: str | os.PathLike[str], measured: MeasuredLimits) -> Path:
    """Write a measurement and return its path. An existing file is replaced."""
    document = finite(msgspec.to_builtins(measured))
    return write_text(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def cache_measured(folder: Path, measured: MeasuredLimits) -> Path:
    """Keep a measurement in a folder: one file for each GPU, driver and torch version, the newest."""
    key = (measured.device, measured.compute_capability, measured.sm_count, measured.memory_bytes)
    versions = (measured.driver, measured.torch)
    digest = hashlib.sha256(repr((key, versions)).encode()).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", measured.device.lower()).strip("-")[:48]
    return save_measured(folder / f"{slug}-{digest}.json", measured)


def read_measured(path: str | os.PathLike[str]) -> MeasuredLimits:
    """The measurement in a file."""
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"the file cannot be read ({reason})", source=path, hint=_HINT) from error
    if len(content) > _LARGEST_FILE_BYTES:
        raise InputError("this is too large to hold measured limits", source=path, hint=_HINT)
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
        version = document.get("schema_version")
        if isinstance(version, int) and version != MEASURED_LIMITS_SCHEMA_VERSION:
            raise InputError(
                f"measured limits of version {version}; {MEASURED_LIMITS_SCHEMA_VERSION} can be read",
                source=path,
                hint=_HINT,
            )
        measured = msgspec.convert(document, MeasuredLimits)
    except UNREADABLE_JSON as error:
        raise InputError(f"this holds no measured limits ({error})", source=path, hint=_HINT) from error
    defect = _defect(measured)
    if defect is not None:
        raise InputError(f"measured limits that cannot be right: {defect}", source=path, hint=_HINT)
    return measured


def read_folder(folder: Path) -> tuple[list[MeasuredLimits], tuple[str, ...]]:
    """The measurements in a folder, which may not exist, the newest last; and why other files are none."""
    usable, ignored = [], []
    paths: list[Path] = []
    with suppress(OSError):  # a folder that may not be entered holds nothing for us
        paths = sorted(folder.glob("*.json"))
    for path in paths:
        try:
            usable.append(read_measured(path))
        except InputError as error:
            ignored.append(str(error))
    return sorted(usable, key=_moment), tuple(ignored)


def spec_of(measured: MeasuredLimits) -> DeviceSpec | None:
    """The known device that was measured; None if it is none."""
    return match_device(
        measured.device,
        compute_capability=measured.compute_capability,
        memory_bytes=measured.memory_bytes,
        sm_count=measured.sm_count,
    ).spec


def mismatch(
    measured: MeasuredLimits,
    name: str,
    *,
    compute_capability: str | None = None,
    sm_count: int | None = None,
    memory_bytes: int | None = None,
) -> str | None:
    """Why a measurement is of another GPU than this one; None if it is of this one, as far as is known."""
    if not is_same_name(measured.device, name):
        return f"it is of '{measured.device}', not of '{name}'"
    for what, theirs, ours in (
        ("compute capability", measured.compute_capability, compute_capability),
        ("multiprocessors", measured.sm_count, sm_count),
    ):
        if theirs is not None and ours is not None and theirs != ours:
            return f"it is of a '{name}' with {what} {theirs}, not {ours}"
    theirs, ours = measured.memory_bytes, memory_bytes
    if theirs and ours and not math.isclose(theirs, ours, rel_tol=_SAME_MEMORY):
        return f"it is of a '{name}' with {theirs} bytes of memory, not {ours}"
    return None


def _moment(measured: MeasuredLimits) -> datetime.datetime:
    """When it was measured, comparable; times without a zone are UTC."""
    moment = datetime.datetime.fromisoformat(measured.created)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)


def _defect(measured: MeasuredLimits) -> str | None:
    """The first value that no measurement gives."""
    try:
        _moment(measured)
    except ValueError:
        return f"'{measured.created}' is not a time"
    spans = [(one.name, one.low_per_s, one.per_s, one.high_per_s) for one in measured.rates]
    spans += [(one.name, one.low_ns, one.median_ns, one.high_ns) for one in measured.times]
    for name, low, value, high in spans:
        if not (0 < low <= value <= high and math.isfinite(high)):
            return f"{name} of {value:g}, between {low:g} and {high:g}"
    names = [name for name, *_ in spans]
    twice = next((name for name in names if names.count(name) > 1), None)
    return None if twice is None else f"{twice} is there twice"
