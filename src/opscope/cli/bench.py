"""`opscope bench`: compare implementations: a suite, or functions of your own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.live import Live

from opscope.api import measure
from opscope.benchmarking.benchmark_sweep import (
    BenchmarkSweep,
    Point,
    Sweep,
    load_benchmark,
    parse_parameters,
    result_document,
    run_sweep,
    save_benchmark,
    sweep_of,
)
from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suites import SUITES
from opscope.benchmarking.user_problem import call_files
from opscope.cli import console
from opscope.cli.app import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_REGRESSION
from opscope.errors import InputError
from opscope.model.benchmark import BenchmarkOptions, BenchmarkResult, CacheState, Clock, Status, Verdict
from opscope.report.benchmark import (
    benchmark_document,
    kernel_use_section,
    suite_list_document,
    suite_list_json,
)
from opscope.report.document import Section
from opscope.report.html.charts import benchmark_charts

if TYPE_CHECKING:  # imports DuckDB
    from opscope.extraction.alone_calls import StepGain
    from opscope.model.session import Session

_CLOCKS = {"events": Clock.CUDA_EVENT, "wall": Clock.WALL}

_Several = Annotated[console.Words, console.Several]


@Parameter(name="*", group=Group("What"))
@dataclass(frozen=True)
class GivenOptions:
    """What is measured.

    Args:
        param: Shape, dtype and own parameters of a suite (--param shape=8192x8192 dtype=bfloat16
            approximate=tanh), or parameters of functions; several values make a sweep: n=1024,4096.
        device: auto, cpu, cuda or cuda:N; interpreter checks Triton implementations without a GPU.
        implementations: Names of the implementations to measure; by default all.
        reference: The implementation that ratios refer to.
        inputs: FILE.py:function that makes the arguments of FILE.py:function targets.
        expected: FILE.py:function that computes the right answer in float64.
    """

    param: _Several = ()
    device: str = "auto"
    implementations: _Several = ()
    reference: str | None = None
    inputs: str | None = None
    expected: str | None = None


@Parameter(name="*", group=Group("Measuring"))
@dataclass(frozen=True)
class MeasuringOptions:
    """How it is measured.

    Args:
        clock: CUDA events, or the wall clock; default by device.
        cache: Whether the GPU's L2 cache is overwritten before each sample (cold) or left alone (hot).
        time_budget: Seconds of sampling per implementation.
        samples: Samples per implementation: FEWEST-MOST, or one exact number.
        threshold: Ratios within 1 ± this count as the same.
        skip: Leave out: check (compare outputs), profile (record which kernels each launches), ceilings
            (measure what the device can reach).
    """

    clock: Literal["events", "wall"] | None = None
    cache: Literal["cold", "hot"] | None = None
    time_budget: Annotated[float, Parameter(validator=Number(gt=0))] = BenchmarkOptions().time_budget_s
    samples: str = f"{BenchmarkOptions().min_samples}-{BenchmarkOptions().max_samples}"
    threshold: Annotated[float, Parameter(validator=Number(gt=0))] = BenchmarkOptions().same_within
    skip: Annotated[tuple[Literal["check", "profile", "ceilings"], ...], console.Several] = ()

    def options(self) -> BenchmarkOptions:
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", self.samples.strip())
        fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 2 <= fewest <= most:
            raise InputError(
                f"'{self.samples}' samples cannot be taken", hint="Write --samples 20-1000, from 2 on"
            )
        return BenchmarkOptions(
            clock=None if self.clock is None else _CLOCKS[self.clock],
            cache_state=CacheState(self.cache or "cold"),
            time_budget_s=self.time_budget,
            min_samples=fewest,
            max_samples=most,
            same_within=self.threshold,
            check="check" not in self.skip,
            profile="profile" not in self.skip,
            ceilings="ceilings" not in self.skip,
        )


_GIVEN, _MEASURING = GivenOptions(), MeasuringOptions()


def bench(
    *targets: Annotated[str, Parameter(name="TARGET")],
    given: GivenOptions = _GIVEN,
    measuring: MeasuringOptions = _MEASURING,
    show: Annotated[tuple[Literal["kernels"], ...], console.Several] = (),
    within: Annotated[str | None, Parameter(name="--in")] = None,
    fail_on: Literal["slower"] | None = None,
    report: console.Showing = console.SHOWING,
    save: Path | None = None,
) -> int:
    """Compare implementations: a suite, or functions of your own; or show a saved result again.

    Each is checked against a float64 reference, profiled if there is a GPU, and timed in turns with the
    others. Name functions as FILE.py:fast FILE.py:slow --inputs FILE.py:make_inputs, where make_inputs
    takes any of the --param names, device, dtype and seed and returns a tensor or a tuple. Without TARGET,
    list the suites.

    Example: opscope bench ops.py:fast ops.py:slow --inputs ops.py:make_inputs --save result.json

    Exit codes: 1 also if an implementation or a point of a sweep failed; 3 if --fail-on found something.

    Args:
        targets: A suite, FILE.py:function …, a file or folder of opscope extract, or a saved result (.json).
        given: What is measured.
        measuring: How it is measured.
        within: A recording that the extracted files come from: what its step would gain with `mine`.
        fail_on: Exit with 3 if an implementation is slower than the reference, or wrong.
        show: Also describe each implementation, its cost outside the samples, and its kernels.
        save: Also write the result to this JSON file, after every change.
    """
    if not targets:
        suites = list(SUITES.values())
        replace(report, output=()).show(lambda: suite_list_json(suites), lambda: suite_list_document(suites))
        return 0
    has_kernels = report.full or "kernels" in show
    console.check_outputs((*report.output, save), force=report.force, inputs=targets)

    def present(result: BenchmarkResult | BenchmarkSweep, price: Price | None) -> None:
        points = result.points if isinstance(result, BenchmarkSweep) else (result,)
        priced = [price(point) if price is not None else [] for point in points]
        extra = [
            [*([kernel_use_section(point)] if has_kernels else []), *(section for _, section in of)]
            for point, of in zip(points, priced, strict=True)
        ]
        gains = [gain for of in priced for gain, _ in of]
        report.show(
            lambda: result_document(result) | ({"in_program": msgspec.to_builtins(gains)} if within else {}),
            lambda: benchmark_document(result, extra=extra),
            charts=lambda: benchmark_charts(result),
        )

    if len(targets) == 1 and targets[0].endswith(".json"):
        if (given, measuring) != (_GIVEN, _MEASURING) or (save, within, fail_on) != (None, None, None):
            raise InputError(
                "a saved result is shown as it is",
                source=targets[0],
                hint="Measure again with the suite's name",
            )
        present(load_benchmark(targets[0]), None)
        return 0
    with console.open_source([within]) if within else nullcontext() as session:
        # Before anything is measured, for a file may be of another recording.
        price = _pricing(targets, within, session) if within and session else None
        sweep = _measured(targets, given, measuring, save, is_json=report.json)
        if sweep.shown is not None:
            present(sweep.shown, price)
            console.say_wrote([] if save is None else [save], on_stderr=report.json)
    code = _exit_code(sweep)
    if fail_on is None or code:
        return code
    failing = {Status.WRONG, Status.FAILED, Status.OUT_OF_MEMORY, Status.NO_RESULT, Status.MUTATES_INPUTS}
    slower = [
        f"{point.parameters.get('call', point.suite)}: {row.name}"
        for point in sweep.points
        for row in point.rows
        if row.verdict is Verdict.SLOWER or row.status in failing
    ]
    for one in slower:
        console.say(f"fails --fail-on {fail_on}: {one}")
    return EXIT_REGRESSION if slower else 0


def _measured(
    targets: Sequence[str],
    given: GivenOptions,
    measuring: MeasuringOptions,
    save: Path | None,
    *,
    is_json: bool,
) -> BenchmarkSweep:
    """What was finished, kept in the file after every change."""
    # What the user's code prints must not stand in the JSON document.
    with redirect_stdout(sys.stderr) if is_json else nullcontext():
        points = sweep_of(
            targets,
            device=given.device,
            implementations=given.implementations,
            reference=given.reference,
            inputs=given.inputs,
            expected=given.expected,
            parameters=parse_parameters(given.param),
        )
        options = measuring.options()

        def run(problem: Problem, on_change: Callable[[BenchmarkResult], object]) -> BenchmarkResult:
            if measuring.cache is not None and problem.device == "cpu":
                raise InputError(
                    f"--cache {measuring.cache} is for the L2 cache of a GPU, and this runs on the CPU",
                    hint="Leave --cache out: inputs are rotated",
                )
            return measure(problem, options, on_change=on_change)

        def keep(sweep: BenchmarkSweep) -> None:
            if save is not None and sweep.shown is not None:
                save_benchmark(save, sweep.shown, force=True)

        with console.load_noticed(), _progress(points) as progress:

            def changed(sweep: BenchmarkSweep) -> None:
                progress(sweep)
                keep(sweep)

            sweep = run_sweep(points, run, on_change=changed, on_point=progress)
            keep(sweep)
    return sweep


Price = Callable[[BenchmarkResult], "list[tuple[StepGain | None, Section]]"]


def _pricing(targets: Sequence[str], within: str, session: Session) -> Price:
    """What gives the gain by each version of a recorded call."""
    from opscope.analysis.summary import Summary  # noqa: PLC0415
    from opscope.extraction.alone_calls import alone_calls, calls_of_file, step_gain  # noqa: PLC0415 - DuckDB
    from opscope.report.extraction import gain_section  # noqa: PLC0415

    files = {one.stem: one for target in targets for one in call_files(target)}
    if not files or len(targets) > 1:
        raise InputError(
            "--in needs a file that opscope extract wrote, or a folder of them",
            hint="opscope extract TRACE 1 -o call.py, then opscope bench call.py --in TRACE",
        )
    with console.status("Looking for calls"):
        summary = Summary(session)
        calls = alone_calls(session, summary.efficiency)
        found = {name: calls_of_file(calls, file) for name, file in files.items()}

    def price(point: BenchmarkResult) -> list[tuple[StepGain | None, Section]]:
        name = str(point.parameters.get("call") or next(iter(files)))
        rows = [one for one in point.rows if one.name == "mine"]
        gains = [
            step_gain(summary, found[name], name, row.ratio, row.ratio_interval)
            if row.ratio is not None and row.status is Status.OK
            else None
            for row in rows
        ]
        return [(gain, gain_section(row, gain, within)) for row, gain in zip(rows, gains, strict=True)]

    return price


@contextmanager
def _progress(points: Sweep) -> Iterator[Callable[[Point | BenchmarkSweep], None]]:
    stream = console.stderr_console()
    if not stream.is_terminal:
        yield lambda now: None
        return
    label = ""
    # No refreshing thread: it would take the interpreter from what is being timed.
    with Live(console=stream, auto_refresh=False, transient=True) as live:

        def show(now: Point | BenchmarkSweep) -> None:
            nonlocal label
            if isinstance(now, Point):
                label = f"{points.name} {now.label}".rstrip()
                live.update(f"{label}: preparing", refresh=True)
            elif now.points:
                rows = now.points[-1].rows
                samples = [len(row.samples_ns) for row in rows if row.samples_ns]
                stage = f"sampling, {min(samples)} of each so far" if samples else f"{len(rows)} prepared"
                live.update(f"{label}: {stage}", refresh=True)

        yield show


def _exit_code(sweep: BenchmarkSweep) -> int:
    """130 for an interrupted run; 1 where a point, a reference or every implementation failed; else 0."""
    if not sweep.complete or not all(point.complete for point in sweep.points):
        finished = sum(row.median_ns is not None for point in sweep.points for row in point.rows)
        console.say(f"interrupted: {finished} measured implementations are kept")
        return EXIT_INTERRUPTED
    statuses = (
        next((row.status for row in point.rows if row.name == point.reference), None)
        for point in sweep.points
    )
    is_ok = not sweep.failures and all(one in (Status.OK, Status.CHECKED) for one in statuses)
    return 0 if is_ok else EXIT_ERROR
