"""NVML, NVIDIA's management library, through the package nvidia-ml-py: read, and never set.

Bindings and drivers of all ages are asked alike; what one of them does not tell is None.
"""

from __future__ import annotations

import importlib
from typing import Any

from opscope.errors import DependencyError, MeasurementError

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


class Nvml:
    """NVML, started."""

    def __init__(self) -> None:
        try:
            self.module: Any = importlib.import_module("pynvml")
        except ModuleNotFoundError as error:
            if error.name != "pynvml":
                raise
            raise DependencyError(
                "clocks and temperature need the package nvidia-ml-py", hint="pip install 'opscope[nvml]'"
            ) from error
        self.error: type[Exception] = self.module.NVMLError
        try:
            self.module.nvmlInit()
        except self.error as error:
            raise MeasurementError(
                f"NVML does not start ({error})", hint="Check the NVIDIA driver with nvidia-smi"
            ) from error

    def ask(self, query: str, *arguments: Any) -> Any:
        """The answer to a query; None where binding, driver or device does not have it."""
        function = getattr(self.module, query, None)
        if function is None:
            return None
        try:
            answer = function(*arguments)
        except (self.error, TypeError, AttributeError):  # the last two: arguments of another binding
            return None
        return answer.decode("utf-8", errors="replace") if isinstance(answer, bytes) else answer

    def readings(self, handle: Any) -> dict[str, Any]:
        """Clocks, temperature and power of a device now."""
        nvml = self.module
        milliwatts = self.ask("nvmlDeviceGetPowerUsage", handle)
        return {
            "sm_clock_mhz": self.ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self.ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": self.ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": None if milliwatts is None else milliwatts / 1000,
        }

    def max_sm_clock_mhz(self, handle: Any) -> int | None:
        """The highest clock of a device's multiprocessors."""
        clock_mhz: int | None = self.ask("nvmlDeviceGetMaxClockInfo", handle, self.module.NVML_CLOCK_SM)
        return clock_mhz

    def slowdowns(self, handle: Any) -> tuple[str, ...]:
        """What holds a device's clocks down other than having no work; an unknown bit by its number."""
        # The same query under its name since driver 535 and the one before.
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        ones = (1 << position for position in range(int(bits).bit_length()) if bits >> position & 1)
        return tuple(_SLOWDOWNS.get(one, f"reason_{one:#x}") for one in ones if one != _IDLE)
