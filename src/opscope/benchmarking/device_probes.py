"""Calls whose work is known: copies, reads, fills and matrix products that show what a device reaches.

A probe is described by its bytes or operations per call. Sizes are tried from the largest, until one fits
into a quarter of the free memory and does not run out of it. Data are random: zeros would be faster. The
ceilings of a benchmark are probes measured in the same run with the same timer, cold or hot, as the
implementations are: fractions of a ceiling compare like with like only if both were measured alike. Imports
torch and Triton lazily.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from opscope.benchmarking.timer import Timer
from opscope.errors import InputError
from opscope.kernels.triton_loader import load_triton
from opscope.model.benchmark import Ceiling
from opscope.units import NS_PER_S
from opscope.workloads.runtime import is_out_of_memory, release_memory, require_torch


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


MIB = 1 << 20
_LARGEST_SHARE = 0.25  # of the free memory, all tensors together

# Of the reading kernel: resident together on every architecture (1024 threads), enough to hide latency.
_PROGRAMS_PER_SM = 8
# Odd and no divisor of usual counts, so that programs of one multiprocessor read far from each other.
_SCATTER = 97
_L2_SHARE = 4  # well inside: half of the cache may hold copies of the other half (two partitions, from GA100)

T = TypeVar("T")


@dataclass(frozen=True)
class Probe:
    """A call and the work it does."""

    call: Callable[[], object]  # Does it once
    amount: int  # Bytes or operations of one call
    how: str  # What it is, for people
    # What must hold while it is called, such as a mode of float32 products
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Attempt:
    """A probe that can be made where so many bytes are to be had; `side` is the size of a product."""

    needed_bytes: int
    make: Callable[[], Probe]
    side: int = 0


@dataclass(frozen=True)
class _Product:
    """A matrix product of one type: torch's dtype, least compute capability, and how it is called."""

    dtype: str
    capability: tuple[int, int]
    make: Callable[[int, str, int], Probe]


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
    streaming, programs = load_triton("streaming"), _programs(device)
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

    fitting = (size for size in sizes if size >= round_bytes)
    return (Attempt(size, partial(make, size)) for size in fitting)


def l2_read_attempt(device: str, l2_bytes: int, seed: int) -> Attempt:
    """A buffer of a quarter of the L2 cache, which every program reads as a whole.

    The first-level cache cannot serve it: the loads bypass it (`.cg`), and a program comes back to a chunk
    only after the rest of a buffer many times as large as that cache.
    """
    streaming, programs = load_triton("streaming"), _programs(device)
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


def _programs(device: str) -> int:
    count: int = require_torch().cuda.get_device_properties(device).multi_processor_count
    return _PROGRAMS_PER_SM * count


def product_obstacle(device: str, name: str) -> str | None:
    """Why a device has no product of this type (of `PRODUCTS`); None if it may have."""
    if not device.startswith("cuda"):
        return None if name in _CPU_PRODUCTS else f"a CPU has no {_SPELLED.get(name, name)}"
    needed = PRODUCTS[name].capability
    capability = require_torch().cuda.get_device_capability(device)
    if capability >= needed:
        return None
    has = ".".join(map(str, capability))
    return f"needs compute capability {needed[0]}.{needed[1]}, {device} has {has}"


def product_attempts(device: str, name: str, sides: Iterable[int], seed: int) -> Iterator[Attempt]:
    """Two square matrices of this type (of `PRODUCTS`) multiplied; the largest side first."""
    product = PRODUCTS[name]
    item_bytes = getattr(require_torch(), product.dtype).itemsize
    # Two operands of the type, and a result that may be as wide as float32.
    return (
        Attempt(
            side * side * (2 * item_bytes + max(item_bytes, 4)),
            partial(product.make, side, device, seed),
            side,
        )
        for side in sides
    )


def memory_limit_bytes(device: str) -> float:
    """Bytes the tensors of one measurement may take; no limit where the host does not tell what is free."""
    if device.startswith("cuda"):
        free_bytes, _ = require_torch().cuda.mem_get_info(device)
    else:
        free_bytes = _available_host_bytes()
    return _LARGEST_SHARE * float(free_bytes)


def _plain(dtype: str, float32_mode: str | None = None) -> Callable[[int, str, int], Probe]:
    """`torch.mm`, in a mode of float32 products."""

    def make(side: int, device: str, seed: int) -> Probe:
        torch = require_torch()
        left, right = (_random((side, side), dtype, device, seed + number) for number in (0, 1))
        product = torch.empty_like(left)
        how = f"torch.mm of two {side} × {side} matrices of random {dtype}"
        context: Callable[[], AbstractContextManager[Any]] = (
            nullcontext if float32_mode is None else partial(float32_products, float32_mode)
        )
        return Probe(lambda: torch.mm(left, right, out=product), 2 * side**3, how, context)

    return make


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


