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
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from opscope.benchmarking.decorator import FunctionGroup, mark_of, marked_functions, marked_groups
from opscope.benchmarking.problem import Implementation, Inputs, Problem, first_line
from opscope.errors import InputError, OpscopeError
from opscope.model.benchmark import Engine
from opscope.workloads.runtime import is_out_of_memory, require_torch, resolve_device, resolve_dtype, seeded
from opscope.workloads.target import failure_place, function_of, is_file_name, load_module

DEFAULT_INPUTS = "make_inputs"
_TARGET_HINT = "Write FILE.py:function or PACKAGE.MODULE:function"


def is_target(text: str) -> bool:
    """Whether a text names a file or a function rather than a suite."""
    return ":" in text or is_file_name(text)


def groups_of_targets(
    targets: Sequence[str],
    *,
    inputs: Any = None,
    expected: Any = None,
) -> tuple[FunctionGroup, ...]:
    """The functions a command line names: those marked in a `FILE.py`, or `FILE.py:function …`."""
    modules = _Modules()
    alone = [target for target in targets if ":" not in target]
    if alone and len(targets) > 1:
        raise InputError(
            f"'{alone[0]}' names no function, and stands beside other targets",
            hint="Give one FILE.py with @opscope.benchmark functions, or a FILE.py:function for each",
        )
    groups = _marked(modules, targets[0]) if alone else (_named(modules, targets),)
    return tuple(
        replace(
            group,
            inputs=group.inputs if inputs is None else modules.resolved(inputs),
            expected=group.expected if expected is None else modules.resolved(expected),
        )
        for group in groups
    )


