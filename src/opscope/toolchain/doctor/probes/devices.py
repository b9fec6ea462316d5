"""The GPUs of the machine and their state: by NVML, else nvidia-smi, else what CUDA and torch tell.

Asked before anything of doctor runs on a GPU, so that its own processes are not among those found there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree

import msgspec

from opscope.toolchain.doctor.facts import CudaDevice, DeviceFacts, DeviceProcess, DriverFacts, ProgramFacts
from opscope.toolchain.doctor.probes.child import run_child
from opscope.toolchain.doctor.probes.surroundings import Surroundings, last_lines

__all__ = ["CudaVersions", "DeviceInventory", "complete_devices", "probe_devices", "read_smi"]

_TIMEOUT_S = 30.0
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

    devices: tuple[DeviceFacts, ...]
    driver_version: str | None
    smi: ProgramFacts


def probe_devices(surroundings: Surroundings, smi: ProgramFacts) -> DeviceInventory:
    """Devices by NVML where its package is installed, else by nvidia-smi."""
    answer = run_child(surroundings, "doctor_nvml", timeout_s=_TIMEOUT_S)
    driver = answer.facts.get("driver")
    if answer.facts.get("devices") and answer.stopped is None:
        return DeviceInventory(_converted(answer.facts["devices"], "nvml"), driver, smi)
    if smi.path is None:
        return DeviceInventory((), driver, smi)
    end = surroundings.run(smi.path, "-q", "-x", timeout_s=_TIMEOUT_S)
    if not end.succeeded:
        failure = end.failure or last_lines(end.err or end.out) or f"exit code {end.exit_code}"
        return DeviceInventory((), driver, replace(smi, failure=failure))
    return read_smi(end.out, smi)


def _converted(devices: list[object], source: str) -> tuple[DeviceFacts, ...]:
    return tuple(
        msgspec.convert({**one, "source": source}, DeviceFacts) for one in devices if isinstance(one, dict)
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


def _smi_device(index: int, gpu: ElementTree.Element) -> DeviceFacts:
    power = next(
        (one for one in map(gpu.find, ("gpu_power_readings", "power_readings")) if one is not None), None
    )
    utilization = _number(gpu, "utilization/gpu_util")
    mig = _word(gpu, "mig_mode/current_mig")
    persistence = _word(gpu, "persistence_mode")
    mode = _word(gpu, "compute_mode")
    return DeviceFacts(
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
    found: tuple[DeviceFacts, ...],
    driver: DriverFacts,
    of_torch: tuple[CudaDevice, ...],
    cuda_versions: CudaVersions,
) -> tuple[DeviceFacts, ...]:
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


def _of_cuda(device: CudaDevice, source: str) -> DeviceFacts:
    return DeviceFacts(device.index, device.name, source, uuid=device.uuid)


def _with_cuda(device: DeviceFacts, shown: tuple[CudaDevice, ...] | None, count: int) -> DeviceFacts:
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


def _with_versions(device: DeviceFacts, cuda_versions: CudaVersions) -> DeviceFacts:
    if device.compute_capability is None:
        return device
    least, last = cuda_versions(device.compute_capability)
    return replace(device, least_cuda_version=least, last_cuda_version=last)
