"""The public functions: each combines the layers below into one step of the user.

Imports nothing heavy at its top, so that the command line starts quickly.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar, overload

from opscope.capture.calls import profile_call as _profile_call
from opscope.capture.cycle import ACTIVE_STEPS, Cycle, CycleHandler
from opscope.capture.profiler import CaptureOptions, Profiler
from opscope.errors import CaptureError, InputError, MeasurementError
from opscope.model.session import Session
from opscope.results import Source, load, print_report, summarize

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from opscope.analysis.counters import CounterAnalysis
    from opscope.analysis.explanation import Explanation
    from opscope.analysis.nsys_reports import ReportTable
    from opscope.analysis.summary import Summary
    from opscope.benchmarking.problem import Problem
    from opscope.hardware.devices import SearchResult
    from opscope.model.benchmark import BenchmarkOptions, BenchmarkResult, CacheState, Clock
    from opscope.model.comparison import BenchmarkComparison, ComparisonOptions, SessionComparison
    from opscope.model.trial import TrialResult
    from opscope.toolchain.doctor.checks import Diagnosis
    from opscope.trials.trying import Told

P = ParamSpec("P")
R = TypeVar("R")


class Profile(Profiler):
    """A `Profiler` that also loads its cycles as Sessions. Made by `profile`; the rest is in `Profiler`."""

    _records_block = True
    _session_of: tuple[Cycle, Session] | None = None

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: the function, whose first call is the `with` block; later calls only run."""

        @functools.wraps(fn)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
            if self.has_begun:
                return fn(*args, **kwargs)
            with self:
                return fn(*args, **kwargs)

        recorded.recording = self  # type: ignore[attr-defined] # its cycles and its session
        return recorded

    @property
    def session(self) -> Session:
        """The Session of the last finished cycle, loaded on first use.

        Raises:
            CaptureError: No cycle has finished yet.
        """
        if not self.cycles:
            raise CaptureError(
                "no cycle has finished yet", hint="Call step() through one whole schedule first"
            )
        cycle = self.cycles[-1]
        if self._session_of is None or self._session_of[0] is not cycle:
            self._session_of = (cycle, load(cycle.trace_path))
        return self._session_of[1]


