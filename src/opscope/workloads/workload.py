"""Workloads: the built-in models and the user's own functions, each built as a thing with one `step()`.

A workload is `bert`, `transformer`, or the user's `file.py:function` or `package.module:factory`. What such a
function is follows from its parameters:

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

Any other parameter needs a default. Seeds are fixed while a factory runs. Importing this module does not
import torch; `resolve` does, to settle the device and the dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from opscope.errors import InputError
from opscope.workloads.runtime import check_dtype, require_torch, resolve_device, resolve_dtype, seeded
from opscope.workloads.target import load_function


@dataclass(frozen=True)
class WorkloadOptions:
    dtype: str = (
        "float32"  # of parameters and floating-point inputs; float16 or bfloat16, also fp32, fp16, bf16
    )
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    attn_implementation: str = "sdpa"  # the fused operator, or "eager": matmul, softmax, matmul
    train: bool = False  # a step is forward, loss, backward and AdamW; else a forward in inference mode
    layers: int | None = None  # None: the workload's own
    hidden: int | None = None
    use_real_bert: bool = False  # `bert` is transformers' BertModel instead of the plain one
    weights: str | None = None  # checkpoint of the real BERT, a hub name or a local folder; None: random
    seed: int = 0  # of parameters and inputs

    def described(self, batch_size: int, seq_len: int) -> dict[str, Any]:
        return {
            "batch_size": batch_size,
            "seq_len": seq_len,
            "dtype": self.dtype,
            "device": self.device,
            "attn_implementation": self.attn_implementation,
            "train": self.train,
        }


@dataclass(frozen=True)
class Workload:
    step: Callable[[], object]  # does one step and does not wait for the device
    device: str  # where its work runs: "cpu" or "cuda:N"
    parameter_count: int | None = None  # None where there is no model to ask
    description: dict[str, Any] = field(default_factory=dict)  # in JSON types, for the recording's sidecar


Builder = Callable[[WorkloadOptions, int, int], Workload]


@dataclass(frozen=True)
class WorkloadSpec:
    """A workload whose options are settled (concrete device, full dtype name) and whose batch is not."""

    name: str
    options: WorkloadOptions
    builder: Builder

    def build(self, batch_size: int, seq_len: int) -> Workload:
        if batch_size < 1 or seq_len < 1:
            raise InputError(
                f"batch size {batch_size} with sequence length {seq_len} is not a batch",
                hint="Both start at 1",
            )
        return self.builder(self.options, batch_size, seq_len)


def model_workload(
    model: Any, run: Callable[[], Any], options: WorkloadOptions, description: dict[str, Any]
) -> Workload:
    """A model's steps: `run` in inference mode; when training, `run` is its loss, which AdamW then lowers."""
    torch = require_torch()
    if options.train:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        model.eval()

    def infer() -> object:
        with torch.inference_mode():
            return run()

    def train() -> object:
        loss = run()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    count = sum(parameter.numel() for parameter in model.parameters())  # tied ones once
    step = train if options.train else infer
    return Workload(step, options.device, count, {**description, "parameters": count})


_ACCEPTED = ("batch_size", "seq_len", "device", "dtype", "attn_implementation", "train", "layers", "hidden")
_TARGET_HINT = "Write file.py:function or package.module:factory"
_NO_TRAINING_HINT = "Leave out --train, give the factory a `train` parameter, or return (module, inputs)"


