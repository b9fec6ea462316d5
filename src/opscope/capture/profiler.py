"""`Profiler`: record a running program by a schedule, as Kineto traces with a sidecar each.

One cycle at a time: wait, warm up, record, write. A cycle's files are written before the program goes on, so
whatever happens later leaves them whole. At most one Profiler runs in a process. Regions, in which only some
activities are recorded, are kept whether or not a window is open: one that is open when a window opens holds
in it from its first moment. What inductor notes with `track_compile` is kept on torch's own objects and read
when a recording ends. Importing this module does not import torch.
"""

from __future__ import annotations

import atexit
import datetime
import importlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict

from opscope.capture import dataflow, environment, graph_notes, step_clock
from opscope.capture.cycle import (
    ACTIVE_STEPS,
    Cycle,
    CycleHandler,
    Phase,
    Position,
    Schedule,
    attempted,
    collect,
    trace_file_names,
    with_unrecorded,
)
from opscope.capture.recording import (
    AUTOGRAD,
    PROFILER,
    Recording,
    available_activities,
    detached_afterwards,
    require_no_profiler,
)
from opscope.errors import CaptureError, DependencyError, InputError
from opscope.model.files import claimed, scratch_prefix
from opscope.model.origin import Gap
from opscope.model.sidecar import (
    SIZE_LIMIT,
    Environment,
    RecordedDataflow,
    RecordedSchedule,
    RecordedSettings,
    Sidecar,
    UnrecordedStep,
    graphs_folder,
    kernels_folder,
    sidecar_path,
    write_sidecar,
)
from opscope.units import parse_bytes
from opscope.workloads.runtime import is_out_of_memory, require_torch, resident_bytes

OUT_OF_MEMORY_HINT = "Use a smaller batch, a shorter sequence or a smaller dtype"
_TRACKING, _NORMAL = "provenance_tracking_level", 1

# Kineto has one session per process, so the right to use it is one per process too.
_session = threading.Lock()
_holder: Profiler | None = None


class CaptureOptions(TypedDict, total=False):
    """What to record; keywords shared by everything that records. Defaults and meaning as in `Profiler`."""

    record_shapes: bool
    with_stack: bool
    with_modules: bool
    profile_memory: bool
    track_compile: bool
    on_cycle: CycleHandler | Iterable[CycleHandler]
    workload: Mapping[str, Any] | None
    overwrite: bool
    engine: str
    keep_on_error: bool


