"""What is to be measured: one problem, or several over values of parameters.

Everything that can be checked without making inputs is checked when a sweep is made. Running it calls the
engine once for each of its problems and keeps what is finished. The JSON of a result's file is that of
`opscope bench --json`; a file is replaced in one step, so it is whole whenever it is read. Imports nothing of
torch by itself.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from opscope._version import __version__
from opscope.benchmarking.problem import Problem, Values
from opscope.benchmarking.suites import SUITES, suite
from opscope.benchmarking.user_problem import (
    FunctionGroup,
    call_files,
    check_parameters,
    group_of_functions,
    group_of_targets,
    group_problem,
    is_target,
    named_functions,
)
from opscope.errors import InputError, OpscopeError
from opscope.model.benchmark import BENCHMARK_SCHEMA_VERSION, BenchmarkResult
from opscope.model.files import UNREADABLE_JSON, finite, write_text

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
        return len(self.points) > 1


def sweep_of(
    targets: Sequence[Target],
    *,
    device: str = "auto",
    implementations: Sequence[str] = (),
    reference: str | None = None,
    inputs: Any = None,
    expected: Any = None,
    parameters: Values = MappingProxyType({}),
    name: str | None = None,
) -> Sweep:
    """The sweep of a suite's name, of files and functions by name, or of functions themselves.

    What is left out, the targets decide.

    Args:
        targets: What is measured.
        device: Also `"cpu"`, `"cuda"`, `"cuda:N"`; of a suite also `"interpreter"`: only its Triton
            implementations, in Triton's interpreter, on the CPU.
        implementations: Names of those to measure, in this order; all if empty. The reference is put before
            them if it was asked for and is not among them.
        reference: What ratios refer to.
        inputs: For functions: what makes their arguments, as a function or a target, or these.
        expected: For functions: what computes the right answer, as a function or a target.
        parameters: What is swept over: of a suite its shape, sizes, dtype and own parameters, of functions
            what they take.
        name: Of the group of functions.
    """
    names = [target for target in targets if isinstance(target, str)]
    if names and len(names) < len(targets):
        raise InputError("names and functions cannot be mixed", hint="Give functions, or names")
    asked = {"inputs": inputs, "expected": expected, "reference": reference, "only": implementations}
    if len(names) == 1 and names[0] not in SUITES and Path(names[0]).is_dir():
        files = call_files(names[0])
        if not files or parameters:
            raise InputError(
                "its files take no parameters" if files else "it holds no file with a reference and mine",
                source=names[0],
                hint="opscope extract TRACE --all DIR writes such files",
            )
        of = {"call": tuple(one.stem for one in files)}

        def loaded(file: Path) -> FunctionGroup | OpscopeError:
            try:
                return group_of_targets([str(file)], **asked)
            except OpscopeError as error:
                return error

        def made_of(group: FunctionGroup | OpscopeError) -> Problem:
            if isinstance(group, OpscopeError):
                raise group
            return group_problem(group, {}, device)

        # All at once: a file may choose Triton's interpreter, which must be before Triton is imported.
        groups = [(one, loaded(one)) for one in files]
        made = tuple(_point({"call": one.stem}, of, partial(made_of, group)) for one, group in groups)
        return Sweep(Path(names[0]).resolve().name, made, of)
    if len(names) == 1 and not is_target(names[0]):
        chosen = suite(names[0])
        for option, value in (("inputs", inputs), ("expected", expected)):
            if value is not None:
                raise InputError(
                    f"the suite '{chosen.name}' makes its own {option}",
                    hint=f"--{option} belongs to FILE.py:function",
                )
        of_values = partial(
            chosen.problem, device=device, implementations=implementations, reference=reference
        )
        # All are checked here, where the problems are made.
        made = tuple(_point(at, parameters, partial(replace, of_values(at))) for at in points(parameters))
        return Sweep(chosen.name, made, kept(parameters))
    for target in names:
        if not is_target(target):
            hint = "Give one suite, or a FILE.py:function for each"
            raise InputError(f"'{target}' stands beside other targets", hint=hint)
    if device == "interpreter":
        raise InputError("Triton's interpreter is for suites", hint="Leave --device interpreter out")
    if names:
        group = group_of_targets(names, **asked)
    else:
        group = group_of_functions(named_functions(targets), name=name, **asked)
    check_parameters(group, parameters)
    made = tuple(
        _point(at, parameters, partial(group_problem, group, at, device)) for at in points(parameters)
    )
    return Sweep(group.name, made, kept(parameters))


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

    @property
    def shown(self) -> BenchmarkResult | BenchmarkSweep | None:
        """Itself, or the result of its only point; None where that has none."""
        is_several = math.prod(map(len, self.parameters.values())) > 1
        return self if is_several else next(iter(self.points), None)


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


# A thousand rows of a thousand samples each take about 20 MB; larger files are traces.
_LARGEST_BYTES = 64 << 20
_HINT = "Results are written by opscope bench --save"


def result_document(result: BenchmarkResult | BenchmarkSweep) -> dict[str, Any]:
    """The result in JSON types; a float that is no number is None."""
    return finite(msgspec.to_builtins(result))  # type: ignore[no-any-return]


def save_benchmark(
    path: str | os.PathLike[str], result: BenchmarkResult | BenchmarkSweep, *, force: bool = False
) -> Path:
    if Path(path).exists() and not force:
        raise InputError(
            "the file exists", source=path, hint="Overwrite it with --force, or overwrite=True in Python"
        )
    text = json.dumps(result_document(result), indent=1, ensure_ascii=False, allow_nan=False)
    return write_text(path, text + "\n")


def is_result_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a benchmark result by its keys; it may still be damaged."""
    file = Path(path)
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
            return False
        return _is_result(msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw]))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return False


def _is_result(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and {"schema_version", "suite"} <= document.keys()
        and ("rows" in document or "points" in document)
        and "traceEvents" not in document
    )


def load_benchmark(path: str | os.PathLike[str]) -> BenchmarkResult | BenchmarkSweep:
    try:
        document = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise InputError(reason, source=path, hint=_HINT) from error
    except UNREADABLE_JSON as error:
        raise InputError(f"not a benchmark result: no JSON ({error})", source=path, hint=_HINT) from error
    if not _is_result(document):
        raise InputError("not a benchmark result", source=path, hint=_HINT)
    version = document["schema_version"]
    if not isinstance(version, int) or version > BENCHMARK_SCHEMA_VERSION:
        raise InputError(
            f"the result has schema version {version}, this opscope knows {BENCHMARK_SCHEMA_VERSION}",
            source=path,
            hint="Update opscope",
        )
    try:
        if "points" in document:
            return msgspec.convert(document, BenchmarkSweep)
        return msgspec.convert(document, BenchmarkResult)
    except UNREADABLE_JSON as error:
        raise InputError(f"the benchmark result is damaged ({error})", source=path, hint=_HINT) from error


def load_results(path: str | os.PathLike[str]) -> tuple[BenchmarkResult, ...]:
    loaded = load_benchmark(path)
    return loaded.points if isinstance(loaded, BenchmarkSweep) else (loaded,)
