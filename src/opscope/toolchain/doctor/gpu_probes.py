"""The driver, the GPUs and their state, torch on them, and whether hardware counters can be read.

The state of the GPUs is asked before anything of doctor runs on one, so that its own processes are not among
those found there: by NVML, else nvidia-smi, else what CUDA and torch tell.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.etree import ElementTree

import msgspec

from opscope.hardware.driver import CudaDevice
from opscope.toolchain.doctor.facts import (
    CounterFacts,
    DeviceProcess,
    DriverFacts,
    GpuFacts,
    ProgramFacts,
    TorchFacts,
)
from opscope.toolchain.doctor.surroundings import (
    ChildAnswer,
    Surroundings,
    child_command,
    last_lines,
    run_child,
)
from opscope.toolchain.programs import ProgramExit

_TIMEOUT_S = 60.0
_MODULE_VERSION = re.compile(r"Kernel Module\S*(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_ADMIN_ONLY = re.compile(r"^RmProfilingAdminOnly:\s*(\d+)", re.MULTILINE)
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-f]+)", re.MULTILINE)
# Source: linux/capability.h.
_CAP_SYS_ADMIN = 21


def probe_driver_files(surroundings: Surroundings) -> DriverFacts:
    """What files tell, at once and without touching the driver."""
    return DriverFacts(
        version=_module_version(surroundings),
        device_files=_device_files(surroundings),
        admin_only_counters=_admin_only(surroundings),
        is_admin=_is_admin(surroundings),
        smi=ProgramFacts("nvidia-smi", surroundings.find("nvidia-smi")),
    )


def ask_driver(
    surroundings: Surroundings, known: DriverFacts, *, timeout_s: float = _TIMEOUT_S
) -> DriverFacts:
    """The same with what the driver's library answers."""
    answer = run_child(surroundings, "driver", timeout_s=timeout_s)
    facts: dict[str, Any] = {
        name: answer.facts.get(name)
        for name in (
            "library", "library_failure", "cuda_version", "init_error", "devices", "launched", "launch_error",
        )
    }  # fmt: skip
    if answer.stopped is not None:
        facts |= _unanswered(facts, f"the program that asks the driver {answer.stopped}")
    if facts["devices"] and facts["launched"] is None:
        facts["launched"] = False
    if facts["devices"] is not None:
        facts["devices"] = msgspec.convert(facts["devices"], tuple[CudaDevice, ...])
    return replace(known, **facts)


def _unanswered(facts: dict[str, Any], reason: str) -> dict[str, Any]:
    """The first question that was not answered, and why."""
    if facts["devices"]:
        return {"launch_error": reason}
    return {"init_error": reason} if facts["library"] else {"library_failure": reason}


def _module_version(surroundings: Surroundings) -> str | None:
    found = _MODULE_VERSION.search(surroundings.text("/proc/driver/nvidia/version") or "")
    if found is not None:
        return found.group(1)
    return (surroundings.text("/sys/module/nvidia/version") or "").strip() or None


def _device_files(surroundings: Surroundings) -> tuple[str, ...]:
    """Devices of the driver; dxg is the one through which Linux inside Windows reaches it."""
    try:
        names = sorted(entry.name for entry in surroundings.at("/dev").iterdir())
    except OSError:
        return ()
    return tuple(name for name in names if re.fullmatch(r"nvidia(\d+|ctl|-uvm)|dxg", name))


def _admin_only(surroundings: Surroundings) -> bool | None:
    found = _ADMIN_ONLY.search(surroundings.text("/proc/driver/nvidia/params") or "")
    return None if found is None else found.group(1) != "0"


def _is_admin(surroundings: Surroundings) -> bool | None:
    """Whether the process may do what the driver keeps to administrators: CAP_SYS_ADMIN."""
    found = _CAPABILITIES.search(surroundings.text("/proc/self/status") or "")
    return None if found is None else bool(int(found.group(1), 16) >> _CAP_SYS_ADMIN & 1)


_STATE_TIMEOUT_S = 30.0
_MIB = 1024**2
_IDLE_REASON = "gpu_idle"

# First and last CUDA toolkit that builds for a compute capability; None where not known or not ended.
CudaVersions = Callable[[str], tuple[str | None, str | None]]


@dataclass(frozen=True)
class DeviceInventory:
    """What a tool told of the machine's GPUs.

    Attributes:
        driver_version: None if it was not told.
        smi: nvidia-smi, with what it answered if it was asked in vain.
    """

    devices: tuple[GpuFacts, ...]
    driver_version: str | None
    smi: ProgramFacts


def probe_devices(surroundings: Surroundings, smi: ProgramFacts) -> DeviceInventory:
    """Devices by NVML where its package is installed, else by nvidia-smi."""
    answer = run_child(surroundings, "nvml", timeout_s=_STATE_TIMEOUT_S)
    driver = answer.facts.get("driver")
    if answer.facts.get("devices") and answer.stopped is None:
        return DeviceInventory(_converted(answer.facts["devices"], "nvml"), driver, smi)
    if smi.path is None:
        return DeviceInventory((), driver, smi)
    end = surroundings.run(smi.path, "-q", "-x", timeout_s=_STATE_TIMEOUT_S)
    if not end.succeeded:
        failure = end.failure or last_lines(end.err or end.out) or f"exit code {end.exit_code}"
        return DeviceInventory((), driver, replace(smi, failure=failure))
    return read_smi(end.out, smi)


