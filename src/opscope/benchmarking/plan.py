"""What is to be measured: one problem, or several over values of parameters or groups of functions.

Everything that can be checked without making inputs is checked when a plan is made. Running a plan calls the
engine once for each of its problems and keeps what is finished. Imports nothing of torch by itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from opscope._version import __version__
from opscope.benchmarking.decorator import FunctionGroup, values_of
from opscope.benchmarking.problem import Problem
from opscope.benchmarking.suites import Suite, SuiteOptions, suite
from opscope.benchmarking.user_problem import (
    Setting,
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

__all__ = [
    "BenchmarkRequest",
    "BenchmarkSweep",
    "Plan",
    "Point",
    "Target",
    "Values",
    "group_plan",
    "parse_parameters",
    "plan_of",
    "points",
    "run_plan",
    "suite_plan",
    "values_of",
]


_USAGE = "Write --param NAME=VALUE,VALUE…, e.g. --param n=1024,4096"
_NAME = re.compile(r"[A-Za-z_]\w*")

Values = Mapping[str, tuple[Any, ...]]


def parse_parameters(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Parameters with their values from `NAME=VALUE,VALUE…`: integers, floats, or else words."""
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        values = [value.strip() for value in rest.split(",")]
        if not equals or not _NAME.fullmatch(name.strip()) or not all(values):
            raise InputError(f"'{text}' is not a parameter with its values", hint=_USAGE)
        if name.strip() in found:
            raise InputError(f"the parameter '{name.strip()}' is given twice", hint=_USAGE)
        found[name.strip()] = tuple(dict.fromkeys(map(_value, values)))
    return found


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def points(parameters: Values) -> Iterator[dict[str, Any]]:
    """The cross product of the values, the last parameter varying fastest."""
    for values in itertools.product(*parameters.values()):
        yield dict(zip(parameters, values, strict=True))


_DTYPE = "dtype"

Target = str | Callable[..., Any] | Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class BenchmarkRequest:
    """What a user asks for besides the targets. What is left out, the targets decide."""

    shape: tuple[int, ...] | None = None  # Of a suite
    dtype: str | None = None  # Of a suite, or what an inputs function gets
    device: str = "auto"  # `"auto"`, `"cpu"`, `"cuda"` or `"cuda:N"`
    implementations: tuple[str, ...] = ()  # Names of those to measure; all if empty
    reference: str | None = None  # Name of the implementation that ratios refer to
    # For functions: what makes their arguments, as a function or a target, or the arguments
    inputs: Any = None
    expected: Any = None  # For functions: what computes the right answer, as a function or a target
    # A suite's own parameters, e.g. `{"approximate": "tanh"}`
    options: Mapping[str, str] = field(default_factory=dict)
    parameters: Values = field(default_factory=dict)  # What is swept over
    interpret: bool = False  # Only the Triton implementations of a suite, in Triton's interpreter
    name: str | None = None  # Of the group of functions


@dataclass(frozen=True)
class Point:
    """One problem of a plan."""

    label: str  # For people, e.g. `n=1024`; empty where there is but one point
    make: Callable[[], Problem]  # Makes the problem; may allocate its inputs


@dataclass(frozen=True)
class Plan:
    """What is to be measured; `parameters` are those swept over, with their values."""

    name: str
    points: tuple[Point, ...]
    parameters: Values = field(default_factory=dict)

    @property
    def is_sweep(self) -> bool:
        """Whether there are several points, so that the result is a sweep."""
        return len(self.points) > 1


def plan_of(targets: Sequence[Target], request: BenchmarkRequest) -> Plan:
    """The plan of a suite's name, of files and functions by name, or of functions themselves."""
    names = [target for target in targets if isinstance(target, str)]
    if names and len(names) < len(targets):
        raise InputError("names and functions cannot be mixed", hint="Give functions, or names")
    if len(names) == 1 and not is_target(names[0]):
        return _plan_of_suite(names[0], request)
    for name in names:
        if not is_target(name):
            hint = "Give one suite, or a FILE.py:function for each"
            raise InputError(f"'{name}' stands beside other targets", hint=hint)
    return _plan_of_functions(targets, names, request)


def _plan_of_suite(name: str, request: BenchmarkRequest) -> Plan:
    chosen = suite(name)
    for option, value in (("inputs", request.inputs), ("expected", request.expected)):
        if value is not None:
            raise InputError(
                f"the suite '{name}' makes its own {option}", hint=f"--{option} belongs to FILE.py:function"
            )
    options = SuiteOptions(
        shape=request.shape,
        dtype=request.dtype,
        device=request.device,
        implementations=request.implementations,
        reference=request.reference,
        parameters=request.options,
        interpret=request.interpret,
    )
    return suite_plan(chosen, options, request.parameters)


def _plan_of_functions(targets: Sequence[Target], names: Sequence[str], request: BenchmarkRequest) -> Plan:
    for option, value in (
        ("shape", request.shape),
        ("interpret", request.interpret),
        *request.options.items(),
    ):
        if value:
            raise InputError(
                f"--{option} belongs to suites",
                hint="Functions get their sizes by --param, e.g. --param n=1024",
            )
    groups = groups_of_targets(names, inputs=request.inputs, expected=request.expected) if names else ()
    if not names:
        functions = named_functions(targets)
        groups = (
            group_of_functions(
                functions, name=request.name, inputs=request.inputs, expected=request.expected
            ),
        )
    return _plan_of_groups(groups, request)


