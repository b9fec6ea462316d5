"""What a device reaches at its best: memory, caches, matrix products of each type, starting kernels.

A probe is a call whose bytes or operations are known. It is of the largest size that fits into a quarter of a
GPU's free memory; data are random: zeros would be faster. Two measure
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
from functools import partial
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
    release_memory,
    require_torch,
    resolve_device,
    synchronize,
)

MIB = 1 << 20
_LARGEST_SHARE = 0.25  # of a GPU's free memory, all tensors together
# Bytes of the buffer copied, read or filled: many times any cache, so that starting and ending do not count.
BUFFER_BYTES = {"cuda": (2048 * MIB, 512 * MIB), "cpu": (128 * MIB,)}
SIDES = {"cuda": (8192, 4096, 2048), "cpu": (1024, 512, 256)}  # of the matrices multiplied
_LEAST_COPY_BYTES = 16 * MIB  # below this a copy measures launches and the timer
_WARMUP = 3
_BUDGET_NS = 300_000_000  # of the samples of one probe
# Of a product: float64 takes seconds where there are no units for it, half precision where it is emulated.
_LONGEST_CALL_NS = 60_000_000

# Of the reading kernel: resident together on every architecture (1024 threads), enough to hide latency.
_PROGRAMS_PER_SM = 8
# Odd and no divisor of usual counts, so that programs of one multiprocessor read far from each other.
_SCATTER = 97
_L2_SHARE = 4  # well inside: half of the cache may hold copies of the other half (two partitions, from GA100)
_SEED = 0  # of the data

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


def measured_where_it_fits(
    attempts: Iterable[Attempt], device: str, measure: Callable[[Probe], T]
) -> tuple[Probe, T] | None:
    """The first probe that fits into memory, with what measuring it gave; None if none does."""
    room_bytes = math.inf  # a CPU's probes are small
    if device.startswith("cuda"):
        free_bytes, _ = require_torch().cuda.mem_get_info(device)
        room_bytes = _LARGEST_SHARE * free_bytes
    for attempt in attempts:
        if attempt.needed_bytes <= room_bytes:
            probe = attempt.make()
            with probe.context():
                return probe, measure(probe)
    return None


def attempts_of(name: str, device: str, timer: Timer, *, copy_bytes: int | None = None) -> list[Attempt]:
    """Ways to measure a rate or a ceiling of this name, the largest size first.

    `copy` moves as many bytes as the call it is compared with, if that is known: a copy of 500 MB is 3 %
    slower per byte than one of 4 GB (seen on an H200), because it too has to begin and to end.
    """
    kind = device.partition(":")[0]
    sizes = BUFFER_BYTES[kind]
    if name == "copy" and copy_bytes is not None:
        sizes = (max(copy_bytes // 8 * 4, _LEAST_COPY_BYTES), *sizes)
    if name in {"copy", "copy_large"}:
        return [Attempt(2 * size, partial(_copy, device, size)) for size in sizes]
    if name == "write":
        return [Attempt(size, partial(_fill, device, size)) for size in sizes]
    if name == "read":
        return [Attempt(size, partial(_sum, device, size)) for size in sizes]
    if name == "read_by_kernel":
        return _kernel_reads(device, sizes)
    if name == "l2_read":
        if kind != "cuda":
            raise MeasurementError("a CPU's caches are not measured")
        l2_bytes = getattr(require_torch().cuda.get_device_properties(device), "L2_cache_size", 0)
        if not l2_bytes:
            raise MeasurementError("this PyTorch does not tell the size of the L2 cache")
        return [l2_read(device, l2_bytes)]
    return products(_MATRICES.get(name, name.removeprefix("matrix_")), device, timer)


def _random(shape: tuple[int, ...], dtype: str, device: str, seed: int) -> Any:
    torch = require_torch()
    generator = torch.Generator(device=device).manual_seed(seed)
    empty = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
    return empty.normal_(generator=generator)


def _copy(device: str, size: int) -> Probe:
    """What is read and what is written both count."""
    source = _random((size // 4,), "float32", device, _SEED)
    target = require_torch().empty_like(source)
    how = f"torch copy_ of {size // MIB} MiB float32 to another buffer, read + written"
    return Probe(lambda: target.copy_(source), 2 * size, how)


def _fill(device: str, size: int) -> Probe:
    target = require_torch().empty(size // 4, dtype=require_torch().float32, device=device)
    return Probe(lambda: target.fill_(1.5), size, f"torch fill_ of {size // MIB} MiB float32")


def _sum(device: str, size: int) -> Probe:
    """It is read once, and next to nothing is written."""
    source = _random((size // 4,), "float32", device, _SEED)
    return Probe(source.sum, size, f"torch sum of {size // MIB} MiB float32")


def _reading_kernel(device: str) -> tuple[Any, int, int]:
    """The streaming kernel, how many programs of it to start, and bytes of a chunk that one of them reads."""
    streaming = load_triton("streaming")
    count = require_torch().cuda.get_device_properties(device).multi_processor_count
    return streaming, _PROGRAMS_PER_SM * count, 4 * streaming.CHUNK


def _kernel_reads(device: str, sizes: Iterable[int]) -> list[Attempt]:
    """A buffer read once by the streaming kernel, every program as many chunks as the others."""
    streaming, programs, chunk_bytes = _reading_kernel(device)

    def make(reads: int) -> Probe:
        size = reads * programs * chunk_bytes
        source = _random((size // 4,), "float32", device, _SEED)
        sums = require_torch().empty(programs, device=device)
        how = f"Triton kernel that reads {size // MIB} MiB float32 and adds up, {programs} programs"
        call = partial(streaming.read_chunks, source, sums, reads=reads, first_step=1, next_step=programs)
        return Probe(call, size, how)

    rounds = [(size, size // (programs * chunk_bytes)) for size in sizes]
    return [Attempt(size, partial(make, reads)) for size, reads in rounds if reads]


def l2_read(device: str, l2_bytes: int) -> Attempt:
    """A buffer of a quarter of the L2 cache, which every program reads as a whole.

    The first-level cache cannot serve it: the loads bypass it (`.cg`), and a program comes back to a chunk
    only after the rest of a buffer many times as large as that cache.
    """
    streaming, programs, chunk_bytes = _reading_kernel(device)
    chunks = max(1, l2_bytes // _L2_SHARE // chunk_bytes)
    size = chunks * chunk_bytes

    def make() -> Probe:
        source = _random((size // 4,), "float32", device, _SEED)
        sums = require_torch().empty(programs, device=device)
        how = (
            f"Triton kernel whose {programs} programs each read the same {size / MIB:.3g} MiB of the "
            f"{l2_bytes / MIB:.3g} MiB L2 cache, past L1 (ld.global.cg)"
        )
        call = partial(streaming.read_chunks, source, sums, reads=chunks, first_step=_SCATTER, next_step=1)
        return Probe(call, programs * size, how)

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


def _mm(dtype: str, mode: str | None, side: int, device: str) -> Probe:
    torch = require_torch()
    left, right = (_random((side, side), dtype, device, _SEED + number) for number in (0, 1))
    product = torch.empty_like(left)
    how = f"torch.mm of two {side} × {side} matrices of random {dtype}"
    context = nullcontext if mode is None else partial(float32_products, mode)
    return Probe(lambda: torch.mm(left, right, out=product), 2 * side**3, how, context)


def _fp8(side: int, device: str) -> Probe:
    """Hopper and later multiply fp8 matrices whose second one is stored by columns, with one scale each."""
    torch = require_torch()
    left, right = (
        _random((side, side), "bfloat16", device, _SEED + number).to(torch.float8_e4m3fn) for number in (0, 1)
    )
    one = torch.ones((), device=device)
    scales = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
    how = f"torch._scaled_mm of two {side} × {side} matrices of random float8_e4m3fn, fast accumulation"
    return Probe(lambda: torch._scaled_mm(left, right.t(), **scales), 2 * side**3, how)


def _int8(side: int, device: str) -> Probe:
    """The second matrix stored by columns, as integer tensor cores read it."""
    torch = require_torch()
    generator = torch.Generator(device=device).manual_seed(_SEED)
    left, right = (
        torch.randint(-127, 128, (side, side), dtype=torch.int8, device=device, generator=generator)
        for _ in range(2)
    )
    how = f"torch._int_mm of two {side} × {side} matrices of random int8"
    return Probe(lambda: torch._int_mm(left, right.t()), 2 * side**3, how)


# Matrix products by type: bytes of an element, least compute capability, what a CPU is said to lack (None if
# it has it), and the call. Source of capabilities: architecture whitepapers: tensor cores for fp16 from 7.0,
# int8 7.5, bf16 and TF32 8.0, fp8 8.9. `torch._int_mm` and `torch._scaled_mm` may ask for more, and say so.
PRODUCTS: dict[str, tuple[int, tuple[int, int], str | None, Callable[[int, str], Probe]]] = {
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


def products(name: str, device: str, timer: Timer) -> list[Attempt]:
    """Two square matrices of this type (of `PRODUCTS`) multiplied, of the sides whose one call is short.

    How long one takes follows from the smallest.
    """
    obstacle = product_obstacle(device, name)
    if obstacle is not None:
        raise MeasurementError(obstacle)
    item_bytes, _, _, make = PRODUCTS[name]
    # Two operands of the type, and a result that may be as wide as float32.
    bytes_of_each = 2 * item_bytes + max(item_bytes, 4)
    attempts = [
        Attempt(side * side * bytes_of_each, partial(make, side, device), side)
        for side in SIDES[device.partition(":")[0]]
    ]

    def once_ns(probe: Probe) -> int:
        (call,) = timer.prepare([probe.call])
        timer.measure(call)  # loads libraries
        return timer.measure(call)

    pilot = measured_where_it_fits(attempts[-1:], device, once_ns)
    if pilot is None:
        return []
    per_volume = pilot[1] / attempts[-1].side ** 3
    return [one for one in attempts if per_volume * one.side**3 <= _LONGEST_CALL_NS] or attempts[-1:]


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
    device: str, names: Sequence[str], timer: Timer, *, copy_bytes: int | None = None
) -> tuple[Ceiling, ...]:
    """The ceilings of these names that the device has; `ceiling_obstacle` says why one is missing."""
    found = []
    for name in dict.fromkeys(names):
        if ceiling_obstacle(device, name) is not None:
            continue
        attempts = attempts_of(name, device, timer, copy_bytes=copy_bytes)
        measured = measured_where_it_fits(
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
_BATCH, _BATCHES, _WARM_BATCHES = 200, 61, 5
TIMERS = {
    "launch": f"host time of launching an empty kernel, batches of {_BATCH}",
    # One of the cheapest operators: it launches one kernel and allocates nothing.
    "operator_call": f"host time of torch add_ on one element, called from Python, batches of {_BATCH}",
    # From the start of one to the start of the next, all queued before the first begins.
    "kernel_interval": f"device time per empty kernel, {_BATCH} queued one after another on a stream",
}


def measure_start(name: str, device: str) -> MeasuredTime:
    """What starting kernels takes, of `TIMERS`: the median of batches, per piece."""
    if not device.startswith("cuda"):
        raise MeasurementError("a CPU launches no kernels")
    torch, samples_ns = require_torch(), []
    call: Callable[[], object] = partial(torch.cuda._sleep, 0)
    if name == "operator_call":
        call = partial(torch.zeros(1, device=device).add_, 1.0)

    def batch() -> None:
        for _ in range(_BATCH):
            call()

    events = CudaEventTimer(device, CacheState.HOT) if name == "kernel_interval" else None
    with torch.cuda.device(device):
        for _ in range(_WARM_BATCHES + _BATCHES):
            if events is not None:
                duration_ns = events.measure(batch)
            else:
                torch.cuda.synchronize()
                began_ns = time.perf_counter_ns()
                batch()
                duration_ns = time.perf_counter_ns() - began_ns
            samples_ns.append(duration_ns / _BATCH)
        torch.cuda.synchronize()
    interval = median_interval(samples_ns[_WARM_BATCHES:])
    return MeasuredTime(
        name=name,
        median_ns=interval.median_ns,
        low_ns=interval.low_ns,
        high_ns=interval.high_ns,
        sample_count=_BATCHES,
        how=TIMERS[name],
    )


# At least six samples bound the median with 95 % confidence; the more, the tighter.
_MIN_SAMPLES, _MAX_SAMPLES = 9, 51
# Work under which the clocks are read, halfway: a power limit takes its time to lower them.
_LOAD_NS = 40_000_000
_MOST_LOAD_CALLS = 500

RATES = ("copy", "read", "write", "l2_read", *(f"matrix_{name}" for name in PRODUCTS))


def measure_device(device: str = "cuda") -> MeasuredLimits:
    """Everything that can be measured of a device (`"cuda"`, `"cuda:N"` or `"cpu"`); takes seconds.

    Raises:
        InputError: This machine has no such device.
        MeasurementError: Nothing could be measured, or the device was lost meanwhile.
    """
    began_ns = time.perf_counter_ns()
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    resolved, torch = resolve_device(device), require_torch()
    is_cuda = resolved.startswith("cuda")
    if is_cuda and torch.version.hip is not None:
        raise InputError(
            "limits are measured of NVIDIA GPUs, and this PyTorch is built for AMD's",
            hint="Measure the CPU (cpu), or use a CUDA build of PyTorch",
        )
    monitor, _ = monitor_for(resolved)
    cold: Timer = CudaEventTimer(resolved, CacheState.COLD) if is_cuda else WallTimer()
    hot: Timer = CudaEventTimer(resolved, CacheState.HOT) if is_cuda else cold
    missing: dict[str, str] = {}

    def tried(name: str, measure: Callable[[], T]) -> T | None:
        """What a measurement gives; None, its reason noted, if it gives nothing."""
        found = None
        try:
            found = measure()
        except Exception as error:  # libraries raise what they like for what they cannot do
            lost = lost_device(resolved)
            if lost is not None:
                raise MeasurementError(f"{resolved} was lost while {name} was measured: {lost}") from error
            missing[name] = first_line(error)
        release_memory()
        return found

    before, rates = monitor.read(), []
    for name in RATES:
        timer = hot if name == "l2_read" else cold
        # Reading is measured by torch's sum, and by a kernel where Triton can compile it: the faster counts.
        ways = ("read", "read_by_kernel") if name == "read" and is_cuda else (name,)
        found = [tried(way, partial(measure_rate, name, way, resolved, timer, monitor)) for way in ways]
        rates += sorted(filter(None, found), key=lambda rate: rate.per_s)[-1:]
    if not rates:
        raise MeasurementError(f"no rate of {resolved} could be measured: {next(iter(missing.values()))}")
    times = [tried(name, partial(measure_start, name, resolved)) for name in TIMERS]
    return MeasuredLimits(
        schema_version=MEASURED_LIMITS_SCHEMA_VERSION,
        **device_identity(resolved),
        opscope=__version__,
        created=created,
        duration_ns=time.perf_counter_ns() - began_ns,
        rates=tuple(rates),
        times=tuple(filter(None, times)),
        missing=missing,
        state_before=before,
        state_after=monitor.read(),
    )


def device_identity(device: str) -> dict[str, Any]:
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


def measure_rate(name: str, way: str, device: str, timer: Timer, monitor: DeviceMonitor) -> MeasuredRate:
    """A rate with the state of the device while the call ran: an idle device has other clocks."""

    def sample(probe: Probe) -> tuple[list[int], DeviceState | None]:
        samples_ns = take_samples(probe.call, timer, least=_MIN_SAMPLES, most=_MAX_SAMPLES)
        if not device.startswith("cuda"):
            return samples_ns, None
        with require_torch().cuda.device(device):
            for _ in range(min(_MOST_LOAD_CALLS, 1 + _LOAD_NS // min(samples_ns))):
                probe.call()
            time.sleep(_LOAD_NS / 2 / NS_PER_S)
            state = monitor.read()
        synchronize()
        return samples_ns, state

    found = measured_where_it_fits(attempts_of(way, device, timer), device, sample)
    if found is None:
        raise MeasurementError("there is no room for it in a quarter of the free memory")
    probe, (samples_ns, state) = found
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
