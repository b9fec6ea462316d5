"""What one machine's device was measured to reach: as files, and the newest one of a GPU in a folder.

The structs are the JSON contract of `opscope devices --measure --save`: field names carry their unit, unknown
is null.

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
from typing import Any, Literal

import msgspec

from opscope.errors import InputError
from opscope.hardware.devices import DeviceSpec, is_same_name, match_device
from opscope.model.benchmark import DeviceState
from opscope.model.files import UNREADABLE_JSON, finite, write_text

MEASURED_LIMITS_SCHEMA_VERSION = 1


class MeasuredRate(msgspec.Struct, frozen=True, kw_only=True):
    """Work per second of one call, repeated."""

    # `copy`, `read`, `write`, `l2_read`, or `matrix_<type>` with the type's name in the table of devices
    # (`matrix_bf16`); `matrix_fp64` is the product of float64 by whatever units the library uses
    name: str
    # What is counted: bytes, for a copy those read and those written; or operations, two for each
    # multiplication and its addition
    unit: Literal["bytes", "operations"]
    per_s: float  # `amount` over the median duration
    low_per_s: float  # Lower end of the 95 % interval of that median
    high_per_s: float  # Upper end
    amount: int  # Bytes or operations of one call
    median_ns: float  # Duration of one call
    sample_count: int  # Calls timed, after a warm-up. None was left out
    how: str  # Operator, sizes and data, for people
    # Clocks and reasons that lower them while the same call ran; None if not readable
    state: DeviceState | None = None


class MeasuredTime(msgspec.Struct, frozen=True, kw_only=True):
    """A duration that repeats: the median of batches, per piece, with its 95 % interval."""

    name: str  # `launch`, `operator_call` or `kernel_interval`
    median_ns: float  # Of the batches, per piece
    low_ns: float  # Lower end of the interval of that median
    high_ns: float  # Upper end
    sample_count: int  # Batches timed
    how: str  # What was repeated, for people


class MeasuredLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured of one device in one run. Unknown is None."""

    schema_version: int
    device: str  # Name as its driver reports it; of a CPU, its model
    compute_capability: str | None  # As `"9.0"`; None for a CPU
    sm_count: int | None
    memory_bytes: int | None  # As reported
    l2_bytes: int | None  # As reported
    driver: str | None  # Version of the GPU's driver, e.g. `"580.159.04"`; None if it cannot be asked
    cuda_runtime: str | None
    torch: str
    opscope: str
    created: str  # When it was measured, ISO 8601 in UTC
    duration_ns: int  # Wall time of the whole measurement
    rates: tuple[MeasuredRate, ...] = ()
    times: tuple[MeasuredTime, ...] = ()
    missing: dict[str, str] = {}  # Why rates and times are absent, by their names
    state_before: DeviceState | None = None
    state_after: DeviceState | None = None


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
