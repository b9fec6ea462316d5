"""The user's functions: which are benchmarked, and the Problem that a group of them makes.

The inputs come from a function, conventionally `make_inputs`. It is called by keyword with those of the swept
parameters, `device` (torch.device), `dtype` (torch.dtype) and `seed` that it names, with torch's random
generators seeded, and returns one tensor or a tuple of positional arguments. Nothing is moved: the function
decides where its tensors lie. A benchmarked function gets those arguments, and the swept parameters it names
as keyword-only ones. A mark of `@opscope.benchmark` changes nothing about a function: it stays the plain
callable it was. Importing this module does not import torch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

from opscope.benchmarking.inputs import copied, map_tensors
from opscope.benchmarking.problem import Implementation, Inputs, Problem, Values, first_line
from opscope.errors import InputError, OpscopeError
from opscope.model.benchmark import Engine
from opscope.workloads.runtime import is_out_of_memory, require_torch, resolve_device, resolve_dtype, seeded
from opscope.workloads.target import failure_place, function_of, is_file_name, load_module

DEFAULT_INPUTS = "make_inputs"
_TARGET_HINT = "Write FILE.py:function or PACKAGE.MODULE:function"


_ATTRIBUTE = "__opscope_benchmark__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class BenchmarkMark:
    """What the decorator was told about one function. None leaves it to the others of the group."""

    name: str | None = None  # of its row; the function's own name if None
    group: str | None = None  # functions of one are compared with each other; one for the file if None
    inputs: Any = None  # makes the arguments; or the arguments themselves
    reference: str | None = None  # name of the group's reference
    is_reference: bool = False  # this is it
    expected: Callable[..., Any] | None = None  # computes the right answer
    params: Mapping[str, tuple[Any, ...]] | None = None  # to sweep over, by parameter of `inputs`


@overload
def benchmark(function: F, /) -> F: ...
@overload
def benchmark(
    *,
    inputs: Any = None,
    reference: str | None = None,
    is_reference: bool = False,
    expected: Callable[..., Any] | None = None,
    params: Mapping[str, Iterable[Any]] | None = None,
    group: str | None = None,
    name: str | None = None,
) -> Callable[[F], F]: ...
def benchmark(
    function: F | None = None,
    /,
    *,
    inputs: Any = None,
    reference: str | None = None,
    is_reference: bool = False,
    expected: Callable[..., Any] | None = None,
    params: Mapping[str, Iterable[Any]] | None = None,
    group: str | None = None,
    name: str | None = None,
) -> F | Callable[[F], F]:
    """Mark a function for `opscope bench FILE.py`; used bare or with arguments.

        @opscope.benchmark(inputs=make_inputs, params={"n": [1024, 4096]}, is_reference=True)
        def slow(x): ...

        @opscope.benchmark
        def fast(x): ...

    What one function of a group says holds for all of them.

    Args:
        function: When used bare.
        inputs: A function that makes the arguments (it is given those of the swept parameters, `device`,
            `dtype` and `seed` that it names), or the arguments themselves.
        reference: Name of the function that ratios refer to; the first of the group if no one says.
        is_reference: This function is it.
        expected: Computes the right answer, given the inputs with floating-point tensors in float64.
        params: Values to sweep over, by parameter name.
        group: Which functions are compared with each other; all of the file without one.
        name: Of its row; the function's own if None.

    Raises:
        InputError: A swept parameter has no values, or `reference` and `is_reference` contradict each other.
    """
    if reference is not None and is_reference:
        raise InputError("reference and is_reference both name a reference", hint="Give one of them")
    swept = None if params is None else values_of(params)
    mark = BenchmarkMark(name, group, inputs, reference, is_reference, expected, swept)

    def decorate(fn: F) -> F:
        return _with_mark(fn, mark)

    return decorate if function is None else decorate(function)


def values_of(parameters: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Parameters given in Python, with one value or several each."""
    found = {
        name: tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        for name, given in parameters.items()
    }
    for name, values in found.items():
        if not values:
            raise InputError(f"the parameter '{name}' has no values", hint="Give a list such as [1024, 4096]")
    return found


def _with_mark(fn: F, mark: BenchmarkMark) -> F:
    if not callable(fn):
        raise InputError(
            f"'{type(fn).__name__}' is not a function", hint="Write @opscope.benchmark(inputs=…)"
        )
    try:
        setattr(fn, _ATTRIBUTE, mark)
    except (AttributeError, TypeError):  # a builtin such as torch.square holds no attributes

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return _with_mark(call, mark)  # type: ignore[return-value]
    return fn


