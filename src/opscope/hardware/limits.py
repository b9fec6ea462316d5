"""What a device can do: the rates that work is held against, measured on it or from its datasheet.

Each rate is taken by itself: a measured one wins, else the datasheet's, else it is None. Published rates are
reached by no program; measured ones are what good code reaches, and a lucky call may exceed them by a few
percent. Of a MIG slice nothing is published, so only measured rates count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from opscope.hardware.architectures import DEVICE_PROPERTIES, SpecEvidence
from opscope.hardware.devices import DataType, DeviceSpec, Peak, cuda_capability, match_device
from opscope.model.measured_limits import MeasuredLimits, MeasuredRate
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
    limits = DeviceLimits(
        name=spec.name,
        memory=_measured(measured, "copy") or _bandwidth(spec),
        l2=_measured(measured, "l2_read"),
        peaks=dict(_peaks(spec, measured)),
        launch_ns=_duration_ns(measured, "launch"),
        l2_bytes=spec.l2_bytes if measured is None else measured.l2_bytes or spec.l2_bytes,
        sm_count=sm_count or spec.sm_count,
        compute_capability=cuda_capability(name, compute_capability) or spec.compute_capability,
        read=_measured(measured, "read"),
        write=_measured(measured, "write"),
        operator_call_ns=_duration_ns(measured, "operator_call"),
        smallest_kernel_ns=_duration_ns(measured, "kernel_interval"),
        memory_bytes=memory_bytes or spec.memory_bytes,
        measured_at=None if measured is None else measured.created,
    )
    if limits.memory is None and limits.l2 is None and not limits.peaks:
        return None, (match.reason or f"no rate of {spec.name} is published or was measured")
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


def _peaks(spec: DeviceSpec, measured: MeasuredLimits | None) -> Iterator[tuple[DataType, Limit]]:
    """Measured products and published peaks, in the order of the types."""
    products = {} if measured is None else _products(measured)
    for data_type in DataType:
        peak = spec.peak(data_type)
        if data_type in products:
            yield data_type, products[data_type]
        elif peak is not None:
            yield data_type, Limit(peak.flop_per_s, LimitEvidence.DATASHEET, _origin(peak))


def _products(measured: MeasuredLimits) -> dict[DataType, Limit]:
    typed = ((measured_type(rate.name, measured.compute_capability), rate) for rate in measured.rates)
    return {data_type: _of_rate(rate, measured) for data_type, rate in typed if data_type is not None}


def _measured(measured: MeasuredLimits | None, name: str) -> Limit | None:
    rate = None if measured is None else measured.rate(name)
    return None if rate is None or measured is None else _of_rate(rate, measured)


def _of_rate(rate: MeasuredRate, measured: MeasuredLimits) -> Limit:
    how = f"{rate.how}; median of {rate.sample_count}, {measured.created[:10]}, torch {measured.torch}"
    return Limit(rate.per_s, LimitEvidence.MEASURED, how)


def _duration_ns(measured: MeasuredLimits | None, name: str) -> float | None:
    time = None if measured is None else measured.time(name)
    return None if time is None else time.median_ns


def _bandwidth(spec: DeviceSpec) -> Limit | None:
    number = "memory_bandwidth_bytes_per_s"
    if spec.memory_bandwidth_bytes_per_s is None:
        return None
    return Limit(spec.memory_bandwidth_bytes_per_s, LimitEvidence.DATASHEET, str(spec.source_of(number)))


def _origin(peak: Peak) -> str:
    if peak.evidence is SpecEvidence.DERIVED:
        return f"{SpecEvidence.DERIVED.meaning}, {peak.source}"
    return str(peak.source)
