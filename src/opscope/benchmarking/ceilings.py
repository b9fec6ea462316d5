"""What the device reaches at copying and at multiplying, measured in the same run with the same timer.

Fractions of a ceiling compare like with like only if both were measured alike, so these calls are timed
cold or hot, by events or the wall clock, as the implementations are. Memory stays under a quarter of what is
free. Imports torch lazily.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opscope.benchmarking.math_mode import float32_products
from opscope.benchmarking.timer import Timer
from opscope.errors import InputError
from opscope.model.benchmark import Ceiling
from opscope.workloads.runtime import is_out_of_memory, release_memory, require_torch

__all__ = ["CEILINGS", "ceiling_obstacle", "measure_ceilings"]

_NS_PER_S = 1_000_000_000
_MIB = 1 << 20
_WARMUP = 3
_MIN_SAMPLES = 5
_MAX_SAMPLES = 30
_BUDGET_NS = 300_000_000
_LARGEST_SHARE = 0.25  # of the free memory, all tensors together

# Bytes of each of the two buffers of `copy_large`: starting and ending the copy no longer count.
_LARGE_COPY_BYTES = {"cuda": (2048 * _MIB, 512 * _MIB), "cpu": (128 * _MIB,)}
# Below this a copy measures launches and the timer.
_LEAST_COPY_BYTES = 16 * _MIB
_MATRIX_SIDES = {"cuda": (8192, 4096, 2048), "cpu": (1024, 512)}
_SLOW_ON_CPU_SIDES = (256,)  # half precision without matrix units is emulated

# dtype, and least compute capability with matrix units for it.
_MATRICES = {
    "matrix_float32": ("float32", (0, 0)),
    "matrix_tf32": ("float32", (8, 0)),
    "matrix_bfloat16": ("bfloat16", (8, 0)),
    "matrix_float16": ("float16", (7, 0)),
}
CEILINGS = ("copy", "copy_large", *_MATRICES)


def measure_ceilings(
    device: str, names: Sequence[str], timer: Timer, *, seed: int = 0, copy_bytes: int | None = None
) -> tuple[Ceiling, ...]:
    """The ceilings of these names that the device has; `ceiling_obstacle` says why one is missing.

    `copy` moves as many bytes as the call it is compared with: a copy of 500 MB is 3 % slower per byte than
    one of 4 GB (seen on an H200), because it too has to begin and to end. `copy_large` is that limit.

    Args:
        device: `"cpu"` or `"cuda:N"`.
        names: Of `CEILINGS`, each once.
        timer: The one that times the implementations.
        seed: Of the data, which is random: zeros would be faster.
        copy_bytes: Bytes that `copy` reads and writes together, at least 32 MiB; those of `copy_large` if
            None.

    Raises:
        InputError: A name is not one of `CEILINGS`.
    """
    found = []
    for name in dict.fromkeys(names):
        if ceiling_obstacle(device, name) is None:
            ceiling = (
                _copy(name, device, timer, seed, None if name == "copy_large" else copy_bytes)
                if name.startswith("copy")
                else _matrix(name, device, timer, seed)
            )
            if ceiling is not None:
                found.append(ceiling)
            release_memory()
    return tuple(found)


def ceiling_obstacle(device: str, name: str) -> str | None:
    """Why a device has no ceiling of this name; None if it has one.

    Raises:
        InputError: The name is not one of `CEILINGS`.
    """
    if name not in CEILINGS:
        raise InputError(f"'{name}' is not a ceiling", hint=f"There are {', '.join(CEILINGS)}")
    if name.startswith("copy"):
        return None
    if not device.startswith("cuda"):
        return "a CPU has no TF32" if name == "matrix_tf32" else None
    needed = _MATRICES[name][1]
    capability = require_torch().cuda.get_device_capability(device)
    if capability >= needed:
        return None
    has = ".".join(map(str, capability))
    return f"{name} needs compute capability {needed[0]}.{needed[1]}, {device} has {has}"


def _copy(name: str, device: str, timer: Timer, seed: int, copy_bytes: int | None) -> Ceiling | None:
    """The rate at the first size that fits, in bytes read and written."""
    torch = require_torch()
    sizes = _LARGE_COPY_BYTES[_kind(device)]
    if copy_bytes is not None:
        sizes = (max(copy_bytes // 8 * 4, _LEAST_COPY_BYTES), *sizes)
    for size in sizes:
        if 2 * size > _memory_limit(device):
            continue
        try:
            source = _random((size // 4,), torch.float32, device, seed)
            target = torch.empty_like(source)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            continue
        median_ns = _median_ns(_copy_call(source, target), timer)
        how = f"torch copy_ of {size // _MIB} MiB float32 to another buffer, read + written"
        return Ceiling(name, 2 * size / median_ns * _NS_PER_S, "bytes", how)
    return None


def _copy_call(source: Any, target: Any) -> Callable[[], object]:
    return lambda: target.copy_(source)


def _matrix(name: str, device: str, timer: Timer, seed: int) -> Ceiling | None:
    """The rate of the largest square product that fits."""
    torch = require_torch()
    dtype_name, _ = _MATRICES[name]
    dtype = getattr(torch, dtype_name)
    for side in _sides(device, dtype_name):
        if 3 * side * side * dtype.itemsize > _memory_limit(device):
            continue
        try:
            left = _random((side, side), dtype, device, seed)
            right = _random((side, side), dtype, device, seed + 1)
            product = torch.empty_like(left)
            with float32_products("tf32" if name == "matrix_tf32" else "ieee"):
                median_ns = _median_ns(lambda: torch.mm(left, right, out=product), timer)  # noqa: B023
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            continue
        how = f"torch.mm of two {side} × {side} matrices of random {dtype_name}"
        return Ceiling(name, 2 * side**3 / median_ns * _NS_PER_S, "flop", how)
    return None


def _median_ns(fn: Callable[[], object], timer: Timer) -> float:
    """Median of samples within a time budget, after a warm-up."""
    (call,) = timer.prepare([fn])
    for _ in range(_WARMUP):
        timer.measure(call)
    samples: list[int] = []
    while len(samples) < _MIN_SAMPLES or (len(samples) < _MAX_SAMPLES and sum(samples) < _BUDGET_NS):
        samples.append(max(1, timer.measure(call)))
    return statistics.median(samples)


def _random(shape: tuple[int, ...], dtype: Any, device: str, seed: int) -> Any:
    torch = require_torch()
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)


def _sides(device: str, dtype_name: str) -> tuple[int, ...]:
    if _kind(device) == "cpu" and dtype_name != "float32":
        return _SLOW_ON_CPU_SIDES
    return _MATRIX_SIDES[_kind(device)]


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _memory_limit(device: str) -> float:
    """Bytes the tensors of one measurement may take; no limit where the host does not tell what is free."""
    if device.startswith("cuda"):
        free_bytes, _ = require_torch().cuda.mem_get_info(device)
    else:
        free_bytes = _available_host_bytes()
    return _LARGEST_SHARE * float(free_bytes)


def _available_host_bytes() -> float:
    """Memory the host can give without swapping.

    Source: proc(5), MemAvailable, in KiB.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    sizes = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return float(next(sizes, math.inf)) * 1024
