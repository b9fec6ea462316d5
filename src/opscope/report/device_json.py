"""GPUs and compute capabilities as JSON: every number with its unit in its name; unknown is null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from opscope.hardware.architectures import Architecture
from opscope.hardware.devices import DeviceSpec, Peak

__all__ = ["devices_json"]

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


def devices_json(devices: Sequence[DeviceSpec], architectures: Sequence[Architecture]) -> dict[str, Any]:
    """Devices and compute capabilities; a device's architecture is found by its compute capability."""
    return {
        "schema_version": 1,
        "devices": [_device(one) for one in devices],
        "architectures": [_architecture(one) for one in architectures],
    }


def _device(device: DeviceSpec) -> dict[str, Any]:
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