def _plan_of_groups(groups: Sequence[FunctionGroup], request: BenchmarkRequest) -> Plan:
    """The plan of groups. A name or a parameter must belong to one of them, and holds for those it does."""
    _require_known([*request.implementations, *([request.reference] if request.reference else [])], groups)
    check_parameters(groups, request.parameters)
    setting = Setting(request.device, request.dtype)
    plans = []
    for group in groups:
        names = [name for name in request.implementations if name in group.functions]
        if request.implementations and not names:
            continue
        is_here = request.reference in group.functions
        kept = selected(replace(group, reference=request.reference) if is_here else group, names)
        given = {name: values for name, values in request.parameters.items() if takes(kept, name)}
        plans.append(group_plan(kept, setting, given))
    return _joined(plans, request.name or groups[0].name.partition(":")[0])


def _require_known(names: Sequence[str], groups: Sequence[FunctionGroup]) -> None:
    known = list(dict.fromkeys(name for group in groups for name in group.functions))
    for name in names:
        if name not in known:
            where = ", ".join(group.name for group in groups)
            raise InputError(f"'{where}' has no function '{name}'", hint=f"It has: {', '.join(known)}")


def suite_plan(suite: Suite, options: SuiteOptions, parameters: Values) -> Plan:
    """The problems of a suite over its sizes, its dtype and its own parameters. All are checked here."""
    for name in parameters:
        if name not in {_DTYPE, *suite.shape_names, *suite.parameters}:
            known = ", ".join((*suite.shape_names, _DTYPE, *suite.parameters))
            raise InputError(f"'{suite.name}' has no parameter '{name}'", hint=f"It has {known}")
    return Plan(
        suite.name, tuple(_suite_point(suite, options, point) for point in points(parameters)), parameters
    )


def _suite_point(suite: Suite, options: SuiteOptions, values: Mapping[str, Any]) -> Point:
    problem = suite.problem(_options_at(suite, options, values))
    return Point(_label(values), lambda: replace(problem, parameters={**problem.parameters, **values}))


def _options_at(suite: Suite, options: SuiteOptions, values: Mapping[str, Any]) -> SuiteOptions:
    sizes = {name: value for name, value in values.items() if name in suite.shape_names}
    for name, size in sizes.items():
        if not isinstance(size, int):
            raise InputError(f"{name}={size} is not a size for '{suite.name}'", hint="Sizes are integers")
    own = {name: str(value) for name, value in values.items() if name in suite.parameters}
    options = replace(
        options,
        dtype=str(values[_DTYPE]) if _DTYPE in values else options.dtype,
        parameters={**options.parameters, **own},
    )
    if not sizes:
        return options
    # What is not swept over stays as it was asked for, or as the suite has it on this device.
    shape = options.shape or suite.problem(replace(options, shape=None)).shape or suite.cuda_shape
    named = dict(zip(suite.shape_names, shape, strict=True)) | sizes
    return replace(options, shape=tuple(named.values()))


def group_plan(group: FunctionGroup, setting: Setting, parameters: Values) -> Plan:
    """The problems of the user's functions over the given parameters and those their marks name."""
    swept = {**group.params, **parameters}
    check_parameters([group], swept)

    def point(values: Mapping[str, Any]) -> Point:
        return Point(_label(values), lambda: group_problem(group, values, setting))

    return Plan(group.name, tuple(point(values) for values in points(swept)), swept)


def _joined(plans: Sequence[Plan], name: str) -> Plan:
    """One plan of several; the plan itself if there is but one."""
    if len(plans) == 1:
        return plans[0]
    joined = [
        Point(f"{plan.name} {point.label}".rstrip(), point.make) for plan in plans for point in plan.points
    ]
    swept: dict[str, tuple[Any, ...]] = {}
    for plan in plans:
        for parameter, values in plan.parameters.items():
            swept[parameter] = tuple(dict.fromkeys((*swept.get(parameter, ()), *values)))
    return Plan(name, tuple(joined), swept)


def _label(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


Run = Callable[[Problem, Callable[[BenchmarkResult], object]], BenchmarkResult]


class BenchmarkSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one benchmark at several points, as it is kept in a file."""

    schema_version: int = BENCHMARK_SCHEMA_VERSION
    opscope_version: str = __version__
    suite: str  # Name of the suite, or of the user's functions
    # What was swept: each parameter with its values. The cross product of them was measured
    parameters: dict[str, tuple[Any, ...]]
    failures: tuple[str, ...] = ()  # Why a point has no result, in words that name the point
    complete: bool = True  # False while it goes on, and for ever if it was interrupted
    points: tuple[BenchmarkResult, ...] = ()  # One result each, in the order they were measured


def run_plan(
    plan: Plan,
    run: Run,
    *,
    on_change: Callable[[BenchmarkSweep], object] = lambda sweep: None,
    on_point: Callable[[Point], object] = lambda point: None,
) -> BenchmarkSweep:
    """Every point of the plan, or what was finished when the user interrupted it.

    A point of a sweep that cannot be made becomes one of `failures`; the others go on.
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
