"""Recording functions: `profile_call` repeats one of the user's, `run_configuration` a workload of a sweep.

How the latency of a workload is measured is injected, since benchmarking is a sibling layer. Importing this
module does not import torch.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from opscope.capture.cycle import ACTIVE_STEPS, Cycle
from opscope.capture.profiler import OUT_OF_MEMORY_HINT, CaptureOptions, Profiler
from opscope.capture.step_clock import time_calls
from opscope.errors import CaptureError
from opscope.model.benchmark import Latency, LatencyMeasure
from opscope.workloads.runtime import is_out_of_memory, release_memory
from opscope.workloads.workload import WorkloadSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")


def profile_call(
    fn: Callable[..., R],
    *args: object,
    output_dir: str | os.PathLike[str] | None = None,
    name: str = "trace",
    wait: int = 0,
    warmup: int = 1,
    active: int = 1,
    unrecorded: int = 10,
    **options: Unpack[CaptureOptions],
) -> tuple[R, Cycle]:
    """As `opscope.profile_call`, with the recorded cycle in place of its Session."""
    profiler = Profiler(output_dir, name=name, wait=wait, warmup=warmup, active=active, **options)
    profiler.check_output()
    try:
        profiler.note_graphs()
        result = _record(profiler, partial(fn, *args), unrecorded)
    except Exception as error:
        if profiler.has_begun or not is_out_of_memory(error):
            raise
        raise CaptureError("out of memory before anything was recorded", hint=OUT_OF_MEMORY_HINT) from error
    finally:
        profiler.forget_graphs()
    return result, profiler.cycles[0]


def _record(profiler: Profiler, step: Callable[[], R], unrecorded: int) -> R:
    """Time calls of a step, then record it by the profiler's schedule; the result of the last call."""
    profiler.unrecorded_steps += time_calls(step, unrecorded)
    with profiler:
        for _ in range(profiler.total_steps):
            result = step()
            profiler.step()
    return result


@dataclass(frozen=True)
class Configuration:
    """A workload at one batch size and sequence length."""

    spec: WorkloadSpec
    batch_size: int
    seq_len: int

    @property
    def label(self) -> str:
        """Part of its file names, e.g. `bs8_seq128`."""
        return f"bs{self.batch_size}_seq{self.seq_len}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"workload": self.spec.name, **self.spec.options.described(self.batch_size, self.seq_len)}


class ConfigurationRun(NamedTuple):
    cycle: Cycle
    parameter_count: int | None  # None where there is no model to ask
    latency: Latency | None  # of one step without the profiler, if it was measured


def run_configuration(
    configuration: Configuration,
    output_dir: str | os.PathLike[str],
    *,
    trace_name: str,
    wait: int = 0,
    warmup: int = 2,
    active: int = ACTIVE_STEPS,
    measure: LatencyMeasure | None = None,
    unrecorded: int = 10,
    **options: Unpack[CaptureOptions],
) -> ConfigurationRun:
    """Build, time and record one configuration; its memory is free again afterwards.

    The latency is taken first, before the profiler is attached for this configuration, if there is a
    `measure`; then `unrecorded` samples of the step's period. The rest is as in `Profiler`.
    """
    profiler = Profiler(output_dir, name=trace_name, wait=wait, warmup=warmup, active=active, **options)
    profiler.check_output()

    def recorded() -> ConfigurationRun:
        """In a frame of its own, which holds the model."""
        workload = configuration.spec.build(configuration.batch_size, configuration.seq_len)
        latency = None if measure is None else measure(workload.step, workload.device)
        profiler.workload = {**configuration.settings, **workload.description}
        _record(profiler, workload.step, unrecorded)
        return ConfigurationRun(profiler.cycles[0], workload.parameter_count, latency)

    try:
        profiler.note_graphs()
        return recorded()
    except Exception as error:
        cause = error.__cause__ if isinstance(error, CaptureError) else error
        if cause is None or not is_out_of_memory(cause):
            raise
        # The tracebacks' frames hold the model; without this the next configuration finds no memory either.
        for failure in (error, cause):
            traceback.clear_frames(failure.__traceback__)
        raise CaptureError(
            f"out of memory with {configuration.spec.name} {configuration.label}", hint=OUT_OF_MEMORY_HINT
        ) from cause
    finally:
        profiler.forget_graphs()
        release_memory()
