"""The torch a workload runs on: its devices and dtypes, waiting for it, running out of its memory.

Importing this module does not import torch, and only `require_torch` ever does.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from opscope.errors import DependencyError, InputError

_DTYPE_NAMES = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}

# Allocators and libraries that report exhausted memory as a bare RuntimeError.
_OUT_OF_MEMORY_TEXTS = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)


def require_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DependencyError("PyTorch is not installed", hint="pip install 'opscope[torch]'") from error


def resolve_device(name: str) -> str:
    """The device a name stands for: `"cpu"` or `"cuda:N"`; `"auto"` is the current GPU, or else the CPU."""
    torch = require_torch()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in {"cpu", "cuda"} or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise InputError(f"'{name}' is not a device", hint="Use auto, cpu, cuda or cuda:N")
    if kind == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise InputError(
            f"device '{name}' was asked for, but PyTorch {torch.__version__} finds no CUDA device",
            hint="Use --device cpu, or install a CUDA build of PyTorch and check the driver with nvidia-smi",
        )
    count = torch.cuda.device_count()
    number = int(index) if index else torch.cuda.current_device()
    if number >= count:
        raise InputError(f"there is no device '{name}'", hint=f"This machine has cuda:0 to cuda:{count - 1}")
    return f"cuda:{number}"


def resolve_dtype(name: str) -> str:
    """The full name of a dtype: float32, float16 or bfloat16, also written fp32, fp16 and bf16."""
    if (full := _DTYPE_NAMES.get(name.lower(), name.lower())) not in _DTYPE_NAMES.values():
        raise InputError(f"'{name}' is not a dtype to profile with", hint="Use float32, float16 or bfloat16")
    return full


def check_dtype(dtype: str, device: str) -> None:
    """Compute something small, so that a kernel that is missing shows before a model is built."""
    torch = require_torch()
    try:
        matrix = torch.ones(2, 2, dtype=getattr(torch, dtype), device=device)
        torch.nn.functional.layer_norm(matrix @ matrix, (2,))
    except (NotImplementedError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"device '{device}' cannot compute in {dtype} ({str(error).splitlines()[0]})", hint="Use float32"
        ) from error


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Random numbers of a fixed seed inside the block; the generators' states are restored after it."""
    torch = require_torch()
    devices = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def synchronize() -> None:
    """Wait until every CUDA device this process uses is idle; nothing without one.

    Devices without a context of this process are left alone: synchronizing one would create it, at hundreds
    of megabytes each.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for device in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(device):
            torch.cuda.synchronize(device)


def is_of_job() -> bool:
    """Whether this process works with others of a job by now."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def is_out_of_memory(error: BaseException | None) -> bool:
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS)


def release_memory() -> None:
    """Return cached device memory that no tensor uses, so that the next workload starts afresh."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()  # a model and its optimizer refer to each other
        torch.cuda.empty_cache()


def resident_bytes() -> int:
    """Memory that this process has in use, mapped files aside; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        _, resident, of_files, *_ = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split())
        return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")
    return 0