class Profiler:
    """Records the steps of the program in its `with` block.

        with Profiler("out", warmup=1, active=3) as profiler:
            for batch in batches:
                train(batch)
                profiler.step()
        profiler.cycles[0].trace_path

    Recorded windows are clean: all devices are idle when one opens and when it closes, so no warm-up kernel
    is in it and none of its own is missing. Between recorded steps nothing is synchronized. After the last
    cycle, and some steps more, `step()` costs nothing. A block that calls `step()` never, with `wait=0,
    warmup=0`, is recorded as one step; by `opscope.profile` also with a warm-up of two steps or more: it
    records the first of them and drops that at the first `step()`.

    Steps without a profiler attached, those of `wait` and those after the last cycle, are timed for the
    sidecar, which is written once more when the block is left: that waits for the last event of them.

    A block left normally in the middle of a window leaves what was recorded, with `partial` in its sidecar. A
    block left by an exception drops the open window and keeps the finished cycles, unless `keep_on_error`.

    Parts of a step can be left out; what was left out is noted in the sidecar and reported on load:

        with profiler.off():           # neither operators nor kernels
            batch = next(batches)
        with profiler.only("cuda"):    # kernels, without the operators that launch them
            train(batch)

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
        on_cycle: A function, or several, called with each Cycle once its files are whole.
        workload: Description of the program for the sidecar, in JSON types.
        overwrite: Replace files of earlier recordings instead of refusing.
        engine: `profiler` is torch.profiler; `autograd` is torch.autograd.profiler, which notes no rank in
            the trace and cannot be switched off in between.
        keep_on_error: Write the open window too when an exception leaves the block, out of memory included;
            the exception always passes as it is. If even that fails, the window is dropped.

        max_trace_size: What recording may add to this process's memory, e.g. `"2GB"`: the profiler holds its
            events there until a cycle ends. After a step in which the process has grown by more since the
            cycle's first, by its own data too, the recording ends with that step. No bound if None. A block
            without steps is asked to end by `is_large`.

    Attributes:
        cycles: The cycles recorded so far.

    Raises:
        InputError: The schedule, the name or the engine makes no sense.
    """

    # Whether the first of several warm-up steps is recorded until step() is called: the block may be the
    # step. Another one follows, because attaching the profiler anew must not fall into a recorded step.
    _records_block = False

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        *,
        name: str = "trace",
        wait: int = 0,
        warmup: int = 1,
        active: int = ACTIVE_STEPS,
        repeat: int = 1,
        record_shapes: bool = True,
        with_stack: bool = False,
        with_modules: bool = False,
        profile_memory: bool = False,
        track_compile: bool = False,
        on_cycle: CycleHandler | Iterable[CycleHandler] = (),
        workload: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        engine: str = PROFILER,
        keep_on_error: bool = False,
        max_trace_size: str | int | None = None,
    ) -> None:
        if engine not in {PROFILER, AUTOGRAD}:
            raise InputError(f"'{engine}' is not an engine", hint="Use profiler or autograd")
        self._most_bytes = None if max_trace_size is None else parse_bytes(str(max_trace_size))
        self._resident_bytes = 0  # when the open window began
        self.grown_bytes: int | None = None  # when `max_trace_size` ended the recording
        self.schedule = Schedule(wait, warmup, active, repeat)
        self.cycles: list[Cycle] = []
        self._file_names = trace_file_names(name, repeat)
        self._output_dir = None if output_dir is None else Path(output_dir)
        self._stacks = (record_shapes, with_stack or with_modules, with_modules, profile_memory)
        self._engine = engine
        self._keep_on_error = keep_on_error
        self._wanted: frozenset[str] | None = None  # by the innermost region; None is everything
        self.lost: str | None = None  # why the window that an exception left open could not be kept
        # Has to end this one when another Profiler is entered while it runs; None refuses the other.
        self.give_way: Callable[[], object] | None = None
        self.is_last_of_program = False  # no other recording of ours follows in this process
        # Whether to look, in the last two steps of the first warm-up, at what needs what.
        self.watches_dataflow = False
        self._watch: dataflow.DataflowWatch | None = None
        self._dataflow: RecordedDataflow | None = None
        self._handlers = (on_cycle,) if callable(on_cycle) else tuple(on_cycle)
        self.workload = workload  # as it is when a cycle ends, for that cycle's sidecar
        self._overwrite = overwrite
        self._track_compile = track_compile
        self.unrecorded_steps: list[UnrecordedStep] = []  # also of who has timed some before the block
        self._clock = step_clock.StepClock()
        self.merged = 1  # steps of the program in each of these
        self._settings: RecordedSettings | None = None
        self._graphs = graph_notes.GraphNotes(self._step_aside, self._attach)
        self._ends = ExitStack()  # of its block: what stops then, and what is put back
        self._recording: Recording | None = None  # attached in warm-up, started in active steps
        self._is_open = False
        self._step_index = 0
        self._busy_from = 0
        self._position = self.schedule.position(0)

    @property
    def total_steps(self) -> int:
        """Calls of `step()` after which nothing more is recorded."""
        return self.schedule.total_steps

    @property
    def is_recording(self) -> bool:
        """Whether work done now is recorded, regions aside."""
        return self._recording is not None and self._recording.is_started

    @property
    def has_begun(self) -> bool:
        """Whether its block has been entered; it can be once."""
        return self._settings is not None

    @property
    def needs_no_steps(self) -> bool:
        """Whether nothing more is recorded or timed."""
        return self._position.phase is Phase.DONE and self._clock.is_full

    @property
    def cycle_of_steps(self) -> tuple[int, int] | None:
        """Where steps come in cycles, how many are one, and how many come before the next."""
        found = self._clock.cycle() if self._position.phase is Phase.DONE else None
        return None if found is None else (found[0], (found[1] - self._step_index) % found[0])

    def merge_steps(self, count: int) -> None:
        """Before its block: each step is so many of the program's."""
        self.merged = count
        # At least eight steps are timed.
        self._clock = step_clock.StepClock(most=max(8, step_clock.MOST_SAMPLES // count))

    @property
    def is_large(self) -> bool:
        """Whether recording has taken more memory than it may; asked where it is, and so noted."""
        if self.grown_bytes is None and self._most_bytes is not None and self.is_recording:
            grown_bytes = resident_bytes() - self._resident_bytes
            if grown_bytes > self._most_bytes:
                self.grown_bytes = grown_bytes
        return self.grown_bytes is not None

    def note_graphs(self) -> None:
        """Note the CUDA graphs that are captured from now on, so that their replays can be told apart.

        Entering the block does so too; before it, for graphs that are captured earlier. Ends with the block.
        """
        require_torch()
        self._graphs.start()

    def forget_graphs(self) -> None:
        """Note none any longer, where the block is not entered after all."""
        self._graphs.discard()

    def check_output(self) -> None:
        """Refuse to replace files of an earlier recording, unless asked to; entering does so too."""
        if self._output_dir is None or self._overwrite:
            return
        for file_name in self._file_names:
            trace_path = self._output_dir / file_name
            beside = (place(trace_path) for place in (sidecar_path, kernels_folder, graphs_folder))
            for file in (trace_path, *beside):
                if file.exists():
                    raise InputError(
                        "the file exists",
                        source=file,
                        hint="Choose another folder or name, or pass overwrite=True",
                    )

    def __enter__(self) -> Profiler:
        """Check everything that can be checked, then begin with the first step.

        Raises:
            CaptureError: A profiler is running, or this one has run.
            InputError: A file of an earlier recording is in the way, another process is writing it, or the
                folder cannot be made.
            DependencyError: torch is not installed.
        """
        global _holder  # noqa: PLW0603 - one per process, as Kineto's session is
        require_torch()
        if self.has_begun:
            raise CaptureError("this Profiler has already run", hint="Make a new one for each with-block")
        if not _session.acquire(blocking=False):
            if _holder is not None and _holder.give_way is not None:
                _holder.give_way()
            if not _session.acquire(blocking=False):
                raise CaptureError(
                    "an opscope Profiler is already running in this process", hint="End it first"
                )
        _holder = self
        self._ends.callback(self._graphs.discard)
        self._ends.callback(self._clock.stop)
        try:
            require_no_profiler()
            self._directory = self._make_directory()  # of the traces
            self._settings = RecordedSettings(
                *self._stacks, activities=available_activities(), engine=self._engine
            )
            if self._track_compile:
                self._start_tracking()
            self.note_graphs()
            self._clock.start()
            self._begin()
            self._watch_dataflow()
            self._clock.mark(0)
        except BaseException:
            self.drop()
            raise
        self._is_open = True
        return self

    def pass_step(self) -> bool:
        """Do what `step` does where that is nothing but counting; if it is more, False: call `step`."""
        if self._step_index + 1 >= self._busy_from:
            return False
        self._step_index += 1
        return True

    def step(self) -> None:
        """Say that a step is done and the next one begins.

        Raises:
            CaptureError: Called outside the with-block, or the profiler or the file system fails.
        """
        if not self._is_open:
            raise CaptureError("step() was called outside the Profiler's with-block")
        previous, self._step_index = self._position, self._step_index + 1
        self._clock.mark(self._step_index)
        if self.grown_bytes is not None or (previous.phase is Phase.ACTIVE and self.is_large):
            current = Position(self.schedule.repeat, Phase.DONE)
        else:
            current = self.schedule.position(self._step_index)
        self._position = current
        self._watch_dataflow()
        recording, was_block = self._recording, previous.phase is Phase.WARMUP and self.is_recording
        if recording is not None and was_block:  # the block is not itself the step
            recording.abandon()
            self._recording = None
        if current != previous or was_block:
            if previous.phase is Phase.ACTIVE:
                # Graphs that were captured beside CUPTI have not been seen to replay without it.
                is_last = self.is_last_of_program and current.phase is Phase.DONE
                with detached_afterwards() if is_last and not self._graphs.has_seen else nullcontext():
                    self._finish(previous.cycle)
            self._begin()
            self._clock.mark(self._step_index)
        elif recording is not None and recording.is_started:
            recording.next_step(self._step_index)
        # Of a wait only the last steps are timed.
        is_waiting = self._recording is None and current.phase is Phase.WAIT
        self._busy_from = (
            self.schedule.recorded_from(self._step_index) - step_clock.MOST_SAMPLES if is_waiting else 0
        )

    def off(self) -> AbstractContextManager[None]:
        """A block of which nothing is recorded: neither operators nor kernels.

        Regions nest: inside, the innermost holds, and after it the one around it again, also when the block
        raises. They hold for the thread that records and what it starts (the backward pass included), and
        only within recorded steps; elsewhere they cost nothing. `ProfilerStep` ranges stay in the trace, and
        so do Python frames and allocations, where those are recorded: torch cannot switch them.

        Where CUDA is recorded, entering and leaving wait for all devices, so that each kernel falls on the
        side it was launched on; that and the switching take milliseconds, which are inside the step.

        Raises:
            CaptureError: The engine is `autograd`, or (on entering) another thread records.
        """
        return self._region(frozenset())

    def only(self, *activities: str) -> AbstractContextManager[None]:
        """A block of which only some activities are recorded; for the rest see `off`.

        With `cuda` alone, kernels have no operator: their time is unattributed. With `cpu` alone, operators
        have no device time. An activity that this machine cannot record is not recorded here either, so
        that the same program runs with and without a GPU.

        Args:
            *activities: `cpu` (operators and annotations), `cuda` (kernels, copies and the runtime calls that
                launch them), or both.

        Raises:
            InputError: No activity, or an unknown one.
            CaptureError: As in `off`.
        """
        if unknown := [name for name in activities if name not in ("cpu", "cuda")]:
            raise InputError(f"'{unknown[0]}' is not an activity", hint="Use 'cpu' and 'cuda'")
        if not activities:
            raise InputError("only() names no activity", hint="Name 'cpu' or 'cuda', or use off()")
        return self._region(frozenset(activities))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what was recorded, or drop the open window if the block failed.

        Raises:
            CaptureError: The block ran out of memory (its error is the cause), or ended before anything was
                recorded.
        """
        try:
            if self.is_recording and error is None:
                # A block without any step() is itself the step.
                is_one_step = self._step_index == 0 and self.grown_bytes is None
                self._finish(self._position.cycle, partial=not is_one_step)
            elif self.is_recording and self._keep_on_error:
                try:
                    self._finish(self._position.cycle, partial=True, ended_by=type(error).__name__)
                except Exception as failure:  # noqa: BLE001 - a device after an illegal access fails in many ways
                    # The block's own error stays the one that is seen.
                    self.lost = str(failure).splitlines()[0] if str(failure) else repr(failure)
            self.keep_late_steps()
        finally:
            self.drop()
        if error is not None and not self._keep_on_error and is_out_of_memory(error):
            phase, kept = self.schedule.position(self._step_index).phase.value, len(self.cycles)
            raise CaptureError(
                f"out of memory in step {self._step_index} ({phase}); {kept} finished "
                f"{'cycle is' if kept == 1 else 'cycles are'} kept",
                hint=OUT_OF_MEMORY_HINT,
            ) from error
        if error is None and not self.cycles:
            raise CaptureError(
                f"nothing was recorded: the block ended after {self._step_index} calls of step(), and "
                f"recording starts after {self.schedule.wait + self.schedule.warmup}",
                hint="Run more steps, or use wait=0 and warmup=0",
            )

    def drop(self) -> None:
        """Leave the block without writing what was recorded since the last cycle."""
        global _holder  # noqa: PLW0603
        self._is_open = False
        recording, self._recording = self._recording, None
        try:
            with self._ends:  # each of them, whichever fails; the last one first
                if recording is not None:
                    recording.abandon()
        finally:
            _holder = None
            _session.release()

    def keep_late_steps(self) -> None:
        """Write the steps that were timed, or added, after a cycle had been written into its sidecar."""
        self.unrecorded_steps += self._clock.read()
        self.cycles[:] = [with_unrecorded(cycle, tuple(self.unrecorded_steps)) for cycle in self.cycles]

    def _region(self, wanted: frozenset[str]) -> AbstractContextManager[None]:
        if self._engine == AUTOGRAD:
            raise CaptureError(
                "the autograd engine records everything or nothing", hint="Use engine='profiler' for regions"
            )
        return self._collecting(wanted)

    @contextmanager
    def _collecting(self, wanted: frozenset[str]) -> Iterator[None]:
        """Inside the block record these activities and no other; after it, what was recorded before."""
        before = self._wanted
        self._collect(wanted)
        self._wanted = wanted
        try:
            yield
        except BaseException:
            self._wanted = before
            # The device is as broken as the block's own error says, which must not be hidden.
            with suppress(CaptureError, RuntimeError):
                self._collect(before)
            raise
        self._wanted = before
        self._collect(before)

    def _collect(self, wanted: frozenset[str] | None) -> None:
        if self._recording is not None and self._recording.is_started:
            self._recording.collect(wanted)

    def _make_directory(self) -> Path:
        if self._output_dir is None:
            directory = Path(tempfile.mkdtemp(prefix=scratch_prefix()))
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
            return directory
        try:
            self._output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the folder cannot be made ({error.strerror})", source=self._output_dir
            ) from error
        self._ends.enter_context(claimed(self._output_dir / self._file_names[0]))
        self.check_output()
        return self._output_dir

    def _start_tracking(self) -> None:
        """Have inductor note where what it compiles comes from, unless the program has done so."""
        settings = importlib.import_module("torch._inductor.config").trace
        if not hasattr(settings, _TRACKING):
            raise DependencyError(
                f"torch {require_torch().__version__} cannot track where compiled kernels come from",
                hint="Record without track_compile, or use torch 2.11 or newer",
            )
        level = getattr(settings, _TRACKING)
        self._ends.callback(setattr, settings, _TRACKING, level)
        if level == 0:
            setattr(settings, _TRACKING, _NORMAL)

    def _begin(self) -> None:
        phase = self._position.phase
        if phase not in {Phase.WARMUP, Phase.ACTIVE}:
            return
        if self._recording is None:
            self._attach()
        may_be_the_step = self._records_block and self._step_index == 0 and self.schedule.warmup > 1
        if self._recording is not None and (phase is Phase.ACTIVE or may_be_the_step):
            self._resident_bytes = resident_bytes()
            self._recording.start(self._step_index)
            if self._wanted is not None:
                self._recording.collect(self._wanted)

    def _attach(self) -> None:
        assert self._settings is not None
        self._recording = Recording(self._settings)
        self._recording.prepare()

    def _watch_dataflow(self) -> None:
        """At the start of a step: begin to watch, go on, or end it before recording begins."""
        first_recorded = self.schedule.wait + self.schedule.warmup
        if self._watch is None:
            is_time = self._step_index == first_recorded - 2 >= self.schedule.wait
            if self.watches_dataflow and is_time and dataflow.has_device():
                self._watch = dataflow.DataflowWatch()
                self._ends.callback(self._watch.stop)
                self._watch.start()
        elif self._step_index == first_recorded - 1:
            self._watch.next_step()
        elif self._step_index == first_recorded:
            self._dataflow = self._watch.stop()

    def _step_aside(self) -> bool:
        """Detach the profiler that is attached without recording, so that another can record a capture."""
        if self._recording is None or self._recording.is_started:
            return False
        self._recording.abandon()
        self._recording = None
        return True

    @cached_property
    def _environment(self) -> Environment:
        return environment.collect_environment()

    def _finish(self, index: int, *, partial: bool = False, ended_by: str | None = None) -> None:
        assert self._recording is not None
        assert self._settings is not None
        wall_times_ns = self._recording.stop(last_step_is_whole=not partial)
        recording, self._recording = self._recording, None
        # Stopping has waited for the devices, so nothing waits here.
        self.unrecorded_steps += self._clock.read()
        made_in = self._environment  # before writing the trace adds to what waits for a CPU
        trace_path, gaps = self._directory / self._file_names[index], list[Gap]()
        structure = attempted(gaps, "Python frames", recording.structure)
        facts = collect(recording.export(trace_path), kernels_folder(trace_path), gaps)
        # What is compiled is not watched, as documented.
        if self._watch is not None and self._watch.why_not not in {None, dataflow.COMPILED}:
            gaps.append(Gap("watched steps", str(self._watch.why_not)))
        graphs = attempted(gaps, "CUDA graphs", lambda: self._graphs.keep_beside(trace_path)) or ()
        rank, world_size = environment.launched_as()
        sidecar = Sidecar(
            trace=trace_path.name,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            environment=made_in,
            schedule=RecordedSchedule(**vars(self.schedule), cycle=index, merged=self.merged),
            settings=self._settings,
            steps=len(wall_times_ns),
            partial=partial,
            clean_window=True,
            wall_time_ns_per_step=wall_times_ns,
            workload=None if self.workload is None else dict(self.workload),
            **facts,
            gaps=(*gaps, *self._graphs.gaps),
            regions=tuple(recording.regions),
            ended_by=SIZE_LIMIT if ended_by is None and self.grown_bytes is not None else ended_by,
            structure=structure,
            unrecorded_steps=tuple(self.unrecorded_steps),
            graphs=graphs,
            rank=rank,
            world_size=world_size,
            dataflow=self._dataflow,
        )
        write_sidecar(sidecar_path(trace_path), sidecar)
        cycle = Cycle(index, trace_path, sidecar_path(trace_path), sidecar)
        self.cycles.append(cycle)
        for handler in self._handlers:
            handler(cycle)