def mark_of(function: Any) -> BenchmarkMark | None:
    mark = getattr(function, _ATTRIBUTE, None)
    return mark if isinstance(mark, BenchmarkMark) else None


@dataclass(frozen=True)
class FunctionGroup:
    name: str
    functions: Mapping[str, Callable[..., Any]]
    inputs: Any
    reference: str | None
    expected: Callable[..., Any] | None
    params: Values


def is_target(text: str) -> bool:
    return ":" in text or is_file_name(text)


def groups_of_targets(
    targets: Sequence[str], *, inputs: Any = None, expected: Any = None
) -> tuple[FunctionGroup, ...]:
    """The functions a command line names: those marked in a `FILE.py`, or `FILE.py:function …`.

    Where no inputs are given, they are the mark's, or the first file's `make_inputs`.
    """
    loaded: dict[str, ModuleType] = {}

    def module(where: str) -> ModuleType:
        """Each file is loaded once, so that functions of one file are of one module."""
        key = str(Path(where).resolve()) if is_file_name(where) else where
        if key not in loaded:
            loaded[key] = load_module(where, hint=_TARGET_HINT)
        return loaded[key]

    def resolved(source: Any) -> Any:
        if not isinstance(source, str):
            return source
        where, _, name = source.rpartition(":")
        if not where or not name:
            raise InputError(f"'{source}' names no function", hint=_TARGET_HINT)
        return function_of(module(where), name, where)

    alone = [target for target in targets if ":" not in target]
    if alone and len(targets) > 1:
        raise InputError(
            f"'{alone[0]}' names no function, and stands beside other targets",
            hint="Give one FILE.py with @opscope.benchmark functions, or a FILE.py:function for each",
        )
    if alone:
        first, own = module(targets[0]), Path(targets[0]).name
        groups = [
            replace(group, name=group.name if group.name == own else f"{own}:{group.name}")
            for group in marked_groups(first, own)
        ]
        if not groups:
            raise InputError(
                "no function of this file is marked with @opscope.benchmark",
                source=targets[0],
                hint=f"Mark them, or name them: {alone[0]}:fast {alone[0]}:slow --inputs "
                f"{alone[0]}:make_inputs",
            )
    else:
        functions = [resolved(target) for target in targets]
        pairs = [target.rpartition(":")[::2] for target in targets]
        first = module(pairs[0][0])
        names = _distinct([(Path(where).stem, name) for where, name in pairs])
        files = ", ".join(dict.fromkeys(Path(where).name for where, _ in pairs))
        groups = [group_of_functions(dict(zip(names, functions, strict=True)), name=files)]
    made, right = resolved(inputs), resolved(expected)
    default = getattr(first, DEFAULT_INPUTS, None)
    return tuple(
        replace(
            group,
            inputs=_first((made, group.inputs, default)),
            expected=_first((right, group.expected)),
        )
        for group in groups
    )


def _first(values: Iterable[Any]) -> Any:
    """The first value that is one. Tensors have no single truth value."""
    return next((value for value in values if value is not None), None)


def marked_groups(module: ModuleType, default_name: str) -> list[FunctionGroup]:
    """The groups of a module's marked functions, in the order of their first members, each function once."""
    members: dict[str, dict[str, Callable[..., Any]]] = {}
    seen: set[int] = set()
    for attribute, value in vars(module).items():
        mark = mark_of(value)
        if mark is None or id(value) in seen:
            continue
        seen.add(id(value))
        group = members.setdefault(mark.group or default_name, {})
        name = mark.name or attribute
        if name in group:
            raise InputError(
                f"two functions of the group '{mark.group or default_name}' are called '{name}'",
                hint="Give one of them another: @opscope.benchmark(name=…)",
            )
        group[name] = value
    return [group_of_functions(group, name=name, are_to_agree=True) for name, group in members.items()]


