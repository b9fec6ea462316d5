"""What a device reaches at its best: memory, caches, matrix products of each type, starting kernels.

A probe is a call whose bytes or operations are known. Sizes are tried from the largest, until one fits into a
quarter of the free memory and does not run out of it; data are random: zeros would be faster. Two measure
with them: `measure_device` everything there is, each rate with its 95 % interval and the clocks read while
the same call ran; `measure_ceilings` what a benchmark is held against, in the same run with the same timer,
cold or hot, as the implementations: fractions of a ceiling compare like with like only then. What cannot be
measured is missing with its reason; nothing is estimated. Imports torch and Triton lazily.
"""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from opscope._version import __version__
from opscope.benchmarking.device_state import DeviceMonitor, driver_version, monitor_for
from opscope.benchmarking.problem import first_line, lost_device
from opscope.benchmarking.statistics import median_interval
from opscope.benchmarking.timer import CudaEventTimer, Timer, WallTimer
from opscope.errors import InputError, MeasurementError
from opscope.hardware.devices import cpu_name
from opscope.kernels.triton_loader import load_triton
from opscope.model.benchmark import CacheState, Ceiling, DeviceState
from opscope.model.measured_limits import (
    MEASURED_LIMITS_SCHEMA_VERSION,
    MeasuredLimits,
    MeasuredRate,
    MeasuredTime,
)
from opscope.units import NS_PER_S
from opscope.workloads.runtime import (
    is_out_of_memory,
    release_memory,
    require_torch,
    resolve_device,
    synchronize,
)

MIB = 1 << 20
_LARGEST_SHARE = 0.25  # of the free memory, all tensors together
# Bytes of the buffer copied, read or filled: many times any cache, so that starting and ending do not count.
BUFFER_BYTES = {"cuda": (2048 * MIB, 512 * MIB), "cpu": (128 * MIB,)}
SIDES = {"cuda": (8192, 4096, 2048), "cpu": (1024, 512, 256)}  # of the matrices multiplied
_LEAST_COPY_BYTES = 16 * MIB  # below this a copy measures launches and the timer
_WARMUP = 3
_BUDGET_NS = 300_000_000  # of the samples of one probe
_LONGEST_CALL_NS = 60_000_000  # of a product: float64 takes seconds where there are no units for it

# Of the reading kernel: resident together on every architecture (1024 threads), enough to hide latency.
_PROGRAMS_PER_SM = 8
# Odd and no divisor of usual counts, so that programs of one multiprocessor read far from each other.
_SCATTER = 97
_L2_SHARE = 4  # well inside: half of the cache may hold copies of the other half (two partitions, from GA100)

T = TypeVar("T")


class Probe(NamedTuple):
    """A call and the work it does."""

    call: Callable[[], object]
    amount: int  # bytes or operations of one call
    how: str  # what it is, for people
    # What must hold while it is called, such as a mode of float32 products.
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


class Attempt(NamedTuple):
    """A probe that can be made where so many bytes are to be had; `side` is the size of a product."""

    needed_bytes: int
    make: Callable[[], Probe]
    side: int = 0


def first_that_fits(
    attempts: Iterable[Attempt], device: str, measure: Callable[[Probe], T]
) -> tuple[Probe, T] | None:
    """The first probe that fits into memory, with what measuring it gave; None if none does."""
    for attempt in attempts:
        if attempt.needed_bytes > memory_limit_bytes(device):
            continue
        try:
            return _measured(attempt, measure)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Here the error is gone, and with it the tensors its frames held.
        release_memory()
    return None


def _measured(attempt: Attempt, measure: Callable[[Probe], T]) -> tuple[Probe, T]:
    probe = attempt.make()
    with probe.context():
        return probe, measure(probe)


def memory_limit_bytes(device: str) -> float:
    """Bytes the tensors of one measurement may take; no limit where the host does not tell what is free."""
    if device.startswith("cuda"):
        free_bytes, _ = require_torch().cuda.mem_get_info(device)
        return _LARGEST_SHARE * float(free_bytes)
    try:  # source: proc(5), MemAvailable, in KiB: what the host can give without swapping
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    sizes = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return _LARGEST_SHARE * float(next(sizes, math.inf)) * 1024