def _converted(devices: list[object], source: str) -> tuple[GpuFacts, ...]:
    return tuple(
        msgspec.convert({**one, "source": source}, GpuFacts) for one in devices if isinstance(one, dict)
    )


def read_smi(text: str, smi: ProgramFacts) -> DeviceInventory:
    """What `nvidia-smi -q -x` printed; a field it does not have is None."""
    try:
        log = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        return DeviceInventory((), None, replace(smi, failure=f"its XML cannot be read ({error})"))
    devices = tuple(_smi_device(index, gpu) for index, gpu in enumerate(log.findall("gpu")))
    failure = None if devices else "it shows no GPU"
    return DeviceInventory(devices, _word(log, "driver_version"), replace(smi, failure=failure))


def _smi_device(index: int, gpu: ElementTree.Element) -> GpuFacts:
    power = next(
        (one for one in map(gpu.find, ("gpu_power_readings", "power_readings")) if one is not None), None
    )
    utilization = _number(gpu, "utilization/gpu_util")
    mig = _word(gpu, "mig_mode/current_mig")
    persistence = _word(gpu, "persistence_mode")
    mode = _word(gpu, "compute_mode")
    return GpuFacts(
        index=index,
        name=_word(gpu, "product_name") or "",
        source="nvidia-smi",
        uuid=_word(gpu, "uuid"),
        memory_bytes=_bytes(gpu, "fb_memory_usage/total"),
        memory_used_bytes=_bytes(gpu, "fb_memory_usage/used"),
        sm_clock_mhz=_whole(gpu, "clocks/sm_clock"),
        max_sm_clock_mhz=_whole(gpu, "max_clocks/sm_clock"),
        memory_clock_mhz=_whole(gpu, "clocks/mem_clock"),
        temperature_c=_whole(gpu, "temperature/gpu_temp"),
        power_w=_first_number(power, ("instant_power_draw", "power_draw", "average_power_draw")),
        power_limit_w=_first_number(power, ("enforced_power_limit", "current_power_limit", "power_limit")),
        utilization_fraction=None if utilization is None else utilization / 100,
        persistence_mode=None if persistence is None else persistence == "Enabled",
        compute_mode=None if mode is None else mode.lower().replace("_", " "),
        mig_mode=None if mig is None else mig == "Enabled",
        mig_instance_count=len(gpu.findall("mig_devices/mig_device")) if mig == "Enabled" else None,
        clock_reasons=tuple(_smi_reasons(gpu)),
        processes=tuple(_smi_processes(gpu)),
    )


def _smi_reasons(gpu: ElementTree.Element) -> Iterator[str]:
    """Active reasons, under the name the list has since driver 535 or before."""
    for kind in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for reason in gpu.find(kind) or ():
            name = reason.tag.removeprefix(f"{kind[:-1]}_")
            if (reason.text or "").strip() == "Active" and name != _IDLE_REASON:
                yield name.replace("_", " ")


def _smi_processes(gpu: ElementTree.Element) -> Iterator[DeviceProcess]:
    for one in gpu.findall("processes/process_info"):
        pid = _whole(one, "pid")
        if pid is not None:
            yield DeviceProcess(pid, _word(one, "process_name"), _bytes(one, "used_memory"))


def _word(parent: ElementTree.Element, path: str) -> str | None:
    text = (parent.findtext(path) or "").strip()
    return None if text in ("", "N/A", "[N/A]", "None", "Not Supported", "[Not Supported]") else text


def _number(parent: ElementTree.Element, path: str) -> float | None:
    """The number of a text such as `345 MHz`."""
    words = (_word(parent, path) or "").split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def _first_number(parent: ElementTree.Element | None, names: Sequence[str]) -> float | None:
    numbers = (_number(parent, name) for name in names) if parent is not None else ()
    return next((one for one in numbers if one is not None), None)


def _whole(parent: ElementTree.Element, path: str) -> int | None:
    number = _number(parent, path)
    return None if number is None else int(number)


def _bytes(parent: ElementTree.Element, path: str) -> int | None:
    number = _number(parent, path)
    return None if number is None else int(number * _MIB)


def complete_devices(
    found: tuple[GpuFacts, ...],
    driver: DriverFacts,
    of_torch: tuple[CudaDevice, ...],
    cuda_versions: CudaVersions,
) -> tuple[GpuFacts, ...]:
    """Devices with what CUDA knows of them; those that CUDA alone knows, where no tool told of any.

    Args:
        found: From NVML or nvidia-smi.
        driver: With the devices it shows to this process.
        of_torch: Devices that torch sees, for a driver that was not asked.
        cuda_versions: What the hardware table knows of a compute capability.
    """
    shown = driver.devices if driver.devices is not None else (of_torch or None)
    source = "cuda" if driver.devices is not None else "torch"
    devices = found or tuple(_of_cuda(one, source) for one in shown or ())
    return tuple(_with_versions(_with_cuda(one, shown, len(devices)), cuda_versions) for one in devices)


