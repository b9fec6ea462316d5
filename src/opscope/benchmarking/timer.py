"""Timers: how long one call takes, in integer nanoseconds.

A timer waits until all device work of a call is done, and keeps nothing of it. Importing this module does not
import torch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

from opscope.benchmarking.launch_hiding import LaunchHiding
from opscope.errors import MeasurementError
from opscope.model.benchmark import CacheState
from opscope.model.measurement import Clock
from opscope.workloads.runtime import require_torch, synchronize

__all__ = ["CudaEventTimer", "Timer", "WallTimer", "timer_for"]

_NS_PER_MS = 1_000_000
_EMPTY_CALLS = 51


class Timer(Protocol):
    """Measures single calls."""

    @property
    def clock(self) -> Clock:
        """What the samples are taken with."""
        ...

    @property
    def resolution_ns(self) -> float:
        """Shortest duration it tells from none, in nanoseconds."""
        ...

    def prepare(self, calls: Sequence[Callable[[], object]]) -> Sequence[Callable[[], object]]:
        """What to give to `measure` in place of each call: the call itself, or a recording of it.

        Raises:
            MeasurementError: A call cannot be measured this way.
        """
        ...

    def measure(self, fn: Callable[[], object]) -> int:
        """Duration of one call of `fn`, in nanoseconds, including the device work it started."""
        ...


class WallTimer:
    """Host clock around one call, the device synchronized on both sides. Works without a device."""

    def __init__(self) -> None:
        self.clock = Clock.WALL

    @cached_property
    def resolution_ns(self) -> float:
        """Median duration of a call that does nothing: the timer's own cost."""
        return max(1.0, statistics.median(self.measure(_nothing) for _ in range(_EMPTY_CALLS)))

    def prepare(self, calls: Sequence[Callable[[], object]]) -> Sequence[Callable[[], object]]:
        """The calls themselves."""
        return calls

    def measure(self, fn: Callable[[], object]) -> int:
        """Duration of one call of `fn` until its device work is done, in nanoseconds."""
        synchronize()
        start_ns = time.perf_counter_ns()
        fn()
        synchronize()
        return time.perf_counter_ns() - start_ns


class CudaEventTimer:
    """CUDA events before and after one call, on the device's current stream.

    Without a cache state, a sample is a latency: the device is idle when the call begins, so it holds the
    launch latency of the first kernel and every gap in which the device waited for the host.

    With one, a sample is device time: the call is queued behind other work (see `LaunchHiding`), so its
    kernels follow each other as fast as the device takes them, and the time runs from before the first to
    after the last. It exceeds the sum of the kernels' durations by the device's own gaps, about a microsecond
    a kernel. Gaps remain where a call waits for the device itself or takes the host longer than 10 ms.

    Source: CUDA Runtime API, cudaEventElapsedTime: "a resolution of around 0.5 microseconds".

    Args:
        device: CUDA device, e.g. `"cuda:0"`; the current one if None.
        cache_state: What the L2 cache holds when a sample begins; None measures latency.

    Raises:
        MeasurementError: There is no CUDA device, or no room on it to flush its cache.
    """

    def __init__(self, device: str | None = None, cache_state: CacheState | None = None) -> None:
        torch = require_torch()
        if not torch.cuda.is_available():
            raise MeasurementError("CUDA events need a CUDA device", hint="Use WallTimer on this machine")
        self.clock = Clock.CUDA_EVENT
        self.resolution_ns = 500.0
        self._cuda = torch.cuda
        self._device = torch.device(device or "cuda")
        with self._cuda.device(self._device):
            self._start = self._cuda.Event(enable_timing=True)
            self._end = self._cuda.Event(enable_timing=True)
            self._hiding = None if cache_state is None else LaunchHiding(self._device, cache_state)

    def prepare(self, calls: Sequence[Callable[[], object]]) -> Sequence[Callable[[], object]]:
        """The calls themselves."""
        return calls

    def measure(self, fn: Callable[[], object]) -> int:
        """Time between two events around one call of `fn`, in nanoseconds."""
        with self._cuda.device(self._device):
            if self._hiding is None:
                self._cuda.synchronize()
                self._record(fn)
            else:
                self._record_hidden(fn, self._hiding)
            self._end.synchronize()
        elapsed_ms: float = self._start.elapsed_time(self._end)
        return round(elapsed_ms * _NS_PER_MS)

    def _record(self, fn: Callable[[], object]) -> None:
        self._start.record()
        fn()
        self._end.record()

    def _record_hidden(self, fn: Callable[[], object], hiding: LaunchHiding) -> None:
        hiding.precede(fn)
        began_ns = time.perf_counter_ns()
        self._record(fn)
        host_ns = time.perf_counter_ns() - began_ns
        hiding.learn(fn, host_ns, was_hidden=not self._start.query())


def timer_for(device: str) -> Timer:
    """CUDA events for a CUDA device, the wall clock for any other: what measures a latency."""
    return CudaEventTimer(device) if device.startswith("cuda") else WallTimer()


def _nothing() -> None:
    pass
