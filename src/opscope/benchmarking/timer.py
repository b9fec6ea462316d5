"""Timers: how long one call takes, in integer nanoseconds; and the latency of a callable by all its samples.

A timer waits until all device work of a call is done, and keeps nothing of it. A timed call whose launches
are queued behind other work runs without waiting for the host: the time between its events is device time.
The other work is the flush of the last-level cache (cold), an untimed call (hot), and, where the host needs
longer than that, a kernel that only waits. Importing this module does not import torch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from opscope.errors import InputError, MeasurementError
from opscope.model.benchmark import CacheState, Clock, Latency
from opscope.units import NS_PER_MS, NS_PER_S
from opscope.workloads.runtime import is_out_of_memory, require_torch, synchronize

# triton.testing.do_bench overwrites as much, so that both find the cache in the same state.
_FLUSH_BYTES = 256 * 2**20
_FLUSH_PER_CACHE = 4
_LONGEST_HOLD_NS = 10 * NS_PER_MS
# A hold lasts so many times the shortest time the host has needed for the call; more after it was too short.
_FIRST_MARGIN = 1.5
_LARGEST_MARGIN = 6.0
# What the host needs besides the call: launching the flush, recording two events.
_FIXED_HOST_NS = 20_000
_CALIBRATION_CYCLES = 2_000_000


class LaunchHiding:
    """Work queued ahead of a timed call on the current stream.

    How long the host needs for a call is learned from its calls, so the first sample of one may not be
    hidden; warm up with the timer. A call that itself waits for the device cannot be hidden, and holds are
    never longer than 10 ms.
    """

    def __init__(self, device: Any, cache_state: CacheState) -> None:
        self._torch = require_torch()
        self._is_cold = cache_state is CacheState.COLD
        self._buffer = self._make_buffer(device) if self._is_cold else None
        # By id: a strong reference would keep an implementation's memory. An id used again costs one sample
        # that is not hidden, or a hold too long.
        self._host_ns: dict[int, int] = {}
        self._margin: dict[int, float] = {}
        sleep = partial(self._torch.cuda._sleep, _CALIBRATION_CYCLES)
        sleep()  # lets an idle device raise its clocks
        self._cycles_per_ns = _CALIBRATION_CYCLES / max(1, self._time_ns(sleep))
        self._flush_ns = 0 if self._buffer is None else self._time_ns(self._buffer.zero_)

    def precede(self, fn: Callable[[], object]) -> None:
        """Queue the work that hides the launches of `fn` and puts the cache in its state."""
        host_ns = self._host_ns.get(id(fn))
        if host_ns is not None:
            # A hot call is queued twice: untimed, then timed.
            calls_ns = host_ns if self._is_cold else 2 * host_ns
            needed_ns = _FIXED_HOST_NS + self._margin.get(id(fn), _FIRST_MARGIN) * calls_ns
            hold_ns = min(needed_ns - self._flush_ns, _LONGEST_HOLD_NS)
            if hold_ns > 0:  # else the flush is enough
                # Before the flush, so that the cache is as the flush left it when the call begins.
                self._torch.cuda._sleep(int(hold_ns * self._cycles_per_ns))
        if self._buffer is not None:
            self._buffer.zero_()
        else:
            fn()

    def learn(self, fn: Callable[[], object], host_ns: int, *, was_hidden: bool) -> None:
        """Note how long the host took to queue `fn`, and whether the device was still busy then."""
        key = id(fn)
        known_ns = self._host_ns.get(key)
        if known_ns is not None and not was_hidden:
            self._margin[key] = min(self._margin.get(key, _FIRST_MARGIN) * 1.5, _LARGEST_MARGIN)
        self._host_ns[key] = host_ns if known_ns is None else min(known_ns, host_ns)

    def _make_buffer(self, device: Any) -> Any:
        torch = self._torch
        cache_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        size_bytes = max(_FLUSH_BYTES, _FLUSH_PER_CACHE * cache_bytes)
        try:
            return torch.empty(size_bytes // 4, dtype=torch.int32, device=device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise MeasurementError(
                f"{device} has no room for the {size_bytes >> 20} MiB that empty its cache",
                hint="Free some of its memory, or measure with the cache state 'hot'",
            ) from error

    def _time_ns(self, fn: Callable[[], object]) -> int:
        """Device time of one queued call, launched behind another one of it."""
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        fn()
        start.record()
        fn()
        end.record()
        end.synchronize()
        elapsed_ms: float = start.elapsed_time(end)
        return round(elapsed_ms * NS_PER_MS)


_EMPTY_CALLS = 51


class Timer(Protocol):
    clock: Clock  # what the samples are taken with
    resolution_ns: float  # shortest duration it tells from none

    def measure(self, fn: Callable[[], object]) -> int:
        """Duration of one call of `fn`, in nanoseconds, including the device work it started."""


class WallTimer(Timer):
    """Host clock around one call, the device synchronized on both sides. Works without a device."""

    clock = Clock.WALL

    def __init__(self) -> None:
        # What a call that does nothing takes: the timer's own cost.
        empty_ns = statistics.median(self.measure(lambda: None) for _ in range(_EMPTY_CALLS))
        self.resolution_ns = max(1.0, empty_ns)

    def measure(self, fn: Callable[[], object]) -> int:
        synchronize()
        start_ns = time.perf_counter_ns()
        fn()
        synchronize()
        return time.perf_counter_ns() - start_ns


class CudaEventTimer(Timer):
    """CUDA events before and after one call, on the device's current stream.

    Without a cache state, a sample is a latency: the device is idle when the call begins, so it holds the
    launch latency of the first kernel and every gap in which the device waited for the host.

    With one, a sample is device time: the call is queued behind other work (see `LaunchHiding`), so its
    kernels follow each other as fast as the device takes them, and the time runs from before the first to
    after the last. It exceeds the sum of the kernels' durations by the device's own gaps, about a microsecond
    a kernel. Gaps remain where a call waits for the device itself or takes the host longer than 10 ms.

    Source: CUDA Runtime API, cudaEventElapsedTime: "a resolution of around 0.5 microseconds".
    """

    clock, resolution_ns = Clock.CUDA_EVENT, 500.0

    def __init__(self, device: str | None = None, cache_state: CacheState | None = None) -> None:
        torch = require_torch()
        if not torch.cuda.is_available():
            raise MeasurementError("CUDA events need a CUDA device", hint="Use WallTimer on this machine")
        self._cuda = torch.cuda
        self._device = torch.device(device or "cuda")
        with self._cuda.device(self._device):
            self._start = self._cuda.Event(enable_timing=True)
            self._end = self._cuda.Event(enable_timing=True)
            self._hiding = None if cache_state is None else LaunchHiding(self._device, cache_state)

    def measure(self, fn: Callable[[], object]) -> int:
        with self._cuda.device(self._device):
            if self._hiding is None:
                self._cuda.synchronize()
            else:
                self._hiding.precede(fn)
            began_ns = time.perf_counter_ns()
            self._start.record()
            fn()
            self._end.record()
            if self._hiding is not None:
                self._hiding.learn(fn, time.perf_counter_ns() - began_ns, was_hidden=not self._start.query())
            self._end.synchronize()
        elapsed_ms: float = self._start.elapsed_time(self._end)
        return round(elapsed_ms * NS_PER_MS)


def benchmark_timer(device: str, clock: Clock | None, cache_state: CacheState) -> Timer:
    """The timer of a benchmark: by default CUDA events on a GPU and the wall clock elsewhere."""
    is_cuda = device.startswith("cuda")
    chosen = clock or (Clock.CUDA_EVENT if is_cuda else Clock.WALL)
    if chosen is Clock.WALL:
        return WallTimer()
    if chosen is Clock.CUDA_GRAPH:
        raise InputError(
            "calls are no longer timed as replays of CUDA graphs", hint="CUDA events hide launches too"
        )
    if not is_cuda:
        raise InputError(
            f"the clock '{chosen}' needs a CUDA device, not '{device}'", hint="Use the wall clock"
        )
    return CudaEventTimer(device, cache_state)


def take_samples(  # noqa: PLR0917 - how many
    fn: Callable[[], object], timer: Timer, warmup: int, least: int, most: int, budget_ns: float
) -> list[int]:
    """Durations of a call in nanoseconds, after a warm-up: at least some, then as the time budget allows.

    The budget counts the samples' own durations, so the number of samples follows from the timer alone.
    """
    for _ in range(warmup):
        timer.measure(fn)
    samples_ns: list[int] = []
    while len(samples_ns) < least or (len(samples_ns) < most and sum(samples_ns) < budget_ns):
        samples_ns.append(max(1, timer.measure(fn)))
    return samples_ns


def measure_latency(fn: Callable[[], object], device: str) -> Latency:
    """Samples of a callable on a device, two seconds of them: by CUDA events, or the wall clock on a CPU."""
    timer = CudaEventTimer(device) if device.startswith("cuda") else WallTimer()
    return Latency(tuple(take_samples(fn, timer, 5, 10, 200, 2 * NS_PER_S)), timer.clock, warmup_count=5)
