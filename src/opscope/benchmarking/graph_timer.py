"""The timer that replays CUDA graphs, and the choice of a timer for a benchmark.

A replay launches all kernels of a call at once, so nothing of the host's cost per launch is in a sample.
Importing this module does not import torch.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from opscope.benchmarking.failures import first_line
from opscope.benchmarking.timer import CudaEventTimer, Timer, WallTimer
from opscope.errors import InputError, MeasurementError
from opscope.model.benchmark import CacheState
from opscope.model.measurement import Clock
from opscope.workloads.runtime import is_out_of_memory, require_torch, synchronize

__all__ = ["CudaGraphTimer", "benchmark_timer"]

_WARMUP_CALLS = 3


class CudaGraphTimer:
    """CUDA events around the replay of a CUDA graph of each call.

    The graphs of one `prepare` share their memory, which is right because only one of them runs at a time and
    no one reads their outputs; it is freed with the last of them.

    Args:
        device: CUDA device, e.g. `"cuda:0"`; the current one if None.
        cache_state: What the L2 cache holds when a sample begins.

    Raises:
        MeasurementError: There is no CUDA device, or no room on it to flush its cache.
    """

    def __init__(self, device: str | None = None, cache_state: CacheState = CacheState.COLD) -> None:
        self._events = CudaEventTimer(device, cache_state)
        self.clock = Clock.CUDA_GRAPH
        self.resolution_ns = self._events.resolution_ns
        self._torch = require_torch()
        self._device = self._torch.device(device or "cuda")

    def prepare(self, calls: Sequence[Callable[[], object]]) -> Sequence[Callable[[], object]]:
        """Replays of a graph of each call.

        Raises:
            MeasurementError: A call cannot be captured: it waits for the device, copies from pageable
                memory or changes what it launches.
        """
        replays: list[Callable[[], object]] = []
        pool = None
        gc.collect()  # a graph freed during a capture would break it
        with self._torch.cuda.device(self._device):
            for call in calls:
                graph = self._capture(call, pool)
                pool = graph.pool()
                replays.append(graph.replay)
        return replays

    def measure(self, fn: Callable[[], object]) -> int:
        """Time between two events around one replay, in nanoseconds."""
        return self._events.measure(fn)

    def _capture(self, call: Callable[[], object], pool: Any) -> Any:
        cuda = self._torch.cuda
        # Lazy initialization (library handles, autotuning) must not fall into the capture.
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(_WARMUP_CALLS):
                call()
        cuda.current_stream().wait_stream(side)
        synchronize()
        graph = cuda.CUDAGraph()
        try:
            with warnings.catch_warnings():
                # Of a capture that failed: "The CUDA Graph is empty". The error says more.
                warnings.filterwarnings("ignore", message="The CUDA Graph is empty", category=UserWarning)
                with cuda.graph(graph, pool=pool):
                    call()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise MeasurementError(
                f"it cannot be captured in a CUDA graph ({first_line(error)})",
                hint="Measure it with the clock 'events'",
            ) from error
        return graph


def benchmark_timer(device: str, clock: Clock | None, cache_state: CacheState) -> Timer:
    """The timer of a benchmark: by default CUDA events on a GPU and the wall clock elsewhere.

    Raises:
        InputError: The clock needs a CUDA device.
        MeasurementError: The device has no room to flush its cache.
    """
    is_cuda = device.startswith("cuda")
    chosen = clock or (Clock.CUDA_EVENT if is_cuda else Clock.WALL)
    if chosen is Clock.WALL:
        return WallTimer()
    if not is_cuda:
        raise InputError(
            f"the clock '{chosen}' needs a CUDA device, not '{device}'", hint="Use the wall clock"
        )
    return (
        CudaGraphTimer(device, cache_state)
        if chosen is Clock.CUDA_GRAPH
        else CudaEventTimer(device, cache_state)
    )