@overload
def profile(output_dir: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def profile(
    output_dir: Source | None = None,
    *,
    name: str = "trace",
    wait: int = 0,
    warmup: int = 2,
    active: int = ACTIVE_STEPS,
    repeat: int = 1,
    **options: Unpack[CaptureOptions],
) -> Profile: ...


def profile(
    output_dir: Source | Callable[..., Any] | None = None,
    *,
    name: str = "trace",
    wait: int = 0,
    warmup: int = 2,
    active: int = ACTIVE_STEPS,
    repeat: int = 1,
    **options: Unpack[CaptureOptions],
) -> Profile | Callable[..., Any]:
    """Record the steps of a `with` block: `with opscope.profile("out") as p: … p.step()`.

    Without any `step()` the block is recorded as one step (but not with `wait` or a `warmup` of 1). As a
    decorator, `@opscope.profile("out")` or `@opscope.profile`, it records the first call of a function; the
    function's attribute `recording` is then this object.

    Each cycle writes an ordinary Kineto trace and a small sidecar to `output_dir`; `p.cycles` lists them, and
    `p.session` is the Session of the last one. Arguments are those of `Profiler`.

    Raises:
        InputError: The schedule or the name is invalid.
    """
    folder = None if callable(output_dir) else output_dir
    made = Profile(folder, name=name, wait=wait, warmup=warmup, active=active, repeat=repeat, **options)
    return made(output_dir) if callable(output_dir) else made


def profile_call(
    fn: Callable[..., R],
    *args: object,
    output_dir: Source | None = None,
    name: str = "trace",
    wait: int = 0,
    warmup: int = 1,
    active: int = 1,
    unrecorded: int = 10,
    **options: Unpack[CaptureOptions],
) -> tuple[R, Session]:
    """Time calls of a function, then call it `wait + warmup + active` times and record the last `active`.

    Args:
        fn: Called with `args`; keywords belong to the recording, so bind them with `functools.partial`.
        *args: Its arguments.
        output_dir: As in `profile`.
        name: As in `profile`.
        wait: Calls without the profiler.
        warmup: Calls with the profiler attached but not recording.
        active: Recorded calls, one step each.
        unrecorded: Samples to take of the time of a call before a profiler is attached, back to back: so many
            calls and a few to warm up; 0 makes none.
        **options: As in `profile`.

    Returns:
        The result of the last call, and the Session of the recording.

    Raises:
        InputError: The schedule is invalid, or a file already exists.
        CaptureError: A profiler is running, or the function ran out of memory.
    """
    result, cycle = _profile_call(
        fn,
        *args,
        output_dir=output_dir,
        name=name,
        wait=wait,
        warmup=warmup,
        active=active,
        unrecorded=unrecorded,
        **options,
    )
    return result, load(cycle.trace_path)


def print_table(top: int = 10, file: Any = None) -> CycleHandler:
    """A handler for `on_cycle` that prints each cycle's top operators.

    Args:
        top: Number of operators to print.
        file: Output file; standard output if None.
    """

    def handle(cycle: Cycle, /) -> None:
        with load(cycle.trace_path) as session:
            print_report(session, top=top, file=file)

    return handle


class Measuring(TypedDict, total=False):
    """How `bench` measures; meaning and defaults as in `BenchmarkOptions`."""

    clock: Clock | None
    cache_state: CacheState
    warmup_s: float
    time_budget_s: float
    min_samples: int
    max_samples: int
    precision: float
    same_within: float
    seed: int
    check: bool
    profile: bool
    ceilings: bool


def bench(
    *targets: str | Callable[..., Any] | Mapping[str, Callable[..., Any]],
    inputs: Any = None,
    expected: Callable[..., Any] | None = None,
    reference: str | None = None,
    implementations: Iterable[str] = (),
    shape: Iterable[int] | None = None,
    dtype: str | None = None,
    device: str = "auto",
    options: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    on_change: Callable[[BenchmarkResult], object] | None = None,
    **measuring: Unpack[Measuring],
) -> BenchmarkResult | list[BenchmarkResult]:
    """Time implementations of one thing side by side, and check and profile each.

        opscope.bench("gelu", shape=(4096, 4096), dtype="bfloat16")
        opscope.bench(fast, slow, inputs=make_inputs)
        opscope.bench({"mine": fast, "theirs": slow}, inputs=(x, y), params={"n": [1024, 4096]})

    Prints nothing. Ctrl-C ends the measurement early; the result then has `complete` false.

    Args:
        *targets: The name of a suite, functions, mappings of names to functions, or targets such as
            `"file.py:function"`.
        inputs: A function that returns the arguments (a tensor or a tuple) and takes any of the swept
            parameters, `device`, `dtype` and `seed`; or the arguments themselves, which are copied.
        expected: Computes the right answer from the inputs, with floating-point tensors in float64.
        reference: Name of the implementation that ratios refer to; the first if None.
        implementations: Names of the implementations to measure; all if empty.
        shape: Sizes of a suite's problem.
        dtype: float32, float16 or bfloat16.
        device: `"auto"`, `"cpu"`, `"cuda"` or `"cuda:N"`.
        options: A suite's own parameters, e.g. `{"approximate": "tanh"}`.
        params: Values to sweep over, by parameter name.
        name: Name of the result, for functions.
        on_change: Called with the result so far after every change.
        **measuring: As in `BenchmarkOptions`.

    Returns:
        The result; a list with one per point if `params` make several points.

    Raises:
        InputError: A target, name, shape or parameter is invalid, or the inputs cannot be made.
        MeasurementError: The requested clock cannot be used here, or a point of a sweep failed.
        DependencyError: torch is not installed.
    """
    from opscope.benchmarking.benchmark_sweep import run_sweep, sweep_of  # noqa: PLC0415
    from opscope.benchmarking.user_problem import values_of  # noqa: PLC0415 - needed only to benchmark
    from opscope.model.benchmark import BenchmarkOptions  # noqa: PLC0415

    given = {"shape": None if shape is None else tuple(shape), "dtype": dtype, **(options or {})}
    points = sweep_of(
        targets,
        device=device,
        implementations=tuple(implementations),
        reference=reference,
        inputs=inputs,
        expected=expected,
        parameters={
            **{key: (value,) for key, value in given.items() if value is not None},
            **values_of(params or {}),
        },
        name=name,
    )
    how = BenchmarkOptions(**measuring)

    def run(problem: Problem, changed: Callable[[BenchmarkResult], object]) -> BenchmarkResult:
        return measure(problem, how, on_change=on_change or changed)

    sweep = run_sweep(points, run)
    if sweep.failures:
        raise MeasurementError("; ".join(sweep.failures))
    return list(sweep.points) if points.has_several else sweep.points[0]


def measure(
    problem: Problem,
    options: BenchmarkOptions,
    *,
    on_change: Callable[[BenchmarkResult], object] = lambda result: None,
) -> BenchmarkResult:
    """The result of one Problem, with the environment and, on a GPU, each implementation's kernels.

    On a CPU no kernels are recorded: `profile` and `kernels_launched` are None.

    Raises:
        MeasurementError: The requested clock cannot be used on this device.
    """
    from opscope.analysis.call_profile import profile_calls  # noqa: PLC0415 - needed only to benchmark
    from opscope.benchmarking.run import run_benchmark  # noqa: PLC0415
    from opscope.capture.environment import collect_environment  # noqa: PLC0415

    return run_benchmark(
        problem,
        options,
        environment=collect_environment(),
        inspect=profile_calls if options.profile and problem.device.startswith("cuda") else None,
        on_change=on_change,
    )


def compare(
    reference: Source | Session | BenchmarkResult | Sequence[BenchmarkResult],
    candidate: Source | Session | BenchmarkResult | Sequence[BenchmarkResult],
    options: ComparisonOptions | None = None,
) -> BenchmarkComparison | SessionComparison:
    """Compare two benchmark results, or two recordings.

    Args:
        reference: One result or the results of a sweep, a Session, a file of `opscope bench --save`, a saved
            Session, or a trace.
        candidate: A result or recording of the same kind.
        options: How verdicts are reached.

    Raises:
        InputError: A file cannot be read, or one side is a benchmark and the other a recording.
    """
    from opscope.analysis.comparison_rules import compare_benchmarks  # noqa: PLC0415 - imports numpy
    from opscope.analysis.session_comparison import compare_sessions  # noqa: PLC0415

    with ExitStack() as opened:
        first, second = (_side(source, opened) for source in (reference, candidate))
        if isinstance(first, Session) and isinstance(second, Session):
            return compare_sessions(first, second, options)
        if isinstance(first, Session) or isinstance(second, Session):
            raise InputError(
                "a benchmark cannot be compared with a recording",
                hint="Give two results of opscope bench --save, or two recordings",
            )
        names = [
            os.fspath(one) if isinstance(one, str | os.PathLike) else None for one in (reference, candidate)
        ]
        return compare_benchmarks(
            first,
            second,
            options,
            reference_source=names[0] or "reference",
            candidate_source=names[1] or "candidate",
        )


def _side(
    source: Source | Session | BenchmarkResult | Sequence[BenchmarkResult], opened: ExitStack
) -> Session | tuple[BenchmarkResult, ...]:
    """One side as a Session or as results; a Session that is loaded here is closed with `opened`."""
    from opscope.benchmarking.benchmark_sweep import is_result_file, load_results  # noqa: PLC0415
    from opscope.model.benchmark import BenchmarkResult  # noqa: PLC0415

    if isinstance(source, Session):
        return source
    if isinstance(source, str | os.PathLike):
        if is_result_file(source):
            return load_results(source)
        return opened.enter_context(load(source))
    return (source,) if isinstance(source, BenchmarkResult) else tuple(source)


def _opened(
    source: Source | Sequence[Source] | Session, *, merge: bool = False
) -> AbstractContextManager[Session]:
    return nullcontext(source) if isinstance(source, Session) else load(source, merge=merge)


def analyze(
    sources: Source | Sequence[Source] | Session,
    *,
    ceilings: Source | None = None,
    memory_limit: str | None = None,
    threads: int | None = None,
    merge: bool = False,
) -> Summary:
    """Everything `opscope analyze` reports about traces: `load` unless a Session is given, then `summarize`.

    Raises:
        InputError: A source cannot be read, or the ceilings are of another GPU.
    """
    if not isinstance(sources, Session):
        sources = load(sources, memory_limit=memory_limit, threads=threads, merge=merge)
    return summarize(sources, ceilings=ceilings)


def explain(
    name: str,
    source: Source | Sequence[Source] | Session | None = None,
    *,
    merge: bool = False,
    torch_version: str | None = None,
) -> Explanation:
    """The chain behind an operator, a kernel, a category or a source file.

    Args:
        name: What to explain, as in `opscope explain`.
        source: A recording whose calls are added.
        merge: As in `load`.
        torch_version: Release to answer for without a recording.

    Raises:
        InputError: The name is unknown; the hint lists similar ones.
    """
    from opscope.analysis.explanation import explain as explained  # noqa: PLC0415

    if source is not None and not isinstance(source, Session):
        # Parts of the answer are read when they are asked for: the Session stays open.
        source = load(source, merge=merge)
    return explained(name, source, torch_version=torch_version)


def stats(
    source: Source | Sequence[Source] | Session, reports: Sequence[str] | None = None, *, merge: bool = False
) -> tuple[ReportTable, ...]:
    """The statistics of Nsight Systems: kernels and copies in one table, or `reports` by name, or `["all"]`.

    `source` and `merge` are as in `load`.

    Raises:
        InputError: There is no such report, or the source cannot be read.
    """
    from opscope.analysis.nsys_reports import report_tables, wanted_reports  # noqa: PLC0415

    with _opened(source, merge=merge) as session:
        return report_tables(session, wanted_reports(reports))


def flamegraph(
    source: Source | Sequence[Source] | Session,
    *,
    weight: str = "device",
    by: str | None = None,
    format: Literal["speedscope", "collapsed"] = "speedscope",  # noqa: A002 - as viewers call it
    merge: bool = False,
    name: str = "opscope",
) -> str:
    """Stacks from Python down to the kernels, as the text of a file for flame graph viewers.

    `source` and `merge` are as in `load`, and `name` is the title of a speedscope file. Weights, of `device`
    or of `cpu` time, are whole nanoseconds that sum to all of it; work without an operator or a stack is
    under a root in square brackets. `by` is what to stack above the operators: `python` (needs recorded
    stacks, and is the default where there are), `module` or `operator`. With modules the backward pass is
    under the forward operators that it differentiates, else where it ran.

    Raises:
        InputError: The source cannot be read, or has no such stacks.
    """
    from opscope.analysis.program.stacks import StackBasis, StackWeight, stack_profiles  # noqa: PLC0415
    from opscope.report.exports import collapsed_text, speedscope_document  # noqa: PLC0415
    from opscope.report.json_encoding import to_json_line  # noqa: PLC0415

    try:
        what = StackWeight(weight)
        basis = None if by is None else StackBasis(by)
    except ValueError as error:
        raise InputError(str(error)) from error
    with _opened(source, merge=merge) as session:
        profiles = stack_profiles(session, by=basis, weight=what)
    if format == "collapsed":
        return collapsed_text(profiles)
    return to_json_line(speedscope_document(profiles, name=name)) + "\n"


def doctor() -> Diagnosis:
    """Whether programs can be profiled on this machine, and what to fix. Changes no setting."""
    from opscope.toolchain.doctor.checks import diagnose  # noqa: PLC0415
    from opscope.toolchain.doctor.machine import ExaminedMachine  # noqa: PLC0415

    return diagnose(ExaminedMachine(os.environ, sys.executable))


def devices(name: str = "") -> SearchResult:
    """The GPUs and architectures that match a name; all of them without one.

    Raises:
        InputError: The name is unknown; the hint lists similar ones.
    """
    from opscope.hardware.architectures import architectures  # noqa: PLC0415
    from opscope.hardware.devices import SearchResult, search_devices  # noqa: PLC0415
    from opscope.hardware.devices import devices as known_devices  # noqa: PLC0415

    return search_devices(name) if name else SearchResult(known_devices(), architectures())


def ncu(report: Source, trace: Source | Session | None = None) -> CounterAnalysis:
    """The hardware counters in a report of Nsight Compute.

    Args:
        report: A file (.ncu-rep, .ncu-rep.gz).
        trace: A recording of the same program, for the operators of the kernels.

    Raises:
        InputError: A file cannot be read.
        DependencyError: The reader is not installed.
    """
    from opscope.analysis.counters import analyze_counters  # noqa: PLC0415
    from opscope.toolchain.ncu_report import read_report  # noqa: PLC0415

    read = read_report(Path(report))
    with nullcontext() if trace is None else _opened(trace) as session:
        return analyze_counters(read, session)


def try_changes(
    target: Source | Callable[[], object],
    arguments: Sequence[str] = (),
    *,
    on_run: Told = lambda name, done, total: None,
    **options: Any,
) -> TrialResult:
    """Apply changes to a program and measure each, in separate processes.

        opscope.try_changes("train.py", ["--batch", "8"], only=["tf32"], budget_s=30)
        opscope.try_changes(step)

    Args:
        target: A script, a workload's name, FILE.py:function or PACKAGE.MODULE:FACTORY; or a function, which
            each process imports from its file: keep the rest of that file under
            `if __name__ == "__main__":`.
        arguments: Arguments of the script.
        on_run: Called for each run with its name, the runs done, and the runs in all.
        **options: Those of `opscope.trials.trying.trial_plan`, with its defaults.

    Raises:
        InputError: The program or change does not exist, its steps cannot be recognized, or a function cannot
            be imported from a file.
        CaptureError: The unchanged program fails.
        DependencyError: torch is not installed.
    """
    from opscope.trials.trying import Trial, target_of, trial_plan  # noqa: PLC0415

    name = target_of(target) if callable(target) else os.fspath(target)
    return Trial(trial_plan(name, arguments, **options), on_run).run()
