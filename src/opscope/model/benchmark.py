"""The result of a benchmark: implementations of one problem, timed side by side, as it is kept in a file.

The structs are the JSON contract of `opscope bench --json` and of saved results: field names carry their
unit, unknown is null, every sample is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from opscope.errors import MeasurementError
from opscope.model.finding import Finding
from opscope.model.notebook import Shown
from opscope.model.sidecar import Environment
from opscope.text_enum import TextEnum


class Clock(TextEnum):
    """What a sample was taken with."""

    CUDA_EVENT = "cuda_event"  # device timestamps before and after the call's work on the current stream
    CUDA_GRAPH = "cuda_graph"  # the same around the replay of a CUDA graph of the call: no launch cost
    WALL = "wall"  # host clock, the device synchronized before and after


class Latency(msgspec.Struct, frozen=True):
    """Samples of one callable on one clock, as they were taken: outliers are never removed.

    Args:
        samples_ns: One entry per timed call, in the order taken; never empty.
        clock: What they were taken with.
        warmup_count: Calls made before the first sample and not kept.

    Raises:
        MeasurementError: There are no samples.
    """

    samples_ns: tuple[int, ...]
    clock: Clock
    warmup_count: int

    def __post_init__(self) -> None:
        if not self.samples_ns:
            raise MeasurementError("a latency without samples", hint="Time the call at least once")

    @property
    def median_ns(self) -> float:
        return self.percentile_ns(50)

    @property
    def p5_ns(self) -> float:
        return self.percentile_ns(5)

    @property
    def p95_ns(self) -> float:
        return self.percentile_ns(95)

    def percentile_ns(self, percentile: float) -> float:
        """A percentile (0 to 100) of the samples, linear between neighbors."""
        return float(np.percentile(np.asarray(self.samples_ns, dtype=np.int64), percentile))


# Times a callable on a device (`"cpu"`, `"cuda:0"`), e.g. `opscope.benchmarking.timer.measure_latency`.
LatencyMeasure = Callable[[Callable[[], object], str], Latency]


BENCHMARK_SCHEMA_VERSION = 1

Interval = tuple[float, float]


def reciprocal(interval: Interval) -> Interval:
    """That of the ratio the other way round: its ends change places."""
    low, high = interval
    return 1 / high, 1 / low if low else float("inf")


class Engine(TextEnum):
    """What an implementation is written in."""

    TORCH = "torch"
    COMPILE = "compile"  # torch.compile of a composition
    CUDA = "cuda"  # CUDA C++ of `opscope.kernels`
    TRITON = "triton"
    USER = "user"  # a function opscope was given


class CacheState(TextEnum):
    """What the last-level cache holds when a sample begins."""

    COLD = "cold"  # L2 overwritten before every sample
    HOT = "hot"  # what an untimed call of the same function on the same inputs has just left
    UNCONTROLLED = "uncontrolled"  # a CPU: nothing is flushed, inputs are only rotated


class Status(TextEnum):
    """What became of an implementation. Only `ok` rows have samples that count and a verdict."""

    OK = "ok"
    CHECKED = "checked"  # right, but not timed: a Triton kernel in the interpreter
    WRONG = "wrong"  # differs from the reference by more than the tolerance
    UNAVAILABLE = "unavailable"  # this machine lacks what it needs; the reason says what to install
    FAILED = "failed"  # raised an error
    OUT_OF_MEMORY = "out_of_memory"
    NO_RESULT = "no_result"  # returned no tensor, so there is nothing to check
    MUTATES_INPUTS = "mutates_inputs"  # changed its arguments, so repeated calls differ
    INTERRUPTED = "interrupted"  # stopped by the user before it had enough samples


class Verdict(TextEnum):
    """A candidate's time beside the reference's."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


class OutputCheck(msgspec.Struct, frozen=True):
    """How far the outputs lie from a float64 reference on fresh random inputs."""

    # Largest |output - reference| / max(|reference|, rms of the reference) of any element; None if an element
    # is not finite where the reference is
    max_relative_error: float | None
    tolerance: float  # What `max_relative_error` may reach
    element_count: int  # Elements compared
    seed: int  # Of the inputs
    reference: str  # What computed the reference, for people


class KernelUse(msgspec.Struct, frozen=True):
    """One kernel (or copy) that a call launches, by the profiler."""

    name: str  # As recorded
    title: str  # The decoded short form, or the name where it cannot be decoded
    kind: str  # kernel, memcpy or memset
    launches: float  # Per call of the implementation
    device_ns: float  # Device time per call, of all its launches
    operator: str | None = None  # The operator that launched it; None if unknown
    grid: tuple[int, int, int] | None = None  # Thread blocks; None if unknown or if launches differ
    block: tuple[int, int, int] | None = None  # Threads per block; likewise
    registers_per_thread: int | None = None  # Likewise
    shared_memory_bytes: int | None = None  # Per block; likewise
    source_file: str | None = None  # Where its device code comes from; None if unknown


class CallProfile(msgspec.Struct, frozen=True):
    """What the profiler recorded of one implementation, per call."""

    calls: int  # Recorded calls
    kernels_launched: float  # Kernels, copies and memory sets per call; an integer unless calls differ
    device_ns: float  # Σ of their durations per call
    kernels: tuple[KernelUse, ...] = ()  # By device time, longest first


class Ceiling(msgspec.Struct, frozen=True):
    """A rate this device was measured to reach in the same run, by the same clock."""

    name: str  # `copy` or `matrix_<dtype>` (with the math mode: `matrix_float32`, `matrix_tf32`, …)
    per_s: float  # Bytes (read + written) or FLOP per second
    unit: str  # `bytes` or `flop`
    how: str  # Sizes and operator, for people


