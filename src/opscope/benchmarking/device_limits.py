"""What a device reaches at its best: memory, caches, matrix products of each type, starting kernels.

Each rate is the median of samples after a warm-up, on random data, with its 95 % interval and the clocks read
while the same call ran. What cannot be measured is missing with its reason; nothing is estimated. The kernel
whose start is timed is empty (one thread that returns), so nothing else is measured; every batch of those
begins with an idle device and is far shorter than the queue of launches (about a thousand), so the host never
waits for room in it. Imports torch lazily.
"""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opscope._version import __version__
from opscope.benchmarking.device_probes import (
    MIB,
    PRODUCTS,
    Attempt,
    Probe,
    fill_attempts,
    first_that_fits,
    kernel_read_attempts,
    l2_read_attempt,
    large_copy_attempts,
    product_attempts,
    product_obstacle,
    sum_attempts,
    take_samples,
)
from opscope.benchmarking.device_state import DeviceMonitor, driver_version, monitor_for
from opscope.benchmarking.problem import first_line, lost_device
from opscope.benchmarking.statistics import median_interval
from opscope.benchmarking.timer import CudaEventTimer, Timer, WallTimer
from opscope.errors import InputError, MeasurementError
from opscope.model.benchmark import CacheState, DeviceState
from opscope.model.measured_limits import (
    MEASURED_LIMITS_SCHEMA_VERSION,
    MeasuredLimits,
    MeasuredRate,
    MeasuredTime,
)
from opscope.units import NS_PER_S
from opscope.workloads.runtime import release_memory, require_torch, resolve_device, synchronize

__all__ = ["RATES", "TIMES", "kernel_interval", "launch_time", "measure_device", "operator_call_time"]


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


# At least six samples bound the median with 95 % confidence; the more, the tighter.
_MIN_SAMPLES, _MAX_SAMPLES = 9, 51
_BUDGET_NS = 300_000_000
_LONGEST_CALL_NS = 60_000_000  # of a product: float64 takes seconds where there are no units for it
# Work under which the clocks are read, halfway: a power limit takes its time to lower them.
_LOAD_NS = 40_000_000
_MOST_LOAD_CALLS = 500

# Bytes of the buffer read or filled: many times any L2 cache.
_BUFFER_BYTES = {"cuda": (2048 * MIB, 512 * MIB), "cpu": (128 * MIB,)}
_SIDES = {"cuda": (8192, 4096, 2048), "cpu": (1024, 512, 256)}

RATES = ("copy", "read", "write", "l2_read", *(f"matrix_{name}" for name in PRODUCTS))
_TIMERS: dict[str, Callable[[str], MeasuredTime]] = {
    "launch": launch_time,
    "operator_call": operator_call_time,
    "kernel_interval": kernel_interval,
}
TIMES = tuple(_TIMERS)
_SEED = 0  # of the data


@dataclass
class _Bench:
    """One device with the clocks it is measured by, and what came out so far."""

    device: str
    cold: Timer
    hot: Timer
    monitor: DeviceMonitor
    rates: list[MeasuredRate] = field(default_factory=list)
    times: list[MeasuredTime] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]


def measure_device(device: str = "cuda") -> MeasuredLimits:
    """Measure everything that can be measured of a device. Takes some ten seconds on a GPU."""
    began_ns = time.perf_counter_ns()
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    bench = _bench(device)
    before = bench.monitor.read()
    for name in RATES:
        _keep(bench, name, lambda name=name: _measure_rate(bench, name), bench.rates)  # type: ignore[misc]
    for name, measure in _TIMERS.items():
        _keep(bench, name, lambda measure=measure: _measure_time(bench, measure), bench.times)  # type: ignore[misc]
    if not bench.rates:
        reason = next(iter(bench.missing.values()))
        raise MeasurementError(f"no rate of {bench.device} could be measured: {reason}")
    return MeasuredLimits(
        schema_version=MEASURED_LIMITS_SCHEMA_VERSION,
        **_identity(bench.device),
        opscope=__version__,
        created=created,
        duration_ns=time.perf_counter_ns() - began_ns,
        rates=tuple(bench.rates),
        times=tuple(bench.times),
        missing=bench.missing,
        state_before=before,
        state_after=bench.monitor.read(),
    )


def _bench(device: str) -> _Bench:
    resolved = resolve_device(device)
    if not resolved.startswith("cuda"):
        wall = WallTimer()
        return _Bench(resolved, wall, wall, monitor_for(resolved)[0])
    if require_torch().version.hip is not None:
        raise InputError(
            "limits are measured of NVIDIA GPUs, and this PyTorch is built for AMD's",
            hint="Use --device cpu, or a CUDA build of PyTorch",
        )
    cold, hot = (CudaEventTimer(resolved, state) for state in (CacheState.COLD, CacheState.HOT))
    return _Bench(resolved, cold, hot, monitor_for(resolved)[0])


def _identity(device: str) -> dict[str, Any]:
    """Which device it is, and the versions that its rates may depend on."""
    torch = require_torch()
    known: dict[str, Any] = dict.fromkeys(("compute_capability", "sm_count", "memory_bytes", "l2_bytes"))
    known |= {"device": platform.processor() or platform.machine(), "driver": None, "cuda_runtime": None}
    known["torch"] = str(torch.__version__)
    if not device.startswith("cuda"):
        return known
    properties = torch.cuda.get_device_properties(device)
    return {
        **known,
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": _l2_bytes(device),
        "driver": driver_version(),
        "cuda_runtime": torch.version.cuda,
    }


