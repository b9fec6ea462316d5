"""The sidecar of a recorded program's trace: devices, and where its kernels come from."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from opscope._version import __version__
from opscope.model.environment import Environment, GpuInfo
from opscope.model.origin import Gap, RecordedKernel
from opscope.model.sidecar import RecordedSchedule, RecordedSettings, Sidecar
from opscope.toolchain.injection.record_format import ChunkKind
from opscope.toolchain.injection.recording import Recording
from opscope.toolchain.injection.trace_file import WrittenTrace

__all__ = ["recording_sidecar"]

# One window, which is the whole run, without steps.
_SCHEDULE = RecordedSchedule(wait=0, warmup=0, active=1, repeat=1, cycle=0)
_SETTINGS = RecordedSettings(
    record_shapes=False,
    with_stack=False,
    with_modules=False,
    profile_memory=False,
    activities=("cuda",),
    engine="cupti",
)


def recording_sidecar(
    written: WrittenTrace, kernels: Sequence[RecordedKernel], gaps: Sequence[Gap], *, created: str
) -> Sidecar:
    """The sidecar of a trace.

    Args:
        written: The trace.
        kernels: Every kernel of it, with its library where that is known.
        gaps: What of these could not be found out.
        created: When the recording ended, ISO 8601 in UTC.
    """
    return Sidecar(
        trace=written.path.name,
        created=created,
        environment=_environment(written.recording),
        schedule=_SCHEDULE,
        settings=_SETTINGS,
        steps=0,
        partial=False,
        clean_window=written.is_clean,
        wall_time_ns_per_step=(),
        kernels=tuple(kernels),
        gaps=tuple(gaps),
    )


def _environment(recording: Recording) -> Environment:
    version = recording.driver_version
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}".strip(),
        opscope=__version__,
        cuda_driver=None if version is None else f"{version // 1000}.{version % 1000 // 10}",
        gpu=tuple(map(_gpu, recording.of(ChunkKind.DEVICES))),
    )


def _gpu(device: Any) -> GpuInfo:
    return GpuInfo(
        name=bytes(device["name"]).decode("utf-8", "replace"),
        compute_capability=f"{device['major']}.{device['minor']}",
        sm_count=int(device["multiprocessors"]),
        memory_bytes=int(device["memory_bytes"]),
    )