class _Modules:
    """Loads each file once, so that functions of one file are of one module."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}

    def module(self, where: str) -> ModuleType:
        key = str(Path(where).resolve()) if is_file_name(where) else where
        if key not in self._modules:
            self._modules[key] = load_module(where, hint=_TARGET_HINT)
        return self._modules[key]

    def function(self, target: str) -> Callable[..., Any]:
        where, name = _split(target)
        return function_of(self.module(where), name, where)

    def resolved(self, source: Any) -> Any:
        return self.function(source) if isinstance(source, str) else source


def _split(target: str) -> tuple[str, str]:
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise InputError(f"'{target}' names no function", hint=_TARGET_HINT)
    return where, name


def _marked(modules: _Modules, target: str) -> tuple[FunctionGroup, ...]:
    module = modules.module(target)
    functions = marked_functions(module)
    if not functions:
        raise InputError(
            "no function of this file is marked with @opscope.benchmark",
            source=target,
            hint=f"Mark them, or name them: {target}:fast {target}:slow --inputs {target}:make_inputs",
        )
    own = Path(target).name
    groups = marked_groups(functions, own)
    default = getattr(module, DEFAULT_INPUTS, None)
    return tuple(
        replace(
            group,
            name=group.name if group.name == own else f"{own}:{group.name}",
            inputs=default if group.inputs is None else group.inputs,
        )
        for group in groups
    )


def _named(modules: _Modules, targets: Sequence[str]) -> FunctionGroup:
    pairs = [_split(target) for target in targets]
    functions = [modules.function(target) for target in targets]
    names = _distinct([(Path(where).stem, name) for where, name in pairs])
    files = dict.fromkeys(Path(where).name for where, _ in pairs)
    group = group_of_functions(dict(zip(names, functions, strict=True)), name=", ".join(files))
    default = getattr(modules.module(pairs[0][0]), DEFAULT_INPUTS, None)
    return replace(group, inputs=default if group.inputs is None else group.inputs)


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
    """Functions by name, from functions and mappings of them."""
    pairs: list[tuple[str, Callable[..., Any]]] = []
    for target in targets:
        if isinstance(target, Mapping):
            pairs += target.items()
        elif callable(target):
            mark = mark_of(target)
            pairs.append(((mark.name if mark else None) or plain_name(target), target))
        else:
            raise InputError(
                f"a {type(target).__name__} is neither a function nor a suite", hint="Give functions by name"
            )
    names = _distinct([("", name) for name, _ in pairs])
    return {name: function for name, (_, function) in zip(names, pairs, strict=True)}


def plain_name(function: Any) -> str:
    """What a function calls itself."""
    if isinstance(function, functools.partial):
        return plain_name(function.func)
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def group_of_functions(
    functions: Mapping[str, Callable[..., Any]],
    *,
    name: str | None = None,
    inputs: Any = None,
    expected: Callable[..., Any] | None = None,
) -> FunctionGroup:
    """A group of functions by name; what is not given comes from the marks of those that have one."""
    if not functions:
        raise InputError("there is nothing to benchmark", hint="Give functions, or the name of a suite")
    marks = []
    for key, function in functions.items():
        if not callable(function):
            raise InputError(f"'{key}' is a {type(function).__name__}, not a function")
        marks.append(mark_of(function))
    stated = [mark for mark in marks if mark is not None]
    chosen = next((mark.reference for mark in stated if mark.reference), None)
    chosen = chosen or next(
        (key for key, m in zip(functions, marks, strict=True) if m and m.is_reference), None
    )
    return FunctionGroup(
        name or ", ".join(functions),
        dict(functions),
        inputs=next((m.inputs for m in stated if m.inputs is not None), None) if inputs is None else inputs,
        reference=chosen,
        expected=expected or next((mark.expected for mark in stated if mark.expected), None),
        params=next((mark.params for mark in stated if mark.params), {}),
    )


def selected(group: FunctionGroup, names: Collection[str]) -> FunctionGroup:
    """The group without the functions that are neither named nor the reference; whole if none is named."""
    for name in [*names, *([group.reference] if group.reference else [])]:
        if name not in group.functions:
            raise InputError(
                f"'{group.name}' has no function '{name}'", hint=f"It has: {', '.join(group.functions)}"
            )
    if not names:
        return group
    reference = group.reference or next(iter(group.functions))
    kept = {key: fn for key, fn in group.functions.items() if key in names or key == reference}
    return replace(group, functions=kept, reference=reference)


_GIVEN = ("device", "dtype", "seed")
_INPUTS_HINT = "An inputs function returns one tensor or a tuple of positional arguments"
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Setting:
    """Where a group runs. `dtype` is None where no one asked for one."""

    device: str = "auto"
    dtype: str | None = None


def check_parameters(groups: Sequence[FunctionGroup], names: Iterable[str]) -> None:
    """Return if every swept parameter has someone who takes it."""
    for name in names:
        if name in {"seed", "device"}:
            raise InputError(f"'{name}' is not a parameter to sweep over", hint=f"Use the option --{name}")
        if not any(takes(group, name) for group in groups):
            sources = dict.fromkeys(_name_of(group.inputs) for group in groups)
            raise InputError(
                f"nothing takes the parameter '{name}'",
                hint=f"Name it in {' or '.join(sources)}, or as a keyword-only parameter of a function",
            )


def takes(group: FunctionGroup, name: str) -> bool:
    """Whether the group's inputs function or one of its functions takes a swept parameter."""
    is_taken = any(name in _keyword_only(function) for function in group.functions.values())
    return is_taken or _accepts(group.inputs, name)


def group_problem(group: FunctionGroup, parameters: Mapping[str, Any], setting: Setting) -> Problem:
    """The Problem of a group at one point of its sweep.

    The inputs are made once here, to see what they are and where they lie.
    """
    reference = group.reference or next(iter(group.functions))
    values = dict(parameters)
    device, dtype = resolve_device(setting.device), _dtype(group, values.pop("dtype", setting.dtype))
    make_inputs = _inputs_maker(group, values, device, dtype)
    found = _Found.of(make_inputs, device, dtype)
    if setting.device != "auto" and found.device != device:
        raise InputError(
            f"the inputs lie on {found.device}, but {device} was asked for",
            hint=f"Let {_name_of(group.inputs)} take `device` and use it",
        )
    implementations = tuple(
        Implementation(name, _builder(function, values), Engine.USER)
        for name, function in group.functions.items()
    )
    return Problem(
        name=group.name,
        device=found.device,
        make_inputs=make_inputs,
        implementations=implementations,
        reference=reference,
        expected=None if group.expected is None else _bound(group.expected, values),
        dtype=found.dtype,
        parameters=dict(parameters),
        matrix_ceiling=found.matrix_ceiling,
    )


