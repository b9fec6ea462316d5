"""NVML, NVIDIA's management library, through the package nvidia-ml-py: read, and never set.

Bindings and drivers of all ages are asked alike; what one of them does not tell is None.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from opscope.errors import DependencyError, MeasurementError

_IDLE = 0x1  # no work, so no clocks: not a reason that slows work down
_MILLIWATTS_PER_WATT = 1000


class Slowdown(NamedTuple):
    """What holds clocks down: its name in result files, and the words of nvidia-smi."""

    name: str
    words: str


# Source: nvml.h of CUDA 13, nvmlClocksEventReason* (nvmlClocksThrottleReason* before driver 535).
_SLOWDOWNS = {
    0x2: Slowdown("applications_clocks", "applications clocks setting"),
    0x4: Slowdown("sw_power_cap", "sw power cap"),
    0x8: Slowdown("hw_slowdown", "hw slowdown"),
    0x10: Slowdown("sync_boost", "sync boost"),
    0x20: Slowdown("sw_thermal", "sw thermal slowdown"),
    0x40: Slowdown("hw_thermal_slowdown", "hw thermal slowdown"),
    0x80: Slowdown("hw_power_brake", "hw power brake slowdown"),
    0x100: Slowdown("display_clocks", "display clocks setting"),
    0x200: Slowdown("board_limit", "board limit"),
    0x400: Slowdown("reliability", "reliability"),
}


class Nvml:
    """NVML, started.

    Attributes:
        module: The binding.

    Raises:
        DependencyError: nvidia-ml-py is not installed.
        MeasurementError: NVML does not start.
    """

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
        return {
            "sm_clock_mhz": self.ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self.ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": self.ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": self.watts("nvmlDeviceGetPowerUsage", handle),
        }

    def max_sm_clock_mhz(self, handle: Any) -> int | None:
        """The highest clock of a device's multiprocessors."""
        clock_mhz: int | None = self.ask("nvmlDeviceGetMaxClockInfo", handle, self.module.NVML_CLOCK_SM)
        return clock_mhz

    def watts(self, query: str, handle: Any) -> float | None:
        """The answer to a query for milliwatts, in watts."""
        milliwatts = self.ask(query, handle)
        return None if milliwatts is None else milliwatts / _MILLIWATTS_PER_WATT

    def slowdowns(self, handle: Any) -> Sequence[Slowdown]:
        """What holds a device's clocks down other than having no work; an unknown bit by its number."""
        # The same query under its name since driver 535 and the one before.
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        ones = (1 << position for position in range(int(bits).bit_length()) if bits >> position & 1)
        unknown = "reason{}{:#x}"
        return [
            _SLOWDOWNS.get(one) or Slowdown(unknown.format("_", one), unknown.format(" ", one))
            for one in ones
            if one != _IDLE
        ]