# Source of least capabilities: architecture whitepapers: tensor cores for fp16 from 7.0, int8 7.5, bf16 and
# TF32 8.0, fp8 8.9. `torch._int_mm` and `torch._scaled_mm` may ask for more, and say so.
PRODUCTS = {
    "fp64": _Product("float64", (0, 0), _plain("float64")),
    "fp32": _Product("float32", (0, 0), _plain("float32", "ieee")),
    "tf32": _Product("float32", (8, 0), _plain("float32", "tf32")),
    "fp16": _Product("float16", (7, 0), _plain("float16")),
    "bf16": _Product("bfloat16", (8, 0), _plain("bfloat16")),
    "fp8": _Product("float8_e4m3fn", (8, 9), _fp8),
    "int8": _Product("int8", (7, 5), _int8),
}
_CPU_PRODUCTS = ("fp64", "fp32", "fp16", "bf16")
_SPELLED = {"tf32": "TF32", "fp8": "fast fp8 product", "int8": "fast int8 product"}


def _random(shape: tuple[int, ...], dtype: str, device: str, seed: int) -> Any:
    torch = require_torch()
    generator = torch.Generator(device=device).manual_seed(seed)
    empty = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
    return empty.normal_(generator=generator)


def _available_host_bytes() -> float:
    """Memory the host can give without swapping.

    Source: proc(5), MemAvailable, in KiB.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    sizes = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return float(next(sizes, math.inf)) * 1024


_WARMUP = 3
_MIN_SAMPLES = 5
_MAX_SAMPLES = 30
_BUDGET_NS = 300_000_000

# Bytes of each of the two buffers of `copy_large`: starting and ending the copy no longer count.
_LARGE_COPY_BYTES = {"cuda": (2048 * MIB, 512 * MIB), "cpu": (128 * MIB,)}
# Below this a copy measures launches and the timer.
_LEAST_COPY_BYTES = 16 * MIB
_MATRIX_SIDES = {"cuda": (8192, 4096, 2048), "cpu": (1024, 512)}
_SLOW_ON_CPU_SIDES = (256,)  # half precision without matrix units is emulated

_MATRICES = {
    "matrix_float32": "fp32",
    "matrix_tf32": "tf32",
    "matrix_bfloat16": "bf16",
    "matrix_float16": "fp16",
}
CEILINGS = ("copy", "copy_large", *_MATRICES)


def measure_ceilings(
    device: str, names: Sequence[str], timer: Timer, *, seed: int = 0, copy_bytes: int | None = None
) -> tuple[Ceiling, ...]:
    """The ceilings of these names that the device has; `ceiling_obstacle` says why one is missing.

    `copy` moves as many bytes as the call it is compared with: a copy of 500 MB is 3 % slower per byte than
    one of 4 GB (seen on an H200), because it too has to begin and to end. `copy_large` is that limit.
    """
    found = []
    for name in dict.fromkeys(names):
        if ceiling_obstacle(device, name) is None:
            ceiling = _measure(name, device, timer, seed, copy_bytes)
            if ceiling is not None:
                found.append(ceiling)
            release_memory()
    return tuple(found)


def ceiling_obstacle(device: str, name: str) -> str | None:
    """Why a device has no ceiling of this name; None if it has one."""
    if name not in CEILINGS:
        raise InputError(f"'{name}' is not a ceiling", hint=f"There are {', '.join(CEILINGS)}")
    if name.startswith("copy"):
        return None
    obstacle = product_obstacle(device, _MATRICES[name])
    return f"{name} {obstacle}" if obstacle and obstacle.startswith("needs") else obstacle


def large_copy_attempts(device: str, seed: int, *sizes: int) -> Iterator[Attempt]:
    """Copies of these sizes in bytes of one buffer, then of those of `copy_large`."""
    return copy_attempts(device, (*sizes, *_LARGE_COPY_BYTES[_kind(device)]), seed)


def take_samples(
    fn: Callable[[], object],
    timer: Timer,
    *,
    least: int = _MIN_SAMPLES,
    most: int = _MAX_SAMPLES,
    budget_ns: int = _BUDGET_NS,
) -> list[int]:
    """Durations of a call in nanoseconds, after a warm-up: at least some, then as time allows."""
    (call,) = timer.prepare([fn])
    for _ in range(_WARMUP):
        timer.measure(call)
    samples: list[int] = []
    while len(samples) < least or (len(samples) < most and sum(samples) < budget_ns):
        samples.append(max(1, timer.measure(call)))
    return samples


def _measure(name: str, device: str, timer: Timer, seed: int, copy_bytes: int | None) -> Ceiling | None:
    """The rate of the first size that fits."""
    if name in _MATRICES:
        attempts = product_attempts(device, _MATRICES[name], _sides(device, name), seed)
    elif name == "copy_large" or copy_bytes is None:
        attempts = large_copy_attempts(device, seed)
    else:
        attempts = large_copy_attempts(device, seed, max(copy_bytes // 8 * 4, _LEAST_COPY_BYTES))
    found = first_that_fits(attempts, device, lambda probe: take_samples(probe.call, timer))
    if found is None:
        return None
    probe, samples_ns = found
    per_s = probe.amount / statistics.median(samples_ns) * NS_PER_S
    return Ceiling(name, per_s, "flop" if name in _MATRICES else "bytes", probe.how)


def _sides(device: str, name: str) -> tuple[int, ...]:
    if _kind(device) == "cpu" and name != "matrix_float32":
        return _SLOW_ON_CPU_SIDES
    return _MATRIX_SIDES[_kind(device)]


def _kind(device: str) -> str:
    return device.partition(":")[0]
