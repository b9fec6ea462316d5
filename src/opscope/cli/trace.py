"""`opscope trace`: record any CUDA program: kernels, copies, calls.

The program's standard streams are its own, and what is said of it goes to standard error, after it has ended;
with `--json` its output goes to standard error too, so that standard output is one JSON document.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opscope.analysis.nsys_reports import REPORTS, ReportTable, report_tables
from opscope.cli import console
from opscope.cupti.library import build_library, check_program, find_compiler, find_cupti, trace_environment
from opscope.cupti.recording import read_recording
from opscope.cupti.trace_file import WrittenTrace, first_moment_ns, recording_sidecar, write_trace
from opscope.errors import CaptureError, InputError, OpscopeError
from opscope.hardware.driver import driver_cuda_version, find_cuda_tool
from opscope.model.files import scratch_prefix
from opscope.model.finding import Severity, findings_as_json
from opscope.model.origin import Gap, RecordedKernel
from opscope.model.sidecar import sidecar_path, write_sidecar
from opscope.provenance.binaries import recorded_origins
from opscope.provenance.packaged import cache_folder
from opscope.report.json_encoding import Keys, encode, versions
from opscope.report.tables import stats_json, stats_tables_document
from opscope.results import load
from opscope.toolchain.programs import AttachedExit, run_attached
from opscope.units import parse_bytes

# Its first process has the plain name, every other one its process id behind it.
_OURS = re.compile(r"trace(_\d+(-\d+)?)?(\.opscope)?\.json")


def trace(
    *program: Annotated[str, Parameter(name="PROGRAM", allow_leading_hyphen=True)],
    output_dir: Path = Path("opscope_trace"),
    force: console.Force = False,
    from_records: Path | None = None,
    without_unified_memory: bool = False,
    max_trace_size: str | None = None,
    json: console.Json = False,
) -> int:
    """Record a CUDA program: opscope trace [OPTIONS] -- ./program ARGS.

    Records kernels, copies (also of unified memory), sets and CUDA calls of any program, without Nsight
    Systems: CUDA itself loads a small CUPTI library, compiled on first use. Writes a Kineto trace for each
    process that used CUDA, which every verb reads, and prints nsys' statistics. The program's exit code is
    passed on; the recording is kept if the program fails or is interrupted.

    Example: opscope trace -- ./vector_add 1024

    Args:
        program: The program and its arguments, after --.
        output_dir: Folder for the traces: trace.json; trace_PID.json for further processes.
        from_records: Run nothing; convert the records that an interrupted recording left in this folder.
        without_unified_memory: Do not record copies of unified memory.
        max_trace_size: Size limit for the records of each process (2GB); later ones are left out and counted.
    """
    if bool(program) == (from_records is not None):
        raise InputError("nothing to run, or too much", hint="opscope trace -- ./program ARGS")
    there = output_dir.iterdir() if output_dir.is_dir() else ()
    earlier = sorted(path for path in there if _OURS.fullmatch(path.name))
    console.check_outputs(earlier, force=force)
    output = output_dir / "trace.json"
    if from_records is not None:
        _clear(earlier, output_dir)
        _show(None, _written(output, from_records, None), (), json=json)
        return 0
    most_bytes = None if max_trace_size is None else parse_bytes(max_trace_size)
    records = output_dir / "trace.records"
    check_program(program[0], os.environ.get("PATH"))
    cupti = find_cupti(*_places(), driver_cuda_version())
    compiler = find_compiler(os.environ.get("CC"), os.environ.get("PATH"))
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as scratch:
        try:
            library = build_library(cupti, compiler, cache_folder() / "injection")
        except OSError:  # there can be no cache: made for this run alone
            library = build_library(cupti, compiler, Path(scratch))
        environment = trace_environment(
            os.environ,
            library=library,
            cupti=cupti.library,
            folder=records,
            with_unified_memory=not without_unified_memory,
            most_bytes=most_bytes,
        )
        _clear(earlier, output_dir, records)
        sys.stdout.flush()
        try:
            run = run_attached(
                program,
                "the program",
                program[0],
                environment=environment,
                stdout=console.STDERR if json else None,
            )
        except OpscopeError:
            shutil.rmtree(records, ignore_errors=True)
            raise
    try:
        _show(run, _written(output, records, run), program, json=json)
    except OpscopeError as error:
        if run.shell_code == 0:
            raise
        # The program's own failure comes first.
        console.say(f"error: {error}")
        return run.shell_code
    shutil.rmtree(records, ignore_errors=True)
    return run.shell_code


def _places() -> tuple[list[Path], list[Path]]:
    """Where CUPTI may be: toolkits, the environment's and nvcc's, and this Python's packages."""
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX") if os.environ.get(name)]
    nvcc = find_cuda_tool("nvcc")
    toolkits = [*map(Path, named), *([] if nvcc is None else [Path(nvcc).resolve().parent.parent])]
    packages = dict.fromkeys([*sys.path, *site.getsitepackages(), site.getusersitepackages()])
    return toolkits, [Path(folder) for folder in packages if folder]


