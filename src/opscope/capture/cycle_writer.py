"""A stopped recording → the files of its cycle: trace first, then the sidecar that vouches for it.

What this process knows of its kernels and operators is collected right after the trace is written, while
everything is still loaded. Nothing of that may break a recording: a part that fails is a Gap. Importing this
module does not import torch.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from opscope.capture.cycle import Cycle, Schedule
from opscope.capture.environment import collect_environment, launched_as
from opscope.capture.graph_notes import GraphNotes
from opscope.capture.process_sources import (
    LiveObjects,
    compiled_graphs,
    extension_sources,
    live_objects,
    triton_sources,
)
from opscope.capture.recording import Recording
from opscope.capture.registrations import collect_registrations
from opscope.capture.trace_file import TraceNames
from opscope.errors import InputError
from opscope.model.environment import Environment
from opscope.model.generated_code import files_by_hash, generated_sources, is_generated, read_generated
from opscope.model.origin import Gap, OperatorRegistration, RecordedKernel, RecordedSource
from opscope.model.sidecar import (
    RecordedGraph,
    RecordedSchedule,
    RecordedSettings,
    Sidecar,
    UnrecordedStep,
    kernels_folder,
    sidecar_path,
    write_sidecar,
)

T = TypeVar("T")


class OriginFinder(Protocol):
    """Finds the shared libraries of this process that registered kernels."""

    def __call__(self, names: Collection[str], /) -> Mapping[str, RecordedKernel]:
        """Origins by kernel name; a kernel that no library registered is left out."""
        ...


@dataclass(frozen=True)
class Enrichment:
    """Fields of a Sidecar, under their names there."""

    kernels: tuple[RecordedKernel, ...]
    kernel_sources: tuple[RecordedSource, ...]
    registrations: tuple[OperatorRegistration, ...]
    gaps: tuple[Gap, ...]


def collect(names: TraceNames, copies: Path, find_origins: OriginFinder | None = None) -> Enrichment:
    """All that this process knows of the names in a trace.

    Args:
        names: Names in the trace.
        copies: Folder for copies of generated sources; made only if there are any.
        find_origins: Finds the libraries of kernels; they stay unknown if None.
    """
    return _Collector(names, copies, find_origins).collect()


class _Collector:
    def __init__(self, names: TraceNames, copies: Path, find_origins: OriginFinder | None) -> None:
        self._names = names
        self._copies = copies
        self._find_origins = find_origins
        self._gaps: list[Gap] = []

    def collect(self) -> Enrichment:
        compiled = self._compiled()
        origins = self._origins(self._names.kernels - {source.kernel for source in compiled})
        kernels = tuple(origins.get(name, RecordedKernel(name)) for name in sorted(self._names.kernels))
        extensions = self._try("CUDA extensions", lambda: extension_sources(kernels)) or []
        operators = self._names.operators
        registrations = self._try("registrations", lambda: collect_registrations(operators)) or ()
        return Enrichment(kernels, (*compiled, *extensions), registrations, tuple(self._gaps))

    def _try(self, part: str, collect: Callable[[], T]) -> T | None:
        """What a part yields; None, and a Gap, if it fails."""
        try:
            return collect()
        except Exception as error:  # noqa: BLE001 - reads other programs' private parts, which may be any
            self._gaps.append(Gap(part, f"{type(error).__name__}: {error}"))
            return None

    def _origins(self, names: frozenset[str]) -> Mapping[str, RecordedKernel]:
        find = self._find_origins
        if find is None or not names:
            return {}
        return self._try("kernel origins", lambda: find(names)) or {}

    def _compiled(self) -> list[RecordedSource]:
        """Sources of the kernels that Triton compiled."""
        found = (self._try("Triton kernels", live_objects) if self._names.kernels else None) or LiveObjects()
        generated = self._generated(found)
        rest = self._names.kernels - {source.kernel for source in generated}
        return [
            *generated,
            *(self._try("Triton kernels", lambda: triton_sources(rest, found.functions)) or ()),
        ]

    def _generated(self, found: LiveObjects) -> list[RecordedSource]:
        """Sources of the kernels that torch.compile generated, copied."""
        sources = self._try("torch.compile", lambda: self._matched(found)) or []
        texts = {source.hash: text for source, text in sources if source.hash and text is not None}
        copied = self._try("copies of kernels", lambda: write_copies(self._copies, texts)) or {}
        return [msgspec.structs.replace(one, copy=copied.get(one.hash or "")) for one, _ in sources]

    def _matched(self, found: LiveObjects) -> list[tuple[RecordedSource, str | None]]:
        names = self._names
        return generated_sources(
            names.kernels,
            files_by_hash(names.kernel_files),
            names.graph_keys,
            compiled_graphs(found.graphs, found.traced),
            read=lambda file, hash_: None if file is None else read_generated(file, hash_),
        )


def write_copies(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Write source texts into a folder as `<hash>.py`, in place of those of an earlier recording.

    The folder is there afterwards exactly if there are texts, or other files of the user's in it.

    Returns:
        Path of each copy by hash, relative to the folder's parent.

    Raises:
        OSError: They cannot be written.
    """
    if folder.is_dir():
        for stale in folder.iterdir():
            if is_generated(stale.name) and stale.stem not in texts:
                stale.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    if texts:
        folder.mkdir(parents=True, exist_ok=True)
    for hash_, text in texts.items():
        partial = folder / f".{hash_}.{os.getpid()}.partial"
        partial.write_bytes(text.encode("utf-8", "surrogatepass"))
        partial.replace(folder / f"{hash_}.py")
    return {hash_: f"{folder.name}/{hash_}.py" for hash_ in texts}