@dataclass(frozen=True)
class _Found:
    """What the inputs are: the device and dtype of their first (floating-point) tensor."""

    device: str
    dtype: str | None

    @classmethod
    def of(cls, make_inputs: Callable[[int], Inputs], device: str, dtype: str | None) -> _Found:
        torch = require_torch()
        try:
            inputs = make_inputs(0)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return cls(device, dtype)  # each implementation's row will say so
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        found = str((floating or tensors)[0].dtype).removeprefix("torch.") if tensors else dtype
        return cls(str(tensors[0].device) if tensors else device, found)

    @property
    def matrix_ceiling(self) -> str | None:
        """The matrix products that functions of this dtype would do, if they do any."""
        if self.dtype == "float32" and self.device.startswith("cuda"):
            is_exact = require_torch().get_float32_matmul_precision() == "highest"
            return "matrix_float32" if is_exact else "matrix_tf32"
        return f"matrix_{self.dtype}" if self.dtype in {"float32", "float16", "bfloat16"} else None


def _dtype(group: FunctionGroup, asked: str | None) -> str | None:
    if _accepts(group.inputs, "dtype"):
        return resolve_dtype(asked or "float32")
    if asked is not None:
        raise InputError(
            f"dtype {asked} was asked for, but {_name_of(group.inputs)} takes no `dtype`",
            hint="Give it that parameter",
        )
    return None


def _inputs_maker(
    group: FunctionGroup, values: Mapping[str, Any], device: str, dtype: str | None
) -> Callable[[int], Inputs]:
    source = group.inputs
    if source is None:
        _require_no_arguments(group)
        return lambda seed: ()
    if not callable(source):
        return lambda seed: _copied(_as_inputs(source, "inputs"))
    _require_known(source, {*values, *_GIVEN})
    torch = require_torch()
    given = {**values, "device": torch.device(device)}
    if dtype is not None:
        given["dtype"] = getattr(torch, dtype)

    def make_inputs(seed: int) -> Inputs:
        taken = {key: value for key, value in {**given, "seed": seed}.items() if _accepts(source, key)}
        with seeded(seed, device):
            return _as_inputs(_called(source, taken), _name_of(source))

    return make_inputs


def _called(source: Callable[..., Any], keywords: Mapping[str, Any]) -> Any:
    try:
        return source(**keywords)
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


def _as_inputs(made: Any, name: str) -> Inputs:
    torch = require_torch()
    if isinstance(made, torch.Tensor):
        return (made,)
    if isinstance(made, tuple):
        return made
    what = "nothing" if made is None else f"a {type(made).__name__}"
    raise InputError(f"{name} returned {what}", hint=_INPUTS_HINT)


def _copied(inputs: Inputs) -> Inputs:
    torch = require_torch()
    return tuple(
        value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
        for value in inputs
    )


def _require_no_arguments(group: FunctionGroup) -> None:
    for name, function in group.functions.items():
        needed = [key for key, parameter in _parameters(function).items() if _is_required(parameter)]
        if needed:
            raise InputError(
                f"'{name}' takes arguments ({', '.join(needed)}), but nothing provides them",
                hint=f"Give --inputs FILE.py:function, or define {DEFAULT_INPUTS} in its file",
            )


def _require_known(source: Callable[..., Any], known: Collection[str]) -> None:
    unknown = [
        key
        for key, parameter in _parameters(source).items()
        if _is_required(parameter)
        and (key not in known or parameter.kind is inspect.Parameter.POSITIONAL_ONLY)
    ]
    if unknown:
        raise InputError(
            f"{_name_of(source)} needs arguments that nothing provides ({', '.join(unknown)})",
            hint=f"Give --param {unknown[0]}=…; it also gets device, dtype and seed if it names them",
        )


def _builder(function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: _bound(function, values)


def _bound(function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    taken = {name: value for name, value in values.items() if name in _keyword_only(function)}
    return functools.partial(function, **taken) if taken else function


def _keyword_only(function: Callable[..., Any]) -> set[str]:
    only = inspect.Parameter.KEYWORD_ONLY
    return {name for name, parameter in _parameters(function).items() if parameter.kind is only}


def _accepts(source: Any, name: str) -> bool:
    """Whether a function takes a keyword argument of that name."""
    parameters = _parameters(source) if callable(source) else {}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    positional_only = inspect.Parameter.POSITIONAL_ONLY
    return name in parameters and parameters[name].kind not in {positional_only, *_VARIADIC}


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins such as torch.square have no signature
        return {}


def _name_of(source: Any) -> str:
    return "an inputs function" if source is None else f"'{plain_name(source)}'"
