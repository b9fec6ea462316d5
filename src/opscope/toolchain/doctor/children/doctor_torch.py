"""Imports torch, calculates on every device, and records a few operators with torch's profiler.

Says which stage begins, so that the one in which the process crashed or hung is known.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "opscope-doctor "
_LAUNCHES = 8
# Libraries that torch comes with, and that a system may have in another version.
_LIBRARIES = (
    "libcudart.", "libcublas.", "libcublasLt.", "libcudnn", "libnvrtc.", "libcupti.", "libnccl.", "libcufft.",
    "libcusparse", "libcusolver.", "libnvJitLink.",
)  # fmt: skip


def main() -> int:
    """Print what torch is and does; 0 if it could be imported."""
    _say(stage="import")
    start = time.perf_counter()
    try:
        import torch  # noqa: PLC0415 - the point of this program
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        _say(import_error=_brief(error))
        return 1
    _say(import_s=time.perf_counter() - start, **_build(torch))
    _say(stage="devices")
    _say(**_devices(torch))
    has_device = torch.cuda.is_available()
    if has_device:
        _say(stage="calculation")
        count = torch.cuda.device_count()
        _say(
            calculations=[{"device": one, "error": _attempt(_calculate, torch, one)} for one in range(count)]
        )
        _say(stage="matrix product")
        _say(has_product=True, product_error=_attempt(_multiply, torch))
    _say(stage="recording")
    _say(capture=_capture(torch, has_device))
    libraries = _loaded()
    _say(stage="end", libraries=libraries, shadowed=_shadowed(torch, libraries))
    return 0


def _build(torch: Any) -> dict[str, Any]:
    version = torch.version
    return {
        "version": str(torch.__version__),
        "cuda": version.cuda,
        "hip": getattr(version, "hip", None),
        "git_version": getattr(version, "git_version", None),
        "is_debug_build": bool(getattr(version, "debug", False)),
    }


def _devices(torch: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"is_available": bool(torch.cuda.is_available())}
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return facts
    facts["architectures"] = list(torch.cuda.get_arch_list())
    facts["cuda_error"] = _attempt(torch.cuda.init)
    if facts["cuda_error"] is None:
        facts["devices"] = [_device(torch, index) for index in range(torch.cuda.device_count())]
        number = torch.backends.cudnn.version()
        facts["cudnn"] = number and _cudnn_text(number)
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


def _calculate(torch: Any, index: int) -> None:
    """Double three numbers on a device: a copy there, a kernel, a copy back."""
    device = torch.device("cuda", index)
    result = (torch.tensor([1.0, 2.0, 3.0]).to(device) * 2).cpu()
    torch.cuda.synchronize(device)
    if result.tolist() != [2.0, 4.0, 6.0]:
        raise ArithmeticError(f"[1, 2, 3] * 2 gave {result.tolist()}")


def _multiply(torch: Any) -> None:
    """A product whose sums are exact in any precision."""
    ones = torch.ones(64, 64, device="cuda")
    result = (ones @ ones).cpu()
    if not bool((result == 64).all()):
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
        facts.update(_recorded(torch, recording))
        facts["kernels_launched"] = _LAUNCHES if has_device else 0
    except Exception as error:  # noqa: BLE001 - whatever stops a recording is the answer
        facts["error"] = _brief(error)
    return facts


def _recorded(torch: Any, recording: Any) -> dict[str, int]:
    on_cpu = torch.autograd.DeviceType.CPU
    events = list(recording.function_events or ())
    kernels = [
        one for one in events if one.device_type != on_cpu and not one.name.startswith(("Mem", "aten::"))
    ]
    operators = [one for one in events if one.device_type == on_cpu and one.name.startswith("aten::")]
    return {"operator_count": len(operators), "kernels_recorded": len(kernels)}


def _loaded() -> list[str]:
    """Paths of the CUDA libraries in this process."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(_LIBRARIES))


def _shadowed(torch: Any, loaded: list[str]) -> list[tuple[str, str]]:
    """Libraries from LD_LIBRARY_PATH of which torch's own packages have a copy."""
    variable = os.environ.get("LD_LIBRARY_PATH", "")
    folders = [Path(one).resolve() for one in variable.split(":") if one]
    own = {copy.name: copy for copy in _own_copies(torch)}
    return [
        (path, str(own[Path(path).name]))
        for path in loaded
        if Path(path).name in own
        and Path(path).resolve() != own[Path(path).name].resolve()
        and any(Path(path).resolve().is_relative_to(folder) for folder in folders)
    ]


def _own_copies(torch: Any) -> list[Path]:
    package = Path(torch.__file__).resolve().parent
    wheels = package.parent / "nvidia"
    found = [*(package / "lib").glob("lib*.so*"), *wheels.glob("*/lib/lib*.so*")]
    return [one for one in found if one.name.startswith(_LIBRARIES)]


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


def _cudnn_text(number: int) -> str:
    # Source: cudnn_version.h: 1000 * major + 100 * minor + patch up to 8.x, 10000 * major + … from 9.0 on.
    base = 10_000 if number >= 90_000 else 1_000
    return f"{number // base}.{number % base // 100}.{number % 100}"


def _say(**facts: Any) -> None:
    print(MARK + json.dumps(facts), flush=True)  # noqa: T201 - its only way to answer


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # All is said, and taking torch and CUDA down takes time and may crash.
    os._exit(code)
