"""The public functions: each wires the layers below into one step a user thinks of.

Imports nothing heavy at its top, so that the command line starts quickly.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from opscope.benchmarking.decorator import benchmark
from opscope.capture.calls import ProfiledFunction
from opscope.capture.calls import profile_call as _profile_call
from opscope.capture.calls import profiled as _profiled
from opscope.capture.cycle import ACTIVE_STEPS, Cycle, CycleHandler, export_chrome_trace, tensorboard_trace
from opscope.capture.profiler import CaptureOptions, Profiler
from opscope.data import example_trace
from opscope.errors import CaptureError, InputError, MeasurementError
from opscope.model.session import Session
from opscope.provenance.origins import recorded_origins
from opscope.results import Source, load, open_session, print_report

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from opscope.benchmarking.problem import Problem
    from opscope.model.benchmark import BenchmarkOptions, BenchmarkResult, CacheState
    from opscope.model.comparison import BenchmarkComparison, ComparisonOptions, SessionComparison
    from opscope.model.measurement import Clock

__all__ = [
    "Measuring",
    "Profile",
    "bench",
    "benchmark",
    "compare",
    "example_trace",
    "export_chrome_trace",
    "load",
    "measure",
    "open_session",
    "print_table",
    "profile",
    "profile_call",
    "profiled",
    "tensorboard_trace",
]

P = ParamSpec("P")
R = TypeVar("R")


class Profile(Profiler):
    """A `Profiler` whose cycles are Sessions too. Made by `profile`; see `Profiler` for everything else."""

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

        return recorded

    @property
    def session(self) -> Session:
        """The Session of the last finished cycle, loaded when first asked for.

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


