"""The device's clocks, temperature and throttle reasons at one moment, read by NVML.

A monitor only reads: it changes no setting. One read takes a few NVML calls, well under a millisecond, so it
can be polled between samples. What a device does not report is None. Imports neither torch nor pynvml until a
monitor is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from opscope.errors import DependencyError, MeasurementError, OpscopeError
from opscope.hardware.nvml import Nvml
from opscope.model.benchmark import DeviceState
from opscope.workloads.runtime import require_torch

_DRIVER_FILE = Path("/sys/module/nvidia/version")


class DeviceMonitor(Protocol):
    def read(self) -> DeviceState | None:
        """The state now; None if nothing can be read."""
        ...


class NoMonitor:
    """The monitor of a device that has nothing to read: a CPU, or a GPU without NVML."""

    def read(self) -> DeviceState | None:
        return None


class NvmlMonitor:
    """Reads a CUDA device through NVML.

    The device is found by its UUID or PCI address, because NVML counts all devices of the machine and torch
    only those in CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, device: str) -> None:
        self._nvml = Nvml()
        self._handle = self._handle_of(device)
        self._max_sm_clock_mhz = self._nvml.max_sm_clock_mhz(self._handle)

    def read(self) -> DeviceState | None:
        return DeviceState(
            at_ns=time.perf_counter_ns(),
            max_sm_clock_mhz=self._max_sm_clock_mhz,
            throttle_reasons=self._nvml.slowdowns(self._handle),
            **self._nvml.readings(self._handle),
        )

    def _handle_of(self, device: str) -> Any:
        properties = require_torch().cuda.get_device_properties(device)
        for look_up in self._look_ups(properties):
            try:
                return look_up()
            except self._nvml.error:
                continue
        raise MeasurementError(f"NVML does not know device '{device}' ({properties.name})")

    def _look_ups(self, properties: Any) -> Iterator[Callable[[], Any]]:
        """Ways to find a device, surest first; older torch knows neither UUID nor PCI address."""
        nvml = self._nvml.module
        uuid = getattr(properties, "uuid", None)
        if uuid is not None:
            text = str(uuid)
            full = text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
            yield lambda: nvml.nvmlDeviceGetHandleByUUID(full)
        if getattr(properties, "pci_bus_id", None) is not None:
            domain = getattr(properties, "pci_domain_id", 0)
            address = (
                f"{domain:08x}:{properties.pci_bus_id:02x}:{getattr(properties, 'pci_device_id', 0):02x}.0"
            )
            yield lambda: nvml.nvmlDeviceGetHandleByPciBusId(address)
        if uuid is None and nvml.nvmlDeviceGetCount() == 1:
            yield lambda: nvml.nvmlDeviceGetHandleByIndex(0)


def monitor_for(device: str) -> tuple[DeviceMonitor, str | None]:
    """The monitor of a device, and why there is nothing to read; None if there is."""
    if not device.startswith("cuda"):
        return NoMonitor(), "a CPU's clocks are not read"
    try:
        return NvmlMonitor(device), None
    except OpscopeError as error:
        return NoMonitor(), str(error)


def driver_version() -> str | None:
    """Version of NVIDIA's driver, e.g. `"580.159.04"`, by NVML or its kernel module; None without one."""
    with suppress(DependencyError, MeasurementError):
        version: str | None = Nvml().ask("nvmlSystemGetDriverVersion")
        if version is not None:
            return version
    try:
        return _DRIVER_FILE.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