class DeviceState(msgspec.Struct, frozen=True):
    """The device's clocks and temperature at one moment, by NVML. Unknown is None."""

    at_ns: int  # Host clock (`time.perf_counter_ns`), for order only
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    # Names of the active reasons that lower clocks (`sw_power_cap`, `hw_thermal`, …); idle is not one
    throttle_reasons: tuple[str, ...] = ()


class BenchmarkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One implementation."""

    name: str  # Unique in the result
    status: Status  # What became of it
    reason: str | None = None  # Why the status is not `ok`, or what to install; None for `ok`
    engine: Engine = Engine.USER  # What it is written in
    teaching: bool = False  # Whether it is the simple version, kept for comparison
    note: str = ""  # What it is, in a few words
    # Making the function: compiling an extension, loading it. None where nothing is built
    build_ns: int | None = None
    # Wall time of its first call: autotuning, torch.compile, library initialization
    first_call_ns: int | None = None
    # Wall time of a warm call when calls follow each other: what the host and the device need together
    call_ns: float | None = None
    warmup_count: int = 0  # Calls made before the first sample
    inner_repeats: int = 1  # Calls per sample; more than 1 where one call is too short for the clock
    input_sets: int = 1  # Sets of inputs the samples rotated among
    # Each sample, per call (its duration over `inner_repeats`), in the order taken. By CUDA events it is
    # device time, from the first kernel to the last, the host's launches hidden
    samples_ns: tuple[float, ...] = ()
    # The round each sample was taken in; every implementation is sampled once per round
    sample_rounds: tuple[int, ...] = ()
    outliers: tuple[int, ...] = ()  # Indices of samples that lie far from the rest; none is removed
    throttled: tuple[int, ...] = ()  # Indices of samples taken while the device lowered its clocks
    median_ns: float | None = None  # Of all samples
    interval_ns: Interval | None = None  # 95 % interval of the median
    # Median over the reference's median, both of the rounds that hold both; below 1 is faster. 1 for the
    # reference itself
    ratio: float | None = None
    ratio_interval: Interval | None = None  # 95 % bootstrap interval of the ratio, over rounds
    # None for the reference, for rows that are not `ok`, and without a measured reference
    verdict: Verdict | None = None
    verdict_reason: str | None = None  # The figures the verdict rests on
    check: OutputCheck | None = None  # None where nothing could be compared
    profile: CallProfile | None = None  # None if not profiled
    # Least bytes a call must move: distinct inputs read once, outputs written once
    min_bytes: int | None = None
    flop_count: int | None = None  # Floating-point operations of a call; None where no one counted them
    bytes_per_s: float | None = None  # `min_bytes` over the median
    flop_per_s: float | None = None  # `flop_count` over the median
    ceiling: str | None = None  # Name of the ceiling that binds: the one whose time floor is longer
    ceiling_fraction: float | None = None  # That floor over the median
    # Most device memory one call allocated above what was there; None on a CPU
    peak_memory_bytes: int | None = None
    max_relative_error: float | None = None  # As in `check`
    kernels_launched: float | None = None  # As in `profile`
    device_ns: float | None = None  # As in `profile`


class BenchmarkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a benchmark is measured."""

    # `cuda_event` or `cuda_graph` on a GPU, `wall` on a CPU; None takes events or the wall clock
    clock: Clock | None = None
    cache_state: CacheState = CacheState.COLD  # `cold` or `hot` on a GPU; ignored on a CPU
    warmup_s: float = 0.05  # Least time spent warming each implementation up, after its first call
    # Wall time of the sampling, per implementation, everything around the samples counted
    time_budget_s: float = 1.0
    min_samples: int = 20  # Taken in any case
    max_samples: int = 1000  # Never exceeded
    # Sampling ends early once half the width of every median's interval, over the median, is no more than
    # this
    precision: float = 0.002
    same_within: float = 0.02  # A ratio whose interval lies within 1 ± this is "same"
    seed: int = 0  # Of inputs, of the order of implementations and of the bootstrap
    check: bool = True  # Whether outputs are compared
    profile: bool = True  # Whether each implementation is also profiled
    ceilings: bool = True  # Whether the copy and matrix ceilings are measured


class BenchmarkResult(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Implementations of one problem at one size.

    Attributes:
        suite: Name of the suite, or of the user's functions.
        shape: Sizes of the problem; None where the user's inputs have no declared one.
        parameters: Further parameters (`approximate`, `n`, …) of this point of a sweep.
        reference: Name of the row that ratios refer to.
        sampling_ns: Wall time of the sampling loop and of the statistics after it.
        in_samples_ns: The part of it spent taking samples: flush, call and wait.
        complete: False while the run goes on, and for ever if it was interrupted.
    """

    schema_version: int = BENCHMARK_SCHEMA_VERSION
    opscope_version: str = ""
    suite: str
    shape: tuple[int, ...] | None
    dtype: str | None
    device: str
    parameters: dict[str, Any] = {}
    reference: str
    clock: Clock
    cache_state: CacheState
    options: BenchmarkOptions
    environment: Environment
    created: str
    sampling_ns: int = 0
    in_samples_ns: int = 0
    complete: bool = True
    device_state_before: DeviceState | None = None
    device_state_after: DeviceState | None = None
    ceilings: tuple[Ceiling, ...] = ()
    rows: tuple[BenchmarkRow, ...] = ()
    findings: tuple[Finding, ...] = ()

    def row(self, name: str) -> BenchmarkRow:
        return {row.name: row for row in self.rows}[name]
