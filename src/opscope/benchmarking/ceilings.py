"""What the device reaches at copying and at multiplying, measured in the same run with the same timer.

Fractions of a ceiling compare like with like only if both were measured alike, so these calls are timed
cold or hot, by events or the wall clock, as the implementations are. Memory stays under a quarter of what is
free. Imports torch lazily.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from opscope.benchmarking.device_probes import (
    MIB,
    Attempt,
    copy_attempts,
    first_that_fits,
    product_attempts,
    product_obstacle,
)
from opscope.benchmarking.timer import Timer
from opscope.errors import InputError
from opscope.model.benchmark import Ceiling
from opscope.workloads.runtime import release_memory

__all__ = ["CEILINGS", "ceiling_obstacle", "large_copy_attempts", "measure_ceilings", "take_samples"]

_NS_PER_S = 1_000_000_000
_WARMUP = 3
_MIN_SAMPLES = 5
_MAX_SAMPLES = 30
_BUDGET_NS = 300_000_000

# Bytes of each of the two buffers of `copy_large`: starting and ending the copy no longer count.
_LARGE_COPY_BYTES = {"cuda": (2048 * MIB, 512 * MIB), "cpu": (128 * MIB,)}
# Below this a copy measures launches and the timer.
_LEAST_COPY_BYTES = 16 * MIB
_MATRIX_SIDES = {"cuda": (8192, 4096, 2048), "cpu": (1024, 512)}
_SLOW_ON_CPU_SIDES = (256,)  # half precision without matrix units is emulated

_MATRICES = {
    "matrix_float32": "fp32",
    "matrix_tf32": "tf32",
    "matrix_bfloat16": "bf16",
    "matrix_float16": "fp16",
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
            ceiling = _measure(name, device, timer, seed, copy_bytes)
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
    obstacle = product_obstacle(device, _MATRICES[name])
    return f"{name} {obstacle}" if obstacle and obstacle.startswith("needs") else obstacle


def large_copy_attempts(device: str, seed: int, *sizes: int) -> Iterator[Attempt]:
    """Copies of these sizes in bytes of one buffer, then of those of `copy_large`."""
    return copy_attempts(device, (*sizes, *_LARGE_COPY_BYTES[_kind(device)]), seed)


def take_samples(
    fn: Callable[[], object],
    timer: Timer,
    *,
    least: int = _MIN_SAMPLES,
    most: int = _MAX_SAMPLES,
    budget_ns: int = _BUDGET_NS,
) -> list[int]:
    """Durations of a call in nanoseconds, after a warm-up: at least some, then as time allows."""
    (call,) = timer.prepare([fn])
    for _ in range(_WARMUP):
        timer.measure(call)
    samples: list[int] = []
    while len(samples) < least or (len(samples) < most and sum(samples) < budget_ns):
        samples.append(max(1, timer.measure(call)))
    return samples


def _measure(name: str, device: str, timer: Timer, seed: int, copy_bytes: int | None) -> Ceiling | None:
    """The rate of the first size that fits."""
    if name in _MATRICES:
        attempts = product_attempts(device, _MATRICES[name], _sides(device, name), seed)
    elif name == "copy_large" or copy_bytes is None:
        attempts = large_copy_attempts(device, seed)
    else:
        attempts = large_copy_attempts(device, seed, max(copy_bytes // 8 * 4, _LEAST_COPY_BYTES))
    found = first_that_fits(attempts, device, lambda probe: take_samples(probe.call, timer))
    if found is None:
        return None
    probe, samples_ns = found
    per_s = probe.amount / statistics.median(samples_ns) * _NS_PER_S
    return Ceiling(name, per_s, "flop" if name in _MATRICES else "bytes", probe.how)


def _sides(device: str, name: str) -> tuple[int, ...]:
    if _kind(device) == "cpu" and name != "matrix_float32":
        return _SLOW_ON_CPU_SIDES
    return _MATRIX_SIDES[_kind(device)]


def _kind(device: str) -> str:
    return device.partition(":")[0]
