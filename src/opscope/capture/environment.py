"""The environment of this process: versions and devices, no host name and no path.

Importing this module does not import torch; `collect_environment` does, where it is installed, and starts
CUDA to ask the devices.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import msgspec

from opscope._version import __version__
from opscope.errors import DependencyError
from opscope.hardware.devices import cpu_name
from opscope.hardware.driver import cudnn_text, driver_cuda_version, version_text
from opscope.model.sidecar import Environment, GpuInfo, rank_of
from opscope.workloads.runtime import require_torch

_PRESSURE = Path("/proc/pressure/cpu")


def collect_environment() -> Environment:
    """Versions and devices as this process sees them; what is not installed is None."""
    # The wheels that provide `triton`, by platform.
    without_torch = Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}".strip(),
        opscope=__version__,
        triton=_installed_version("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows"),
        transformers=_installed_version("transformers"),
        cpu=cpu_name(),
        cpu_pressure_fraction=cpu_pressure_fraction(),
    )
    try:
        torch = require_torch()
    except DependencyError:
        return without_torch
    has_cuda = torch.cuda.is_available()
    devices = [torch.cuda.get_device_properties(one) for one in range(torch.cuda.device_count() * has_cuda)]
    return msgspec.structs.replace(
        without_torch,
        torch=str(torch.__version__),
        torch_git_version=torch.version.git_version,
        cuda_runtime=torch.version.cuda,
        cuda_driver=version_text(driver_cuda_version()) if has_cuda and torch.version.cuda else None,
        cudnn=cudnn_text(torch.backends.cudnn.version()) if has_cuda else None,
        gpu=tuple(
            GpuInfo(one.name, f"{one.major}.{one.minor}", one.multi_processor_count, one.total_memory)
            for one in devices
        ),
    )


def cpu_pressure_fraction() -> float | None:
    """Part of the last ten seconds in which something waited for a CPU; None if the kernel does not tell.

    Source: Linux, Documentation/accounting/psi.rst.
    """
    try:
        return float(_PRESSURE.read_text(encoding="ascii").partition("avg10=")[2].split()[0]) / 100
    except (OSError, ValueError, IndexError):
        return None


def _installed_version(*distributions: str) -> str | None:
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def launched_as() -> tuple[int | None, int | None]:
    """Number of this process in its job, and how many there are, by its launcher; None outside of one.

    Launchers but torchrun set theirs for a process that is alone, too.
    """
    rank, world_size = rank_of(os.environ)
    return (rank, world_size) if "RANK" in os.environ or (world_size or 1) > 1 else (None, None)
