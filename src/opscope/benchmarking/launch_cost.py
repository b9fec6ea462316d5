"""What it costs to start work on a GPU: the host's time for a launch, the device's time between kernels.

The kernel launched is empty (one thread that returns), so nothing else is measured. Every batch begins with
an idle device and is far shorter than the queue of launches (about a thousand), so the host never waits for
room in it. Imports torch lazily.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opscope.benchmarking.statistics import median_interval
from opscope.benchmarking.timer import CudaEventTimer
from opscope.model.benchmark import CacheState
from opscope.model.measured_limits import MeasuredTime
from opscope.workloads.runtime import require_torch

__all__ = ["kernel_interval", "launch_time", "operator_call_time"]

_BATCH = 200
_BATCHES = 61
_WARM_BATCHES = 5


def launch_time(device: str) -> MeasuredTime:
    """Host time of launching one kernel that does nothing, with what Python needs to ask for it."""
    sleep = require_torch().cuda._sleep
    samples_ns = _host_samples_ns(lambda: sleep(0), device)
    return _time("launch", samples_ns, f"host time of launching an empty kernel, batches of {_BATCH}")


def operator_call_time(device: str) -> MeasuredTime:
    """Host time of one of the cheapest operators: it launches one kernel and allocates nothing."""
    torch = require_torch()
    value = torch.zeros(1, device=device)
    samples_ns = _host_samples_ns(lambda: value.add_(1.0), device)
    how = f"host time of torch add_ on one element, called from Python, batches of {_BATCH}"
    return _time("operator_call", samples_ns, how)


def kernel_interval(device: str) -> MeasuredTime:
    """From the start of one empty kernel to the start of the next, all queued before the first begins."""
    sleep = require_torch().cuda._sleep
    timer = CudaEventTimer(device, CacheState.HOT)

    def batch() -> None:
        for _ in range(_BATCH):
            sleep(0)

    for _ in range(_WARM_BATCHES):
        timer.measure(batch)
    samples_ns = [timer.measure(batch) / _BATCH for _ in range(_BATCHES)]
    how = f"device time per empty kernel, {_BATCH} queued one after another on a stream"
    return _time("kernel_interval", samples_ns, how)


def _host_samples_ns(call: Callable[[], object], device: str) -> list[float]:
    """Time per call of each batch, until the last call has returned; the device works meanwhile."""
    cuda = require_torch().cuda
    samples_ns = []
    with cuda.device(device):
        for _ in range(_WARM_BATCHES + _BATCHES):
            cuda.synchronize()
            began_ns = time.perf_counter_ns()
            for _ in range(_BATCH):
                call()
            samples_ns.append((time.perf_counter_ns() - began_ns) / _BATCH)
        cuda.synchronize()
    return samples_ns[_WARM_BATCHES:]


def _time(name: str, samples_ns: Sequence[float], how: str) -> MeasuredTime:
    interval = median_interval(samples_ns)
    return MeasuredTime(
        name=name,
        median_ns=interval.median_ns,
        low_ns=interval.low_ns,
        high_ns=interval.high_ns,
        sample_count=len(samples_ns),
        how=how,
    )
