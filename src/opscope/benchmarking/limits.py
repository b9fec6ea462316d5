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
from opscope.benchmarking.device_state import StateReader, driver_version, state_reader
from opscope.benchmarking.problem import first_line, lost_device
from opscope.benchmarking.statistics import median_interval
from opscope.benchmarking.timer import CudaEventTimer, Timer, WallTimer, take_samples
from opscope.errors import InputError, MeasurementError
from opscope.hardware.devices import cpu_name
from opscope.hardware.limits import MEASURED_LIMITS_SCHEMA_VERSION, MeasuredLimits, MeasuredRate, MeasuredTime
from opscope.kernels.triton import load_triton
from opscope.model.benchmark import CacheState, Ceiling
from opscope.units import NS_PER_S
from opscope.workloads.runtime import release_memory, require_torch, resolve_device, synchronize

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
    """A call of known work, made where its tensors have room."""

    needed_bytes: int
    amount: int  # bytes or operations of one call
    how: str  # what it is, for people
    make: Callable[[], Callable[[], object]]
    # What must hold while it is called, such as a mode of float32 products.
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


def fitting(probes: Iterable[Probe], device: str) -> Probe:
    """The first probe that fits into a quarter of a GPU's free memory; a CPU's are small."""
    room_bytes = math.inf
    if device.startswith("cuda"):
        free_bytes, _ = require_torch().cuda.mem_get_info(device)
        room_bytes = _LARGEST_SHARE * free_bytes
    for probe in probes:
        if probe.needed_bytes <= room_bytes:
            return probe
    raise MeasurementError("there is no room for it in a quarter of the free memory")


