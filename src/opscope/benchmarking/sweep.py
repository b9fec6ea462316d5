"""A benchmark over several points: values of its parameters, or groups of functions, one after another.

Running a plan calls the engine once for each of its problems and keeps what is finished.
Imports nothing of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from opscope._version import __version__
from opscope.benchmarking.plan import Plan, Point
from opscope.benchmarking.problem import Problem
from opscope.model.benchmark import BENCHMARK_SCHEMA_VERSION, BenchmarkResult

__all__ = ["BenchmarkSweep", "run_plan"]

Run = Callable[[Problem, Callable[[BenchmarkResult], object]], BenchmarkResult]


class BenchmarkSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one benchmark at several points, as it is kept in a file.

    Attributes:
        suite: Name of the suite, or of the user's functions.
        parameters: What was swept: each parameter with its values. The cross product of them was measured.
        failures: Why a point has no result, in words that name the point.
        complete: False while it goes on, and for ever if it was interrupted.
        points: One result each, in the order they were measured.
    """

    schema_version: int = BENCHMARK_SCHEMA_VERSION
    opscope_version: str = __version__
    suite: str
    parameters: dict[str, tuple[Any, ...]]
    failures: tuple[str, ...] = ()
    complete: bool = True
    points: tuple[BenchmarkResult, ...] = ()


def run_plan(
    plan: Plan,
    run: Run,
    *,
    on_change: Callable[[BenchmarkSweep], object] = lambda sweep: None,
    on_point: Callable[[Point], object] = lambda point: None,
) -> BenchmarkSweep:
    """Every point of the plan, or what was finished when the user interrupted it.

    A point of a sweep that cannot be made becomes one of `failures`; the others go on.

    Args:
        plan: What to measure.
        run: Measures one problem and reports every change.
        on_change: Called with the sweep after every change, `complete` being false until the end.
        on_point: Called before each point.

    Raises:
        InputError: The only point cannot be made.
    """
    done: list[BenchmarkResult] = []
    current: list[BenchmarkResult] = []
    failures: list[str] = []

    def sweep(*now: BenchmarkResult, complete: bool = False) -> BenchmarkSweep:
        return BenchmarkSweep(
            suite=plan.name,
            parameters=dict(plan.parameters),
            failures=tuple(failures),
            complete=complete,
            points=(*done, *now),
        )

    def changed(now: BenchmarkResult) -> None:
        current[:] = [now]
        on_change(sweep(now))

    for point in plan.points:
        on_point(point)
        current.clear()
        try:
            result = run(point.make(), changed)
        except KeyboardInterrupt:
            return sweep(*current)
        except Exception as error:
            # One point's failure, whatever the user's code raises, must not cost the others.
            if len(plan.points) == 1:
                raise
            failures.append(f"{point.label}: {error}")
            continue
        done.append(result)
        on_change(sweep())
        if not result.complete:
            return sweep()
    finished = sweep(complete=True)
    on_change(finished)
    return finished
