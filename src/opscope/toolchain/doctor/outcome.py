"""What a check answers, and what checks share: versions, whether there is a GPU, how to install torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from opscope.text_enum import TextEnum
from opscope.toolchain.doctor.facts import Facts, GpuFacts


class CheckVerdict(TextEnum):
    """How something stands.

    PROBLEM: what is there does not work. WARNING: it works, but something optional is missing or results may
    be off. UNKNOWN: it could not be found out. NOT_APPLICABLE: there is nothing here it could be said of.
    """

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True)
class DoctorOutcome:
    """A verdict with its reason.

    Attributes:
        remedy: The command that mends it, or what to do where there is no command; None if nothing is to do.
    """

    verdict: CheckVerdict
    reason: str
    remedy: str | None = None


Answer = Callable[[Facts], DoctorOutcome]


@dataclass(frozen=True)
class EnvironmentCheck:
    """One question about a machine.

    Attributes:
        code: Its stable name.
        question: What is asked, in a few words.
        answer: The function that answers it.
        is_required: Whether a problem here means that programs cannot be profiled on this machine.
    """

    code: str
    question: str
    answer: Answer
    is_required: bool = False


ok = partial(DoctorOutcome, CheckVerdict.OK)
warning = partial(DoctorOutcome, CheckVerdict.WARNING)
problem = partial(DoctorOutcome, CheckVerdict.PROBLEM)
unknown = partial(DoctorOutcome, CheckVerdict.UNKNOWN)
not_applicable = partial(DoctorOutcome, CheckVerdict.NOT_APPLICABLE)


def check(
    checks: list[EnvironmentCheck], code: str, question: str, *, is_required: bool = False
) -> Callable[[Answer], Answer]:
    """Makes a function the next check of a list."""

    def add(answer: Answer) -> Answer:
        checks.append(EnvironmentCheck(code, question, answer, is_required))
        return answer

    return add


def numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 11, 0) of `2.11.0+cu130`; empty for None and for other words."""
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(int(one) for one in found.group().split(".")) if found else ()


def major_minor(version: str | None) -> tuple[int, int] | None:
    """Its first two numbers; None where there are none. A missing second is 0."""
    found = numbers(version)
    return None if not found else (found[0], found[1] if len(found) > 1 else 0)


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


def visible_devices(facts: Facts) -> tuple[GpuFacts, ...]:
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


# CUDA versions that torch is published for, oldest first. Source: download.pytorch.org/whl.
_PUBLISHED = ("11.8", "12.6", "12.8", "13.0")
# Builds for later CUDA have no kernels for older GPUs than this. Source: torch/cuda/__init__.py of 2.13,
# PYTORCH_RELEASES_CODE_CC.
_LEAST_CAPABILITY = (7, 5)
_LAST_FOR_OLDER = (12, 6)
# Least driver of all releases of one major CUDA version. Source: CUDA Toolkit Release Notes, table "CUDA
# Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility".
LEAST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
ALLOW_COUNTERS = (
    "run it as root (in a container with --cap-add SYS_ADMIN), or: "
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
    "sudo tee /etc/modprobe.d/nvidia-profiling.conf, then reload the driver or reboot"
)


def install_torch(facts: Facts, *, is_replacement: bool = True) -> str:
    """The command that installs a torch which this machine's driver and GPUs can use.

    Args:
        facts: Of the machine.
        is_replacement: Whether another build of the same version may be installed already.
    """
    force = "--force-reinstall " if is_replacement else ""
    version = _cuda_for(facts)
    if version is None:
        return f"pip install {force}torch"
    return (
        f"pip install {force}torch --index-url https://download.pytorch.org/whl/cu{version.replace('.', '')}"
    )


def _cuda_for(facts: Facts) -> str | None:
    """The newest published CUDA that the driver serves and that runs on every GPU; None to leave it open."""
    served = major_minor(facts.driver.cuda_version)
    if served is None:
        return None
    fitting = [
        one
        for one in _PUBLISHED
        if (major_minor(one) or (0, 0))[0] <= served[0]
        and all(_runs(one, device) for device in facts.devices)
    ]
    return fitting[-1] if fitting else None


def _runs(version: str, device: GpuFacts) -> bool:
    asked = major_minor(version) or (0, 0)
    least = major_minor(device.least_cuda_version) or (0, 0)
    is_old = (major_minor(device.compute_capability) or _LEAST_CAPABILITY) < _LEAST_CAPABILITY
    last = _LAST_FOR_OLDER if is_old else major_minor(device.last_cuda_version) or (999, 0)
    return least <= asked <= last


def newer_driver(cuda_version: str) -> str:
    """What to install for a CUDA version."""
    major = (major_minor(cuda_version) or (0, 0))[0]
    least = LEAST_DRIVERS.get(major)
    which = f"{least} or newer" if least else f"for CUDA {cuda_version}"
    return f"install NVIDIA's driver {which} (sudo apt-get install cuda-drivers), then reboot"
