"""Commands that mend what several checks find."""

from __future__ import annotations

from opscope.toolchain.doctor.checks.versions import major_minor
from opscope.toolchain.doctor.facts import DeviceFacts, Facts

__all__ = ["ALLOW_COUNTERS", "LEAST_DRIVERS", "install_torch", "newer_driver"]

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


def _runs(version: str, device: DeviceFacts) -> bool:
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
