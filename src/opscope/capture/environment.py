"""The environment of this process: versions and devices, no host name and no path.

Importing this module does not import torch; `collect_environment` does, where it is installed, and starts
CUDA to ask the devices.
"""

from __future__ import annotations

import ctypes
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from opscope._version import __version__
from opscope.errors import DependencyError
from opscope.model.environment import Environment, GpuInfo
from opscope.workloads.runtime import require_torch

__all__ = ["collect_environment"]

# The wheels that provide `triton`, by platform.
_TRITON_DISTRIBUTIONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows")


def collect_environment() -> Environment:
    """Versions and devices as this process sees them; what is not installed is None."""
    without_torch = Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}".strip(),
        opscope=__version__,
        triton=_installed_version(*_TRITON_DISTRIBUTIONS),
        transformers=_installed_version("transformers"),
        cpu=_cpu_name(),
    )
    try:
        torch = require_torch()
    except DependencyError:
        return without_torch
    has_cuda = torch.cuda.is_available()
    return msgspec.structs.replace(
        without_torch,
        torch=str(torch.__version__),
        torch_git_version=torch.version.git_version,
        cuda_runtime=torch.version.cuda,
        cuda_driver=_cuda_driver(torch) if has_cuda else None,
        cudnn=_cudnn_version(torch.backends.cudnn.version()) if has_cuda else None,
        gpu=_gpus(torch) if has_cuda else (),
    )


def _installed_version(*distributions: str) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _cpu_name() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() == "model name":
            return value.strip() or None
    return platform.processor() or None


def _cuda_driver(torch: Any) -> str | None:
    """The newest CUDA version the driver serves, e.g. "13.0"; None on ROCm.

    Asked of the driver's own library: torch's binding of it is private and moves between releases.
    Source: CUDA Driver API, cuDriverGetVersion: 1000 * major + 10 * minor.
    """
    if torch.version.cuda is None:
        return None
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def _cudnn_version(number: int | None) -> str | None:
    """A cuDNN version number as text.

    Source: cudnn_version.h: 1000 * major + 100 * minor + patch up to 8.x, 10000 * major + … from 9.0 on.
    """
    if not number:
        return None
    base = 10_000 if number >= 90_000 else 1_000
    return f"{number // base}.{number % base // 100}.{number % 100}"


def _gpus(torch: Any) -> tuple[GpuInfo, ...]:
    devices = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    return tuple(
        GpuInfo(
            name=device.name,
            compute_capability=f"{device.major}.{device.minor}",
            sm_count=device.multi_processor_count,
            memory_bytes=device.total_memory,
        )
        for device in devices
    )
