"""The program that doctor runs in processes of its own, because what it asks may crash or hang.

`child.py driver` asks the CUDA driver and launches a kernel (also the program whose counters ncu reads),
`child.py torch` imports torch, calculates on every device and records a few operators. What is found is
printed at once, one JSON object per line behind a mark, so that it is not lost with the process; so is the
stage that begins.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
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
_LAUNCHES = 8


def ask_driver() -> int:
    """Print what the driver answers; 0 if a kernel ran."""
    from opscope.hardware.driver import CudaDriver, DriverError, version_text  # noqa: PLC0415

    stage = "library_failure"
    try:
        driver = CudaDriver()
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        loaded = re.search(r"/\S*/libcuda\.so\S*$", maps, re.MULTILINE)
        _say(library=loaded[0] if loaded else "libcuda.so.1")
        _say(cuda_version=version_text(driver.integer("cuDriverGetVersion")))
        stage = "init_error"
        driver.call("cuInit", 0)
        devices = [vars(driver.device(index)) for index in range(driver.integer("cuDeviceGetCount"))]
        _say(devices=devices)
        stage = "launch_error"
        if devices:
            _launch(driver)
            _say(launched=True)
    except (DriverError, ArithmeticError, OSError) as error:
        _say(**{stage: str(error)})
        return 1
    return 0 if devices else 1


def _launch(driver: Any) -> None:
    """Have the kernel double 0, 1, 2, … on the first device."""
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
        raise ArithmeticError("the kernel ran, but its results are wrong")


def try_torch() -> int:
    """Print what torch is and does; 0 if it could be imported."""
    _say(stage="import")
    start = time.perf_counter()
    try:
        import torch  # noqa: PLC0415 - the point of this program
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        _say(import_error=_brief(error))
        return 1
    _say(
        import_s=time.perf_counter() - start,
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        git_version=getattr(torch.version, "git_version", None),
    )
    _say(stage="devices")
    _say(**_devices(torch))
    has_device = torch.cuda.is_available()
    if has_device:
        _say(**_calculations(torch))
    _say(stage="recording")
    _say(capture=_capture(torch, has_device))
    _say(stage="end")
    return 0


def _devices(torch: Any) -> dict[str, Any]:
    from opscope.hardware.driver import cudnn_text  # noqa: PLC0415

    facts: dict[str, Any] = {"is_available": bool(torch.cuda.is_available())}
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return facts
    facts["architectures"] = list(torch.cuda.get_arch_list())
    facts["cuda_error"] = _attempt(torch.cuda.init)
    if facts["cuda_error"] is None:
        facts["devices"] = [_device(torch, index) for index in range(torch.cuda.device_count())]
        facts["cudnn"] = cudnn_text(torch.backends.cudnn.version())
    return facts


def _device(torch: Any, index: int) -> dict[str, Any]:
    device = torch.cuda.get_device_properties(index)
    uuid = getattr(device, "uuid", None)  # since torch 2.5
    return {
        "index": index,
        "name": device.name,
        "compute_capability": f"{device.major}.{device.minor}",
        "sm_count": device.multi_processor_count,
        "memory_bytes": device.total_memory,
        "uuid": None if uuid is None else f"GPU-{uuid}",
    }


def _calculations(torch: Any) -> dict[str, Any]:
    tried = [(f"calculation on cuda:{one}", _calculate, one) for one in range(torch.cuda.device_count())]
    for stage, calculate, index in [*tried, ("matrix product", _multiply, 0)]:
        _say(stage=stage)
        error = _attempt(calculate, torch, index)
        if error is not None:
            return {"has_calculated": True, "calculation_error": f"a {stage} fails: {error}"}
    return {"has_calculated": True}


def _calculate(torch: Any, index: int) -> None:
    device = torch.device("cuda", index)
    result = (torch.tensor([1.0, 2.0, 3.0]).to(device) * 2).cpu()
    torch.cuda.synchronize(device)
    if result.tolist() != [2.0, 4.0, 6.0]:
        raise ArithmeticError(f"[1, 2, 3] * 2 gave {result.tolist()}")


def _multiply(torch: Any, index: int) -> None:
    """A product whose sums are exact in any precision."""
    ones = torch.ones(64, 64, device=torch.device("cuda", index))
    if not bool(((ones @ ones).cpu() == 64).all()):
        raise ArithmeticError("a product of ones gave other than 64")


def _capture(torch: Any, has_device: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    try:
        facts["activities"] = sorted(
            str(one).rpartition(".")[2] for one in torch.profiler.supported_activities()
        )
        # torch.profiler.profile would do, but imports the compiler with it, which takes seconds.
        options = {"use_device": "cuda"} if has_device else {}
        x = torch.ones(1024, device="cuda" if has_device else "cpu")
        with torch.autograd.profiler.profile(use_kineto=True, **options) as recording:
            for _ in range(_LAUNCHES):
                x = x * 1.5
            if has_device:
                torch.cuda.synchronize()
        on_cpu = torch.autograd.DeviceType.CPU
        names = [(one.name, one.device_type == on_cpu) for one in recording.function_events or ()]
        facts["operator_count"] = sum(is_host and name.startswith("aten::") for name, is_host in names)
        facts["kernels_recorded"] = sum(
            not is_host and not name.startswith(("Mem", "aten::")) for name, is_host in names
        )
        facts["kernels_launched"] = _LAUNCHES if has_device else 0
    except Exception as error:  # noqa: BLE001 - whatever stops a recording is the answer
        facts["error"] = _brief(error)
    return facts


def _attempt(function: Callable[..., object], *arguments: Any) -> str | None:
    """Why a call failed; None if it did not."""
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever stops a calculation is the answer
        return _brief(error)
    return None


def _brief(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _say(**facts: Any) -> None:
    print(MARK + json.dumps(facts), flush=True)  # noqa: T201 - its only way to answer


if __name__ == "__main__":
    # The folder of a program comes first where it imports from: its modules are not to be taken for others.
    # The opscope of this file is not always the one this Python finds, and other packages are not beside it.
    file = Path(__file__).resolve()
    sys.path = [str(file.parents[3]), *(one for one in sys.path if one != str(file.parent))]
    importlib.import_module("opscope")
    del sys.path[0]
    task = sys.argv[1]
    code = {"driver": ask_driver, "torch": try_torch}[task]()
    sys.stderr.flush()
    if task == "torch":  # All is said, and taking torch and CUDA down takes time and may crash.
        os._exit(code)
    sys.exit(code)