def _of_cuda(device: CudaDevice, source: str) -> GpuFacts:
    return GpuFacts(device.index, device.name, source, uuid=device.uuid)


def _with_cuda(device: GpuFacts, shown: tuple[CudaDevice, ...] | None, count: int) -> GpuFacts:
    """The device with the facts of the same one as CUDA shows it."""
    if shown is None:
        return device
    same = next((one for one in shown if device.uuid is not None and one.uuid == device.uuid), None)
    if same is None and count == 1 == len(shown):
        same = shown[0]  # a slice of a device has an identity of its own
    if same is None:
        # Slices are not the whole: the device is there, and CUDA shows parts of it.
        return device if device.mig_mode else replace(device, is_visible=False)
    return replace(
        device,
        compute_capability=device.compute_capability or same.compute_capability,
        sm_count=device.sm_count or same.sm_count,
        memory_bytes=device.memory_bytes or same.memory_bytes,
        is_visible=True,
    )


def _with_versions(device: GpuFacts, cuda_versions: CudaVersions) -> GpuFacts:
    if device.compute_capability is None:
        return device
    least, last = cuda_versions(device.compute_capability)
    return replace(device, least_cuda_version=least, last_cuda_version=last)


# Starting CUDA on a machine with many GPUs and no persistence takes tens of seconds.
TORCH_TIMEOUT_S = 120.0
_TROUBLE = re.compile(r"cupti|kineto|roctracer|warn|error|fail", re.IGNORECASE)


def probe_torch(surroundings: Surroundings, *, timeout_s: float = TORCH_TIMEOUT_S) -> TorchFacts:
    """What torch is and does here."""
    answer = run_child(surroundings, "torch", timeout_s=timeout_s)
    facts = dict(answer.facts)
    stage = facts.pop("stage", None)
    facts["stopped"] = _stopped(answer, stage)
    capture = facts.get("capture")
    if isinstance(capture, dict):
        facts["capture"] = {**capture, "messages": _trouble(answer.err)}
    elif stage == "recording":
        facts["capture"] = {"error": facts["stopped"], "messages": _trouble(answer.err)}
    return msgspec.convert(facts, TorchFacts)


def _stopped(answer: ChildAnswer, stage: str | None) -> str | None:
    """How the process ended early; it says `end` when it is done, or why torch cannot be imported."""
    if stage == "end" or "import_error" in answer.facts:
        return None
    how = answer.stopped or f"ended early: {last_lines(answer.err, 1)}"
    return f"{how} at {stage}" if stage else how


def _trouble(err: str) -> str:
    """Lines of standard error that speak of the profiler or of trouble."""
    return last_lines("\n".join(line for line in err.splitlines() if _TROUBLE.search(line)))


_COUNTERS_TIMEOUT_S = 90.0
_METRIC = "sm__cycles_elapsed.max"
# Which words of ncu mean what; as in toolchain.ncu.running.
_DENIED = "ERR_NVGPUCTRPERM"
_TAKEN = "driver resource was unavailable"
_ERROR = re.compile(r"^==ERROR== (.*)$", re.MULTILINE)


def probe_counters(surroundings: Surroundings, ncu: ProgramFacts) -> CounterFacts:
    """Read one counter with ncu; clocks stay as they are."""
    if ncu.path is None:
        return CounterFacts(failure="ncu is not installed")
    end = surroundings.run(
        ncu.path, "--metrics", _METRIC, "--clock-control", "none", "--launch-count", "1", "--page", "raw",
        "--csv", *child_command(surroundings, "driver"), timeout_s=_COUNTERS_TIMEOUT_S,
    )  # fmt: skip
    return read_counters(end)


def read_counters(end: ProgramExit) -> CounterFacts:
    """What a run of ncu showed."""
    said = f"{end.out}\n{end.err}"
    value = _value(end.out)
    if value is not None and not _ERROR.search(said):
        return CounterFacts(is_readable=True, value=value)
    errors = _ERROR.findall(said)
    failure = " ".join(errors[:2]) or end.failure or f"ncu printed no counter (exit code {end.exit_code})"
    return CounterFacts(
        is_readable=False, failure=failure, is_denied=_DENIED in said, is_taken=_TAKEN in said
    )


def _value(out: str) -> float | None:
    """The counter in ncu's raw page: a row of names, one of units, one per kernel."""
    rows = list(csv.reader(line for line in out.splitlines() if line.startswith('"')))
    header = next((row for row in rows if _METRIC in row), None)
    if header is None:
        return None
    column = header.index(_METRIC)
    for row in rows[rows.index(header) + 1 :]:
        text = row[column].replace(",", "") if len(row) > column else ""
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text)
    return None
