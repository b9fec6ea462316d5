"""What is to be measured: one problem, or several over values of parameters or groups of functions.

Everything that can be checked without making inputs is checked when a sweep is made. Running it calls the
engine once for each of its problems and keeps what is finished. Imports nothing of torch by itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from opscope._version import __version__
from opscope.benchmarking.problem import BenchmarkRequest, Problem, Values
from opscope.benchmarking.suite import Suite
from opscope.benchmarking.suites import suite
from opscope.benchmarking.user_problem import (
    FunctionGroup,
    check_parameters,
    group_of_functions,
    group_problem,
    groups_of_targets,
    is_target,
    named_functions,
    selected,
    takes,
)
from opscope.errors import InputError
from opscope.model.benchmark import BENCHMARK_SCHEMA_VERSION, BenchmarkResult

_USAGE = "Write --param NAME=VALUE,VALUE…, e.g. --param n=1024,4096"

Target = str | Callable[..., Any] | Mapping[str, Callable[..., Any]]


def parse_parameters(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Parameters with their values from `NAME=VALUE,VALUE…`: integers, floats, or else words."""
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        name, values = name.strip(), [value.strip() for value in rest.split(",")]
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name) or not all(values):
            raise InputError(f"'{text}' is not a parameter with its values", hint=_USAGE)
        if name in found:
            raise InputError(f"the parameter '{name}' is given twice", hint=_USAGE)
        found[name] = tuple(dict.fromkeys(map(_value, values)))
    return found


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def points(parameters: Values) -> Iterator[dict[str, Any]]:
    """The cross product of the values, the last parameter varying fastest."""
    for values in itertools.product(*parameters.values()):
        yield dict(zip(parameters, values, strict=True))


class Point(NamedTuple):
    """One problem of a sweep; its label is for people, e.g. `n=1024`, and empty where there is but one."""

    label: str
    make: Callable[[], Problem]  # may allocate its inputs


def kept(parameters: Values) -> dict[str, tuple[Any, ...]]:
    """The parameters that results name: all but a shape and a dtype that are the same everywhere."""
    return {
        name: values
        for name, values in parameters.items()
        if name not in {"shape", "dtype"} or len(values) > 1
    }


def _point(at: Mapping[str, Any], parameters: Values, make: Callable[[], Problem]) -> Point:
    """The point of these values; what the problem says of its parameters itself holds."""
    named = {name: at[name] for name in kept(parameters)}

    def made() -> Problem:
        problem = make()
        return replace(problem, parameters={**named, **problem.parameters})

    return Point(", ".join(f"{name}={value}" for name, value in named.items()), made)


@dataclass(frozen=True)
class Sweep:
    """What is to be measured; `parameters` are those swept over, with their values."""

    name: str
    points: tuple[Point, ...]
    parameters: Values = field(default_factory=dict)

    @property
    def has_several(self) -> bool:
        """Whether there are several points, so that the result is a sweep."""
        return len(self.points) > 1


def sweep_of(targets: Sequence[Target], request: BenchmarkRequest) -> Sweep:
    """The sweep of a suite's name, of files and functions by name, or of functions themselves."""
    names = [target for target in targets if isinstance(target, str)]
    if names and len(names) < len(targets):
        raise InputError("names and functions cannot be mixed", hint="Give functions, or names")
    if len(names) == 1 and not is_target(names[0]):
        return _sweep_of_suite(suite(names[0]), request)
    for name in names:
        if not is_target(name):
            hint = "Give one suite, or a FILE.py:function for each"
            raise InputError(f"'{name}' stands beside other targets", hint=hint)
    if request.device == "interpreter":
        raise InputError("Triton's interpreter is for suites", hint="Leave --device interpreter out")
    if names:
        groups = groups_of_targets(names, inputs=request.inputs, expected=request.expected)
    else:
        functions, given = named_functions(targets), {"inputs": request.inputs, "expected": request.expected}
        groups = (group_of_functions(functions, name=request.name, **given),)
    return _sweep_of_groups(groups, request)