def _keep(bench: _Bench, name: str, measure: Callable[[], Any], kept: list[Any]) -> None:
    """Note what a measurement gives, or why it gives nothing."""
    try:
        kept.append(measure())
    except Exception as error:  # libraries raise what they like for what they cannot do
        lost = lost_device(bench.device)
        if lost is not None:
            raise MeasurementError(f"{bench.device} was lost while {name} was measured: {lost}") from error
        bench.missing[name] = first_line(error)
    release_memory()


def _measure_time(bench: _Bench, measure: Callable[[str], MeasuredTime]) -> MeasuredTime:
    if bench.kind != "cuda":
        raise MeasurementError("a CPU launches no kernels")
    return measure(bench.device)


def _measure_rate(bench: _Bench, name: str) -> MeasuredRate:
    """The rate of the fastest way to do it."""
    timer = bench.hot if name == "l2_read" else bench.cold
    best: MeasuredRate | None = None
    for attempts in _ways(bench, name):
        found = first_that_fits(attempts, bench.device, lambda probe: _sample(bench, probe, timer))
        if found is not None:
            probe, (samples_ns, state) = found
            rate = _rate(name, probe, samples_ns, state)
            best = rate if best is None or rate.per_s > best.per_s else best
            del probe, found  # their tensors: the next way needs the room
            release_memory()
    if best is None:
        raise MeasurementError("there is no room for it in a quarter of the free memory")
    return best


def _ways(bench: _Bench, name: str) -> Iterator[Iterable[Attempt]]:
    """Ways to do one thing, each as attempts from the largest size."""
    device, sizes = bench.device, _BUFFER_BYTES[bench.kind]
    if name == "copy":
        yield large_copy_attempts(device, _SEED)
    elif name == "write":
        yield fill_attempts(device, sizes)
    elif name == "l2_read":
        yield [l2_read_attempt(device, _known_l2_bytes(bench), _SEED)]
    elif name == "read":
        yield sum_attempts(device, sizes, _SEED)
        yield from _kernel_ways(bench, sizes)
    else:
        yield _products(bench, name.removeprefix("matrix_"))


def _kernel_ways(bench: _Bench, sizes: Iterable[int]) -> Iterator[Iterable[Attempt]]:
    """The streaming kernel where Triton can compile it; torch's sum is measured in any case."""
    if bench.kind != "cuda":
        return
    try:
        attempts = list(kernel_read_attempts(bench.device, sizes, _SEED))
        first_that_fits(attempts[-1:], bench.device, lambda probe: probe.call())
    except Exception as error:  # Triton is missing, or has no compiler: its errors are many
        if lost_device(bench.device) is not None:
            raise
        bench.missing["read_by_kernel"] = first_line(error)
        return
    yield attempts


def _products(bench: _Bench, name: str) -> list[Attempt]:
    """Products of the sides whose one call is short enough, by the time of the smallest."""
    obstacle = product_obstacle(bench.device, name)
    if obstacle is not None:
        raise MeasurementError(obstacle)
    attempts = list(product_attempts(bench.device, name, _SIDES[bench.kind], _SEED))
    pilot = first_that_fits(attempts[-1:], bench.device, lambda probe: _once_ns(probe, bench.cold))
    if pilot is None:
        return []
    per_volume = pilot[1] / attempts[-1].side ** 3
    return [one for one in attempts if per_volume * one.side**3 <= _LONGEST_CALL_NS] or attempts[-1:]


def _once_ns(probe: Probe, timer: Timer) -> int:
    """One call after another that loads libraries."""
    (call,) = timer.prepare([probe.call])
    timer.measure(call)
    return timer.measure(call)


def _sample(bench: _Bench, probe: Probe, timer: Timer) -> tuple[list[int], DeviceState | None]:
    samples_ns = take_samples(probe.call, timer, least=_MIN_SAMPLES, most=_MAX_SAMPLES, budget_ns=_BUDGET_NS)
    return samples_ns, _state_under_load(bench, probe, min(samples_ns))


def _state_under_load(bench: _Bench, probe: Probe, call_ns: int) -> DeviceState | None:
    """Clocks and throttle reasons while the call runs: an idle device has others."""
    if bench.kind != "cuda":
        return None
    with require_torch().cuda.device(bench.device):
        for _ in range(min(_MOST_LOAD_CALLS, 1 + _LOAD_NS // call_ns)):
            probe.call()
        time.sleep(_LOAD_NS / 2 / NS_PER_S)
        state = bench.monitor.read()
    synchronize()
    return state


def _rate(name: str, probe: Probe, samples_ns: list[int], state: DeviceState | None) -> MeasuredRate:
    interval = median_interval(samples_ns)
    work = probe.amount * NS_PER_S
    return MeasuredRate(
        name=name,
        unit="operations" if name.startswith("matrix_") else "bytes",
        per_s=work / interval.median_ns,
        low_per_s=work / interval.high_ns,
        high_per_s=work / interval.low_ns,
        amount=probe.amount,
        median_ns=interval.median_ns,
        sample_count=len(samples_ns),
        how=probe.how,
        state=state,
    )


def _known_l2_bytes(bench: _Bench) -> int:
    if bench.kind != "cuda":
        raise MeasurementError("a CPU's caches are not measured")
    size = _l2_bytes(bench.device)
    if size is None:
        raise MeasurementError("this PyTorch does not tell the size of the L2 cache")
    return size


def _l2_bytes(device: str) -> int | None:
    size: int = getattr(require_torch().cuda.get_device_properties(device), "L2_cache_size", 0)
    return size or None