def profile(
    output_dir: Source | None = None,
    *,
    name: str = "trace",
    wait: int = 0,
    warmup: int = 2,
    active: int = ACTIVE_STEPS,
    repeat: int = 1,
    **options: Unpack[CaptureOptions],
) -> Profile:
    """Record the steps of the program in its `with` block: `with opscope.profile("out") as p: … p.step()`.

    Without any `step()` the block is recorded as one step (but not with `wait` or a `warmup` of 1). As a
    decorator, `@opscope.profile("out")`, it records the first call of a function; `profiled` later ones.

    Leaves, per cycle, an ordinary Kineto trace and a small sidecar in `output_dir`; `p.cycles` names them and
    `p.session` is the last one's Session. Arguments are those of `Profiler`.

    Raises:
        InputError: The schedule or the name makes no sense.
    """
    options.setdefault("find_origins", recorded_origins)
    return Profile(output_dir, name=name, wait=wait, warmup=warmup, active=active, repeat=repeat, **options)


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

    Before a profiler is attached `unrecorded` samples of the time of a call are taken, back to back; 0 takes
    none. See `opscope.capture.calls.profile_call`.

    Returns:
        The result of the last call, and the Session of the recording.

    Raises:
        InputError: The schedule makes no sense, or a file is in the way.
        CaptureError: A profiler is running, or the function ran out of memory.
    """
    options.setdefault("find_origins", recorded_origins)
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


def profiled(
    output_dir: Source | None = None,
    *,
    name: str | None = None,
    warmup: int = 0,
    active: int = 1,
    **options: Unpack[CaptureOptions],
) -> Callable[[Callable[P, R]], ProfiledFunction[P, R]]:
    """A decorator that records calls of a function, each as a cycle of one step; see `ProfiledFunction`."""
    options.setdefault("find_origins", recorded_origins)
    return _profiled(output_dir, name=name, warmup=warmup, active=active, **options)


def print_table(top: int = 10, file: Any = None) -> CycleHandler:
    """A handler for `on_cycle` that prints each cycle's top operators.

    Args:
        top: Operators to print.
        file: Where to; standard output if None.
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

    Prints nothing. An interruption (Ctrl-C) while it measures ends it with what is finished: the result's
    `complete` is false then.

    Args:
        *targets: The name of a suite, functions (marked with `benchmark` or not), mappings of names to
            functions, or targets such as `"file.py:function"`.
        inputs: A function that makes the arguments (given those of the swept parameters, `device`, `dtype`
            and `seed` that it names; it returns a tensor or a tuple), or the arguments themselves: a tensor
            or a tuple, which are copied.
        expected: Computes the right answer, given the inputs with floating-point tensors in float64.
        reference: Name of the implementation that ratios refer to; the first if None.
        implementations: Names of those to measure; all if empty.
        shape: Sizes of a suite's problem.
        dtype: float32, float16 or bfloat16.
        device: `"auto"`, `"cpu"`, `"cuda"` or `"cuda:N"`.
        options: A suite's own parameters, e.g. `{"approximate": "tanh"}`.
        params: What to sweep over: values by parameter name.
        name: Of the result, for functions.
        on_change: Called with the result so far after every change.
        **measuring: As in `BenchmarkOptions`.

    Returns:
        The result; a list of them, one per point, if `params` or the groups of a file make several.

    Raises:
        InputError: A target, name, shape or parameter does not fit, or the inputs cannot be made.
        MeasurementError: The clock asked for cannot be used here, or a point of a sweep failed.
        DependencyError: torch is not installed.
    """
    from opscope.benchmarking.plan import BenchmarkRequest, plan_of, run_plan, values_of  # noqa: PLC0415
    from opscope.model.benchmark import BenchmarkOptions  # noqa: PLC0415

    request = BenchmarkRequest(
        shape=None if shape is None else tuple(shape),
        dtype=dtype,
        device=device,
        implementations=tuple(implementations),
        reference=reference,
        inputs=inputs,
        expected=expected,
        options=options or {},
        parameters=values_of(params or {}),
        name=name,
    )
    how = BenchmarkOptions(**measuring)
    plan = plan_of(targets, request)

    def run(problem: Problem, changed: Callable[[BenchmarkResult], object]) -> BenchmarkResult:
        return measure(problem, how, on_change=on_change or changed)

    sweep = run_plan(plan, run)
    if sweep.failures:
        raise MeasurementError("; ".join(sweep.failures))
    return list(sweep.points) if plan.is_sweep else sweep.points[0]


def measure(
    problem: Problem,
    options: BenchmarkOptions,
    *,
    on_change: Callable[[BenchmarkResult], object] = lambda result: None,
) -> BenchmarkResult:
    """The result of one Problem, with the environment and, on a GPU, each implementation's kernels.

    On a CPU no kernels are recorded: `profile` and `kernels_launched` are None.

    Raises:
        MeasurementError: The clock asked for cannot be used on this device.
    """
    from opscope.analysis.call_profile import call_profiler  # noqa: PLC0415 - needed only to benchmark
    from opscope.benchmarking.runner import run_benchmark  # noqa: PLC0415
    from opscope.capture.environment import collect_environment  # noqa: PLC0415

    is_profiled = options.profile and problem.device.startswith("cuda")
    return run_benchmark(
        problem,
        options,
        environment=collect_environment(),
        inspect=call_profiler() if is_profiled else None,
        on_change=on_change,
    )


def compare(
    reference: Source | Session | BenchmarkResult | Sequence[BenchmarkResult],
    candidate: Source | Session | BenchmarkResult | Sequence[BenchmarkResult],
    options: ComparisonOptions | None = None,
) -> BenchmarkComparison | SessionComparison:
    """The candidate beside the reference: two benchmark results, or two recordings.

    Args:
        reference: A result or several of a sweep, a Session, a file that `opscope bench --save` wrote, a
            saved Session, or a trace.
        candidate: The same kind of thing.
        options: How verdicts are reached.

    Raises:
        InputError: A file cannot be read, or one side is a benchmark and the other a recording.
    """
    from opscope.analysis.benchmark_comparison import compare_benchmarks  # noqa: PLC0415 - imports numpy
    from opscope.analysis.session_comparison import compare_sessions  # noqa: PLC0415

    with ExitStack() as opened:
        sides = [_side(source, opened) for source in (reference, candidate)]
        first, second = sides
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
    from opscope.benchmarking.result_file import is_result_file, load_results  # noqa: PLC0415
    from opscope.model.benchmark import BenchmarkResult  # noqa: PLC0415

    if isinstance(source, Session):
        return source
    if isinstance(source, str | os.PathLike):
        if is_result_file(source):
            return load_results(source)
        return opened.enter_context(load(source))
    return (source,) if isinstance(source, BenchmarkResult) else tuple(source)
