"""`Profiler`: record a running program by a schedule, as Kineto traces with a sidecar each.

One cycle at a time: wait, warm up, record, write. A cycle's files are written before the program goes on, so
whatever happens later leaves them whole. At most one Profiler runs in a process. Importing this module does
not import torch.
"""

from __future__ import annotations

import atexit
import datetime
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict

from opscope.capture.compile_tracking import CompileTracking
from opscope.capture.cycle import Cycle, CycleHandler
from opscope.capture.enrichment import Enrichment, OriginFinder, collect
from opscope.capture.environment import collect_environment
from opscope.capture.recording import Recording, available_activities, require_no_profiler
from opscope.capture.schedule import Phase, Position, Schedule
from opscope.errors import CaptureError, InputError
from opscope.model.environment import Environment
from opscope.model.sidecar import (
    RecordedSchedule,
    RecordedSettings,
    Sidecar,
    kernels_folder,
    sidecar_path,
    write_sidecar,
)
from opscope.workloads.runtime import is_out_of_memory, require_torch

__all__ = ["CaptureOptions", "Profiler"]

# Kineto has one session per process, so the right to use it is one per process too.
_session = threading.Lock()


class CaptureOptions(TypedDict, total=False):
    """What to record; keywords shared by everything that records. Defaults and meaning as in `Profiler`."""

    record_shapes: bool
    with_stack: bool
    with_modules: bool
    profile_memory: bool
    track_compile: bool
    on_cycle: Iterable[CycleHandler]
    workload: Mapping[str, Any] | None
    overwrite: bool
    find_origins: OriginFinder | None


