"""`opscope bench`: compare implementations: a suite, or functions of your own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.live import Live

from opscope.api import measure
from opscope.benchmarking.benchmark_sweep import (
    BenchmarkSweep,
    Point,
    Sweep,
    parse_parameters,
    run_sweep,
    sweep_of,
)
from opscope.benchmarking.implementation_code import ImplementationCode, implementation_code
from opscope.benchmarking.problem import BenchmarkRequest, Problem
from opscope.benchmarking.result_file import check_writable, load_benchmark, result_document, save_benchmark
from opscope.benchmarking.suites import SUITES
from opscope.cli.app import EXIT_ERROR, EXIT_INTERRUPTED
from opscope.cli.console import (
    Parts,
    check_outputs,
    load_noticed,
    markdown,
    print_document,
    print_json,
    say,
    say_wrote,
    show,
    stderr_console,
    write_page,
)
from opscope.errors import InputError
from opscope.kernels.code import CodeKind
from opscope.model.benchmark import BenchmarkOptions, BenchmarkResult, CacheState, Status
from opscope.model.files import write_text
from opscope.model.measurement import Clock
from opscope.report.benchmark import (
    benchmark_document,
    code_json,
    code_sections,
    kernel_use_section,
    suite_list_document,
    suite_list_json,
    sweep_benchmark_document,
)
from opscope.report.html.result_charts import benchmark_charts

_CLOCKS = {"events": Clock.CUDA_EVENT, "graph": Clock.CUDA_GRAPH, "wall": Clock.WALL}
_MEASURED = (Status.OK, Status.CHECKED)

_Several = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]
_Sizes = Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True)]


@Parameter(name="*", group=Group("What"))
@dataclass(frozen=True)
class GivenOptions:
    """What is measured.

    Args:
        shape: Sizes of the suite's problem, e.g. --shape 8192 8192.
        dtype: float32, float16 or bfloat16.
        device: auto, cpu, cuda or cuda:N.
        implementations: Names of those to measure; all without it.
        reference: The one that ratios refer to.
        approximate: How gelu is computed: tanh or erf.
        param: Values to sweep over: --param n=1024,4096 --param m=8. A suite has sizes, dtype and options.
        inputs: FILE.py:function that makes the arguments of FILE.py:function targets.
        expected: FILE.py:function that computes the right answer in float64.
        interpret: Check the Triton implementations in Triton's interpreter, on a machine without a GPU.
    """

    shape: _Sizes = None
    dtype: str | None = None
    device: str = "auto"
    implementations: _Several = ()
    reference: str | None = None
    approximate: str | None = None
    param: _Several = ()
    inputs: str | None = None
    expected: str | None = None
    interpret: bool = False


@Parameter(name="*", group=Group("Measuring"))
@dataclass(frozen=True)
class MeasuringOptions:
    """How it is measured.

    Args:
        clock: CUDA events, replay of a CUDA graph (no launch cost), or the wall clock; by device without it.
        cache: Whether the GPU's L2 cache is overwritten before each sample (cold) or left alone (hot).
        time_budget: Seconds of sampling for each implementation.
        min_samples: Samples taken in any case.
        max_samples: Samples never exceeded.
        precision: Sampling ends early once every median is known to this share of itself.
        same_within: Ratios within 1 ± this are the same.
        warmup: Seconds of warm-up for each implementation, after its first call.
        seed: Of the inputs and of the order.
        skip_profile: Do not record which kernels each launches.
        skip_check: Do not compare outputs.
        skip_ceilings: Do not measure what the device can reach.
    """

    clock: Literal["events", "graph", "wall"] | None = None
    cache: Literal["cold", "hot"] | None = None
    time_budget: Annotated[float, Parameter(validator=Number(gt=0))] = BenchmarkOptions().time_budget_s
    min_samples: Annotated[int, Parameter(validator=Number(gte=2))] = BenchmarkOptions().min_samples
    max_samples: Annotated[int, Parameter(validator=Number(gte=2))] = BenchmarkOptions().max_samples
    precision: Annotated[float, Parameter(validator=Number(gte=0))] = BenchmarkOptions().precision
    same_within: Annotated[float, Parameter(validator=Number(gt=0))] = BenchmarkOptions().same_within
    warmup: Annotated[float, Parameter(validator=Number(gte=0))] = BenchmarkOptions().warmup_s
    seed: int = 0
    skip_profile: bool = False
    skip_check: bool = False
    skip_ceilings: bool = False


@Parameter(name="*", group=Group("Output"))
@dataclass(frozen=True)
class OutputOptions:
    """What comes out.

    Args:
        json: Print one JSON document and nothing else.
        save: Also write the result to this JSON file, after every change.
        report: Also write the report to this Markdown file.
        html: Also write the report with pictures to this HTML file, which needs no network.
        force: Overwrite existing files.
        show_kernels: List the kernels each implementation launches.
        show_ptx: Print the PTX of what each implementation launches.
        show_sass: Print the machine code; needs cuobjdump.
        show_triton: Print the source and Triton's forms of Triton kernels, and what torch.compile writes.
    """

    json: bool = False
    save: Path | None = None
    report: Path | None = None
    html: Path | None = None
    force: bool = False
    show_kernels: bool = False
    show_ptx: bool = False
    show_sass: bool = False
    show_triton: bool = False

    @property
    def code_kinds(self) -> tuple[CodeKind, ...]:
        """The kinds of generated code that were asked for."""
        asked = {
            CodeKind.PTX: self.show_ptx,
            CodeKind.SASS: self.show_sass,
            CodeKind.TRITON: self.show_triton,
        }
        return tuple(kind for kind, is_asked in asked.items() if is_asked)


_GIVEN, _MEASURING, _OUTPUT = GivenOptions(), MeasuringOptions(), OutputOptions()
_READING = Parts()


def bench(
    *targets: Annotated[str, Parameter(name="TARGET")],
    given: GivenOptions = _GIVEN,
    measuring: MeasuringOptions = _MEASURING,
    output: OutputOptions = _OUTPUT,
    reading: Parts = _READING,
    list: Annotated[bool, Parameter(name="--list")] = False,  # noqa: A002 - the option's name
) -> int:
    """Compare implementations: a suite, or functions of your own; or show a saved result again.

    Each is checked against a float64 reference, profiled where there is a GPU, and timed in turns with the
    others. Functions are given as FILE.py:fast FILE.py:slow --inputs FILE.py:make_inputs, where make_inputs
    takes any of the --param names, device, dtype and seed and returns a tensor or a tuple; or marked with
    @opscope.benchmark in one FILE.py.

    Example: opscope bench ops.py:fast ops.py:slow --inputs ops.py:make_inputs --save result.json

    Exit codes: 1 also if an implementation or a point of a sweep failed.

    Args:
        targets: A suite (see --list), FILE.py:function …, one FILE.py, or a result that --save wrote (.json).
        given: What is measured.
        measuring: How it is measured.
        output: What comes out.
        reading: How much of the report is printed.
        list: Show the suites and their implementations, and measure nothing.
    """
    if list:
        return _list(json=output.json)
    if not targets:
        raise InputError(
            "there is nothing to benchmark", hint=f"Use {', '.join(SUITES)}, or FILE.py:function"
        )
    if reading.full:
        output = replace(output, show_kernels=True)
    files = [path for path in (output.save, output.report, output.html) if path is not None]
    check_outputs(files, force=output.force, inputs=targets)
    for path in files:
        check_writable(path, force=output.force)
    if len(targets) == 1 and targets[0].endswith(".json"):
        if (given, measuring) != (_GIVEN, _MEASURING) or output.save is not None or output.code_kinds:
            raise InputError(
                "a saved result is shown as it is",
                source=targets[0],
                hint="Measure again with the suite's name",
            )
        _present(load_benchmark(targets[0]), output, reading)
        return 0
    # What the user's code prints must not stand in the JSON document.
    with redirect_stdout(sys.stderr) if output.json else nullcontext():
        run = _Run(sweep_of(targets, _request(given)), _options(measuring), measuring, output)
        with load_noticed():
            sweep = run.execute()
    run.show(sweep, reading)
    return _exit_code(sweep)


def _list(*, json: bool) -> int:
    suites = list(SUITES.values())
    show(lambda: suite_list_json(suites), lambda: suite_list_document(suites), json=json)
    return 0


def _present(
    result: BenchmarkResult | BenchmarkSweep,
    output: OutputOptions,
    reading: Parts,
    *,
    codes: Sequence[tuple[ImplementationCode, ...]] = (),
    saved: Iterable[Path] = (),
) -> None:
    """Print a result, and write the reports that were asked for; `codes` by point."""
    points = result.points if isinstance(result, BenchmarkSweep) else (result,)
    of_points = [*codes, *((),) * (len(points) - len(codes))]  # an interrupted point has no code
    extra = [
        ((kernel_use_section(point),) if output.show_kernels else ()) + code_sections(code)
        for point, code in zip(points, of_points, strict=True)
    ]
    if isinstance(result, BenchmarkSweep):
        document = sweep_benchmark_document(result, extra=extra)
    else:
        document = benchmark_document(result, extra=extra[0])
    if output.json:
        encoded = result_document(result)
        if output.code_kinds:
            results = encoded["points"] if isinstance(result, BenchmarkSweep) else [encoded]
            for one, code in zip(results, codes, strict=False):
                one["generated_code"] = code_json(code)
        print_json(encoded)
    else:
        print_document(document, reading=reading)
    written = list(saved)
    if output.report is not None:
        written.append(write_text(output.report, markdown(document)))
    if output.html is not None:
        written.append(write_page(output.html, document, benchmark_charts(result)))
    say_wrote(written, on_stderr=output.json)


def _request(given: GivenOptions) -> BenchmarkRequest:
    return BenchmarkRequest(
        shape=given.shape,
        dtype=given.dtype,
        device=given.device,
        implementations=given.implementations,
        reference=given.reference,
        inputs=given.inputs,
        expected=given.expected,
        options={} if given.approximate is None else {"approximate": given.approximate},
        parameters=parse_parameters(given.param),
        interpret=given.interpret,
    )


def _options(measuring: MeasuringOptions) -> BenchmarkOptions:
    if measuring.max_samples < measuring.min_samples:
        raise InputError(
            f"at most {measuring.max_samples} and at least {measuring.min_samples} samples cannot be taken",
            hint="Lower --min-samples or raise --max-samples",
        )
    return BenchmarkOptions(
        clock=None if measuring.clock is None else _CLOCKS[measuring.clock],
        cache_state=CacheState(measuring.cache or "cold"),
        warmup_s=measuring.warmup,
        time_budget_s=measuring.time_budget,
        min_samples=measuring.min_samples,
        max_samples=measuring.max_samples,
        precision=measuring.precision,
        same_within=measuring.same_within,
        seed=measuring.seed,
        check=not measuring.skip_check,
        profile=not measuring.skip_profile,
        ceilings=not measuring.skip_ceilings,
    )


def _check_device(device: str, measuring: MeasuringOptions) -> None:
    """Return if the clock and the cache that were asked for exist on this device."""
    if device.startswith("cuda"):
        return
    if measuring.clock in {"events", "graph"}:
        raise InputError(
            f"--clock {measuring.clock} needs a CUDA device, and this runs on the {device.upper()}",
            hint="Leave --clock out: the wall clock is taken",
        )
    if measuring.cache is not None:
        raise InputError(
            f"--cache {measuring.cache} is for the L2 cache of a GPU, and this runs on the {device.upper()}",
            hint="Leave --cache out: inputs are rotated",
        )


@dataclass
class _Run:
    """One command: measures its points, saves every change, shows the end."""

    points: Sweep
    options: BenchmarkOptions
    measuring: MeasuringOptions
    output: OutputOptions
    codes: list[tuple[ImplementationCode, ...]] = field(default_factory=list)

    def execute(self) -> BenchmarkSweep:
        with _progress(self.points) as progress:

            def changed(sweep: BenchmarkSweep) -> None:
                progress(sweep)
                self._save(sweep)

            sweep = run_sweep(self.points, self._measure, on_change=changed, on_point=progress)
        self._save(sweep)
        return sweep

    def _measure(self, problem: Problem, on_change: Callable[[BenchmarkResult], object]) -> BenchmarkResult:
        _check_device(problem.device, self.measuring)
        result = measure(problem, self.options, on_change=on_change)
        kinds = self.output.code_kinds if result.complete else ()
        self.codes.append(implementation_code(problem, result, kinds))
        return result

    def _save(self, sweep: BenchmarkSweep) -> None:
        if self.output.save is not None and (sweep.points or self.points.has_several):
            save_benchmark(self.output.save, self._result(sweep), force=True)

    def _result(self, sweep: BenchmarkSweep) -> BenchmarkResult | BenchmarkSweep:
        """The sweep, or its only point where there is but one."""
        return sweep if self.points.has_several else sweep.points[0]

    def show(self, sweep: BenchmarkSweep, reading: Parts) -> None:
        if sweep.points or self.points.has_several:
            saved = [] if self.output.save is None else [self.output.save]
            _present(self._result(sweep), self.output, reading, codes=self.codes, saved=saved)


@contextmanager
def _progress(points: Sweep) -> Iterator[Callable[[Point | BenchmarkSweep], None]]:
    """Shows what is being done on stderr, where that is a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        yield lambda now: None
        return
    label = ""
    # No refreshing thread: it would take the interpreter from what is being timed.
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(now: Point | BenchmarkSweep) -> None:
            nonlocal label
            if isinstance(now, Point):
                label = f"{points.name} {now.label}".rstrip()
                live.update(f"{label}: preparing", refresh=True)
            elif now.points:
                live.update(f"{label}: {_stage(now.points[-1])}", refresh=True)

        yield show


def _stage(result: BenchmarkResult) -> str:
    samples = [len(row.samples_ns) for row in result.rows if row.samples_ns]
    if samples:
        return f"sampling, {min(samples)} of each so far"
    return f"{len(result.rows)} prepared"


def _exit_code(sweep: BenchmarkSweep) -> int:
    """130 for an interrupted run; 1 where a point, a reference or every implementation failed; else 0."""
    if not sweep.complete or not all(point.complete for point in sweep.points):
        finished = sum(row.median_ns is not None for point in sweep.points for row in point.rows)
        say(f"interrupted: {finished} measured implementations are kept")
        return EXIT_INTERRUPTED
    return EXIT_ERROR if sweep.failures or not all(map(_is_useful, sweep.points)) else 0


def _is_useful(result: BenchmarkResult) -> bool:
    statuses = {row.name: row.status for row in result.rows}
    return statuses.get(result.reference) in _MEASURED
