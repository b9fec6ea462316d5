"""`opscope run`: profile an unmodified script.

Standard output belongs to the script; everything of ours goes to standard error, after the script has ended.
"""

from __future__ import annotations

import itertools
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from opscope.analysis.measured_step import unrecorded_time
from opscope.capture.cycle import ACTIVE_STEPS, trace_file_names
from opscope.capture.environment import launched_as
from opscope.capture.profiler import Profiler
from opscope.capture.program import check_program
from opscope.capture.program_recorder import ProgramRecorder, RecognizedSteps, program_of, step_source
from opscope.cli import console
from opscope.errors import DependencyError, InputError, OpscopeError
from opscope.model.sidecar import kernels_folder, sidecar_path
from opscope.report.analysis import recording_document
from opscope.report.document import numbered
from opscope.report.summary_json import analysis_json
from opscope.results import load, summarize

# Operators in report.md.
_REPORTED = 10
# Read by torch/_inductor/config.py when it is imported.
_TRACKING = "INDUCTOR_PROVENANCE"
_STEPWISE = {"wait": 0, "warmup": 2, "active": ACTIVE_STEPS, "repeat": 1}
_WHOLE: dict[str, Any] = {"wait": 0, "warmup": 0, "active": 1, "repeat": 1}
_Count = Annotated[int | None, Parameter(validator=Number(gte=0))]


@dataclass(frozen=True)
class ProgramRecording:
    """What is recorded of the script.

    Args:
        steps: What ends a step: optimizer (optimizer.step), forward (a call of the model), loop (a round of
            the main loop), auto (the first of these that exists, else none), a FUNCTION of the script,
            or MODULE:FUNCTION; none records the whole run.
        wait: Steps to skip after the first one, which is never recorded; 0 by default.
        active: Steps to record; 6 by default.
        record: Also record Python stacks (stack), calls of nn.Modules (modules), allocations (memory), or the
            source lines behind kernels of torch.compile (compile); repeat the option for several.
        max_trace_size: Memory that recording may take (2GB). Recording ends with the step that exceeds it, or
            at once without steps.
    """

    steps: str = "auto"
    wait: _Count = None
    active: _Count = None
    record: tuple[Literal["stack", "modules", "memory", "compile"], ...] = ()
    max_trace_size: str | None = None

    def schedule(self) -> dict[str, Any]:
        """Arguments of a Profiler; an InputError where a schedule was given, and there are no steps."""
        given = {name: getattr(self, name) for name in ("wait", "active") if getattr(self, name) is not None}
        if self.steps != "none":
            return {**_STEPWISE, **given}
        if given:
            raise InputError(
                f"--steps none records the whole run: --{next(iter(given)).replace('_', '-')} does not apply",
                hint="Leave it out, or name what ends a step",
            )
        return _WHOLE


_DEFAULT_RECORDING = ProgramRecording()
_Recording = Annotated[ProgramRecording, Parameter(name="*", group=Group("Recording"))]


@dataclass(frozen=True)
class _Outputs:
    """Files of one process of the program; several processes of a job share the folder."""

    directory: Path
    rank: int | None

    @property
    def is_first(self) -> bool:
        """Of a job one process prints, and writes the page."""
        return self.rank in {None, 0}

    @property
    def trace_name(self) -> str:
        return "trace" if self.rank is None else f"trace_rank{self.rank}"

    def all(self, traces: tuple[str, ...]) -> list[Path]:
        paths = [self.directory / trace for trace in traces]
        return [
            file
            for path in paths
            for file in (path, sidecar_path(path), kernels_folder(path), *self.of(path.name))
        ]

    def of(self, trace: str) -> tuple[Path, Path]:
        suffix = trace.removesuffix(".json").removeprefix("trace")
        return self.directory / f"analysis{suffix}.json", self.directory / f"report{suffix}.md"


