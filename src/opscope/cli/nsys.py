"""`opscope nsys`: record a program with Nsight Systems, or export a report; statistics.

Of a program that is run, standard output is its own and then the statistics'; with `--json` it goes to
standard error, so that standard output is one JSON document.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from opscope.analysis.nsys_reports import report_tables, wanted_reports
from opscope.cli.app import EXIT_INTERRUPTED
from opscope.cli.console import STDERR, check_outputs, open_source, say_wrote, show, status
from opscope.errors import InputError
from opscope.report.tables import stats_json, stats_tables_document
from opscope.toolchain.nsys import (
    NsysOptions,
    check_run,
    export_report,
    find_nsys,
    fresh_export,
    is_report,
    profile_command,
    run_nsys,
)

_EXPORT_SUFFIX = ".sqlite"
_Seconds = Annotated[float | None, Parameter(validator=Number(gt=0))]


@dataclass(frozen=True)
class NsysRecording:
    """What nsys records of a program.

    Args:
        trace: APIs to record, as nsys names them, with commas between.
        cuda_graph_trace: graph records launches of CUDA graphs as a whole (nsys' default), node every kernel
            in them, which is slower.
        capture_range: What starts and stops the recording: torch.cuda.profiler.start() and stop()
            (cudaProfilerApi), or an NVTX range.
        delay: Seconds before the recording starts.
        duration: Seconds after which it stops; the program runs on.
        option: A further option of `nsys profile`, passed on as it is; may be given several times.
        output: The report to write; its export has the same name, ending in .sqlite.
        force: Overwrite them.
    """

    trace: str = "cuda,nvtx"
    cuda_graph_trace: Literal["graph", "node"] | None = None
    capture_range: Literal["none", "cudaProfilerApi", "nvtx"] = "none"
    delay: _Seconds = None
    duration: _Seconds = None
    option: Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True)] = ()
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("opscope.nsys-rep")
    force: bool = False


_DEFAULT = NsysRecording()
_Recording = Annotated[NsysRecording, Parameter(name="*", group=Group("Recording a program"))]


def nsys(
    *target: Annotated[str, Parameter(name="REPORT")],
    report: list[str] | None = None,
    json: bool = False,
    recording: _Recording = _DEFAULT,
) -> int:
    """Record with Nsight Systems: opscope nsys [OPTIONS] -- PROGRAM [ARGS…], or opscope nsys FILE.nsys-rep.

    The report is exported to a SQLite database, which every verb reads (opscope analyze FILE.sqlite), and its
    statistics are printed. Running and exporting need nsys; an export is read on any machine. The program's
    exit code is passed on.

    Example: opscope nsys -- python train.py

    Args:
        target: A report (.nsys-rep) or an export (.sqlite), or -- and the program with its arguments.
        report: Statistics to print: cuda_api_sum, cuda_gpu_kern_sum, cuda_gpu_mem_time_sum,
            cuda_gpu_mem_size_sum, cuda_gpu_sum (kernels and copies in one table, the default), or all;
            several with commas between.
        json: Print one JSON document and nothing else.
        recording: What is recorded of a program.
    """
    if not target:
        raise InputError(
            "nothing to read or run", hint="opscope nsys FILE.nsys-rep, or opscope nsys -- PROGRAM"
        )
    wanted = wanted_reports(report)
    if len(target) == 1 and _is_file(target[0]):
        return _read(Path(target[0]), wanted, recording, json=json)
    return _record(target, wanted, recording, json=json)


def _is_file(name: str) -> bool:
    """Whether a single word is meant as a file to read, and not as a program to run."""
    return is_report(name) or name.endswith(_EXPORT_SUFFIX)


def _read(file: Path, reports: list[str], recording: NsysRecording, *, json: bool) -> int:
    export = file
    if is_report(str(file)):
        export = _exported(file, recording, json=json)
    elif recording != _DEFAULT:
        raise InputError(
            "options of recording are given, and an export to read",
            hint="A program comes after --: opscope nsys --output r.nsys-rep -- ./program",
        )
    _show(export, reports, json=json)
    return 0


def _exported(file: Path, recording: NsysRecording, *, json: bool) -> Path:
    """The export of a report, beside it or where --output says; one that is no older is taken as it is."""
    if not file.is_file():
        raise InputError("no such file", source=file, hint="Check the path")
    target = (file if recording.output == _DEFAULT.output else recording.output).with_suffix(_EXPORT_SUFFIX)
    if not recording.force and fresh_export(file) == target:
        return target
    executable = find_nsys(os.environ.get("PATH"))
    check_outputs([target], force=recording.force, inputs=[file])
    target.parent.mkdir(parents=True, exist_ok=True)
    with status(f"Exporting {file}"):
        export_report(file, target, executable=executable)
    say_wrote([target], on_stderr=json)
    return target


def _record(program: tuple[str, ...], reports: list[str], recording: NsysRecording, *, json: bool) -> int:
    if shutil.which(program[0]) is None:
        raise InputError(
            f"there is no program '{program[0]}'", hint="opscope nsys -- python script.py ARGS, or ./program"
        )
    executable = find_nsys(os.environ.get("PATH"))
    target = recording.output
    target = target if is_report(str(target)) else target.with_name(f"{target.name}.nsys-rep")
    export = target.with_suffix(_EXPORT_SUFFIX)
    check_outputs([target, export], force=recording.force)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    command = profile_command(_plan(recording), program, output=target, executable=executable)
    sys.stdout.flush()
    run = run_nsys(command, stdout=STDERR if json else None)
    if run.was_interrupted and not target.exists():
        raise KeyboardInterrupt
    check_run(run, target)
    with status(f"Exporting {target}"):
        export_report(target, export, executable=executable)
    say_wrote([target, export], on_stderr=json)
    _show(export, reports, json=json)
    return EXIT_INTERRUPTED if run.was_interrupted else run.exit_code


def _plan(recording: NsysRecording) -> NsysOptions:
    return NsysOptions(
        trace=tuple(name for name in recording.trace.split(",") if name),
        cuda_graph_trace=recording.cuda_graph_trace,
        capture_range=recording.capture_range,
        delay_s=recording.delay,
        duration_s=recording.duration,
        options=recording.option,
    )


def _show(export: Path, reports: list[str], *, json: bool) -> None:
    with open_source([str(export)]) as session:
        tables = report_tables(session, reports)
    show(lambda: stats_json(tables), lambda: stats_tables_document(tables), json=json)
