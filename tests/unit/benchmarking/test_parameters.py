from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.benchmarking.benchmark_sweep import Point, Sweep, parse_parameters, points, run_sweep
from opscope.benchmarking.decorator import values_of
from opscope.benchmarking.problem import Problem
from opscope.errors import InputError
from opscope.model.benchmark import BenchmarkOptions, BenchmarkResult, CacheState
from opscope.model.environment import Environment
from opscope.model.measurement import Clock


def test_values_are_integers_floats_or_words() -> None:
    assert parse_parameters(["n=1024,4096", "scale=0.5, 1e3", "mode=tanh,erf"]) == {
        "n": (1024, 4096),
        "scale": (0.5, 1000.0),
        "mode": ("tanh", "erf"),
    }


def test_a_value_given_twice_counts_once() -> None:
    assert parse_parameters(["n=4,4,8"]) == {"n": (4, 8)}


@pytest.mark.parametrize("text", ["n", "n=", "=3", "n=1,,2", "3n=1", "a b=1"])
def test_what_is_no_parameter_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(InputError, match="NAME=VALUE"):
        parse_parameters([text])


def test_points_are_the_cross_product_with_the_last_fastest() -> None:
    assert list(points({"n": (1, 2), "m": ("a", "b")})) == [
        {"n": 1, "m": "a"},
        {"n": 1, "m": "b"},
        {"n": 2, "m": "a"},
        {"n": 2, "m": "b"},
    ]
    assert list(points({})) == [{}]


def test_one_value_in_python_is_a_list_of_one() -> None:
    assert values_of({"n": 3, "mode": "tanh", "m": [1, 2]}) == {"n": (3,), "mode": ("tanh",), "m": (1, 2)}
    with pytest.raises(InputError, match="no values"):
        values_of({"n": []})


def result_of(problem: Problem, *, complete: bool = True) -> BenchmarkResult:
    return BenchmarkResult(
        suite=problem.name,
        shape=None,
        dtype=None,
        device="cpu",
        parameters=dict(problem.parameters),
        reference="f",
        clock=Clock.WALL,
        cache_state=CacheState.UNCONTROLLED,
        options=BenchmarkOptions(),
        environment=Environment(python="3", platform="Linux", opscope="0"),
        created="",
        complete=complete,
    )


def sweep_of(*values: int, make: Callable[[int], Problem] | None = None) -> Sweep:
    def default(n: int) -> Problem:
        return Problem("f.py", "cpu", lambda seed: (), (), "f", parameters={"n": n})

    def point(n: int) -> Point:
        return Point(f"n={n}", lambda: (make or default)(n))

    return Sweep("f.py", tuple(map(point, values)), {"n": values})


def run(problem: Problem, on_change: Callable[[BenchmarkResult], Any]) -> BenchmarkResult:
    on_change(result_of(problem, complete=False))
    return result_of(problem)


def test_a_point_that_cannot_be_made_does_not_stop_the_others() -> None:
    def make(n: int) -> Problem:
        if n == 2:
            raise InputError("no such size")
        return Problem("f.py", "cpu", lambda seed: (), (), "f", parameters={"n": n})

    found = run_sweep(sweep_of(1, 2, 3, make=make), run)
    assert [point.parameters["n"] for point in found.points] == [1, 3]
    assert found.failures == ("n=2: no such size",)


def test_the_only_point_raises_its_error() -> None:
    def make(n: int) -> Problem:
        raise InputError("no such size")

    with pytest.raises(InputError, match="no such size"):
        run_sweep(sweep_of(1, make=make), run)


def test_an_interrupted_point_ends_the_sweep_and_is_kept() -> None:
    def interrupted(problem: Problem, on_change: Callable[[BenchmarkResult], Any]) -> BenchmarkResult:
        return result_of(problem, complete=problem.parameters["n"] == 1)

    found = run_sweep(sweep_of(1, 2, 3), interrupted)
    assert [point.complete for point in found.points] == [True, False]
    assert not found.complete


def test_an_interruption_outside_the_engine_keeps_what_it_last_reported() -> None:
    def interrupted(problem: Problem, on_change: Callable[[BenchmarkResult], Any]) -> BenchmarkResult:
        on_change(result_of(problem, complete=False))
        raise KeyboardInterrupt

    found = run_sweep(sweep_of(1, 2), interrupted)
    assert (len(found.points), found.complete) == (1, False)