def target_builder(target: str) -> Builder:
    """A builder for the function that `target` names; the function's file is imported now."""
    function = load_function(target, hint=_TARGET_HINT)
    accepted = _accepted_parameters(function, target)
    where, _, name = target.rpartition(":")
    shown = f"{Path(where).name}:{name}" if where.endswith(".py") else target  # no folders in recordings

    def build(options: WorkloadOptions, batch_size: int, seq_len: int) -> Workload:
        description = {"workload": shown, **options.described(batch_size, seq_len)}
        if not accepted:
            if options.train:
                raise InputError(
                    f"'{target}' is a step and decides itself whether it trains", hint=_NO_TRAINING_HINT
                )
            return Workload(function, options.device, None, description)
        torch = require_torch()
        with seeded(options.seed, options.device):
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
            made = function(**{key: values[key] for key in accepted if values[key] is not None})
            if isinstance(made, Workload):
                return made
            if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module):
                return _module_workload(*made, options, description)
        if isinstance(made, torch.nn.Module):
            raise InputError(f"'{target}' returned a module without inputs", hint="Return (module, inputs)")
        if not callable(made):
            raise InputError(
                f"'{target}' returned a {type(made).__name__}",
                hint="A factory returns a step function or (module, inputs)",
            )
        if options.train and "train" not in accepted:
            raise InputError(f"'{target}' returned a step that was not told to train", hint=_NO_TRAINING_HINT)
        return Workload(made, options.device, None, description)

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
    accepted = tuple(p.name for p in named if p.name in _ACCEPTED and p.kind is not positional_only)
    unknown = [p.name for p in named if p.default is inspect.Parameter.empty and p.name not in accepted]
    if unknown:
        raise InputError(
            f"'{target}' needs arguments opscope does not have ({', '.join(unknown)})",
            hint=f"A step takes none; a factory takes any of {', '.join(_ACCEPTED)}",
        )
    return accepted


def _module_workload(
    module: Any, inputs: Any, options: WorkloadOptions, description: dict[str, Any]
) -> Workload:
    torch = require_torch()
    dtype = getattr(torch, options.dtype)
    module.to(device=options.device, dtype=dtype)

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(options.device, dtype if value.is_floating_point() else None)

    positional = (
        () if isinstance(inputs, dict) else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    )
    args = tuple(map(placed, positional))
    kwargs = {key: placed(value) for key, value in inputs.items()} if isinstance(inputs, dict) else {}

    def run() -> Any:
        output = module(*args, **kwargs)
        if not options.train:
            return output
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        loss = output if loss is None else loss
        if isinstance(loss, torch.Tensor) and loss.dim() == 0:
            return loss
        raise InputError(
            f"the module returned a {type(output).__name__} without a loss, so it cannot be trained",
            hint="Return a scalar loss or an object with `.loss`, or write the training step yourself",
        )

    return model_workload(module, run, options, description)


_ATTN_IMPLEMENTATIONS = ("eager", "sdpa")


def _builtin(name: str, options: WorkloadOptions, batch_size: int, seq_len: int) -> Workload:
    from opscope.workloads import models  # noqa: PLC0415 - imports torch

    build: Builder = getattr(models, f"build_{name}")
    return build(options, batch_size, seq_len)


BUILTIN_WORKLOADS: dict[str, Builder] = {name: partial(_builtin, name) for name in ("bert", "transformer")}


def resolve(name: str, options: WorkloadOptions | None = None) -> WorkloadSpec:
    """The spec of a workload, with the device, the dtype and the user's function already checked."""
    builder = BUILTIN_WORKLOADS.get(name) or (target_builder(name) if ":" in name else None)
    if builder is None:
        hint = f"Use {', '.join(BUILTIN_WORKLOADS)}, file.py:function or package.module:factory"
        if name.endswith(".py"):
            hint = f"Name the function to profile: {name}:function"
        raise InputError(f"'{name}' is not a workload", hint=hint)
    options = options or WorkloadOptions()
    if options.attn_implementation not in _ATTN_IMPLEMENTATIONS:
        raise InputError(
            f"'{options.attn_implementation}' is not an attention implementation",
            hint=f"Use {' or '.join(_ATTN_IMPLEMENTATIONS)}",
        )
    for name_of_size, value in (("layers", options.layers), ("hidden", options.hidden)):
        if value is not None and value < 1:
            raise InputError(f"{name_of_size}={value} is not a model size", hint="Sizes start at 1")
    if (options.use_real_bert or options.weights) and name != "bert":
        raise InputError(f"'{name}' has no real BERT", hint="--use-real-bert and --weights belong to 'bert'")
    settled = replace(options, dtype=resolve_dtype(options.dtype), device=resolve_device(options.device))
    if settled.train and settled.dtype == "float16" and name in BUILTIN_WORKLOADS:
        raise InputError(
            "AdamW on float16 parameters divides by zero: its epsilon of 1e-8 is below float16's range",
            hint="Train in bfloat16 or float32",
        )
    check_dtype(settled.dtype, settled.device)
    return WorkloadSpec(name, settled, builder)
