"""The CUDA of this machine: its driver, asked through its own library, and the toolkit's programs.

The driver is asked without torch, a toolkit, nvidia-smi or a context.
CUDA_VISIBLE_DEVICES holds, as it does for programs. A driver may crash or hang the process that asks it; who
must not go down with it asks in another process.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from opscope.errors import DependencyError

_LIBRARY = "libcuda.so.1"
# Source: cuda.h of CUDA 13.0, enum CUdevice_attribute.
_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76


class DriverError(Exception):
    """A call of the driver failed."""


@dataclass(frozen=True)
class CudaDevice:
    """A device as the CUDA driver or torch numbers it in this process; what is not told is None."""

    index: int
    name: str
    compute_capability: str  # As `9.0`
    sm_count: int | None = None
    memory_bytes: int | None = None
    uuid: str | None = None  # As NVML writes it, `GPU-…`


class CudaDriver:
    """The driver's library; every call is checked."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)

    def call(self, function: str, *arguments: Any) -> None:
        entry = getattr(self._library, function, None)
        if entry is None:
            raise DriverError(f"{function} is missing")
        if code := entry(*arguments):
            raise DriverError(f"{function}: {self._error_text(code)}")

    def integer(self, function: str, *arguments: Any) -> int:
        """The integer that a function writes to its first argument."""
        value = ctypes.c_int()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    def device(self, index: int) -> CudaDevice:
        """One device; `cuInit` comes first."""
        device = self.integer("cuDeviceGet", index)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), device)
        major, minor = (self.integer("cuDeviceGetAttribute", one, device) for one in (_MAJOR, _MINOR))
        memory, uuid, sm_count = ctypes.c_size_t(), (ctypes.c_ubyte * 16)(), ctypes.c_int()
        return CudaDevice(
            index,
            name.value.decode("utf-8", errors="replace"),
            f"{major}.{minor}",
            sm_count.value if self._told("cuDeviceGetAttribute", sm_count, _SM_COUNT, device) else None,
            memory.value if self._told("cuDeviceTotalMem_v2", memory, device) else None,
            f"GPU-{UUID(bytes=bytes(uuid))}" if self._told("cuDeviceGetUuid", uuid, device) else None,
        )

    def _told(self, function: str, answer: Any, *arguments: Any) -> bool:
        """Whether a function wrote its answer."""
        try:
            self.call(function, ctypes.byref(answer), *arguments)
        except DriverError:
            return False
        return True

    def _error_text(self, code: int) -> str:
        parts = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            entry = getattr(self._library, function, None)
            if entry is not None and entry(code, ctypes.byref(text)) == 0 and text.value:
                parts.append(text.value.decode("utf-8", errors="replace"))
        return ": ".join(parts) or f"error {code}"


def driver_cuda_version() -> int | None:
    """The newest CUDA that the driver of this machine serves, e.g. 13000; None without a driver."""
    try:
        return CudaDriver().integer("cuDriverGetVersion") or None  # it needs no cuInit
    except (OSError, DriverError):
        return None


def version_text(version: int | None) -> str | None:
    """`13.0` of 13000. Source: CUDA Driver API, cuDriverGetVersion: 1000 * major + 10 * minor."""
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def cudnn_text(number: int | None) -> str | None:
    """A cuDNN version number as text; None for none.

    Source: cudnn_version.h: 1000 * major + 100 * minor + patch up to 8.x, 10000 * major + … from 9.0 on.
    """
    if not number:
        return None
    base = 10_000 if number >= 90_000 else 1_000
    return f"{number // base}.{number % base // 100}.{number % 100}"


def visible_gpus() -> tuple[CudaDevice, ...]:
    """The GPUs a CUDA program here would see, in CUDA's order; none where the driver does not answer."""
    try:
        driver = CudaDriver()
        driver.call("cuInit", 0)
        count = driver.integer("cuDeviceGetCount")
    except (OSError, DriverError):
        return ()
    found = []
    for index in range(count):
        with suppress(DriverError):
            found.append(driver.device(index))
    return tuple(found)


# Where installers put them; of several versions the newest comes first.
_PLACES = (
    "usr/local/cuda/bin",
    "opt/nvidia/nsight-compute/*",
    "opt/nvidia/nsight-systems*/*/bin",
    "opt/nvidia/nsight-systems/*/target-linux-*",
    "usr/local/cuda-*/bin",
)
# Those of NVIDIA are for CUDA 13 and newer.
_PACKAGES = (("nvidia", "cu*/bin"), ("triton", "backends/nvidia/bin"))


def find_cuda_tool(
    name: str, *, environment: Mapping[str, str] | None = None, root: Path = Path("/")
) -> str | None:
    """Path of a program: from CUDA_HOME, PATH, the usual folders, NVIDIA's Python packages, or Triton's."""
    variables = os.environ if environment is None else environment
    homes = [variables[one] for one in ("CUDA_HOME", "CUDA_PATH") if variables.get(one)]
    folders: list[str | Path] = [*(f"{home}/bin" for home in homes), variables.get("PATH", os.defpath)]
    for place in _PLACES:
        folders += sorted(root.glob(place), reverse=True)
    for package, pattern in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            folders += sorted(Path(location).glob(pattern), reverse=True)
    return shutil.which(name, path=os.pathsep.join(map(str, folders)))


def require_nvcc() -> str:
    if (nvcc := find_cuda_tool("nvcc")) is None:
        raise DependencyError(
            "nvcc, the CUDA compiler, was not found",
            hint="pip install nvidia-cuda-nvcc (CUDA 13 or newer, finds its way here); or install the CUDA "
            "toolkit, from https://developer.nvidia.com/cuda-downloads or by conda install -c nvidia "
            "cuda-toolkit, and put its bin folder on PATH or set CUDA_HOME",
        )
    return nvcc
