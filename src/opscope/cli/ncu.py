"""`opscope ncu`: read hardware counters of Nsight Compute, or profile a program with it.

Of a program that is run, standard output is its own, and what is said of it goes to standard error; with
`--json` the other way round, so that standard output is one JSON document.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Group, Parameter

from opscope import api
from opscope.analysis.counters import plan_by_profile, plan_by_recording
from opscope.benchmarking.user_problem import call_files
from opscope.cli import console
from opscope.cli.app import EXIT_INTERRUPTED
from opscope.data import packaged_text
from opscope.errors import InputError
from opscope.hardware.driver import visible_gpus
from opscope.model.files import scratch_prefix
from opscope.report.ncu import ncu_document, ncu_json, side_by_side
from opscope.toolchain import ncu_command
from opscope.toolchain.ncu_report import check_reader, is_report, metrics_to_collect, read_report
from opscope.units import counted

# Launches whose times the first of two runs takes; a launch takes it about a millisecond.
_QUICK_LAUNCHES = 1000
_KERNELS = 5  # that are chosen
_LAUNCHES = 20  # at most
_WHICH = re.compile("--launch-(skip|count)|--profile-from-start|-[sc]")  # options that say which launches


@dataclass(frozen=True)
class Collecting:
    """What is profiled of a program.

    Args:
        kernel: Kernels whose demangled name matches this expression; by default those that take most time,
            according to the trace or to a first run that only takes times.
        metrics: Further ncu metrics.
        ncu_option: An option for ncu, such as --ncu-option=--set=full; may be repeated.
    """

    kernel: str | None = None
    metrics: console.Words = ()
    ncu_option: console.Options = ()


_DEFAULT = Collecting()
_REPORT = Path("opscope.ncu-rep")
_Collecting = Annotated[Collecting, Parameter(name="*", group=Group("Profiling a program"))]


def ncu(
    *target: Annotated[str, Parameter(name="REPORT")],
    trace: Path | None = None,
    top: console.Top = 10,
    report: console.ProgramShowing = console.PROGRAM_SHOWING,
    collecting: _Collecting = _DEFAULT,
) -> int:
    """Read hardware counters: opscope ncu FILE.ncu-rep, or opscope ncu [OPTIONS] -- PROGRAM [ARGS…].

    Hardware counters show coalescing, bank conflicts, divergence, achieved occupancy, stall reasons and the
    bytes that really moved. Reports can be read on any machine (pip install 'opscope[ncu]'). Running a
    program needs ncu, a GPU and permission to read counters; it writes opscope.ncu-rep, or the .ncu-rep that
    --output names. The program's exit code is passed on. For a file of opscope extract, the kernels of the
    call and of your own version appear side by side, with a report each.

    Example: opscope ncu --trace trace.json.gz -- python train.py

    Args:
        target: A report (.ncu-rep, .ncu-rep.gz), a file of opscope extract, or -- and the program with its
            arguments.
        trace: A recording of the same program, for the operator and least bytes of each kernel.
        collecting: What is profiled of a program.
    """
    reports = [path for path in report.output if path.suffix == ".ncu-rep"]
    shown = replace(report, output=tuple(path for path in report.output if path not in reports))
    console.check_outputs(shown.output, force=report.force, inputs=target)
    if not target:
        raise InputError("nothing to read or run", hint="opscope ncu FILE.ncu-rep, or opscope ncu -- PROGRAM")
    if len(target) == 1 and Path(target[0]).is_file() and call_files(target[0]):
        if trace is not None:
            raise InputError("the file says itself what its call is", hint="Leave --trace out")
        return _both(Path(target[0]), collecting, shown, reports)
    is_run = len(target) > 1 or not (is_report(target[0]) or shutil.which(target[0]) is None)
    if not is_run and (collecting != _DEFAULT or reports):
        raise InputError(
            "options of profiling are given, and a report to read",
            hint="A program comes after --: opscope ncu --kernel gemm -- python script.py",
        )
    read, code = Path(target[0]), 0
    if is_run:
        read, stdout = (reports or [_REPORT])[0], console.STDERR if report.json else None
        code = _profile(target, trace, collecting, read, force=report.force, stdout=stdout)
    analysis = api.ncu(read, trace)
    shown.show(
        lambda: ncu_json(analysis), lambda: ncu_document(analysis, top=report.rows(top)), on_stderr=is_run
    )
    if is_run:
        console.say_wrote([read], on_stderr=True)
    return code


def _both(file: Path, collecting: Collecting, shown: console.ProgramShowing, reports: Sequence[Path]) -> int:
    base = (reports or [Path(f"{file.stem}.ncu-rep")])[0]
    only = replace(collecting, ncu_option=(*collecting.ncu_option, "--profile-from-start=off"))
    # Calls the function once to compile it and once to be profiled.
    one_call = packaged_text(__package__, "one_call.py.txt")
    analyses, paths, least_bytes = {}, [], 0
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as scratch:
        least = Path(scratch) / "least"
        for name in ("reference", "mine"):
            path = base.with_suffix(f".{name}.ncu-rep")
            program = (sys.executable, "-c", one_call, str(file), name, str(least))
            code = _profile(program, None, only, path, force=shown.force, stdout=console.STDERR)
            if code:
                return code
            analyses[name], least_bytes = api.ncu(path), int(least.read_text())
            paths.append(path)
    shown.show(
        lambda: {name: ncu_json(one) for name, one in analyses.items()} | {"min_bytes": least_bytes},
        lambda: side_by_side(file.name, analyses, least_bytes),
    )
    console.say_wrote(paths, on_stderr=True)
    return 0


def _profile(
    program: tuple[str, ...],
    trace: Path | None,
    collecting: Collecting,
    report: Path,
    *,
    force: bool,
    stdout: int | None,
) -> int:
    check_reader()
    if shutil.which(program[0]) is None:
        raise InputError(f"there is no program '{program[0]}'", hint="opscope ncu -- python script.py ARGS")
    executable = ncu_command.find_ncu()
    console.check_outputs([report], force=force)
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as scratch:

        def run(what: ncu_command.Collection, report: Path, stdout: int | None) -> ncu_command.NcuRun:
            """Run the program under ncu, and say what ncu warns of."""
            log = Path(scratch) / f"{report.stem}.log"
            command = ncu_command.ncu_command(
                what, program, output=report, executable=executable, log_file=log
            )
            console.note(shlex.join(command[: len(command) - len(program)]) + " …")
            sys.stdout.flush()
            run = ncu_command.run_ncu(command, log, stdout=stdout)
            for line in run.log.splitlines():
                if line.startswith("==WARNING=="):
                    console.note(f"ncu: {line.removeprefix('==WARNING==').strip()}")
            return run

        launches = _launches(run, trace, collecting, Path(scratch))
        report.parent.mkdir(parents=True, exist_ok=True)
        capabilities = (gpu.compute_capability for gpu in visible_gpus())
        metrics = (*metrics_to_collect(next(capabilities, None)), *collecting.metrics)
        what = msgspec.structs.replace(launches, metrics=metrics, options=collecting.ncu_option)
        ended = run(what, report, stdout)
    if ended.was_interrupted and not report.exists():
        raise KeyboardInterrupt
    ncu_command.check_run(ended, report)
    return EXIT_INTERRUPTED if ended.was_interrupted else ended.target_code


def _launches(
    run: Callable[[ncu_command.Collection, Path, int], ncu_command.NcuRun],
    trace: Path | None,
    collecting: Collecting,
    scratch: Path,
) -> ncu_command.Collection:
    if collecting.kernel is not None:
        own = ncu_command.KernelFilter(collecting.kernel)
        return ncu_command.Collection(kernels=own, launch_count=_LAUNCHES)
    if trace is not None:
        with console.open_source([str(trace)]) as session:
            plan = plan_by_recording(session, kernels=_KERNELS, limit=_LAUNCHES)
    elif any(map(_WHICH.match, collecting.ncu_option)):
        return ncu_command.Collection(launch_count=_LAUNCHES)
    else:
        # By a first run of the program, whose output goes to standard error.
        console.note(
            f"a first run takes the times of up to {_QUICK_LAUNCHES} launches; --trace or --kernel spare it"
        )
        report = scratch / "quick.ncu-rep"
        times = ncu_command.Collection(
            launch_count=_QUICK_LAUNCHES, sections=("LaunchStats",), metrics=("gpu__time_duration.sum",)
        )
        quick = run(times, report, console.STDERR)
        if quick.was_interrupted:
            raise KeyboardInterrupt
        ncu_command.check_run(quick, report)
        plan = plan_by_profile(read_report(report), kernels=_KERNELS, limit=_LAUNCHES)
    share = f"{plan.covered_fraction:.0%} of the kernel time"
    launches = counted(plan.launch_count, "launch")
    console.note(f"{launches} of {counted(len(plan.names), 'kernel')} stand for {share}")
    return ncu_command.Collection(
        kernels=plan.kernels, launch_skip=plan.launch_skip, launch_count=plan.launch_count
    )
