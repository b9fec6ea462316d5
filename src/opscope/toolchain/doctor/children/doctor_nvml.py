"""Asks NVML for the driver's version and the state of every GPU of the machine.

Reads only. What a device or an older driver does not tell is left out. Needs the package nvidia-ml-py.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

MARK = "opscope-doctor "
_MILLIWATTS_PER_WATT = 1000
# Source: nvml.h of CUDA 13, nvmlClocksEventReason*, in the words of nvidia-smi; having no work (0x1) holds
# nothing down.
_CLOCK_REASONS = {
    0x2: "applications clocks setting",
    0x4: "sw power cap",
    0x8: "hw slowdown",
    0x10: "sync boost",
    0x20: "sw thermal slowdown",
    0x40: "hw thermal slowdown",
    0x80: "hw power brake slowdown",
    0x100: "display clocks setting",
}
_IDLE = 0x1
# Source: nvml.h, nvmlComputeMode_t.
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


def main() -> int:
    """Print the driver and its devices; 0 if NVML answered."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        return _say(1, failure=f"nvidia-ml-py is not installed ({error})")
    try:
        nvml.nvmlInit()
        _say(driver=_text(nvml.nvmlSystemGetDriverVersion()))
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        devices = [_device(nvml, index, handle) for index, handle in enumerate(handles)]
    except nvml.NVMLError as error:
        return _say(1, failure=str(error))
    return _say(0, devices=devices)


def _device(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    return {
        "index": index,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        **{name: value for name, value in _state(_asker(nvml, handle), nvml) if value is not None},
    }


def _asker(nvml: Any, handle: Any) -> Callable[..., Any]:
    """Asks one query of a device; None where binding, driver or device does not have it."""

    def ask(query: str, *arguments: Any) -> Any:
        function = getattr(nvml, query, None)
        if function is None:
            return None
        try:
            return function(handle, *arguments)
        except (nvml.NVMLError, TypeError, AttributeError):  # the last two: arguments of another binding
            return None

    return ask


def _state(ask: Callable[..., Any], nvml: Any) -> Iterator[tuple[str, Any]]:
    yield "uuid", _text(ask("nvmlDeviceGetUUID"))
    capability = ask("nvmlDeviceGetCudaComputeCapability")
    yield "compute_capability", capability and f"{capability[0]}.{capability[1]}"
    yield from _memory(ask, nvml)
    yield "sm_clock_mhz", ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
    yield "max_sm_clock_mhz", ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)
    yield "memory_clock_mhz", ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM)
    yield "temperature_c", ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
    yield "power_w", _watts(ask("nvmlDeviceGetPowerUsage"))
    yield "power_limit_w", _watts(ask("nvmlDeviceGetEnforcedPowerLimit"))
    use = ask("nvmlDeviceGetUtilizationRates")
    yield "utilization_fraction", None if use is None else use.gpu / 100
    yield "persistence_mode", _flag(ask("nvmlDeviceGetPersistenceMode"))
    mode = ask("nvmlDeviceGetComputeMode")
    yield "compute_mode", None if mode is None else _COMPUTE_MODES.get(mode, f"mode {mode}")
    yield from _mig(ask)
    yield "clock_reasons", _clock_reasons(ask)
    yield "processes", _processes(ask, nvml)


def _memory(ask: Callable[..., Any], nvml: Any) -> Iterator[tuple[str, Any]]:
    """Size and use; the second version of the query tells apart what the driver reserves."""
    memory = None
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        memory = ask("nvmlDeviceGetMemoryInfo", version)
    memory = memory or ask("nvmlDeviceGetMemoryInfo")
    if memory is not None:
        yield "memory_bytes", int(memory.total)
        yield "memory_used_bytes", int(memory.used)


def _mig(ask: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    mode = ask("nvmlDeviceGetMigMode")
    if mode is None:
        return
    yield "mig_mode", bool(mode[0])
    if mode[0]:
        slots = ask("nvmlDeviceGetMaxMigDeviceCount") or 0
        found = [ask("nvmlDeviceGetMigDeviceHandleByIndex", slot) for slot in range(slots)]
        yield "mig_instance_count", sum(one is not None for one in found)


def _clock_reasons(ask: Callable[..., Any]) -> list[str]:
    # The same query under its name since driver 535 and the one before.
    bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:
        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    ones = (1 << position for position in range(int(bits).bit_length()) if bits >> position & 1)
    return [_CLOCK_REASONS.get(one, f"reason {one:#x}") for one in ones if one != _IDLE]


def _processes(ask: Callable[..., Any], nvml: Any) -> list[dict[str, Any]] | None:
    """Processes that compute or draw, each once; None if the driver does not tell."""
    lists = [ask(f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Compute", "Graphics")]
    if all(one is None for one in lists):
        return None
    by_pid = {one.pid: one for found in lists for one in found or ()}
    return [
        {"pid": one.pid, "name": _process_name(nvml, one.pid), "memory_bytes": one.usedGpuMemory}
        for one in by_pid.values()
    ]


def _process_name(nvml: Any, pid: int) -> str | None:
    try:
        return _text(nvml.nvmlSystemGetProcessName(pid)) or None
    except nvml.NVMLError:
        return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / _MILLIWATTS_PER_WATT


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _text(value: Any) -> Any:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value  # older bindings


def _say(code: int = 0, **facts: Any) -> int:
    print(MARK + json.dumps(facts), flush=True)  # noqa: T201 - its only way to answer
    return code


if __name__ == "__main__":
    sys.exit(main())