def _clear(earlier: Sequence[Path], folder: Path, records: Path | None = None) -> None:
    try:
        for stale in earlier:
            stale.unlink()
        if records is not None:
            shutil.rmtree(records, ignore_errors=True)
            records.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"the folder cannot be written ({error.strerror})", source=folder) from error


def _written(output: Path, records: Path, run: AttachedExit | None) -> list[WrittenTrace]:
    """The traces of all processes that left any activity, in the order in which they started CUDA.

    A CaptureError, that none could be recorded or a trace not be written, says where the records are.
    """
    paths = sorted(records.glob("*.cuda"))
    if run is None and not paths:
        raise InputError("the folder holds no records", source=records, hint="They end in .cuda")
    recordings = []
    for path in paths:
        try:
            recordings.append(read_recording(path))
        except InputError as error:
            console.note(f"a process's records were skipped: {error}")
    failed = [one for one in recordings if one.outcome.failure is not None]
    active = sorted(
        (one for one in recordings if one.activity_count),
        key=lambda one: (one.start_realtime_ns, one.path.name),
    )
    if not active and failed:
        if run is not None:
            shutil.rmtree(records, ignore_errors=True)
        refused = failed[0]
        # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        if refused.outcome.failed_code == 39:
            raise CaptureError(
                f"another tool holds CUPTI in the program ({refused.outcome.failure})",
                hint="One tool at a time can record: end the debugger or profiler the program runs under",
            )
        raise CaptureError(
            f"CUPTI does not start in the program ({refused.outcome.failure})",
            hint=f"Its library is {refused.cupti_path or 'not loaded'}; it must not be of a newer CUDA than "
            "the driver supports (nvidia-smi shows it). CUDA_HOME names another toolkit",
        )
    for one in failed:
        console.note(f"process {one.process} was not recorded: {one.outcome.failure}")
    if not active and (recordings or run is None):
        console.note("the program started CUDA, but made no call, kernel or copy that was recorded")
    elif not active:
        ending = (
            "" if run is None or not run.exit_code else f" before it ended with exit code {run.shell_code}"
        )
        console.note(f"the program never started CUDA{ending}: there is nothing to record")
    base_ns = min((first_moment_ns(one) + one.clock_offset_ns for one in active), default=0)
    written: list[WrittenTrace] = []
    try:
        for one in active:
            # A program that executes another leaves two files with one process id: 4711.0 and 4711.1.
            process = one.path.stem.removesuffix(".0").replace(".", "-")
            path = output.with_stem(f"{output.stem}_{process}") if written else output
            trace = write_trace(path, one, base_ns - one.clock_offset_ns)
            kernels, gaps = _origins(trace)
            created = datetime.now(timezone.utc).isoformat(timespec="seconds")
            write_sidecar(sidecar_path(path), recording_sidecar(trace, kernels, gaps, created=created))
            written.append(trace)
    except CaptureError as error:
        command = f"opscope trace --from-records {records} --output-dir FOLDER"
        raise CaptureError(
            error.message, source=error.source, hint=f"The records are kept: {command} makes the trace"
        ) from error
    return written


def _origins(written: WrittenTrace) -> tuple[tuple[RecordedKernel, ...], tuple[Gap, ...]]:
    names = sorted(written.kernel_names)
    if not names or not written.recording.maps:
        return tuple(map(RecordedKernel, names)), ()
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as scratch:
        maps = Path(scratch) / "maps"
        maps.write_text(written.recording.maps, encoding="utf-8", errors="surrogateescape")
        try:
            found = recorded_origins(names, maps=maps)
        except OpscopeError as error:
            return tuple(map(RecordedKernel, names)), (Gap("kernel origins", str(error)),)
    return tuple(found.get(name, RecordedKernel(name)) for name in names), ()


def _show(
    run: AttachedExit | None, written: Sequence[WrittenTrace], program: Sequence[str], *, json: bool
) -> None:
    tables: tuple[ReportTable, ...] = ()
    if written:
        with load([str(one.path) for one in written], merge=True) as session:
            tables = report_tables(session, list(REPORTS if json else ("cuda_gpu_sum", "cuda_api_sum")))
    if json:
        reports = stats_json(tables)
        keys = Keys(
            "path process=recording.process program=recording.program cupti_version=recording.cupti_version "
            "cuda_driver_version=recording.driver_version events=counts dropped_records findings",
            dropped_records=lambda one: (
                one.recording.outcome.dropped_count + one.recording.outcome.lost_count
            ),
            findings=lambda one: findings_as_json(one.findings),
        )
        console.print_json(
            {
                **versions(1),
                "program": list(program),
                "exit_code": None if run is None else run.shell_code,
                "signal": None if run is None or run.exit_code >= 0 else -run.exit_code,
                "traces": encode(written, {WrittenTrace: keys}),
                "reports": reports,
            }
        )
    elif tables:
        console.print_document(stats_tables_document(tables), on_stderr=True)
    for one in written:
        for finding in one.findings:
            kind = "note" if finding.severity is Severity.INFO else str(finding.severity)
            where = "" if len(written) == 1 else f"{one.path.name}: "
            advice = f" {finding.suggestion}" if finding.suggestion else ""
            console.say(f"{kind}: {where}{finding.message}{advice}")
    console.say_wrote([one.path for one in written], on_stderr=True)
