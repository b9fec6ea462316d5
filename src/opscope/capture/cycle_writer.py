"""A stopped recording → the files of its cycle: trace first, then the sidecar that vouches for it.

Importing this module does not import torch.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from opscope.capture.cycle import Cycle
from opscope.capture.enrichment import OriginFinder, collect
from opscope.capture.environment import collect_environment
from opscope.capture.recording import Recording
from opscope.capture.schedule import Schedule
from opscope.errors import InputError
from opscope.model.environment import Environment
from opscope.model.sidecar import (
    RecordedSchedule,
    RecordedSettings,
    Sidecar,
    kernels_folder,
    sidecar_path,
    write_sidecar,
)

__all__ = ["CycleEnd", "CycleWriter", "trace_file_names"]


@dataclass(frozen=True)
class CycleEnd:
    """How a window ended.

    Args:
        wall_times_ns: Of each whole step.
        partial: Before its last step did.
        ended_by: Class of the exception that ended it, or None.
    """

    wall_times_ns: tuple[int, ...]
    partial: bool = False
    ended_by: str | None = None


@dataclass(frozen=True)
class CycleWriter:
    """Writes the cycles of one Profiler.

    Args:
        directory: Of the files.
        file_names: Of the traces, by cycle.
        schedule: What was asked for.
        settings: What is recorded.
        find_origins: As in `collect`.
    """

    directory: Path
    file_names: tuple[str, ...]
    schedule: Schedule
    settings: RecordedSettings
    find_origins: OriginFinder | None

    def write(
        self, index: int, recording: Recording, end: CycleEnd, workload: Mapping[str, Any] | None
    ) -> Cycle:
        """Both files of a cycle, written.

        Raises:
            CaptureError: They cannot be written.
        """
        trace_path = self.directory / self.file_names[index]
        structure, structure_gaps = recording.structure()
        names = recording.export(trace_path)
        enrichment = collect(names, kernels_folder(trace_path), self.find_origins)
        schedule = self.schedule
        sidecar = Sidecar(
            trace=trace_path.name,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            environment=self._environment,
            schedule=RecordedSchedule(
                schedule.wait, schedule.warmup, schedule.active, schedule.repeat, cycle=index
            ),
            settings=self.settings,
            steps=len(end.wall_times_ns),
            partial=end.partial,
            clean_window=True,
            wall_time_ns_per_step=end.wall_times_ns,
            workload=None if workload is None else dict(workload),
            kernels=enrichment.kernels,
            kernel_sources=enrichment.kernel_sources,
            registrations=enrichment.registrations,
            gaps=(*enrichment.gaps, *structure_gaps),
            regions=recording.regions,
            ended_by=end.ended_by,
            structure=structure,
        )
        write_sidecar(sidecar_path(trace_path), sidecar)
        return Cycle(index, trace_path, sidecar_path(trace_path), sidecar)

    @cached_property
    def _environment(self) -> Environment:
        return collect_environment()


def trace_file_names(name: str, repeat: int) -> tuple[str, ...]:
    """One trace file name per cycle.

    Raises:
        InputError: The name is none of a trace.
    """
    if name in {"", ".."} or Path(name).name != name:
        raise InputError(f"'{name}' is not a file name", hint="Give the folder as output_dir")
    stem, suffix = name, ".json"
    for known in (".json.gz", ".json"):
        if name.endswith(known):
            stem, suffix = name.removesuffix(known), known
            break
    if not stem or stem.endswith(".opscope"):
        raise InputError(f"'{name}' cannot be a trace's name", hint="*.opscope.json are sidecars")
    if repeat == 1:
        return (f"{stem}{suffix}",)
    return tuple(f"{stem}_cycle{index}{suffix}" for index in range(repeat))
