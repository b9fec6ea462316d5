"""The latency of a callable: warm-up, then samples until a time budget is spent; every sample is kept."""

from __future__ import annotations

from collections.abc import Callable

from opscope.benchmarking.timer import Timer, timer_for
from opscope.errors import InputError
from opscope.model.measurement import Latency, LatencyMeasure, LatencyOptions

__all__ = ["latency_measure", "measure_latency"]

_NS_PER_S = 1_000_000_000


def measure_latency(
    fn: Callable[[], object],
    timer: Timer,
    *,
    warmup: int = LatencyOptions.warmup,
    min_samples: int = LatencyOptions.min_samples,
    max_samples: int = LatencyOptions.max_samples,
    time_budget_s: float = LatencyOptions.time_budget_s,
) -> Latency:
    """Every sample of `fn` that fits the budget, and at least `min_samples`.

    The budget counts the samples' own durations, so the number of samples follows from the timer alone.

    Args:
        fn: Called without arguments; its result is dropped.
        timer: What times one call.
        warmup: Calls made first and not kept.
        min_samples: Taken in any case; at least 1.
        max_samples: Never exceeded.
        time_budget_s: No further sample once the samples add up to this.

    Raises:
        InputError: The counts contradict each other.
    """
    if warmup < 0 or min_samples < 1 or max_samples < min_samples:
        raise InputError(
            f"warmup={warmup}, min_samples={min_samples}, max_samples={max_samples} cannot be measured",
            hint="Need warmup >= 0 and 1 <= min_samples <= max_samples",
        )
    for _ in range(warmup):
        timer.measure(fn)
    samples_ns: list[int] = []
    total_ns = 0
    while len(samples_ns) < min_samples or (
        len(samples_ns) < max_samples and total_ns < time_budget_s * _NS_PER_S
    ):
        samples_ns.append(timer.measure(fn))
        total_ns += samples_ns[-1]
    return Latency(tuple(samples_ns), timer.clock, warmup)


def latency_measure(options: LatencyOptions | None = None) -> LatencyMeasure:
    """A function that times a callable on a device: by CUDA events, or the wall clock on a CPU."""
    chosen = options or LatencyOptions()

    def measure(fn: Callable[[], object], device: str, /) -> Latency:
        return measure_latency(
            fn,
            timer_for(device),
            warmup=chosen.warmup,
            min_samples=chosen.min_samples,
            max_samples=chosen.max_samples,
            time_budget_s=chosen.time_budget_s,
        )

    return measure
