"""Timings of a callable: every raw sample is kept, statistics are computed from them.

Samples are integer nanoseconds of one call each, in the order taken. Outliers are never removed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from opscope.errors import MeasurementError
from opscope.text_enum import TextEnum


class Clock(TextEnum):
    """What a sample was taken with."""

    CUDA_EVENT = "cuda_event"  # device timestamps before and after the call's work on the current stream
    CUDA_GRAPH = "cuda_graph"  # the same around the replay of a CUDA graph of the call: no launch cost
    WALL = "wall"  # host clock, the device synchronized before and after


class Latency(msgspec.Struct, frozen=True):
    """Samples of one callable on one clock.

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
        """Half of the calls took no longer."""
        return self.percentile_ns(50)

    @property
    def p5_ns(self) -> float:
        """5th percentile."""
        return self.percentile_ns(5)

    @property
    def p95_ns(self) -> float:
        """95th percentile."""
        return self.percentile_ns(95)

    def percentile_ns(self, percentile: float) -> float:
        """A percentile (0 to 100) of the samples, linear between neighbors."""
        return float(np.percentile(np.asarray(self.samples_ns, dtype=np.int64), percentile))


# Times a callable on a device (`"cpu"`, `"cuda:0"`), e.g. `opscope.benchmarking.timer.measure_latency`.
LatencyMeasure = Callable[[Callable[[], object], str], Latency]
