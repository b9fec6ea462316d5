"""The GPUs a CUDA program here would see, asked of the driver: no PyTorch, no nvidia-smi, no context.

CUDA_VISIBLE_DEVICES holds, as it does for the program.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

__all__ = ["VisibleGpu", "visible_gpus"]

_LIBRARIES = ("libcuda.so.1", "libcuda.so")
# Source: cuda.h of CUDA 13.0, enum CUdevice_attribute.
_MAJOR, _MINOR = 75, 76
_NAME_LENGTH = 256


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU: its name as the driver has it, its compute capability as `9.0`."""

    name: str
    compute_capability: str


def visible_gpus() -> tuple[VisibleGpu, ...]:
    """In CUDA's order; none where there is no driver, no GPU, or the driver does not answer."""
    driver = _driver()
    count = ctypes.c_int()
    if driver is None or driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    found = (_gpu(driver, index) for index in range(count.value))
    return tuple(gpu for gpu in found if gpu is not None)


def _driver() -> Any:
    for library in _LIBRARIES:
        try:
            return ctypes.CDLL(library)
        except OSError:
            continue
    return None


def _gpu(driver: Any, index: int) -> VisibleGpu | None:
    name = ctypes.create_string_buffer(_NAME_LENGTH)
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDeviceGetName(name, _NAME_LENGTH, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    )
    if failed:
        return None
    return VisibleGpu(name.value.decode("utf-8", "replace"), f"{major.value}.{minor.value}")