def group_of_functions(
    functions: Mapping[str, Callable[..., Any]],
    *,
    name: str | None = None,
    inputs: Any = None,
    expected: Callable[..., Any] | None = None,
    are_to_agree: bool = False,
) -> FunctionGroup:
    """A group of functions by name; what is not given comes from the first of their marks that says it."""
    if not functions:
        raise InputError("there is nothing to benchmark", hint="Give functions, or the name of a suite")
    for key, function in functions.items():
        if not callable(function):
            raise InputError(f"'{key}' is a {type(function).__name__}, not a function")
    name = name or ", ".join(functions)

    def said(what: str, values: Iterable[Any]) -> Any:
        found = [value for value in values if value is not None]
        for other in found[1:] if are_to_agree else ():
            # What is not plain data is compared by identity.
            alike = other == found[0] if isinstance(other, str | Mapping) else other is found[0]
            if not alike:
                raise InputError(
                    f"functions of the group '{name}' name different {what}",
                    hint="Name it once, or give the functions groups of their own: "
                    "@opscope.benchmark(group=…)",
                )
        return _first(found)

    marks = {key: mark for key, function in functions.items() if (mark := mark_of(function)) is not None}
    return FunctionGroup(
        name,
        dict(functions),
        inputs=_first((inputs, said("inputs", (one.inputs for one in marks.values())))),
        reference=said("reference", (k if m.is_reference else m.reference for k, m in marks.items())),
        expected=_first((expected, said("expected", (one.expected for one in marks.values())))),
        params=said("params", (one.params for one in marks.values())) or {},
    )