def _random(shape: tuple[int, ...], dtype: str, device: str, seed: int) -> Any:
    torch = require_torch()
    generator = torch.Generator(device=device).manual_seed(seed)
    empty = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
    return empty.normal_(generator=generator)


def copy_attempts(device: str, sizes: Iterable[int], seed: int) -> Iterator[Attempt]:
    """A buffer copied to another: `sizes` are bytes of one; what is read and what is written both count."""

    def make(size: int) -> Probe:
        source = _random((size // 4,), "float32", device, seed)
        target = require_torch().empty_like(source)
        how = f"torch copy_ of {size // MIB} MiB float32 to another buffer, read + written"
        return Probe(lambda: target.copy_(source), 2 * size, how)

    return (Attempt(2 * size, partial(make, size)) for size in sizes)


def fill_attempts(device: str, sizes: Iterable[int]) -> Iterator[Attempt]:
    """A buffer filled with one value."""

    def make(size: int) -> Probe:
        target = require_torch().empty(size // 4, dtype=require_torch().float32, device=device)
        return Probe(lambda: target.fill_(1.5), size, f"torch fill_ of {size // MIB} MiB float32")

    return (Attempt(size, partial(make, size)) for size in sizes)


def sum_attempts(device: str, sizes: Iterable[int], seed: int) -> Iterator[Attempt]:
    """A buffer summed up by torch: it is read once, and next to nothing is written."""

    def make(size: int) -> Probe:
        source = _random((size // 4,), "float32", device, seed)
        return Probe(source.sum, size, f"torch sum of {size // MIB} MiB float32")

    return (Attempt(size, partial(make, size)) for size in sizes)


def kernel_read_attempts(device: str, sizes: Iterable[int], seed: int) -> Iterator[Attempt]:
    """A buffer read once by the streaming kernel, every program as many chunks as the others."""
    streaming = load_triton("streaming")
    programs = _PROGRAMS_PER_SM * require_torch().cuda.get_device_properties(device).multi_processor_count
    round_bytes = programs * 4 * streaming.CHUNK

    def make(size: int) -> Probe:
        reads = size // round_bytes
        read_bytes = reads * round_bytes
        source = _random((read_bytes // 4,), "float32", device, seed)
        sums = require_torch().empty(programs, device=device)
        how = f"Triton kernel that reads {read_bytes // MIB} MiB float32 and adds up, {programs} programs"
        return Probe(
            lambda: streaming.read_chunks(source, sums, reads=reads, first_step=1, next_step=programs),
            read_bytes,
            how,
        )

    return (Attempt(size, partial(make, size)) for size in sizes if size >= round_bytes)


def l2_read_attempt(device: str, l2_bytes: int, seed: int) -> Attempt:
    """A buffer of a quarter of the L2 cache, which every program reads as a whole.

    The first-level cache cannot serve it: the loads bypass it (`.cg`), and a program comes back to a chunk
    only after the rest of a buffer many times as large as that cache.
    """
    streaming = load_triton("streaming")
    programs = _PROGRAMS_PER_SM * require_torch().cuda.get_device_properties(device).multi_processor_count
    chunk_bytes = 4 * streaming.CHUNK
    chunk_count = max(1, l2_bytes // _L2_SHARE // chunk_bytes)
    size = chunk_count * chunk_bytes

    def make() -> Probe:
        source = _random((size // 4,), "float32", device, seed)
        sums = require_torch().empty(programs, device=device)
        how = (
            f"Triton kernel whose {programs} programs each read the same {size / MIB:.3g} MiB of the "
            f"{l2_bytes / MIB:.3g} MiB L2 cache, past L1 (ld.global.cg)"
        )
        return Probe(
            lambda: streaming.read_chunks(source, sums, reads=chunk_count, first_step=_SCATTER, next_step=1),
            programs * size,
            how,
        )

    return Attempt(size, make)


@contextmanager
def float32_products(mode: str) -> Iterator[None]:
    """Float32 matrix products in a mode, `"tf32"` or `"ieee"`; the mode before is restored.

    Source: torch.backends.cuda.matmul.fp32_precision (from torch 2.9, which warns about the older name),
    allow_tf32 (before).
    """
    matmul = require_torch().backends.cuda.matmul
    attribute, value = (
        ("fp32_precision", mode) if hasattr(matmul, "fp32_precision") else ("allow_tf32", mode == "tf32")
    )
    before = getattr(matmul, attribute)
    setattr(matmul, attribute, value)
    try:
        yield
    finally:
        setattr(matmul, attribute, before)


def _mm(dtype: str, mode: str | None, side: int, device: str, seed: int) -> Probe:
    torch = require_torch()
    left, right = (_random((side, side), dtype, device, seed + number) for number in (0, 1))
    product = torch.empty_like(left)
    how = f"torch.mm of two {side} × {side} matrices of random {dtype}"
    context = nullcontext if mode is None else partial(float32_products, mode)
    return Probe(lambda: torch.mm(left, right, out=product), 2 * side**3, how, context)


def _fp8(side: int, device: str, seed: int) -> Probe:
    """Hopper and later multiply fp8 matrices whose second one is stored by columns, with one scale each."""
    torch = require_torch()
    left, right = (
        _random((side, side), "bfloat16", device, seed + number).to(torch.float8_e4m3fn) for number in (0, 1)
    )
    one = torch.ones((), device=device)

    def call() -> object:
        return torch._scaled_mm(
            left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    how = f"torch._scaled_mm of two {side} × {side} matrices of random float8_e4m3fn, fast accumulation"
    return Probe(call, 2 * side**3, how)


def _int8(side: int, device: str, seed: int) -> Probe:
    """The second matrix stored by columns, as integer tensor cores read it."""
    torch = require_torch()
    generator = torch.Generator(device=device).manual_seed(seed)
    left, right = (
        torch.randint(-127, 128, (side, side), dtype=torch.int8, device=device, generator=generator)
        for _ in range(2)
    )
    how = f"torch._int_mm of two {side} × {side} matrices of random int8"
    return Probe(lambda: torch._int_mm(left, right.t()), 2 * side**3, how)


# Matrix products by type: bytes of an element, least compute capability, what a CPU is said to lack (None if
# it has it), and the call. Source of capabilities: architecture whitepapers: tensor cores for fp16 from 7.0,
# int8 7.5, bf16 and TF32 8.0, fp8 8.9. `torch._int_mm` and `torch._scaled_mm` may ask for more, and say so.
PRODUCTS: dict[str, tuple[int, tuple[int, int], str | None, Callable[[int, str, int], Probe]]] = {
    "fp64": (8, (0, 0), None, partial(_mm, "float64", None)),
    "fp32": (4, (0, 0), None, partial(_mm, "float32", "ieee")),
    "tf32": (4, (8, 0), "TF32", partial(_mm, "float32", "tf32")),
    "fp16": (2, (7, 0), None, partial(_mm, "float16", None)),
    "bf16": (2, (8, 0), None, partial(_mm, "bfloat16", None)),
    "fp8": (1, (8, 9), "fast fp8 product", _fp8),
    "int8": (1, (7, 5), "fast int8 product", _int8),
}


def product_obstacle(device: str, name: str) -> str | None:
    """Why a device has no product of this type (of `PRODUCTS`); None if it may have."""
    _, needed, lacked, _ = PRODUCTS[name]
    if not device.startswith("cuda"):
        return None if lacked is None else f"a CPU has no {lacked}"
    major, minor = require_torch().cuda.get_device_capability(device)
    if (major, minor) >= needed:
        return None
    return f"needs compute capability {needed[0]}.{needed[1]}, {device} has {major}.{minor}"


def product_attempts(device: str, name: str, sides: Iterable[int], seed: int) -> Iterator[Attempt]:
    """Two square matrices of this type (of `PRODUCTS`) multiplied; the largest side first."""
    item_bytes, _, _, make = PRODUCTS[name]
    # Two operands of the type, and a result that may be as wide as float32.
    bytes_of_each = 2 * item_bytes + max(item_bytes, 4)
    return (Attempt(side * side * bytes_of_each, partial(make, side, device, seed), side) for side in sides)


def take_samples(fn: Callable[[], object], timer: Timer, *, least: int, most: int) -> list[int]:
    """Durations of a call in nanoseconds, after a warm-up: at least some, then as time allows."""
    (call,) = timer.prepare([fn])
    for _ in range(_WARMUP):
        timer.measure(call)
    samples: list[int] = []
    while len(samples) < least or (len(samples) < most and sum(samples) < _BUDGET_NS):
        samples.append(max(1, timer.measure(call)))
    return samples


_MATRICES = {
    "matrix_float32": "fp32", "matrix_tf32": "tf32", "matrix_bfloat16": "bf16", "matrix_float16": "fp16"
}  # fmt: skip
CEILINGS = ("copy", "copy_large", *_MATRICES)


def measure_ceilings(
    device: str, names: Sequence[str], timer: Timer, *, seed: int = 0, copy_bytes: int | None = None
) -> tuple[Ceiling, ...]:
    """The ceilings of these names that the device has; `ceiling_obstacle` says why one is missing.

    `copy` moves as many bytes as the call it is compared with: a copy of 500 MB is 3 % slower per byte than
    one of 4 GB (seen on an H200), because it too has to begin and to end. `copy_large` is that limit.
    """
    kind = device.partition(":")[0]
    found = []
    for name in dict.fromkeys(names):
        if ceiling_obstacle(device, name) is not None:
            continue
        if name in _MATRICES:
            # Half precision without matrix units is emulated, and slow; so the largest side is the last.
            sides = SIDES[kind] if kind == "cuda" or name == "matrix_float32" else SIDES[kind][-1:]
            attempts = product_attempts(device, _MATRICES[name], sides, seed)
        elif name == "copy_large" or copy_bytes is None:
            attempts = copy_attempts(device, BUFFER_BYTES[kind], seed)
        else:
            asked = max(copy_bytes // 8 * 4, _LEAST_COPY_BYTES)
            attempts = copy_attempts(device, (asked, *BUFFER_BYTES[kind]), seed)
        measured = first_that_fits(
            attempts, device, lambda probe: take_samples(probe.call, timer, least=5, most=30)
        )
        if measured is not None:
            probe, samples_ns = measured
            per_s = probe.amount / statistics.median(samples_ns) * NS_PER_S
            found.append(Ceiling(name, per_s, "flop" if name in _MATRICES else "bytes", probe.how))
            del probe, measured  # their tensors: the next ceiling needs the room
        release_memory()
    return tuple(found)


def ceiling_obstacle(device: str, name: str) -> str | None:
    """Why a device has no ceiling of this name; None if it has one."""
    if name not in CEILINGS:
        raise InputError(f"'{name}' is not a ceiling", hint=f"There are {', '.join(CEILINGS)}")
    obstacle = product_obstacle(device, _MATRICES[name]) if name in _MATRICES else None
    return f"{name} {obstacle}" if obstacle and obstacle.startswith("needs") else obstacle


# The kernel whose start is timed is empty (one thread that returns), so nothing else is measured; every batch
# begins with an idle device and is far shorter than the queue of launches (about a thousand), so the host
# never waits for room in it.
_BATCH = 200
_BATCHES = 61
_WARM_BATCHES = 5


def launch_time(device: str) -> MeasuredTime:
    """Host time of launching one kernel that does nothing, with what Python needs to ask for it."""
    sleep = require_torch().cuda._sleep
    how = f"host time of launching an empty kernel, batches of {_BATCH}"
    return _time("launch", _host_samples_ns(lambda: sleep(0), device), how)


def operator_call_time(device: str) -> MeasuredTime:
    """Host time of one of the cheapest operators: it launches one kernel and allocates nothing."""
    value = require_torch().zeros(1, device=device)
    how = f"host time of torch add_ on one element, called from Python, batches of {_BATCH}"
    return _time("operator_call", _host_samples_ns(lambda: value.add_(1.0), device), how)


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
# Work under which the clocks are read, halfway: a power limit takes its time to lower them.
_LOAD_NS = 40_000_000
_MOST_LOAD_CALLS = 500

RATES = ("copy", "read", "write", "l2_read", *(f"matrix_{name}" for name in PRODUCTS))
TIMERS: dict[str, Callable[[str], MeasuredTime]] = {
    "launch": launch_time,
    "operator_call": operator_call_time,
    "kernel_interval": kernel_interval,
}
_SEED = 0  # of the data


def measure_device(device: str = "cuda") -> MeasuredLimits:
    """Everything that can be measured of a device (`"cuda"`, `"cuda:N"` or `"cpu"`); takes seconds.

    Raises:
        InputError: This machine has no such device.
        MeasurementError: Nothing could be measured, or the device was lost meanwhile.
    """
    began_ns = time.perf_counter_ns()
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    resolved = resolve_device(device)
    if resolved.startswith("cuda"):
        if require_torch().version.hip is not None:
            raise InputError(
                "limits are measured of NVIDIA GPUs, and this PyTorch is built for AMD's",
                hint="Measure the CPU (cpu), or use a CUDA build of PyTorch",
            )
        cold, hot = (CudaEventTimer(resolved, state) for state in (CacheState.COLD, CacheState.HOT))
        bench = _Bench(resolved, cold, hot, monitor_for(resolved)[0])
    else:
        wall = WallTimer()
        bench = _Bench(resolved, wall, wall, monitor_for(resolved)[0])
    before = bench.monitor.read()
    rates = [rate for name in RATES if (rate := bench.tried(name, partial(bench.rate, name)))]
    times = [one for name in TIMERS if (one := bench.tried(name, partial(bench.time, name)))]
    if not rates:
        reason = next(iter(bench.missing.values()))
        raise MeasurementError(f"no rate of {resolved} could be measured: {reason}")
    return MeasuredLimits(
        schema_version=MEASURED_LIMITS_SCHEMA_VERSION,
        **_identity(resolved),
        opscope=__version__,
        created=created,
        duration_ns=time.perf_counter_ns() - began_ns,
        rates=tuple(rates),
        times=tuple(times),
        missing=bench.missing,
        state_before=before,
        state_after=bench.monitor.read(),
    )


def _identity(device: str) -> dict[str, Any]:
    """Which device it is, and the versions that its rates may depend on."""
    torch = require_torch()
    is_cuda = device.startswith("cuda")
    properties = torch.cuda.get_device_properties(device) if is_cuda else None
    return {
        "device": properties.name if properties else cpu_name() or "CPU",
        "compute_capability": f"{properties.major}.{properties.minor}" if properties else None,
        "sm_count": properties.multi_processor_count if properties else None,
        "memory_bytes": properties.total_memory if properties else None,
        "l2_bytes": getattr(properties, "L2_cache_size", 0) or None,
        "driver": driver_version() if is_cuda else None,
        "cuda_runtime": torch.version.cuda if is_cuda else None,
        "torch": str(torch.__version__),
    }


@dataclass
class _Bench:
    """One device with the clocks it is measured by, and why some of it could not be."""

    device: str
    cold: Timer
    hot: Timer
    monitor: DeviceMonitor
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]

    def tried(self, name: str, measure: Callable[[], T]) -> T | None:
        """What a measurement gives; None, its reason noted, if it gives nothing."""
        found = None
        try:
            found = measure()
        except Exception as error:  # libraries raise what they like for what they cannot do
            lost = lost_device(self.device)
            if lost is not None:
                raise MeasurementError(f"{self.device} was lost while {name} was measured: {lost}") from error
            self.missing[name] = first_line(error)
        release_memory()
        return found

    def time(self, name: str) -> MeasuredTime:
        if self.kind != "cuda":
            raise MeasurementError("a CPU launches no kernels")
        return TIMERS[name](self.device)

    def rate(self, name: str) -> MeasuredRate:
        """The rate of the fastest way to do it."""
        timer = self.hot if name == "l2_read" else self.cold
        best: MeasuredRate | None = None
        for attempts in self.ways(name):
            found = first_that_fits(attempts, self.device, lambda probe: self.sample(probe, timer))
            if found is None:
                continue
            probe, (samples_ns, state) = found
            interval = median_interval(samples_ns)
            work = probe.amount * NS_PER_S
            rate = MeasuredRate(
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
            best = rate if best is None or rate.per_s > best.per_s else best
            del probe, found  # their tensors: the next way needs the room
            release_memory()
        if best is None:
            raise MeasurementError("there is no room for it in a quarter of the free memory")
        return best

    def ways(self, name: str) -> Iterator[Iterable[Attempt]]:
        """Ways to do one thing, each as attempts from the largest size."""
        device, sizes = self.device, BUFFER_BYTES[self.kind]
        if name == "copy":
            yield copy_attempts(device, sizes, _SEED)
        elif name == "write":
            yield fill_attempts(device, sizes)
        elif name == "l2_read":
            if self.kind != "cuda":
                raise MeasurementError("a CPU's caches are not measured")
            size = getattr(require_torch().cuda.get_device_properties(device), "L2_cache_size", 0)
            if not size:
                raise MeasurementError("this PyTorch does not tell the size of the L2 cache")
            yield [l2_read_attempt(device, size, _SEED)]
        elif name == "read":
            yield sum_attempts(device, sizes, _SEED)
            yield from self.kernel_ways(sizes)
        else:
            yield self.products(name.removeprefix("matrix_"))

    def kernel_ways(self, sizes: Iterable[int]) -> Iterator[Iterable[Attempt]]:
        """The streaming kernel where Triton can compile it; torch's sum is measured in any case."""
        if self.kind != "cuda":
            return
        try:
            attempts = list(kernel_read_attempts(self.device, sizes, _SEED))
            first_that_fits(attempts[-1:], self.device, lambda probe: probe.call())
        except Exception as error:  # Triton is missing, or has no compiler: its errors are many
            if lost_device(self.device) is not None:
                raise
            self.missing["read_by_kernel"] = first_line(error)
            return
        yield attempts

    def products(self, name: str) -> list[Attempt]:
        """Products of the sides whose one call is short enough, by the time of the smallest."""
        obstacle = product_obstacle(self.device, name)
        if obstacle is not None:
            raise MeasurementError(obstacle)
        attempts = list(product_attempts(self.device, name, SIDES[self.kind], _SEED))

        def once_ns(probe: Probe) -> int:
            (call,) = self.cold.prepare([probe.call])
            self.cold.measure(call)  # loads libraries
            return self.cold.measure(call)

        pilot = first_that_fits(attempts[-1:], self.device, once_ns)
        if pilot is None:
            return []
        per_volume = pilot[1] / attempts[-1].side ** 3
        return [one for one in attempts if per_volume * one.side**3 <= _LONGEST_CALL_NS] or attempts[-1:]

    def sample(self, probe: Probe, timer: Timer) -> tuple[list[int], DeviceState | None]:
        """Samples, and clocks and throttle reasons while the call runs: an idle device has others."""
        samples_ns = take_samples(probe.call, timer, least=_MIN_SAMPLES, most=_MAX_SAMPLES)
        if self.kind != "cuda":
            return samples_ns, None
        with require_torch().cuda.device(self.device):
            for _ in range(min(_MOST_LOAD_CALLS, 1 + _LOAD_NS // min(samples_ns))):
                probe.call()
            time.sleep(_LOAD_NS / 2 / NS_PER_S)
            state = self.monitor.read()
        synchronize()
        return samples_ns, state