def run(
    script: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    module: Annotated[bool, Parameter(name=["-m", "--module"])] = False,
    recording: _Recording = _DEFAULT_RECORDING,
    output_dir: Path | None = None,
    stop: bool = False,
    quiet: bool = False,
    top: console.Top = 10,
    reading: console.ProgramParts = console.PROGRAM_PARTS,
    output: console.Output = (),
    force: console.Force = False,
) -> int:
    """Profile an unmodified training or inference script: opscope run [OPTIONS] SCRIPT [ARGS…].

    The script runs as with `python SCRIPT ARGS…`, and its exit code is passed on. opscope recognizes its
    steps and records some after the first; the recording is kept if the script fails or is interrupted.
    Writes trace.json, analysis.json and report.md; under torchrun (torchrun --no-python opscope run …) one of
    each per rank.

    Example: opscope run --record stack train.py --epochs 1

    Args:
        script: A Python file.
        arguments: Arguments of the script; options of opscope come before SCRIPT.
        module: SCRIPT is a module name, to run as with python -m.
        recording: What is recorded.
        output_dir: Folder for the files; the first free one of opscope_run, opscope_run_2, … if left out.
        stop: End the script once its steps are recorded and timed.
        quiet: Print no report.
    """
    source = step_source(recording.steps)
    program = program_of(script, arguments, source, is_module=module)
    if stop and source is None:
        raise InputError("--steps none records the whole run: --stop does not apply", hint="Leave it out")
    schedule = recording.schedule()
    # The script may change the working folder.
    outputs = _Outputs(output_dir or _free_folder(force=force), launched_as()[0])
    further = [path.absolute() for path in output] if outputs.is_first else []
    traces, folder = trace_file_names(outputs.trace_name, 1), outputs.directory.absolute()
    check_program(program)
    if find_spec("torch") is None:
        raise DependencyError("PyTorch is not installed", hint="pip install 'opscope[torch]'")
    console.check_outputs([*outputs.all(traces), *further], force=force)

    def whole(most_bytes: str) -> Profiler:
        bounded = replace(recording, max_trace_size=recording.max_trace_size or most_bytes)
        return _profiler(bounded, _WHOLE, outputs, force=force)

    def again(per_step: int) -> Profiler:
        merged = {"wait": 0, "active": 2} if per_step > 1 else {}  # where steps come in cycles
        profiler = _profiler(recording, schedule | merged, outputs, force=True)
        profiler.merge_steps(per_step)
        return profiler

    recorder = ProgramRecorder(
        _profiler(recording, schedule, outputs, force=force),
        source,
        again=again,
        whole=None if recording.steps != "auto" or schedule["wait"] else whole,
        stop=stop,
    )
    if "compile" in recording.record:  # a recording would be late: scripts compile in their first step
        os.environ[_TRACKING] = "1"
    with console.load_noticed():
        end = recorder.run(program)
    if recorder.is_child:
        # Forked off by the script, with nothing to report; and where torch's profiler was running at the
        # fork, an ordinary exit of the child hangs.
        os._exit(end.exit_code)
    if not recorder.cycles and outputs.rank is None:
        with suppress(OSError):  # it holds something
            folder.rmdir()
    try:
        recorder.require_cycles()
        taken = source.taken if isinstance(source, RecognizedSteps) else recording.steps
        if recorder.is_whole and source is not None:
            recorder.notes.append(
                "no optimizer stepped and no model was called, so the program is one step; "
                "--steps FUNCTION names what ends one"
            )
        if taken == "loop":
            recorder.notes.append(
                "no optimizer stepped and no model was called, so each round of the main loop is a step; "
                "--steps FUNCTION names what ends one"
            )
        if taken == "forward" and isinstance(source, RecognizedSteps):
            calls = source.calls_per_step
            recorder.notes.append(
                "no optimizer had stepped when recording ended, so each call of the model is a step; "
                "--steps optimizer waits for one"
                if calls == 1
                else f"no optimizer had stepped when recording ended, so {calls} calls of the model, from "
                "one line each, are a step; --steps optimizer waits for one"
            )
        _report(recorder, outputs, further, top=None if quiet else top, reading=reading)
    except OpscopeError as error:
        if end.exit_code == 0:
            raise
        # The script's own failure comes first.
        console.say(f"error: {error}")
    return end.exit_code


def _free_folder(*, force: bool) -> Path:
    """The first in which nothing lies; the files of one job appear when all of its processes have chosen."""
    folders = (Path("opscope_run" + f"_{number}" * (number > 1)) for number in itertools.count(1))
    return next(
        one for one in folders if force or not one.exists() or (one.is_dir() and not any(one.iterdir()))
    )


def _profiler(
    recording: ProgramRecording, schedule: dict[str, Any], outputs: _Outputs, *, force: bool
) -> Profiler:
    profiler = Profiler(
        # The script may change the working folder.
        outputs.directory.absolute(),
        name=outputs.trace_name,
        **console.recorded(recording.record),
        max_trace_size=recording.max_trace_size,
        overwrite=force,
        keep_on_error=True,
        **schedule,
    )
    profiler.watches_dataflow = True
    profiler.check_output()
    try:
        outputs.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made ({error.strerror})", source=outputs.directory) from error
    return profiler


def _report(
    recorder: ProgramRecorder,
    outputs: _Outputs,
    further: list[Path],
    *,
    top: int | Literal["all"] | None,
    reading: console.ProgramParts,
) -> None:
    """Write what the recording says, and print that of the last cycle unless `top` is None."""
    for text in recorder.notes:
        console.note(text)
    for name, sidecar in ((one.trace_path.name, one.sidecar) for one in recorder.cycles):
        if (merged := sidecar.schedule.merged) > 1:
            console.note(
                f"one of every {merged} steps is long, so {merged} are recorded as one step; "
                "--steps optimizer (or forward) records each"
            )
        if sidecar.partial:
            console.note(
                f"{name}: {sidecar.steps} of {sidecar.schedule.active} steps were recorded; "
                "what followed the last of them is in the trace too"
            )
    steps = recorder.cycles[-1].sidecar.unrecorded_steps
    if not recorder.is_whole and unrecorded_time(steps, has_device=False) is None:
        console.note(
            "the program is too short to have steps without the profiler, so how long they take is unknown: "
            "let it run for more of them"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The script may have turned warnings into errors; ours are not its.
        for cycle in recorder.cycles:
            is_last = cycle is recorder.cycles[-1] and outputs.is_first
            shown, pages = (top, further) if is_last else (None, [])
            analysis, report = outputs.of(cycle.trace_path.name)
            folder = cycle.trace_path.parent
            with load(cycle.trace_path) as session:
                summary = summarize(session)
                rows = _REPORTED if shown is None else None if shown == "all" else shown
                console.write_reports(
                    [folder / analysis.name, folder / report.name, *pages],
                    partial(analysis_json, summary, top=None),
                    partial(numbered, recording_document(summary, top=_REPORTED, is_full=True)),
                    partial(console.write_recording_page, session=session, summary=summary, top=rows),
                )
                if shown is not None:
                    document = recording_document(
                        summary, top=reading.rows(shown), is_full=reading.full, is_screen=reading.is_screen
                    )
                    console.print_document(document, reading=reading, on_stderr=True)
            console.say_wrote(
                [outputs.directory / cycle.trace_path.name, analysis, report, *pages], on_stderr=True
            )