def probes_of(name: str, device: str, timer: Timer, *, copy_bytes: int | None = None) -> list[Probe]:
    """Ways to measure a rate or a ceiling of this name, the largest size first.

    `copy` moves as many bytes as the call it is compared with, if that is known: a copy of 500 MB is 3 %
    slower per byte than one of 4 GB (seen on an H200), because it too has to begin and to end. Of a copy
    what is read and what is written both count.
    """
    kind = device.partition(":")[0]
    sizes = BUFFER_BYTES[kind]
    if name == "copy" and copy_bytes is not None:
        sizes = (max(copy_bytes // 8 * 4, _LEAST_COPY_BYTES), *sizes)
    if name in {"copy", "copy_large"}:
        how = "torch copy_ of {} MiB float32 to another buffer, read + written"
        return [
            Probe(2 * size, 2 * size, how.format(size // MIB), partial(_copy, device, size)) for size in sizes
        ]
    if name == "read" and kind == "cuda":
        return _kernel_reads(device, sizes)
    if name in {"write", "read"}:
        make, word = (_fill, "fill_") if name == "write" else (_sum, "sum")
        return [
            Probe(size, size, f"torch {word} of {size // MIB} MiB float32", partial(make, device, size))
            for size in sizes
        ]
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
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device).normal_(generator=generator)


def _copy(device: str, size: int) -> Callable[[], object]:
    source = _random((size // 4,), "float32", device, _SEED)
    return partial(require_torch().empty_like(source).copy_, source)


def _fill(device: str, size: int) -> Callable[[], object]:
    return partial(require_torch().empty(size // 4, dtype=require_torch().float32, device=device).fill_, 1.5)


def _sum(device: str, size: int) -> Callable[[], object]:
    return partial(_random((size // 4,), "float32", device, _SEED).sum)


def _read_chunks(device: str, size: int, programs: int, **how: int) -> Callable[[], object]:
    source = _random((size // 4,), "float32", device, _SEED)
    sums = require_torch().empty(programs, device=device)
    return partial(load_triton("streaming").read_chunks, source, sums, **how)


def _reading_programs(device: str) -> tuple[int, int]:
    """How many programs of the streaming kernel to start, and bytes of a chunk that one of them reads."""
    count = require_torch().cuda.get_device_properties(device).multi_processor_count
    return _PROGRAMS_PER_SM * count, 4 * load_triton("streaming").CHUNK


def _kernel_reads(device: str, sizes: Iterable[int]) -> list[Probe]:
    """A buffer read once by the streaming kernel, every program as many chunks as the others."""
    programs, chunk_bytes = _reading_programs(device)
    found = []
    for reads in filter(None, (size // (programs * chunk_bytes) for size in sizes)):
        size = reads * programs * chunk_bytes
        how = f"Triton kernel that reads {size // MIB} MiB float32 and adds up, {programs} programs"
        make = partial(_read_chunks, device, size, programs, reads=reads, first_step=1, next_step=programs)
        found.append(Probe(size, size, how, make))
    return found


def l2_read(device: str, l2_bytes: int) -> Probe:
    """A buffer of a quarter of the L2 cache, which every program reads as a whole.

    The first-level cache cannot serve it: the loads bypass it (`.cg`), and a program comes back to a chunk
    only after the rest of a buffer many times as large as that cache.
    """
    programs, chunk_bytes = _reading_programs(device)
    chunks = max(1, l2_bytes // _L2_SHARE // chunk_bytes)
    size = chunks * chunk_bytes
    how = (
        f"Triton kernel whose {programs} programs each read the same {size / MIB:.3g} MiB of the "
        f"{l2_bytes / MIB:.3g} MiB L2 cache, past L1 (ld.global.cg)"
    )
    make = partial(_read_chunks, device, size, programs, reads=chunks, first_step=_SCATTER, next_step=1)
    return Probe(size, programs * size, how, make)


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


def _mm(dtype: str, side: int, device: str) -> Callable[[], object]:
    left, right = (_random((side, side), dtype, device, _SEED + number) for number in (0, 1))
    return partial(require_torch().mm, left, right, out=require_torch().empty_like(left))


def _fp8(side: int, device: str) -> Callable[[], object]:
    """Hopper and later multiply fp8 matrices whose second one is stored by columns, with one scale each."""
    torch = require_torch()
    left, right = (
        _random((side, side), "bfloat16", device, _SEED + number).to(torch.float8_e4m3fn) for number in (0, 1)
    )
    one = torch.ones((), device=device)
    scales = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
    return partial(torch._scaled_mm, left, right.t(), **scales)


def _int8(side: int, device: str) -> Callable[[], object]:
    """The second matrix stored by columns, as integer tensor cores read it."""
    torch = require_torch()
    generator = torch.Generator(device=device).manual_seed(_SEED)
    left, right = (
        torch.randint(-127, 128, (side, side), dtype=torch.int8, device=device, generator=generator)
        for _ in range(2)
    )
    return partial(torch._int_mm, left, right.t())


class Product(NamedTuple):
    """A type of matrix product.

    Source of capabilities: architecture whitepapers: tensor cores for fp16 from 7.0, int8 7.5, bf16 and TF32
    8.0, fp8 8.9. `torch._int_mm` and `torch._scaled_mm` may ask for more, and say so.
    """

    item_bytes: int  # of an element
    capability: tuple[int, int]  # the least of a GPU
    how: str  # operator and data
    make: Callable[[int, str], Callable[[], object]]
    mode: str | None = None  # of float32 products
    lacked: str | None = None  # what a CPU is said to lack; None if it has it


_MM = "torch.mm of two {0} × {0} matrices of random "
_SCALED = "torch._scaled_mm of two {0} × {0} matrices of random float8_e4m3fn, fast accumulation"
_INT8 = "torch._int_mm of two {0} × {0} matrices of random int8"
PRODUCTS = {
    "fp64": Product(8, (0, 0), _MM + "float64", partial(_mm, "float64")),
    "fp32": Product(4, (0, 0), _MM + "float32", partial(_mm, "float32"), "ieee"),
    "tf32": Product(4, (8, 0), _MM + "float32", partial(_mm, "float32"), "tf32", "TF32"),
    "fp16": Product(2, (7, 0), _MM + "float16", partial(_mm, "float16")),
    "bf16": Product(2, (8, 0), _MM + "bfloat16", partial(_mm, "bfloat16")),
    "fp8": Product(1, (8, 9), _SCALED, _fp8, lacked="fast fp8 product"),
    "int8": Product(1, (7, 5), _INT8, _int8, lacked="fast int8 product"),
}
_MATRICES = {
    "matrix_float32": "fp32", "matrix_tf32": "tf32", "matrix_bfloat16": "bf16", "matrix_float16": "fp16"
}  # fmt: skip


def products(name: str, device: str, timer: Timer) -> list[Probe]:
    """Two square matrices of this type (of `PRODUCTS`) multiplied, of the sides whose one call is short.

    How long one takes follows from the smallest. A MeasurementError says why the device has no such product.
    """
    kind = PRODUCTS[name]
    if not device.startswith("cuda"):
        if kind.lacked is not None:
            raise MeasurementError(f"a CPU has no {kind.lacked}")
    elif (has := require_torch().cuda.get_device_capability(device)) < kind.capability:
        needed = ".".join(map(str, kind.capability))
        raise MeasurementError(f"needs compute capability {needed}, {device} has {has[0]}.{has[1]}")
    # Two operands of the type, and a result that may be as wide as float32.
    bytes_of_each = 2 * kind.item_bytes + max(kind.item_bytes, 4)
    context = nullcontext if kind.mode is None else partial(float32_products, kind.mode)
    probes = [
        Probe(
            side * side * bytes_of_each, 2 * side**3, kind.how.format(side),
            partial(kind.make, side, device), context,
        )
        for side in SIDES[device.partition(":")[0]]
    ]  # fmt: skip
    pilot = fitting(probes[-1:], device)
    with pilot.context():
        call = pilot.make()
        timer.measure(call)  # loads libraries
        per_operation_ns = timer.measure(call) / pilot.amount
    return [one for one in probes if per_operation_ns * one.amount <= _LONGEST_CALL_NS] or probes[-1:]


def measure_ceilings(
    device: str, names: Sequence[str], timer: Timer, *, copy_bytes: int | None = None
) -> tuple[Ceiling, ...]:
    found = []
    for name in dict.fromkeys(names):
        try:
            probe = fitting(probes_of(name, device, timer, copy_bytes=copy_bytes), device)
        except MeasurementError:
            continue
        with probe.context():
            samples_ns = take_samples(probe.make(), timer, _WARMUP, 5, 30, _BUDGET_NS)
        per_s = probe.amount / statistics.median(samples_ns) * NS_PER_S
        found.append(Ceiling(name, per_s, "flop" if name in _MATRICES else "bytes", probe.how))
        release_memory()
    return tuple(found)


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
    read_state, _ = state_reader(resolved)
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

    properties = torch.cuda.get_device_properties(resolved) if is_cuda else None
    rates: list[MeasuredRate] = []
    for name in RATES:
        timer = hot if name == "l2_read" else cold
        rate = tried(name, partial(measure_rate, name, resolved, timer, read_state))
        rates += [] if rate is None else [rate]
    if not rates:
        raise MeasurementError(f"no rate of {resolved} could be measured: {next(iter(missing.values()))}")
    times = [tried(name, partial(measure_start, name, resolved)) for name in TIMERS]
    return MeasuredLimits(
        schema_version=MEASURED_LIMITS_SCHEMA_VERSION,
        device=properties.name if properties else cpu_name() or "CPU",
        compute_capability=f"{properties.major}.{properties.minor}" if properties else None,
        sm_count=properties.multi_processor_count if properties else None,
        memory_bytes=properties.total_memory if properties else None,
        l2_bytes=getattr(properties, "L2_cache_size", 0) or None,
        driver=driver_version() if is_cuda else None,
        cuda_runtime=torch.version.cuda if is_cuda else None,
        torch=str(torch.__version__),
        opscope=__version__,
        created=created,
        duration_ns=time.perf_counter_ns() - began_ns,
        rates=tuple(rates),
        times=tuple(filter(None, times)),
        missing=missing,
    )


def measure_rate(name: str, device: str, timer: Timer, read_state: StateReader) -> MeasuredRate:
    """A rate with the state of the device while the call ran: an idle device has other clocks."""
    probe, state = fitting(probes_of(name, device, timer), device), None
    with probe.context():
        call = probe.make()
        samples_ns = take_samples(call, timer, _WARMUP, _MIN_SAMPLES, _MAX_SAMPLES, _BUDGET_NS)
        if device.startswith("cuda"):
            with require_torch().cuda.device(device):
                for _ in range(min(_MOST_LOAD_CALLS, 1 + _LOAD_NS // min(samples_ns))):
                    call()
                time.sleep(_LOAD_NS / 2 / NS_PER_S)
                state = read_state()
            synchronize()
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