def _sweep_of_groups(groups: Sequence[FunctionGroup], request: BenchmarkRequest) -> Sweep:
    """A name or a parameter must belong to one of the groups, and holds for those it does."""
    known = list(dict.fromkeys(name for group in groups for name in group.functions))
    for name in (*request.implementations, *filter(None, [request.reference])):
        if name not in known:
            where = ", ".join(group.name for group in groups)
            raise InputError(f"'{where}' has no function '{name}'", hint=f"It has: {', '.join(known)}")
    check_parameters(groups, request.parameters)
    found: list[tuple[str, Point]] = []
    swept: dict[str, tuple[Any, ...]] = {}
    for group in groups:
        names = [name for name in request.implementations if name in group.functions]
        if request.implementations and not names:
            continue
        is_here = request.reference in group.functions
        chosen = selected(replace(group, reference=request.reference) if is_here else group, names)
        asked = {name: values for name, values in request.parameters.items() if takes(chosen, name)}
        parameters = {**chosen.params, **asked}
        check_parameters([chosen], parameters)
        for name, values in kept(parameters).items():
            swept[name] = tuple(dict.fromkeys((*swept.get(name, ()), *values)))
        for at in points(parameters):
            found.append(
                (chosen.name, _point(at, parameters, partial(group_problem, chosen, at, request.device)))
            )
    names = list(dict.fromkeys(name for name, _ in found))
    if len(names) == 1:
        return Sweep(names[0], tuple(point for _, point in found), swept)
    joined = tuple(Point(f"{name} {point.label}".rstrip(), point.make) for name, point in found)
    return Sweep(request.name or groups[0].name.partition(":")[0], joined, swept)


def _sweep_of_suite(chosen: Suite, request: BenchmarkRequest) -> Sweep:
    """The problems of a suite over its sizes, its dtype and its own parameters. All are checked here."""
    for option, value in (("inputs", request.inputs), ("expected", request.expected)):
        if value is not None:
            raise InputError(
                f"the suite '{chosen.name}' makes its own {option}",
                hint=f"--{option} belongs to FILE.py:function",
            )
    found = []
    for at in points(request.parameters):
        problem = chosen.problem(
            at,
            device=request.device,
            implementations=request.implementations,
            reference=request.reference,
        )
        found.append(_point(at, request.parameters, partial(replace, problem)))
    return Sweep(chosen.name, tuple(found), kept(request.parameters))


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


Run = Callable[[Problem, Callable[[BenchmarkResult], object]], BenchmarkResult]


def run_sweep(
    sweep: Sweep,
    run: Run,
    *,
    on_change: Callable[[BenchmarkSweep], object] = lambda sweep: None,
    on_point: Callable[[Point], object] = lambda point: None,
) -> BenchmarkSweep:
    """Every point of the sweep, or what was finished when the user interrupted it.

    A point of several that cannot be made becomes one of `failures`; the others go on. `run` measures one
    problem and reports every change; `on_change` gets the result after each, not `complete` until the end.
    """
    done: list[BenchmarkResult] = []
    current: list[BenchmarkResult] = []
    failures: list[str] = []

    def so_far(*now: BenchmarkResult, complete: bool = False) -> BenchmarkSweep:
        return BenchmarkSweep(
            suite=sweep.name,
            parameters=dict(sweep.parameters),
            failures=tuple(failures),
            complete=complete,
            points=(*done, *now),
        )

    def changed(now: BenchmarkResult) -> None:
        current[:] = [now]
        on_change(so_far(now))

    for point in sweep.points:
        on_point(point)
        current.clear()
        try:
            result = run(point.make(), changed)
        except KeyboardInterrupt:
            return so_far(*current)
        except Exception as error:
            # One point's failure, whatever the user's code raises, must not cost the others.
            if not sweep.has_several:
                raise
            failures.append(f"{point.label}: {error}")
            continue
        done.append(result)
        on_change(so_far())
        if not result.complete:
            return so_far()
    finished = so_far(complete=True)
    on_change(finished)
    return finished
