"""Keep a GPU busy while the host queues what is to be timed, and decide what its cache then holds.

A timed call whose launches are queued behind other work runs without waiting for the host: the time between
its events is device time. The other work is the flush of the last-level cache (cold), an untimed call (hot),
and, where the host needs longer than that, a kernel that only waits. Importing this module does not import
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opscope.errors import MeasurementError
from opscope.model.benchmark import CacheState
from opscope.workloads.runtime import is_out_of_memory, require_torch

__all__ = ["LaunchHiding"]

_NS_PER_MS = 1_000_000
# triton.testing.do_bench overwrites as much, so that both find the cache in the same state.
_FLUSH_BYTES = 256 * 2**20
_FLUSH_PER_CACHE = 4
_LONGEST_HOLD_NS = 10 * _NS_PER_MS
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

    Args:
        device: A CUDA device of torch, current when the methods are called.
        cache_state: `cold` overwrites a buffer of four times the L2 cache and at least 256 MiB; `hot` calls
            the function once untimed.

    Raises:
        MeasurementError: The buffer does not fit on the device.
    """

    def __init__(self, device: Any, cache_state: CacheState) -> None:
        self._torch = require_torch()
        self._is_cold = cache_state is CacheState.COLD
        self._buffer = self._make_buffer(device) if self._is_cold else None
        # By id: a strong reference would keep an implementation's memory. An id used again costs one sample
        # that is not hidden, or a hold too long.
        self._host_ns: dict[int, int] = {}
        self._margin: dict[int, float] = {}
        self._cycles_per_ns = self._measure_clock()
        self._flush_ns = 0 if self._buffer is None else self._time_ns(self._buffer.zero_)

    def precede(self, fn: Callable[[], object]) -> None:
        """Queue the work that hides the launches of `fn` and puts the cache in its state."""
        hold_ns = self._hold_ns(fn)
        if hold_ns > 0:
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

    def _hold_ns(self, fn: Callable[[], object]) -> float:
        """How long the device must wait besides the flush, in nanoseconds; 0 if the flush is enough."""
        host_ns = self._host_ns.get(id(fn))
        if host_ns is None:
            return 0.0
        # A hot call is queued twice: untimed, then timed.
        calls_ns = host_ns if self._is_cold else 2 * host_ns
        needed_ns = _FIXED_HOST_NS + self._margin.get(id(fn), _FIRST_MARGIN) * calls_ns
        return min(needed_ns - self._flush_ns, _LONGEST_HOLD_NS)

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

    def _measure_clock(self) -> float:
        """Cycles the waiting kernel counts per nanosecond."""
        sleep = self._torch.cuda._sleep
        sleep(_CALIBRATION_CYCLES)  # lets an idle device raise its clocks
        return _CALIBRATION_CYCLES / max(1, self._time_ns(lambda: sleep(_CALIBRATION_CYCLES)))

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
        return round(elapsed_ms * _NS_PER_MS)
