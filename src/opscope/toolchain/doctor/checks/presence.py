"""Whether there is a GPU to use, told from everything that could know."""

from __future__ import annotations

import re
from collections.abc import Iterator

from opscope.text_enum import TextEnum
from opscope.toolchain.doctor.facts import DeviceFacts, Facts

__all__ = [
    "GpuPresence",
    "device_count",
    "gpu_presence",
    "gpu_signs",
    "hides_all",
    "is_amd",
    "numbered_files",
    "visible_devices",
]


class GpuPresence(TextEnum):
    """How a GPU is there.

    HIDDEN: there is one, and CUDA_VISIBLE_DEVICES names none. ON_HOST: the machine around this container has
    one, and nothing of it was given to the container. UNREACHABLE: there is one, and CUDA does not show it.
    """

    NONE = "none"
    PRESENT = "present"
    HIDDEN = "hidden"
    ON_HOST = "on_host"
    UNREACHABLE = "unreachable"


def gpu_presence(facts: Facts) -> GpuPresence:
    """How a GPU is there for a program started now."""
    if device_count(facts):
        return GpuPresence.PRESENT
    signs = list(gpu_signs(facts))
    if not signs:
        return GpuPresence.NONE
    if hides_all(facts.machine.variables.get("CUDA_VISIBLE_DEVICES")):
        return GpuPresence.HIDDEN
    return GpuPresence.UNREACHABLE if any(is_ours for is_ours, _ in signs) else GpuPresence.ON_HOST


def device_count(facts: Facts) -> int:
    """GPUs that CUDA or torch shows to this process."""
    of_driver = len(facts.driver.devices or ())
    of_torch = len(facts.torch.devices) if facts.torch is not None else 0
    return max(of_driver, of_torch)


def is_amd(facts: Facts) -> bool:
    """Whether the GPU is one that torch uses through ROCm."""
    return facts.torch is not None and facts.torch.hip is not None and not facts.driver.devices


def visible_devices(facts: Facts) -> tuple[DeviceFacts, ...]:
    """The GPUs with their state, but those CUDA hides from this process."""
    return tuple(one for one in facts.devices if one.is_visible is not False)


def hides_all(value: str | None) -> bool:
    """Whether a CUDA_VISIBLE_DEVICES names no device.

    Source: CUDA Programming Guide, CUDA environment variables: devices up to the first invalid one are shown.
    """
    if value is None:
        return False
    first = value.split(",")[0].strip()
    return not (first.isdigit() or first.upper().startswith(("GPU-", "MIG-")))


def gpu_signs(facts: Facts) -> Iterator[tuple[bool, str]]:
    """What says that there is an NVIDIA GPU; whether it says so of this container, or of its host as well."""
    driver, machine = facts.driver, facts.machine
    if facts.devices:
        yield True, f"{facts.devices[0].source} shows {_gpus(len(facts.devices))}"
    files = numbered_files(facts)
    if files:
        yield True, f"/dev/{files[0]} exists"
    # A bus that was read and has none is proof against the rest: the driver's packages need no GPU.
    has_no_gpu = machine.pci_gpu_count == 0 and "dxg" not in driver.device_files
    if driver.smi.path is not None and not has_no_gpu:
        yield True, f"nvidia-smi is installed ({driver.smi.path})"
    is_ours = machine.container is None
    if machine.pci_gpu_count:
        yield is_ours, f"the PCI bus has {_gpus(machine.pci_gpu_count)} of NVIDIA"
    if driver.version is not None and not has_no_gpu:
        yield is_ours, f"NVIDIA's driver {driver.version} is loaded"


def numbered_files(facts: Facts) -> list[str]:
    """Files of single GPUs under /dev."""
    return [name for name in facts.driver.device_files if re.fullmatch(r"nvidia\d+", name)]


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
