"""The result of a benchmark: implementations of one problem, timed side by side, as it is kept in a file.

The structs are the JSON contract of `opscope bench --json` and of saved results: field names carry their
unit, unknown is null, every sample is kept. Imports nothing that computes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from opscope.model.environment import Environment
from opscope.model.finding import Finding
from opscope.model.measurement import Clock
from opscope.model.notebook import notebook_html
from opscope.text_enum import TextEnum

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
    """How far the outputs lie from a float64 reference on fresh random inputs.

    Attributes:
        max_relative_error: Largest |output - reference| / max(|reference|, rms of the reference) of any
            element; None if an element is not finite where the reference is.
        relative_error: Norm of (output - reference) over the norm of the reference.
        tolerance: What `max_relative_error` may reach.
        element_count: Elements compared.
        seed: Of the inputs.
        reference: What computed the reference, for people.
    """

    max_relative_error: float | None
    relative_error: float | None
    tolerance: float
    element_count: int
    seed: int
    reference: str


class KernelUse(msgspec.Struct, frozen=True):
    """One kernel (or copy) that a call launches, by the profiler.

    Attributes:
        name: As recorded.
        title: The decoded short form, or the name where it cannot be decoded.
        kind: kernel, memcpy or memset.
        launches: Per call of the implementation.
        device_ns: Device time per call, of all its launches.
        operator: The operator that launched it; None if unknown.
        grid: Thread blocks; None if unknown or if launches differ.
        block: Threads per block; likewise.
        registers_per_thread: Likewise.
        shared_memory_bytes: Per block; likewise.
        source_file: Where its device code comes from; None if unknown.
    """

    name: str
    title: str
    kind: str
    launches: float
    device_ns: float
    operator: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers_per_thread: int | None = None
    shared_memory_bytes: int | None = None
    source_file: str | None = None


class CallProfile(msgspec.Struct, frozen=True):
    """What the profiler recorded of one implementation, per call.

    Attributes:
        calls: Recorded calls.
        kernels_launched: Kernels, copies and memory sets per call; an integer unless calls differ.
        device_ns: Σ of their durations per call.
        kernels: By device time, longest first.
    """

    calls: int
    kernels_launched: float
    device_ns: float
    kernels: tuple[KernelUse, ...] = ()


class Ceiling(msgspec.Struct, frozen=True):
    """A rate this device was measured to reach in the same run, by the same clock.

    Attributes:
        name: `copy` or `matrix_<dtype>` (with the math mode: `matrix_float32`, `matrix_tf32`, …).
        per_s: Bytes (read + written) or FLOP per second.
        unit: `bytes` or `flop`.
        how: Sizes and operator, for people.
    """

    name: str
    per_s: float
    unit: str
    how: str


class DeviceState(msgspec.Struct, frozen=True):
    """The device's clocks and temperature at one moment, by NVML. Unknown is None.

    Attributes:
        at_ns: Host clock (`time.perf_counter_ns`), for order only.
        throttle_reasons: Names of the active reasons that lower clocks (`sw_power_cap`, `hw_thermal`, …);
            idle is not one.
    """

    at_ns: int
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()


class BenchmarkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One implementation.

    Attributes:
        name: Unique in the result.
        status: What became of it.
        reason: Why the status is not `ok`, or what to install; None for `ok`.
        engine: What it is written in.
        teaching: Whether it is the simple version, kept for comparison.
        note: What it is, in a few words.
        build_ns: Making the function: compiling an extension, loading it. None where nothing is built.
        first_call_ns: Wall time of its first call: autotuning, torch.compile, library initialization.
        call_ns: Wall time of a warm call when calls follow each other: what the host and the device need
            together.
        warmup_count: Calls made before the first sample.
        inner_repeats: Calls per sample; more than 1 where one call is too short for the clock.
        input_sets: Sets of inputs the samples rotated among.
        samples_ns: Each sample, per call (its duration over `inner_repeats`), in the order taken. By CUDA
            events it is device time, from the first kernel to the last, the host's launches hidden.
        sample_rounds: The round each sample was taken in; every implementation is sampled once per round.
        outliers: Indices of samples that lie far from the rest; none is removed.
        throttled: Indices of samples taken while the device lowered its clocks.
        median_ns: Of all samples.
        interval_ns: 95 % interval of the median.
        ratio: Median over the reference's median, both of the rounds that hold both; below 1 is faster. 1 for
            the reference itself.
        ratio_interval: 95 % bootstrap interval of the ratio, over rounds.
        verdict: None for the reference, for rows that are not `ok`, and without a measured reference.
        verdict_reason: The figures the verdict rests on.
        check: None where nothing could be compared.
        profile: None if not profiled.
        min_bytes: Least bytes a call must move: distinct inputs read once, outputs written once.
        flop_count: Floating-point operations of a call; None where no one counted them.
        bytes_per_s: `min_bytes` over the median.
        flop_per_s: `flop_count` over the median.
        ceiling: Name of the ceiling that binds: the one whose time floor is longer.
        ceiling_fraction: That floor over the median.
        peak_memory_bytes: Most device memory one call allocated above what was there; None on a CPU.
        max_relative_error: As in `check`.
        kernels_launched: As in `profile`.
        device_ns: As in `profile`.
    """

    name: str
    status: Status
    reason: str | None = None
    engine: Engine = Engine.USER
    teaching: bool = False
    note: str = ""
    build_ns: int | None = None
    first_call_ns: int | None = None
    call_ns: float | None = None
    warmup_count: int = 0
    inner_repeats: int = 1
    input_sets: int = 1
    samples_ns: tuple[float, ...] = ()
    sample_rounds: tuple[int, ...] = ()
    outliers: tuple[int, ...] = ()
    throttled: tuple[int, ...] = ()
    median_ns: float | None = None
    interval_ns: Interval | None = None
    ratio: float | None = None
    ratio_interval: Interval | None = None
    verdict: Verdict | None = None
    verdict_reason: str | None = None
    check: OutputCheck | None = None
    profile: CallProfile | None = None
    min_bytes: int | None = None
    flop_count: int | None = None
    bytes_per_s: float | None = None
    flop_per_s: float | None = None
    ceiling: str | None = None
    ceiling_fraction: float | None = None
    peak_memory_bytes: int | None = None
    max_relative_error: float | None = None
    kernels_launched: float | None = None
    device_ns: float | None = None


class BenchmarkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a benchmark is measured.

    Attributes:
        clock: `cuda_event` or `cuda_graph` on a GPU, `wall` on a CPU; None takes events or the wall clock.
        cache_state: `cold` or `hot` on a GPU; ignored on a CPU.
        warmup_s: Least time spent warming each implementation up, after its first call.
        time_budget_s: Wall time of the sampling, per implementation, everything around the samples counted.
        min_samples: Taken in any case.
        max_samples: Never exceeded.
        precision: Sampling ends early once half the width of every median's interval, over the median, is
            no more than this.
        same_within: A ratio whose interval lies within 1 ± this is "same".
        seed: Of inputs, of the order of implementations and of the bootstrap.
        check: Whether outputs are compared.
        profile: Whether each implementation is also profiled.
        ceilings: Whether the copy and matrix ceilings are measured.
    """

    clock: Clock | None = None
    cache_state: CacheState = CacheState.COLD
    warmup_s: float = 0.05
    time_budget_s: float = 1.0
    min_samples: int = 20
    max_samples: int = 1000
    precision: float = 0.002
    same_within: float = 0.02
    seed: int = 0
    check: bool = True
    profile: bool = True
    ceilings: bool = True


class BenchmarkResult(msgspec.Struct, frozen=True, kw_only=True):
    """Implementations of one problem at one size.

    Attributes:
        suite: Name of the suite, or of the user's functions.
        shape: Sizes of the problem; None where the user's inputs have no declared one.
        parameters: Further parameters (`approximate`, `n`, …) of this point of a sweep.
        reference: Name of the row that ratios refer to.
        setup_ns: Wall time of building, checking, profiling and ceilings.
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
    setup_ns: int = 0
    sampling_ns: int = 0
    in_samples_ns: int = 0
    complete: bool = True
    device_state_before: DeviceState | None = None
    device_state_after: DeviceState | None = None
    ceilings: tuple[Ceiling, ...] = ()
    rows: tuple[BenchmarkRow, ...] = ()
    findings: tuple[Finding, ...] = ()

    _repr_html_ = notebook_html

    def row(self, name: str) -> BenchmarkRow:
        """The row of that name.

        Raises:
            KeyError: There is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)