def _distinct(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Names of functions; with their file where those are alike, counted where that is alike too."""
    names = [name for _, name in pairs]
    if len(set(names)) < len(names) and len({stem for stem, _ in pairs}) > 1:
        names = [f"{stem}:{name}" for stem, name in pairs]
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[index] = f"{name} ({seen[name]})"
    return names


def named_functions(targets: Sequence[Any]) -> dict[str, Callable[..., Any]]:
    pairs: list[tuple[str, Callable[..., Any]]] = []
    for target in targets:
        if isinstance(target, Mapping):
            pairs += target.items()
        elif callable(target):
            pairs.append((getattr(mark_of(target), "name", None) or plain_name(target), target))
        else:
            raise InputError(
                f"a {type(target).__name__} is neither a function nor a suite", hint="Give functions by name"
            )
    names = _distinct([("", name) for name, _ in pairs])
    return {name: function for name, (_, function) in zip(names, pairs, strict=True)}


def plain_name(function: Any) -> str:
    if isinstance(function, functools.partial):
        return plain_name(function.func)
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def selected(group: FunctionGroup, names: Collection[str]) -> FunctionGroup:
    """The group without the functions that are neither named nor the reference; whole if none is named."""
    for name in (*names, *filter(None, [group.reference])):
        if name not in group.functions:
            raise InputError(
                f"'{group.name}' has no function '{name}'", hint=f"It has: {', '.join(group.functions)}"
            )
    if not names:
        return group
    reference = group.reference or next(iter(group.functions))
    kept = {key: fn for key, fn in group.functions.items() if key in names or key == reference}
    return replace(group, functions=kept, reference=reference)


_INPUTS_HINT = "An inputs function returns one tensor or a tuple of positional arguments"


def check_parameters(groups: Sequence[FunctionGroup], names: Iterable[str]) -> None:
    """Return if every swept parameter has an inputs function or a benchmarked one that takes it."""
    for name in names:
        if name in {"seed", "device"}:
            raise InputError(
                f"'{name}' is not a parameter to sweep over",
                hint="Use the option --device" if name == "device" else "opscope.bench takes one: seed=1",
            )
        if not any(takes(group, name) for group in groups):
            sources = dict.fromkeys(_name_of(group.inputs) for group in groups)
            raise InputError(
                f"nothing takes the parameter '{name}'",
                hint=f"Name it in {' or '.join(sources)}, or as a keyword-only parameter of a function",
            )


def takes(group: FunctionGroup, name: str) -> bool:
    if _accepts(group.inputs, name):
        return True
    # A dtype is that of the inputs.
    return name != "dtype" and any(name in _keyword_only(function) for function in group.functions.values())


def group_problem(group: FunctionGroup, parameters: Mapping[str, Any], device: str = "auto") -> Problem:
    """The Problem of a group at one point of its sweep.

    The inputs are made once here, to see what they are and where they lie.
    """
    values = dict(parameters)
    asked_dtype = str(values.pop("dtype", "float32"))
    place = resolve_device(device)
    kind = resolve_dtype(asked_dtype) if _accepts(group.inputs, "dtype") else None
    make_inputs = _inputs_maker(group, values, place, kind)
    try:
        inputs = make_inputs(0)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        inputs = ()  # each implementation's row will say so
    tensors = [value for value in inputs if isinstance(value, require_torch().Tensor)]
    found_place = str(tensors[0].device) if tensors else place
    if tensors:
        first = next((one for one in tensors if one.is_floating_point()), tensors[0])
        kind = str(first.dtype).removeprefix("torch.")
    if device != "auto" and found_place != place:
        raise InputError(
            f"the inputs lie on {found_place}, but {place} was asked for",
            hint=f"Let {_name_of(group.inputs)} take `device` and use it",
        )
    # Of the matrix products that functions of this dtype would do, if they do any.
    ceiling = f"matrix_{kind}" if kind in {"float32", "float16", "bfloat16"} else None
    if ceiling == "matrix_float32" and found_place.startswith("cuda"):
        is_exact = require_torch().get_float32_matmul_precision() == "highest"
        ceiling = "matrix_float32" if is_exact else "matrix_tf32"
    return Problem(
        name=group.name,
        device=found_place,
        make_inputs=make_inputs,
        implementations=tuple(
            Implementation(name, functools.partial(_bound, function, values), Engine.USER)
            for name, function in group.functions.items()
        ),
        reference=group.reference or next(iter(group.functions)),
        expected=None if group.expected is None else _bound(group.expected, values),
        dtype=kind,
        matrix_ceiling=ceiling,
    )


def _inputs_maker(
    group: FunctionGroup, values: Mapping[str, Any], device: str, dtype: str | None
) -> Callable[[int], Inputs]:
    source, torch = group.inputs, require_torch()
    if source is None:
        for name, function in group.functions.items():
            if needed := ", ".join(one.name for one in _required(function)):
                raise InputError(
                    f"'{name}' takes arguments ({needed}), but nothing provides them",
                    hint=f"Give --inputs FILE.py:function, or define {DEFAULT_INPUTS} in its file",
                )
        return lambda seed: ()
    if not callable(source):
        return lambda seed: map_tensors(copied, _as_inputs(source, "inputs"))
    unknown = [
        one.name
        for one in _required(source)
        if one.name not in {*values, "device", "dtype", "seed"} or one.kind is one.POSITIONAL_ONLY
    ]
    if unknown:
        raise InputError(
            f"{_name_of(source)} needs arguments that nothing provides ({', '.join(unknown)})",
            hint=f"Give --param {unknown[0]}=…; it also gets device, dtype and seed if it names them",
        )
    given = {**values, "device": torch.device(device)}
    if dtype is not None:
        given["dtype"] = getattr(torch, dtype)

    def make_inputs(seed: int) -> Inputs:
        taken = {key: value for key, value in {**given, "seed": seed}.items() if _accepts(source, key)}
        with seeded(seed, device):
            try:
                made = source(**taken)
            except OpscopeError:
                raise
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                code = getattr(inspect.unwrap(source), "__code__", None)
                place = failure_place(error, Path(code.co_filename)) if code is not None else None
                where = f" in {place}" if place else ""
                reason = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
                raise InputError(f"{_name_of(source)} fails{where} ({reason})", hint=_INPUTS_HINT) from error
            return _as_inputs(made, _name_of(source))

    return make_inputs


def _as_inputs(made: Any, name: str) -> Inputs:
    if isinstance(made, require_torch().Tensor):
        return (made,)
    if isinstance(made, tuple):
        return made
    what = "nothing" if made is None else f"a {type(made).__name__}"
    raise InputError(f"{name} returned {what}", hint=_INPUTS_HINT)


def _bound(function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    taken = {name: value for name, value in values.items() if name in _keyword_only(function)}
    return functools.partial(function, **taken) if taken else function


def _keyword_only(function: Callable[..., Any]) -> set[str]:
    return {name for name, one in _parameters(function).items() if one.kind is one.KEYWORD_ONLY}


def _accepts(source: Any, name: str) -> bool:
    parameters = _parameters(source) if callable(source) else {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return takes_any or (name in parameters and parameters[name].kind in kinds)


def _required(function: Callable[..., Any]) -> list[inspect.Parameter]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = _parameters(function).values()
    return [one for one in found if one.default is one.empty and one.kind not in variadic]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins such as torch.square have no signature
        return {}


def _name_of(source: Any) -> str:
    return "an inputs function" if source is None else f"'{plain_name(source)}'"
