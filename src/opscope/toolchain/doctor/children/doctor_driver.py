"""Asks the CUDA driver alone, without torch or a toolkit: what it serves, its devices, and one kernel launch.

The kernel is PTX text that the driver compiles. Also the program whose counters ncu is asked to read.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

MARK = "opscope-doctor "
_THREADS = 32
# Doubles the number of each thread. PTX of an old version and target, since any newer device compiles it.
_KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry opscope_doctor(.param .u64 numbers)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [numbers];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    shl.b32 %r2, %r2, 1;
    st.global.u32 [%rd3], %r2;
    ret;
}
"""
# Source: cuda.h, CUdevice_attribute.
_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76


class DriverError(Exception):
    """A call of the driver failed."""


class Driver:
    """The driver's library; every call is checked."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            DriverError: It failed, or this driver does not have it.
        """
        entry = getattr(self._library, function, None)
        if entry is None:
            raise DriverError(f"{function} is missing")
        code = entry(*arguments)
        if code:
            raise DriverError(f"{function}: {self._error_text(code)}")

    def integer(self, function: str, *arguments: Any) -> int:
        """The integer that a function writes to its first argument."""
        value = ctypes.c_int()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    def _error_text(self, code: int) -> str:
        parts = [f"error {code}"]
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            entry = getattr(self._library, function, None)
            if entry is not None and entry(code, ctypes.byref(text)) == 0 and text.value:
                parts.append(text.value.decode("utf-8", errors="replace"))
        return parts[0] if len(parts) == 1 else ": ".join(parts[1:])


def main() -> int:
    """Print what the driver answers; 0 if a kernel ran."""
    stage = "library_failure"
    try:
        driver = Driver()
        _say(library=_loaded_library())
        version = driver.integer("cuDriverGetVersion")
        # Source: CUDA Driver API, cuDriverGetVersion: 1000 * major + 10 * minor.
        _say(cuda_version=f"{version // 1000}.{version % 1000 // 10}")
        stage = "init_error"
        driver.call("cuInit", 0)
        devices = [_device(driver, index) for index in range(driver.integer("cuDeviceGetCount"))]
        _say(devices=devices)
        stage = "launch_error"
        if devices:
            _launch(driver)
            _say(launched=True)
    except (DriverError, OSError) as error:
        _say(**{stage: str(error)})
        return 1
    return 0 if devices else 1


def _device(driver: Driver, index: int) -> dict[str, Any]:
    device = driver.integer("cuDeviceGet", index)
    name = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", name, len(name), device)
    memory = ctypes.c_size_t()
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    major, minor = (driver.integer("cuDeviceGetAttribute", one, device) for one in (_MAJOR, _MINOR))
    return {
        "index": index,
        "name": name.value.decode("utf-8", errors="replace"),
        "compute_capability": f"{major}.{minor}",
        "sm_count": driver.integer("cuDeviceGetAttribute", _SM_COUNT, device),
        "memory_bytes": memory.value,
        "uuid": _uuid(driver, device),
    }


def _uuid(driver: Driver, device: int) -> str | None:
    content = (ctypes.c_ubyte * 16)()
    try:
        driver.call("cuDeviceGetUuid", ctypes.byref(content), device)
    except DriverError:
        return None
    digits = bytes(content).hex()
    return "GPU-" + "-".join(
        digits[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    )


def _launch(driver: Driver) -> None:
    """Have the kernel double 0, 1, 2, … on the first device.

    Raises:
        DriverError: It could not, or its results are wrong.
    """
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), driver.integer("cuDeviceGet", 0))
    driver.call("cuCtxSetCurrent", context)
    driver.call("cuModuleLoadData", ctypes.byref(module), _KERNEL)
    driver.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"opscope_doctor")
    numbers = (ctypes.c_uint32 * _THREADS)(*range(_THREADS))
    memory = ctypes.c_uint64()
    driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(ctypes.sizeof(numbers)))
    driver.call("cuMemcpyHtoD_v2", memory, numbers, ctypes.c_size_t(ctypes.sizeof(numbers)))
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(memory), ctypes.c_void_p))
    driver.call("cuLaunchKernel", kernel, 1, 1, 1, _THREADS, 1, 1, 0, None, arguments, None)
    driver.call("cuCtxSynchronize")
    driver.call("cuMemcpyDtoH_v2", numbers, memory, ctypes.c_size_t(ctypes.sizeof(numbers)))
    if list(numbers) != [2 * index for index in range(_THREADS)]:
        raise DriverError("the kernel ran, but its results are wrong")


def _loaded_library() -> str:
    """Path of the libcuda in this process."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "libcuda.so.1"
    paths = (line.split(maxsplit=5)[-1] for line in lines)
    return next((path for path in paths if Path(path).name.startswith("libcuda.so")), "libcuda.so.1")


def _say(**facts: Any) -> None:
    print(MARK + json.dumps(facts), flush=True)  # noqa: T201 - its only way to answer


if __name__ == "__main__":
    sys.exit(main())
