"""One configuration of a sweep: build the workload, time it without the profiler, record it.

Timing is injected, since `bench` is a sibling layer. Importing this module does not import torch.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.capture.cycle import ACTIVE_STEPS
from opscope.capture.profiler import OUT_OF_MEMORY_HINT, CaptureOptions, Profiler
from opscope.capture.step_clock import time_calls
from opscope.errors import CaptureError
from opscope.model.benchmark import Latency, LatencyMeasure
from opscope.model.environment import Environment
from opscope.workloads.runtime import is_out_of_memory, release_memory
from opscope.workloads.workload import WorkloadSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Configuration:
    """What distinguishes one run of a sweep from another."""

    workload: str
    batch_size: int
    seq_len: int
    dtype: str
    device: str
    attn_implementation: str
    train: bool

    @property
    def label(self) -> str:
        """Part of its file names, e.g. `bs8_seq128`."""
        return f"bs{self.batch_size}_seq{self.seq_len}"


@dataclass(frozen=True)
class ConfigurationRun:
    """What one configuration left behind."""

    configuration: Configuration
    parameter_count: int | None  # None where there is no model to ask
    steps: int  # recorded
    trace_path: Path
    sidecar_path: Path
    environment: Environment
    wall_time_ns_per_step: tuple[int, ...]  # of each recorded step, with the profiler on
    latency: Latency | None  # of one step without the profiler, if it was measured


def configuration_of(spec: WorkloadSpec, batch_size: int, seq_len: int) -> Configuration:
    """The configuration of a spec at one batch size and sequence length."""
    options = spec.options
    return Configuration(
        workload=spec.name, batch_size=batch_size, seq_len=seq_len, dtype=options.dtype,
        device=options.device, attn_implementation=options.attn_implementation, train=options.train,
    )  # fmt: skip


def run_configuration(
    spec: WorkloadSpec,
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
    try:
        profiler.note_graphs()
        return _recorded(spec, configuration, measure, profiler, unrecorded)
    except Exception as error:
        cause = error.__cause__ if isinstance(error, CaptureError) else error
        if cause is None or not is_out_of_memory(cause):
            raise
        # The tracebacks' frames hold the model; without this the next configuration finds no memory either.
        for failure in (error, cause):
            traceback.clear_frames(failure.__traceback__)
        raise CaptureError(
            f"out of memory with {configuration.workload} {configuration.label}", hint=OUT_OF_MEMORY_HINT
        ) from cause
    finally:
        profiler.forget_graphs()
        release_memory()


def _recorded(
    spec: WorkloadSpec,
    configuration: Configuration,
    measure: LatencyMeasure | None,
    profiler: Profiler,
    unrecorded: int,
) -> ConfigurationRun:
    """In a frame of its own, which holds the model."""
    workload = spec.build(configuration.batch_size, configuration.seq_len)
    latency = None if measure is None else measure(workload.step, workload.device)
    profiler.unrecorded_steps += time_calls(workload.step, unrecorded)
    profiler.workload = {**asdict(configuration), **workload.description}
    with profiler:
        for _ in range(profiler.total_steps):
            workload.step()
            profiler.step()
    (cycle,) = profiler.cycles
    return ConfigurationRun(
        configuration=configuration, parameter_count=workload.parameter_count, steps=cycle.sidecar.steps,
        trace_path=cycle.trace_path, sidecar_path=cycle.sidecar_path, environment=cycle.sidecar.environment,
        wall_time_ns_per_step=cycle.sidecar.wall_time_ns_per_step, latency=latency,
    )  # fmt: skip