@dataclass(frozen=True)
class CycleEnd:
    """How a window ended.

    Args:
        wall_times_ns: Of each whole step.
        partial: Before its last step did.
        ended_by: Class of the exception that ended it, or None.
        unrecorded_steps: Steps timed before it.
        graphs: Notes of the CUDA graphs captured so far.
    """

    wall_times_ns: tuple[int, ...]
    partial: bool = False
    ended_by: str | None = None
    unrecorded_steps: tuple[UnrecordedStep, ...] = ()
    graphs: GraphNotes | None = None


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
        graphs, graph_gaps = _kept_graphs(end.graphs, trace_path)
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
            gaps=(*enrichment.gaps, *structure_gaps, *graph_gaps),
            regions=recording.regions,
            ended_by=end.ended_by,
            structure=structure,
            unrecorded_steps=end.unrecorded_steps,
            graphs=graphs,
            rank=launched_as("RANK"),
            world_size=launched_as("WORLD_SIZE"),
        )
        write_sidecar(sidecar_path(trace_path), sidecar)
        return Cycle(index, trace_path, sidecar_path(trace_path), sidecar)

    @cached_property
    def _environment(self) -> Environment:
        return collect_environment()


def _kept_graphs(
    notes: GraphNotes | None, trace_path: Path
) -> tuple[tuple[RecordedGraph, ...], tuple[Gap, ...]]:
    """The CUDA graphs noted so far, their captures copied beside the trace, and what is missing of them."""
    if notes is None:
        return (), ()
    try:
        return notes.keep_beside(trace_path), tuple(notes.gaps)
    except OSError as error:
        return (), (*notes.gaps, Gap("CUDA graphs", f"{type(error).__name__}: {error}"))


def with_unrecorded(cycle: Cycle, steps: tuple[UnrecordedStep, ...]) -> Cycle:
    """The cycle with these unrecorded steps, in its file too; as it is where the file is gone.

    Raises:
        CaptureError: It cannot be written.
    """
    if steps == cycle.sidecar.unrecorded_steps or not cycle.sidecar_path.exists():
        return cycle
    sidecar = msgspec.structs.replace(cycle.sidecar, unrecorded_steps=steps)
    write_sidecar(cycle.sidecar_path, sidecar)
    return replace(cycle, sidecar=sidecar)


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