class Profiler:
    """Records the steps of the program in its `with` block.

        with Profiler("out", warmup=1, active=3) as profiler:
            for batch in batches:
                train(batch)
                profiler.step()
        profiler.cycles[0].trace_path

    Recorded windows are clean: all devices are idle when one opens and when it closes, so no warm-up kernel
    is in it and none of its own is missing. Between recorded steps nothing is synchronized. After the last
    cycle `step()` costs nothing. A block that calls `step()` never, with `wait=0, warmup=0`, is recorded as
    one step.

    A block left normally in the middle of a window leaves what was recorded, with `partial` in its sidecar. A
    block left by an exception drops the open window and keeps the finished cycles.

    Args:
        output_dir: Folder of the traces, created if missing; if None, a temporary one that is removed when
            the interpreter exits.
        name: File name of the trace, with or without `.json`; `.json.gz` compresses. With several cycles,
            `_cycle0`, `_cycle1`, … is added to it.
        wait: Steps of each cycle that run without the profiler.
        warmup: Steps of each cycle with the profiler attached but not recording. Attaching it takes up to
            seconds the first time; with 0 that falls into the first recorded step.
        active: Recorded steps of each cycle.
        repeat: Number of cycles.
        record_shapes: Record the operators' input shapes and scalar arguments.
        with_stack: Record Python frames. Costs host time at every call (60 % of a step where the host is the
            limit); device times stay right.
        with_modules: Record which `nn.Module` each operator ran in. Eager modules are only seen by the tracer
            of Python frames, so this turns `with_stack` on, at its cost.
        profile_memory: Record allocations.
        track_compile: Have torch.compile note the lines of the program that each kernel it generates stands
            for. Graphs compiled before the block do not know them: call the compiled function for the first
            time inside, in a step that is not recorded. Compiling takes a few percent longer, and a cache
            that was filled without tracking is not used. Needs torch 2.11; `INDUCTOR_PROVENANCE=1` in the
            environment does the same for a whole program.
        on_cycle: Called with each Cycle once its files are whole.
        workload: Description of the program for the sidecar, in JSON types.
        overwrite: Replace files of earlier recordings instead of refusing.
        find_origins: Finds the shared libraries that kernels come from, for the sidecar; unknown if None.
            The public functions of opscope pass their own.

    Attributes:
        cycles: The cycles recorded so far.
        workload: As given; what it is when a cycle ends goes into that cycle's sidecar.

    Raises:
        InputError: The schedule or the name makes no sense.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        *,
        name: str = "trace",
        wait: int = 0,
        warmup: int = 1,
        active: int = 3,
        repeat: int = 1,
        record_shapes: bool = True,
        with_stack: bool = False,
        with_modules: bool = False,
        profile_memory: bool = False,
        track_compile: bool = False,
        on_cycle: Iterable[CycleHandler] = (),
        workload: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        find_origins: OriginFinder | None = None,
    ) -> None:
        self.schedule = Schedule(wait, warmup, active, repeat)
        self.cycles: list[Cycle] = []
        self._file_names = _file_names(name, repeat)
        self._output_dir = None if output_dir is None else Path(output_dir)
        self._stacks = (record_shapes, with_stack or with_modules, with_modules, profile_memory)
        self._handlers = tuple(on_cycle)
        self.workload = workload
        self._overwrite = overwrite
        self._find_origins = find_origins
        self._tracking = CompileTracking() if track_compile else None
        self._directory: Path | None = None
        self._settings: RecordedSettings | None = None
        self._environment: Environment | None = None
        self._recording: Recording | None = None
        self._is_open = False
        self._step_index = 0

    @property
    def total_steps(self) -> int:
        """Calls of `step()` after which nothing more is recorded."""
        return self.schedule.total_steps

    def check_output(self) -> None:
        """Return if no file is in the way; entering the block asks this too.

        Raises:
            InputError: A file of an earlier recording would be replaced, and `overwrite` is false.
        """
        if self._output_dir is None or self._overwrite:
            return
        for file_name in self._file_names:
            trace_path = self._output_dir / file_name
            for file in (trace_path, sidecar_path(trace_path), kernels_folder(trace_path)):
                if file.exists():
                    hint = "Choose another folder or name, or overwrite it"
                    raise InputError("the file exists", source=file, hint=hint)

    def __enter__(self) -> Profiler:
        """Check everything that can be checked, then begin with the first step.

        Raises:
            CaptureError: A profiler is running, or this one has run.
            InputError: A file of an earlier recording is in the way, or the folder cannot be made.
            DependencyError: torch is not installed.
        """
        require_torch()
        if self._directory is not None:
            raise CaptureError("this Profiler has already run", hint="Make a new one for each with-block")
        if not _session.acquire(blocking=False):
            raise CaptureError("an opscope Profiler is already running in this process", hint="End it first")
        try:
            require_no_profiler()
            self._directory = self._make_directory()
            self._settings = RecordedSettings(*self._stacks, activities=available_activities())
            if self._tracking is not None:
                self._tracking.start()
            self._begin(self.schedule.position(0))
        except BaseException:
            self._abandon()
            _session.release()
            raise
        self._is_open = True
        return self

    def step(self) -> None:
        """Say that a step is done and the next one begins.

        Raises:
            CaptureError: Called outside the with-block, or the profiler or the file system fails.
        """
        if not self._is_open:
            raise CaptureError("step() was called outside the Profiler's with-block")
        previous = self.schedule.position(self._step_index)
        self._step_index += 1
        current = self.schedule.position(self._step_index)
        if current != previous:
            if previous.phase is Phase.ACTIVE:
                self._finish_cycle(previous.cycle)
            self._begin(current)
        elif self._recording is not None and self._recording.is_started:
            self._recording.next_step(self._step_index)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what was recorded, or drop the open window if the block failed.

        Raises:
            CaptureError: The block ran out of memory (its error is the cause), or ended before anything was
                recorded.
        """
        try:
            if error is None:
                self._finish_early()
        finally:
            self._abandon()
            self._is_open = False
            _session.release()
        if error is not None and is_out_of_memory(error):
            raise self._out_of_memory() from error
        if error is None and not self.cycles:
            raise CaptureError(
                f"nothing was recorded: the block ended after {self._step_index} calls of step(), and "
                f"recording starts after {self.schedule.wait + self.schedule.warmup}",
                hint="Run more steps, or use wait=0 and warmup=0",
            )

    def _make_directory(self) -> Path:
        if self._output_dir is None:
            directory = Path(tempfile.mkdtemp(prefix="opscope-"))
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
            return directory
        self.check_output()
        try:
            self._output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the folder cannot be made ({error.strerror})", source=self._output_dir
            ) from error
        return self._output_dir

    def _begin(self, position: Position) -> None:
        if position.phase not in {Phase.WARMUP, Phase.ACTIVE}:
            return
        if self._recording is None:
            assert self._settings is not None
            self._recording = Recording(self._settings)
            self._recording.prepare()
        if position.phase is Phase.ACTIVE:
            self._recording.start(self._step_index)

    def _finish_early(self) -> None:
        """Write the window that the block was left in, if any."""
        if self._recording is None or not self._recording.is_started:
            return
        # A block without any step() is itself the step.
        is_one_step = self._step_index == 0
        self._finish_cycle(
            self.schedule.position(self._step_index).cycle,
            last_step_is_whole=is_one_step,
            partial=not is_one_step,
        )

    def _finish_cycle(self, index: int, *, last_step_is_whole: bool = True, partial: bool = False) -> None:
        assert self._recording is not None
        assert self._directory is not None
        wall_times_ns = self._recording.stop(last_step_is_whole=last_step_is_whole)
        recording, self._recording = self._recording, None
        trace_path = self._directory / self._file_names[index]
        names = recording.export(trace_path)
        enrichment = collect(names, kernels_folder(trace_path), self._find_origins)
        sidecar = self._sidecar(index, trace_path.name, wall_times_ns, enrichment, partial=partial)
        cycle = Cycle(index, trace_path, sidecar_path(trace_path), sidecar)
        write_sidecar(cycle.sidecar_path, sidecar)
        self.cycles.append(cycle)
        for handler in self._handlers:
            handler(cycle)

    def _sidecar(
        self,
        index: int,
        trace: str,
        wall_times_ns: tuple[int, ...],
        enrichment: Enrichment,
        *,
        partial: bool,
    ) -> Sidecar:
        assert self._settings is not None
        if self._environment is None:
            self._environment = collect_environment()
        schedule = self.schedule
        return Sidecar(
            trace=trace,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            environment=self._environment,
            schedule=RecordedSchedule(
                schedule.wait, schedule.warmup, schedule.active, schedule.repeat, cycle=index
            ),
            settings=self._settings,
            steps=len(wall_times_ns),
            partial=partial,
            clean_window=True,
            wall_time_ns_per_step=wall_times_ns,
            workload=None if self.workload is None else dict(self.workload),
            kernels=enrichment.kernels,
            kernel_sources=enrichment.kernel_sources,
            registrations=enrichment.registrations,
            gaps=enrichment.gaps,
        )

    def _abandon(self) -> None:
        recording, self._recording = self._recording, None
        if self._tracking is not None:
            self._tracking.stop()
        if recording is not None:
            recording.abandon()

    def _out_of_memory(self) -> CaptureError:
        phase = self.schedule.position(self._step_index).phase.value
        kept = len(self.cycles)
        return CaptureError(
            f"out of memory in step {self._step_index} ({phase}); {kept} finished "
            f"{'cycle is' if kept == 1 else 'cycles are'} kept",
            hint="Use a smaller batch, a shorter sequence or a smaller dtype",
        )


def _file_names(name: str, repeat: int) -> tuple[str, ...]:
    """One trace file name per cycle."""
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
