"""The device's clocks, temperature and throttle reasons at one moment, read by NVML.

A monitor only reads: it changes no setting. One read takes a few NVML calls, well under a millisecond, so it
can be polled between samples. What a device does not report is None. Imports neither torch nor pynvml until a
monitor is made.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from opscope.errors import DependencyError, MeasurementError, OpscopeError
from opscope.model.benchmark import DeviceState
from opscope.workloads.runtime import require_torch

__all__ = ["DeviceMonitor", "NoMonitor", "NvmlMonitor", "driver_version", "monitor_for"]

_GPU_IDLE = 0x1  # no work, so no clocks: not a reason that slows work down
# Source: nvml.h of CUDA 13, nvmlClocksEventReason* (nvmlClocksThrottleReason* before driver 535).
_THROTTLE_REASONS = {
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
# The same query under its name since driver 535 and the one before; drivers and bindings know one or both.
_REASON_QUERIES = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_MILLIWATTS_PER_WATT = 1000
_DRIVER_FILE = Path("/sys/module/nvidia/version")


class DeviceMonitor(Protocol):
    """Reads a device's state."""

    def read(self) -> DeviceState | None:
        """The state now; None if nothing can be read."""
        ...


class NoMonitor:
    """The monitor of a device that has nothing to read: a CPU, or a GPU without NVML."""

    def read(self) -> DeviceState | None:
        """None."""
        return None


class NvmlMonitor:
    """Reads a CUDA device through NVML.

    The device is found by its UUID or PCI address, because NVML counts all devices of the machine and torch
    only those in CUDA_VISIBLE_DEVICES.

    Args:
        device: CUDA device as torch names it, e.g. `"cuda:0"`.

    Raises:
        DependencyError: pynvml is not installed.
        MeasurementError: NVML does not start, or does not know the device.
    """

    def __init__(self, device: str) -> None:
        self._nvml = _require_pynvml()
        self._not_available: type[Exception] = self._nvml.NVMLError
        try:
            self._nvml.nvmlInit()
        except self._not_available as error:
            raise MeasurementError(
                f"NVML does not start ({error})", hint="Check the NVIDIA driver with nvidia-smi"
            ) from error
        self._handle = self._handle_of(device)
        self._max_sm_clock_mhz = self._ask("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM)

    def read(self) -> DeviceState | None:
        """Clocks, temperature, power and throttle reasons now."""
        nvml = self._nvml
        power_mw = self._ask("nvmlDeviceGetPowerUsage")
        return DeviceState(
            at_ns=time.perf_counter_ns(),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            max_sm_clock_mhz=self._max_sm_clock_mhz,
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / _MILLIWATTS_PER_WATT,
            throttle_reasons=_reason_names(self._reason_bits()),
        )

    def _ask(self, query: str, *arguments: int) -> int | None:
        """The answer to one query; None where binding, driver or device does not have it."""
        function = getattr(self._nvml, query, None)
        if function is None:
            return None
        try:
            answer: int = function(self._handle, *arguments)
        except self._not_available:
            return None
        return answer

    def _reason_bits(self) -> int:
        for query in _REASON_QUERIES:
            bits = self._ask(query)
            if bits is not None:
                return bits
        return 0

    def _handle_of(self, device: str) -> Any:
        properties = require_torch().cuda.get_device_properties(device)
        for look_up in self._look_ups(properties):
            try:
                return look_up()
            except self._not_available:
                continue
        raise MeasurementError(f"NVML does not know device '{device}' ({properties.name})")

    def _look_ups(self, properties: Any) -> Iterator[Callable[[], Any]]:
        """Ways to find a device, surest first; older torch knows neither UUID nor PCI address."""
        nvml = self._nvml
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
    try:
        nvml = _require_pynvml()
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetDriverVersion()
    except DependencyError:
        pass
    except nvml.NVMLError:
        pass
    else:
        return version.decode() if isinstance(version, bytes) else str(version)  # bytes in older bindings
    try:
        return _DRIVER_FILE.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _require_pynvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ModuleNotFoundError as error:
        if error.name != "pynvml":
            raise
        raise DependencyError(
            "clocks and temperature need the package nvidia-ml-py", hint="pip install 'opscope[nvml]'"
        ) from error


def _reason_names(bits: int) -> tuple[str, ...]:
    """Names of the set bits but idle, lowest first; a bit this module does not know by its number."""
    ones = (1 << position for position in range(bits.bit_length()) if bits >> position & 1)
    return tuple(_THROTTLE_REASONS.get(bit, f"reason_{bit:#x}") for bit in ones if bit != _GPU_IDLE)
