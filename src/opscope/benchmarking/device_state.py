"""The device's clocks, temperature and throttle reasons at one moment, read by NVML (nvidia-ml-py).

A monitor only reads: it changes no setting. One read takes a few NVML calls, well under a millisecond, so it
can be polled between samples. Bindings and drivers of all ages are asked alike; what one of them does not
tell is None. Imports neither torch nor pynvml until a monitor is made.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opscope.errors import DependencyError, MeasurementError, OpscopeError
from opscope.model.benchmark import DeviceState
from opscope.workloads.runtime import require_torch

StateReader = Callable[[], DeviceState | None]

_DRIVER_FILE = Path("/sys/module/nvidia/version")
_IDLE = 0x1  # no work, so no clocks: not a reason that slows work down
# Source: nvml.h of CUDA 13, nvmlClocksEventReason* (nvmlClocksThrottleReason* before driver 535).
_SLOWDOWNS = {
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


def _started() -> Any:
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError as error:
        if error.name != "pynvml":
            raise
        raise DependencyError(
            "clocks and temperature need the package nvidia-ml-py", hint="pip install 'opscope[nvml]'"
        ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise MeasurementError(
            f"NVML does not start ({error})", hint="Check the NVIDIA driver with nvidia-smi"
        ) from error
    return nvml


def _ask(nvml: Any, query: str, *arguments: Any) -> Any:
    """The answer to a query; None where binding, driver or device does not have it."""
    try:
        return getattr(nvml, query)(*arguments)
    except (nvml.NVMLError, TypeError, AttributeError):
        return None


class NvmlMonitor:
    """Reads a CUDA device through NVML.

    The device is found by its UUID, because NVML counts all devices of the machine and torch only those in
    CUDA_VISIBLE_DEVICES. Torch before 2.5 does not know it; then an only device is meant.
    """

    def __init__(self, device: str) -> None:
        self._nvml = nvml = _started()
        properties = require_torch().cuda.get_device_properties(device)
        uuid, self._handle = getattr(properties, "uuid", None), None
        if uuid is not None:
            full = str(uuid) if str(uuid).startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            self._handle = _ask(nvml, "nvmlDeviceGetHandleByUUID", full)
        elif nvml.nvmlDeviceGetCount() == 1:
            self._handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", 0)
        if self._handle is None:
            raise MeasurementError(f"NVML does not know device '{device}' ({properties.name})")
        self._max_sm_clock_mhz = self._of_device("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)

    def _of_device(self, query: str, *arguments: Any) -> Any:
        return _ask(self._nvml, query, self._handle, *arguments)

    def read(self) -> DeviceState:
        nvml, milliwatts = self._nvml, self._of_device("nvmlDeviceGetPowerUsage")
        # The same query under its name since driver 535 and the one before.
        bits = self._of_device("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._of_device("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        ones = (1 << position for position in range(int(bits).bit_length()) if bits >> position & 1)
        return DeviceState(
            at_ns=time.perf_counter_ns(),
            sm_clock_mhz=self._of_device("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._of_device("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            max_sm_clock_mhz=self._max_sm_clock_mhz,
            temperature_c=self._of_device("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_w=None if milliwatts is None else milliwatts / 1000,
            throttle_reasons=tuple(_SLOWDOWNS.get(one, f"reason_{one:#x}") for one in ones if one != _IDLE),
        )


def state_reader(device: str) -> tuple[StateReader, str | None]:
    """What reads the device's state, and why there is nothing to read; None if there is."""
    if not device.startswith("cuda"):
        return lambda: None, "a CPU's clocks are not read"
    try:
        return NvmlMonitor(device).read, None
    except OpscopeError as error:
        return lambda: None, str(error)


def driver_version() -> str | None:
    """Version of NVIDIA's driver, e.g. `"580.159.04"`, by its kernel module; None without one."""
    try:
        return _DRIVER_FILE.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
