"""Timers: how long one call takes, in integer nanoseconds.

A timer calls the function exactly once per measurement and waits until all its device work is done. Importing
this module does not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from opscope.errors import MeasurementError
from opscope.model.measurement import Clock
from opscope.workloads.runtime import require_torch, synchronize

__all__ = ["CudaEventTimer", "Timer", "WallTimer", "timer_for"]

_NS_PER_MS = 1_000_000


class Timer(Protocol):
    """Measures single calls."""

    clock: Clock

    def measure(self, fn: Callable[[], object]) -> int:
        """Duration of one call of `fn`, in nanoseconds, including the device work it started."""
        ...


class WallTimer:
    """Host clock around one call, the device synchronized on both sides. Works without a device."""

    def __init__(self) -> None:
        self.clock = Clock.WALL

    def measure(self, fn: Callable[[], object]) -> int:
        """Duration of one call of `fn` until its device work is done, in nanoseconds."""
        synchronize()
        start_ns = time.perf_counter_ns()
        fn()
        synchronize()
        return time.perf_counter_ns() - start_ns


class CudaEventTimer:
    """CUDA events before and after one call, on the device's current stream.

    The device is idle when a call begins, so a sample holds the launch latency of its first kernel and every
    gap in which the device waited for the host. Resolution is about 0.5 µs.

    Source: CUDA Runtime API, cudaEventElapsedTime (a float32 of milliseconds).

    Args:
        device: CUDA device, e.g. `"cuda:0"`; the current one if None.

    Raises:
        MeasurementError: There is no CUDA device.
    """

    def __init__(self, device: str | None = None) -> None:
        torch = require_torch()
        if not torch.cuda.is_available():
            raise MeasurementError("CUDA events need a CUDA device", hint="Use WallTimer on this machine")
        self.clock = Clock.CUDA_EVENT
        self._cuda = torch.cuda
        self._device = torch.device(device or "cuda")

    def measure(self, fn: Callable[[], object]) -> int:
        """Time between two events around one call of `fn`, in nanoseconds."""
        with self._cuda.device(self._device):
            self._cuda.synchronize()
            start = self._cuda.Event(enable_timing=True)
            end = self._cuda.Event(enable_timing=True)
            start.record()
            fn()
            end.record()
            end.synchronize()
        elapsed_ms: float = start.elapsed_time(end)
        return round(elapsed_ms * _NS_PER_MS)


def timer_for(device: str) -> Timer:
    """CUDA events for a CUDA device, the wall clock for any other."""
    return CudaEventTimer(device) if device.startswith("cuda") else WallTimer()
