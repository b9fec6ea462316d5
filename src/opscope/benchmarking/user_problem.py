"""The user's functions: which are benchmarked, and the Problem that a group of them makes.

The inputs come from a function, conventionally `make_inputs`. It is called by keyword with those of the swept
parameters, `device` (torch.device), `dtype` (torch.dtype) and `seed` that it names, with torch's random
generators seeded, and returns one tensor or a tuple of positional arguments. Nothing is moved: the function
decides where its tensors lie. A benchmarked function gets those arguments, and the swept parameters it names
as keyword-only ones. Importing this module does not import torch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from opscope.benchmarking.inputs import copied, map_tensors
from opscope.benchmarking.problem import Implementation, Inputs, Problem, first_line
from opscope.errors import InputError, OpscopeError
from opscope.model.benchmark import Engine
from opscope.workloads.runtime import is_out_of_memory, require_torch, resolve_device, resolve_dtype, seeded
from opscope.workloads.target import failure_place, function_of, is_file_name, load_module

DEFAULT_INPUTS = "make_inputs"
_OF_A_CALL = ("reference", "mine")  # functions of a file that `opscope extract` writes
_TARGET_HINT = "Write FILE.py:function or PACKAGE.MODULE:function"


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


@dataclass(frozen=True)
class FunctionGroup:
    name: str
    functions: Mapping[str, Callable[..., Any]]
    inputs: Any  # makes the arguments; or the arguments themselves
    expected: Callable[..., Any] | None  # computes the right answer
    reference: str  # name of the function that ratios refer to


def is_target(text: str) -> bool:
    return ":" in text or is_file_name(text)


def call_files(target: str) -> tuple[Path, ...]:
    """The file that `opscope extract` wrote, or those of a folder, by name; empty for another target."""
    path = Path(target)
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    texts = {one: one.read_text("utf-8", "replace") for one in files if one.suffix == ".py" and one.is_file()}
    return tuple(one for one, text in texts.items() if all(f"\ndef {name}(" in text for name in _OF_A_CALL))


def group_of_targets(
    targets: Sequence[str], *, inputs: Any = None, expected: Any = None, **asked: Any
) -> FunctionGroup:
    """The functions that a command line names, `FILE.py:function …`; the rest as of `group_of_functions`.

    Where no inputs are given, they are the first file's `make_inputs`. Of a FILE.py alone, as `opscope
    extract` writes one, they are `reference` and `mine`.
    """
    loaded: dict[str, ModuleType] = {}

    def resolved(source: Any) -> Any:
        if not isinstance(source, str):
            return source
        where, _, name = source.rpartition(":")
        if not where or not name:
            raise InputError(f"'{source}' names no function", hint=_TARGET_HINT)
        return function_of(module_of(where), name, where)

    def module_of(where: str) -> ModuleType:
        # Each file is loaded once, so that functions of one file are of one module.
        key = str(Path(where).resolve()) if is_file_name(where) else where
        if key not in loaded:
            loaded[key] = load_module(where, hint=_TARGET_HINT)
        return loaded[key]

    if len(targets) == 1 and call_files(targets[0]):
        targets = [f"{targets[0]}:{name}" for name in _OF_A_CALL]
    functions = [resolved(target) for target in targets]
    made = getattr(next(iter(loaded.values())), DEFAULT_INPUTS, None) if inputs is None else resolved(inputs)
    pairs = [target.rpartition(":")[::2] for target in targets]
    names = _distinct([(Path(where).stem, name) for where, name in pairs])
    files = ", ".join(dict.fromkeys(Path(where).name for where, _ in pairs))
    named = dict(zip(names, functions, strict=True))
    return group_of_functions(named, name=files, inputs=made, expected=resolved(expected), **asked)


def group_of_functions(
    functions: Mapping[str, Callable[..., Any]],
    *,
    name: str | None = None,
    inputs: Any = None,
    expected: Callable[..., Any] | None = None,
    reference: str | None = None,
    only: Collection[str] = (),
) -> FunctionGroup:
    """The functions with these names and the reference, which is the first if none is named."""
    if not functions:
        raise InputError("there is nothing to benchmark", hint="Give functions, or the name of a suite")
    for key, function in functions.items():
        if not callable(function):
            raise InputError(f"'{key}' is a {type(function).__name__}, not a function")
    name = name or ", ".join(functions)
    for one in (*only, *filter(None, [reference])):
        if one not in functions:
            raise InputError(f"'{name}' has no function '{one}'", hint=f"It has: {', '.join(functions)}")
    reference = reference or next(iter(functions))
    kept = {key: one for key, one in functions.items() if not only or key in (*only, reference)}
    return FunctionGroup(name, kept, inputs, expected, reference)


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
            pairs.append((plain_name(target), target))
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


_INPUTS_HINT = "An inputs function returns one tensor or a tuple of positional arguments"


def check_parameters(group: FunctionGroup, names: Iterable[str]) -> None:
    """Return if every swept parameter has an inputs function or a benchmarked one that takes it."""
    for name in names:
        if name in {"seed", "device"}:
            raise InputError(
                f"'{name}' is not a parameter to sweep over",
                hint="Use the option --device" if name == "device" else "opscope.bench takes one: seed=1",
            )
        # A dtype is that of the inputs.
        takers = [] if name == "dtype" else map(_keyword_only, group.functions.values())
        if not _accepts(group.inputs, name) and not any(name in one for one in takers):
            raise InputError(
                f"nothing takes the parameter '{name}'",
                hint=f"Name it in {_name_of(group.inputs)}, or as a keyword-only parameter of a function",
            )


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
    is_cuda, precision = found_place.startswith("cuda"), require_torch().get_float32_matmul_precision()
    if ceiling == "matrix_float32" and is_cuda and precision != "highest":
        ceiling = "matrix_tf32"
    return Problem(
        name=group.name,
        device=found_place,
        make_inputs=make_inputs,
        implementations=tuple(
            Implementation(name, functools.partial(_bound, function, values), Engine.USER)
            for name, function in group.functions.items()
        ),
        reference=group.reference,
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
