"""The Problem that a group of the user's functions makes: its inputs, device, dtype and parameters.

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
from typing import Any

from opscope.benchmarking.decorator import FunctionGroup
from opscope.benchmarking.failures import first_line
from opscope.benchmarking.problem import Implementation, Inputs, Problem
from opscope.benchmarking.targets import DEFAULT_INPUTS, plain_name
from opscope.errors import InputError, OpscopeError
from opscope.model.benchmark import Engine
from opscope.workloads.runtime import is_out_of_memory, require_torch, resolve_device, resolve_dtype, seeded
from opscope.workloads.user_code import failure_place

__all__ = ["Setting", "check_parameters", "group_problem", "takes"]

_GIVEN = ("device", "dtype", "seed")
_INPUTS_HINT = "An inputs function returns one tensor or a tuple of positional arguments"
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Setting:
    """Where a group runs. `dtype` is None where no one asked for one."""

    device: str = "auto"
    dtype: str | None = None


def check_parameters(groups: Sequence[FunctionGroup], names: Iterable[str]) -> None:
    """Return if every swept parameter has someone who takes it.

    Raises:
        InputError: One is taken neither by an inputs function nor by a benchmarked one.
    """
    for name in names:
        if name in {"seed", "device"}:
            raise InputError(f"'{name}' is no parameter to sweep over", hint=f"Use the option --{name}")
        if not any(takes(group, name) for group in groups):
            sources = dict.fromkeys(_name_of(group.inputs) for group in groups)
            raise InputError(
                f"no one takes the parameter '{name}'",
                hint=f"Name it in {' or '.join(sources)}, or as a keyword-only parameter of a function",
            )


def takes(group: FunctionGroup, name: str) -> bool:
    """Whether the group's inputs function or one of its functions takes a swept parameter."""
    is_taken = any(name in _keyword_only(function) for function in group.functions.values())
    return is_taken or _accepts(group.inputs, name)


def group_problem(group: FunctionGroup, parameters: Mapping[str, Any], setting: Setting) -> Problem:
    """The Problem of a group at one point of its sweep.

    The inputs are made once here, to see what they are and where they lie.

    Args:
        group: The functions.
        parameters: Values of the swept parameters.
        setting: Device and dtype that were asked for.

    Raises:
        InputError: The inputs cannot be made, or an option is asked for that no one takes.
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
                f"'{name}' takes arguments ({', '.join(needed)}), but nothing makes them",
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
            f"{_name_of(source)} needs arguments that no one gives ({', '.join(unknown)})",
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
