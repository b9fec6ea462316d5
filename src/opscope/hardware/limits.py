"""What a device can do: the rates that work is held against, measured on it or from its datasheet.

Each rate is taken by itself: a measured one wins, else the datasheet's, else it is None. Published rates are
reached by no program; measured ones are what good code reaches, and a lucky call may exceed them by a few
percent. Of a MIG slice nothing is published, so only measured rates count.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opscope.hardware.architectures import DEVICE_PROPERTIES, SpecEvidence
from opscope.hardware.devices import DataType, DeviceSpec, cuda_capability, match_device
from opscope.hardware.measured import MeasuredLimits
from opscope.text_enum import TextEnum

# Where cuBLAS multiplies float64 matrices by tensor cores. Source: NVIDIA's architecture whitepapers of GA100
# and GH100, and the Blackwell technical brief: other chips have none for fp64.
_FP64_TENSOR_CAPABILITIES = frozenset({"8.0", "9.0", "10.0"})
_PRODUCT = "matrix_"
_BUS_RATES = ("copy", "read", "write")


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
    """Limits of one device."""

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
    measured_at: str | None = None  # When the measured ones were measured, ISO 8601 in UTC; None if none was


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
    rates: dict[str, Limit] = {}
    times_ns: dict[str, float] = {}
    typed: dict[DataType | None, Limit] = {}
    if measured is not None:
        for rate in measured.rates:
            how = (
                f"{rate.how}; median of {rate.sample_count}, {measured.created[:10]}, torch {measured.torch}"
            )
            rates[rate.name] = Limit(rate.per_s, LimitEvidence.MEASURED, how)
            typed[measured_type(rate.name, measured.compute_capability)] = rates[rate.name]
        times_ns = {one.name: one.median_ns for one in measured.times}
    peaks = {}
    for data_type in DataType:
        peak = spec.peak(data_type)
        if data_type in typed:
            peaks[data_type] = typed[data_type]
        elif peak is not None:
            is_derived = peak.evidence is SpecEvidence.DERIVED
            how = f"{SpecEvidence.DERIVED.meaning}, {peak.source}" if is_derived else str(peak.source)
            peaks[data_type] = Limit(peak.flop_per_s, LimitEvidence.DATASHEET, how)
    memory, bus = rates.get("copy"), spec.memory_bandwidth_bytes_per_s
    if memory is None and bus is not None:
        source = spec.source_of("memory_bandwidth_bytes_per_s")
        memory = Limit(bus, LimitEvidence.DATASHEET, str(source))
    limits = DeviceLimits(
        name=spec.name,
        memory=memory,
        l2=rates.get("l2_read"),
        peaks=peaks,
        launch_ns=times_ns.get("launch"),
        l2_bytes=spec.l2_bytes if measured is None else measured.l2_bytes or spec.l2_bytes,
        sm_count=sm_count or spec.sm_count,
        compute_capability=cuda_capability(name, compute_capability) or spec.compute_capability,
        read=rates.get("read"),
        write=rates.get("write"),
        operator_call_ns=times_ns.get("operator_call"),
        smallest_kernel_ns=times_ns.get("kernel_interval"),
        memory_bytes=memory_bytes or spec.memory_bytes,
        measured_at=None if measured is None else measured.created,
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
