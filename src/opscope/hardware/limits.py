"""What a device can do: the rates that work is held against, measured on it or from its datasheet.

Each rate is taken by itself: a measured one wins, else the datasheet's, else it is None. Published rates are
reached by no program; measured ones are what good code reaches, and a lucky call may exceed them by a few
percent. Of a MIG slice nothing is published, so only measured rates count.

What one machine's device was measured to reach stands in files; their structs are the JSON contract of
`opscope devices --measure --save`: field names carry their unit, unknown is null. A file is replaced in one
step. One that is damaged, of another version or about another GPU is never used: `read_measured` raises,
`read_folder` passes it over and says so.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from opscope.errors import InputError
from opscope.hardware.architectures import DEVICE_PROPERTIES, SpecEvidence
from opscope.hardware.devices import DataType, DeviceSpec, cuda_capability, is_same_name, match_device
from opscope.model.benchmark import DeviceState
from opscope.model.files import UNREADABLE_JSON, finite, write_text
from opscope.text_enum import TextEnum

_Positive = Annotated[float, msgspec.Meta(gt=0)]
# Where cuBLAS multiplies float64 matrices by tensor cores. Source: NVIDIA's architecture whitepapers of GA100
# and GH100, and the Blackwell technical brief: other chips have none for fp64.
_FP64_TENSOR_CAPABILITIES = frozenset({"8.0", "9.0", "10.0"})
_PRODUCT = "matrix_"
_BUS_RATES = ("copy", "read", "write")


MEASURED_LIMITS_SCHEMA_VERSION = 1


class MeasuredRate(msgspec.Struct, frozen=True, kw_only=True):
    """Work per second of one call, repeated."""

    # `copy`, `read`, `write`, `l2_read`, or `matrix_<type>` with the type's name in the table of devices
    # (`matrix_bf16`); `matrix_fp64` is the product of float64 by whatever units the library uses
    name: str
    # What is counted: bytes, for a copy those read and those written; or operations, two for each
    # multiplication and its addition
    unit: Literal["bytes", "operations"]
    per_s: _Positive  # `amount` over the median duration
    low_per_s: _Positive  # Lower end of the 95 % interval of that median
    high_per_s: _Positive  # Upper end
    amount: int  # Bytes or operations of one call
    median_ns: float  # Duration of one call
    sample_count: int  # Calls timed, after a warm-up. None was left out
    how: str  # Operator, sizes and data, for people
    # Clocks and reasons that lower them while the same call ran; None if not readable
    state: DeviceState | None = None


class MeasuredTime(msgspec.Struct, frozen=True, kw_only=True):
    """A duration that repeats: the median of batches, per piece, with its 95 % interval."""

    name: str  # `launch`, `operator_call` or `kernel_interval`
    median_ns: _Positive  # Of the batches, per piece
    low_ns: _Positive  # Lower end of the interval of that median
    high_ns: _Positive  # Upper end
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


LIMITS_FOLDER = "limits"  # in the user's cache folder
_HINT = "Measure with opscope devices --measure --save FILE"
_SAME_MEMORY = 0.01  # devices of one name differ in memory by more, one device's reports by less


def save_measured(path: str | os.PathLike[str], measured: MeasuredLimits) -> Path:
    """Write a measurement and return its path. An existing file is replaced."""
    document = finite(msgspec.to_builtins(measured))
    return write_text(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def cache_measured(folder: Path, measured: MeasuredLimits) -> Path:
    """Keep a measurement in a folder: one file for each GPU, driver and torch version, the newest."""
    key = (measured.device, measured.compute_capability, measured.sm_count, measured.memory_bytes)
    digest = hashlib.sha256(repr((key, (measured.driver, measured.torch))).encode()).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", measured.device.lower()).strip("-")[:48]
    return save_measured(folder / f"{slug}-{digest}.json", measured)


def read_measured(path: str | os.PathLike[str]) -> MeasuredLimits:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"the file cannot be read ({reason})", source=path, hint=_HINT) from error
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
        version = document.get("schema_version")
        if isinstance(version, int) and version != MEASURED_LIMITS_SCHEMA_VERSION:
            raise InputError(
                f"measured limits of version {version}; {MEASURED_LIMITS_SCHEMA_VERSION} can be read",
                source=path,
                hint=_HINT,
            )
        return msgspec.convert(document, MeasuredLimits)
    except UNREADABLE_JSON as error:
        raise InputError(f"this holds no measured limits ({error})", source=path, hint=_HINT) from error


def read_folder(folder: Path) -> tuple[list[MeasuredLimits], tuple[str, ...]]:
    """The measurements in a folder, which may not exist, the newest last; and why other files are none."""
    usable, ignored, paths = [], [], list[Path]()
    with suppress(OSError):  # a folder that may not be entered holds nothing for us
        paths = sorted(folder.glob("*.json"))
    for path in paths:
        try:
            usable.append(read_measured(path))
        except InputError as error:
            ignored.append(str(error))
    return sorted(usable, key=lambda one: one.created), tuple(ignored)


def spec_of(measured: MeasuredLimits) -> DeviceSpec | None:
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


class LimitEvidence(TextEnum):
    """How a limit is known. A closed set."""

    MEASURED = "measured"
    DATASHEET = "datasheet"


class Limit(msgspec.Struct, frozen=True):
    """One rate, per second, with its evidence and one sentence on how it was measured or where it stands."""

    per_s: float
    evidence: LimitEvidence
    how: str


class DeviceLimits(msgspec.Struct, frozen=True):
    name: str  # Product name; for a device that no table has, its driver's name
    # Bytes read and written per second by a large copy (measured), or of the bus (datasheet)
    memory: Limit | None = None
    l2: Limit | None = None  # Bytes per second out of the level-2 cache; None if unknown
    # Dense operations per second by type
    peaks: Mapping[DataType, Limit] = msgspec.field(default_factory=dict)
    launch_ns: float | None = None  # Host time of one kernel launch; None if unknown
    l2_bytes: int | None = None  # Size of the level-2 cache; None if unknown
    sm_count: int | None = None
    compute_capability: str | None = None
    read: Limit | None = None  # Bytes read per second by a kernel that only reads; measured or None
    write: Limit | None = None  # Bytes written per second by a kernel that only writes; measured or None
    # Host time of the cheapest operator that launches a kernel, called from Python; None if unknown
    operator_call_ns: float | None = None
    # From the start of an empty kernel to the start of the next on the same stream, the host not in the way:
    # no launched kernel takes less of the stream's time. None if unknown
    smallest_kernel_ns: float | None = None
    memory_bytes: int | None = None  # As reported, or as labelled; None if unknown


def match_limits(
    name: str,
    *,
    compute_capability: str | None = None,
    sm_count: int | None = None,
    memory_bytes: int | None = None,
    measured: MeasuredLimits | None = None,
) -> tuple[DeviceLimits | None, str | None]:
    """The limits of the device that a driver's name and facts mean; or why no rate of it is known."""
    match = match_device(
        name, compute_capability=compute_capability, memory_bytes=memory_bytes, sm_count=sm_count
    )
    spec = match.spec or DeviceSpec(name, (name,), compute_capability, None, DEVICE_PROPERTIES)
    peaks: dict[DataType | None, Limit] = {}
    for peak in spec.peaks:
        is_derived = peak.evidence is SpecEvidence.DERIVED
        how = f"{SpecEvidence.DERIVED.meaning}, {peak.source}" if is_derived else str(peak.source)
        peaks[peak.data_type] = Limit(peak.flop_per_s, LimitEvidence.DATASHEET, how)
    rates: dict[str, Limit] = {}
    times_ns: dict[str, float] = {}
    if measured is not None:
        for rate in measured.rates:
            how = (
                f"{rate.how}; median of {rate.sample_count}, {measured.created[:10]}, torch {measured.torch}"
            )
            rates[rate.name] = Limit(rate.per_s, LimitEvidence.MEASURED, how)
            peaks[measured_type(rate.name, measured.compute_capability)] = rates[rate.name]
        times_ns = {one.name: one.median_ns for one in measured.times}
    memory, bus = rates.get("copy"), spec.memory_bandwidth_bytes_per_s
    if memory is None and bus is not None:
        memory = Limit(bus, LimitEvidence.DATASHEET, str(spec.source_of("memory_bandwidth_bytes_per_s")))
    limits = DeviceLimits(
        name=spec.name,
        memory=memory,
        l2=rates.get("l2_read"),
        peaks={one: peaks[one] for one in DataType if one in peaks},
        launch_ns=times_ns.get("launch"),
        l2_bytes=spec.l2_bytes if measured is None else measured.l2_bytes or spec.l2_bytes,
        sm_count=sm_count or spec.sm_count,
        compute_capability=cuda_capability(name, compute_capability) or spec.compute_capability,
        read=rates.get("read"),
        write=rates.get("write"),
        operator_call_ns=times_ns.get("operator_call"),
        smallest_kernel_ns=times_ns.get("kernel_interval"),
        memory_bytes=memory_bytes or spec.memory_bytes,
    )
    if limits.memory is None and limits.l2 is None and not limits.peaks:
        return None, match.reason or f"no rate of {spec.name} is published or was measured"
    return limits, None


def measured_type(rate_name: str, compute_capability: str | None) -> DataType | None:
    """The type whose peak a measured product is one of; None for what is no product."""
    if not rate_name.startswith(_PRODUCT):
        return None
    name = rate_name.removeprefix(_PRODUCT)
    if name == DataType.FP64.value and compute_capability in _FP64_TENSOR_CAPABILITIES:
        return DataType.FP64_TENSOR
    return next((one for one in DataType if one.value == name), None)


def published_rate(spec: DeviceSpec, rate_name: str) -> float | None:
    """What is published of a rate that can be measured: the bus for large buffers, the peak for products."""
    if rate_name in _BUS_RATES:
        return spec.memory_bandwidth_bytes_per_s
    data_type = measured_type(rate_name, spec.compute_capability)
    peak = None if data_type is None else spec.peak(data_type)
    return None if peak is None else peak.flop_per_s
