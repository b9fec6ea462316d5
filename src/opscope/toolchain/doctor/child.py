"""The program that doctor runs in processes of its own, because what it asks may crash or hang.

`child.py driver` asks the CUDA driver; `child.py torch` imports torch, calculates on every device and records
a few operators; `child.py kernel` launches the kernel whose counters ncu reads. What is found is printed at
once, one JSON object per line behind a mark, so that it is not lost with the process; so is the stage begun.
"""

from __future__ import annotations

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
_LAUNCHES = 8


def ask_driver() -> None:
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
        _say(devices=[vars(driver.device(index)) for index in range(driver.integer("cuDeviceGetCount"))])
    except (DriverError, OSError) as error:
        _say(**{stage: str(error)})


def try_torch() -> None:
    _say(stage="import")
    start = time.perf_counter()
    try:
        import torch  # noqa: PLC0415 - the point of this program
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        _say(import_error=_brief(error))
        return
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


def launch_kernel() -> None:
    import torch  # noqa: PLC0415 - as above

    torch.ones(1, device="cuda")
    torch.cuda.synchronize()


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
    {"driver": ask_driver, "torch": try_torch, "kernel": launch_kernel}[task]()
    sys.stderr.flush()
    if task == "torch":  # All is said, and taking torch and CUDA down takes time and may crash.
        os._exit(0)
