"""GPUs and compute capabilities as JSON: every number with its unit in its name; unknown is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import msgspec

from opscope.hardware.architectures import Architecture
from opscope.hardware.devices import DeviceSpec, Peak, is_partition
from opscope.hardware.limits import published_rate
from opscope.hardware.measured import MeasuredLimits
from opscope.model.files import finite
from opscope.report.device_measured import measured_of

__all__ = ["devices_json", "measured_json"]

_NUMBERS = (
    "sm_count",
    "boost_clock_hz",
    "tensor_clock_hz",
    "memory_bytes",
    "memory_bus_bits",
    "memory_pin_bits_per_s",
    "memory_bandwidth_bytes_per_s",
    "l2_bytes",
    "tdp_watts",
)
_OWN = ("architecture", "source", "peaks", "number_sources")


def devices_json(
    devices: Sequence[DeviceSpec],
    architectures: Sequence[Architecture],
    measured: Mapping[str, MeasuredLimits] | None = None,
) -> dict[str, Any]:
    """Devices and compute capabilities; a device's architecture is found by its compute capability.

    Args:
        devices: To be told of.
        architectures: Theirs, or those asked for.
        measured: What was measured here, by the device's name.
    """
    return {
        "schema_version": 1,
        "devices": [_device(one, measured or {}) for one in devices],
        "architectures": [_architecture(one) for one in architectures],
    }


def measured_json(measured: MeasuredLimits, spec: DeviceSpec | None) -> dict[str, Any]:
    """One measurement, each rate with the share it is of the published one; None where none is published."""
    document: dict[str, Any] = finite(msgspec.to_builtins(measured))
    for rate, record in zip(measured.rates, document["rates"], strict=True):
        published = None if spec is None else published_rate(spec, rate.name)
        record["published_per_s"] = published
        record["published_fraction"] = None if published is None else rate.per_s / published
    return document


def _device(device: DeviceSpec, measured: Mapping[str, MeasuredLimits]) -> dict[str, Any]:
    own = {one.name: getattr(device, one.name) for one in fields(device) if one.name not in _OWN}
    found = device.architecture
    return {
        **own,
        "evidence": device.evidence.value,
        "names": list(device.names),
        "architecture": found and found.name,
        "arch_flag": found and found.arch_flag,
        "least_cuda_version": found and found.least_cuda_version,
        "peaks": [_peak(one) for one in device.peaks],
        "measured": [
            measured_json(one, None if is_partition(one.device) else device)
            for one in measured_of(device, measured)
        ],
        "source": asdict(device.source),
        "sources": {name: asdict(source) for name in _NUMBERS if (source := device.source_of(name))},
    }


def _peak(peak: Peak) -> dict[str, Any]:
    return {
        "type": peak.data_type.value,
        "accumulates_in": peak.data_type.accumulates_in,
        "uses_tensor_cores": peak.data_type.uses_tensor_cores,
        "flop_per_s": peak.flop_per_s,
        "evidence": peak.evidence.value,
        "source": asdict(peak.source),
    }


def _architecture(one: Architecture) -> dict[str, Any]:
    return {
        **asdict(one),
        "max_warps_per_sm": one.max_warps_per_sm,
        "target": one.target,
        "arch_flag": one.arch_flag,
    }
