"""The user's own workload: `file.py:function` or `package.module:factory`.

What the function is follows from its parameters:

* **A step**, if it names none of the parameters below. It is called without arguments, once per step, as it
  is: it chooses its own device, dtype and grad mode.
* **A factory**, if it names any of `batch_size`, `seq_len`, `device`, `dtype`, `attn_implementation`,
  `train`, `layers` or `hidden`. It is called once per configuration, by keyword, with those it names
  (`device` as `torch.device`, `dtype` as `torch.dtype`), and returns one of

  - a function without arguments: the step;
  - a pair `(module, inputs)` of an `nn.Module` and its inputs: one tensor, a tuple of positional or a dict of
    keyword arguments. Module and inputs are moved to the device, floating-point ones to the dtype. A step is
    the forward in inference mode, or, when training, forward, loss, backward and AdamW; the loss is the
    output's `.loss`, or the output if that is a scalar;
  - a `Workload`, taken as it is.

Any other parameter needs a default. Seeds are fixed while a factory runs. The file's folder (for a module:
the working folder) is put at the end of `sys.path`, so that its siblings can be imported. Importing this
module does not import torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opscope.errors import InputError
from opscope.workloads.model_step import count_parameters, inference_step, training_step
from opscope.workloads.runtime import require_torch, seeded
from opscope.workloads.user_code import load_function
from opscope.workloads.workload import Builder, Workload, WorkloadOptions

__all__ = ["FACTORY_PARAMETERS", "target_builder"]

FACTORY_PARAMETERS = (
    "batch_size",
    "seq_len",
    "device",
    "dtype",
    "attn_implementation",
    "train",
    "layers",
    "hidden",
)

_TARGET_HINT = "Write file.py:function or package.module:factory"
_NO_TRAINING_HINT = "Leave out --train, give the factory a `train` parameter, or return (module, inputs)"


def target_builder(target: str) -> Builder:
    """A builder for the function that `target` names; the function's file is imported now.

    Raises:
        InputError: No such file, module or attribute, not callable, or its import fails.
    """
    function = load_function(target, hint=_TARGET_HINT)
    accepted = _accepted_parameters(function, target)

    def build(options: WorkloadOptions, batch_size: int, seq_len: int) -> Workload:
        description = _description(target, options, batch_size, seq_len)
        if not accepted:
            if options.train:
                raise InputError(
                    f"'{target}' is a step and decides itself whether it trains", hint=_NO_TRAINING_HINT
                )
            return Workload(function, options.device, None, description)
        with seeded(options.seed, options.device):
            made = function(**_arguments(accepted, options, batch_size, seq_len))
            return _workload(made, target, options, description, trains_itself="train" in accepted)

    return build


def _accepted_parameters(function: Callable[..., Any], target: str) -> tuple[str, ...]:
    """The factory parameters a function names; empty for a step."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins have no signature; they can only be steps
        return ()
    positional_only = inspect.Parameter.POSITIONAL_ONLY
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in parameters if p.kind not in variadic]
    accepted = tuple(p.name for p in named if p.name in FACTORY_PARAMETERS and p.kind is not positional_only)
    unknown = [p.name for p in named if p.default is inspect.Parameter.empty and p.name not in accepted]
    if unknown:
        raise InputError(
            f"'{target}' needs arguments opscope does not have ({', '.join(unknown)})",
            hint=f"A step takes none; a factory takes any of {', '.join(FACTORY_PARAMETERS)}",
        )
    return accepted


def _arguments(
    accepted: tuple[str, ...], options: WorkloadOptions, batch_size: int, seq_len: int
) -> dict[str, Any]:
    torch = require_torch()
    values: dict[str, Any] = {
        "batch_size": batch_size,
        "seq_len": seq_len,
        "device": torch.device(options.device),
        "dtype": getattr(torch, options.dtype),
        "attn_implementation": options.attn_implementation,
        "train": options.train,
        "layers": options.layers,
        "hidden": options.hidden,
    }
    # An unset size leaves the factory its own default.
    return {name: values[name] for name in accepted if values[name] is not None}


def _workload(
    made: Any, target: str, options: WorkloadOptions, description: dict[str, Any], *, trains_itself: bool
) -> Workload:
    torch = require_torch()
    if isinstance(made, Workload):
        return made
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module):
        return _module_workload(made[0], made[1], options, description)
    if isinstance(made, torch.nn.Module):
        raise InputError(f"'{target}' returned a module without inputs", hint="Return (module, inputs)")
    if not callable(made):
        raise InputError(
            f"'{target}' returned a {type(made).__name__}",
            hint="A factory returns a step function or (module, inputs)",
        )
    if options.train and not trains_itself:
        raise InputError(f"'{target}' returned a step that was not told to train", hint=_NO_TRAINING_HINT)
    return Workload(made, options.device, None, description)


def _module_workload(
    module: Any, inputs: Any, options: WorkloadOptions, description: dict[str, Any]
) -> Workload:
    torch = require_torch()
    module.to(device=options.device, dtype=getattr(torch, options.dtype))
    positional, keywords = _as_arguments(inputs)
    args = tuple(_placed(value, options) for value in positional)
    kwargs = {key: _placed(value, options) for key, value in keywords.items()}
    if options.train:
        step = training_step(module, lambda: _loss(module(*args, **kwargs)))
    else:
        step = inference_step(module, lambda: module(*args, **kwargs))
    parameter_count = count_parameters(module)
    return Workload(step, options.device, parameter_count, {**description, "parameters": parameter_count})


def _as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _placed(value: Any, options: WorkloadOptions) -> Any:
    torch = require_torch()
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(options.device, getattr(torch, options.dtype) if value.is_floating_point() else None)


def _loss(output: Any) -> Any:
    torch = require_torch()
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    loss = output if loss is None else loss
    if isinstance(loss, torch.Tensor) and loss.dim() == 0:
        return loss
    raise InputError(
        f"the module returned a {type(output).__name__} without a loss, so it cannot be trained",
        hint="Return a scalar loss or an object with `.loss`, or write the training step yourself",
    )


def _description(target: str, options: WorkloadOptions, batch_size: int, seq_len: int) -> dict[str, Any]:
    where, _, name = target.rpartition(":")
    shown = f"{Path(where).name}:{name}" if where.endswith(".py") else target  # no folders in recordings
    return {
        "workload": shown,
        "batch_size": batch_size,
        "seq_len": seq_len,
        "dtype": options.dtype,
        "device": options.device,
        "attn_implementation": options.attn_implementation,
        "train": options.train,
    }
