"""What the name of a workload stands for: a built-in model, or a function of the user's file or module.

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

Any other parameter needs a default. Seeds are fixed while a factory runs.

The file's folder (for a module: the working folder) is put at the end of `sys.path`, so that its siblings can
be imported. A file is imported under a name of its own, so that two files called train.py do not replace each
other; every failure is an InputError that names the file and the line. Importing this module does not import
torch; `resolve` does, to settle the device and the dtype.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from opscope.errors import InputError
from opscope.workloads.runtime import check_dtype, require_torch, resolve_device, resolve_dtype, seeded
from opscope.workloads.workload import Builder, Workload, WorkloadOptions, WorkloadSpec, model_workload


def load_module(where: str, *, hint: str) -> ModuleType:
    if is_file_name(where):
        return import_file(Path(where), hint=hint)
    _make_importable(Path.cwd())
    try:
        return import_module(where)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (where == missing or where.startswith(f"{missing}.")):
            raise InputError(
                f"there is no module '{where}'", hint="Install it or run from its folder"
            ) from error
        raise InputError(_import_failure(error, None), source=where) from error


def is_file_name(where: str) -> bool:
    return where.endswith(".py") or "/" in where or "\\" in where


def function_of(module: ModuleType, name: str, where: str) -> Callable[..., Any]:
    """The function of that name (dotted for attributes of attributes) in what the user called `where`."""
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
        if function is None:
            defined = sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_")
            raise InputError(
                f"there is no '{name}'", source=where, hint=f"It defines: {', '.join(defined) or '-'}"
            )
    if not callable(function):
        raise InputError(f"'{name}' is a {type(function).__name__}, not a function", source=where)
    return function  # type: ignore[no-any-return]


def import_file(file: Path, *, hint: str = "Write file.py:function or package.module:function") -> ModuleType:
    """The module of a Python file, which is executed at every call."""
    if not file.is_file():
        raise InputError("no such file", source=file, hint=hint)
    path = file.resolve()
    # A name of its own per path: two targets called train.py must not replace each other in sys.modules.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    spec = spec_from_file_location(f"opscope_target_{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file", source=file, hint=hint)
    _make_importable(path.parent)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a function's module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise InputError(
            _import_failure(error, path), source=file, hint="Run it with python to see it all"
        ) from error
    return module


def failure_place(error: BaseException, path: Path | None) -> str | None:
    """The last line of the file that was executed before an error, or of the last file if `path` is None."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if path is not None and frame.filename == str(path)]
    if own:
        return f"line {own[-1].lineno}"
    if path is None and frames:
        return f"{Path(frames[-1].filename).name} line {frames[-1].lineno}"
    return None


def _make_importable(directory: Path) -> None:
    folder = str(directory)
    if folder not in sys.path:
        sys.path.append(folder)


def _import_failure(error: BaseException, path: Path | None) -> str:
    """What went wrong and on which line of the file, or of the last file executed if `path` is None."""
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, SyntaxError):
        return f"its import fails in line {error.lineno} ({type(error).__name__}: {error.msg})"
    place = failure_place(error, path)
    return f"its import fails in {place} ({reason})" if place else f"its import fails ({reason})"


_ACCEPTED = ("batch_size", "seq_len", "device", "dtype", "attn_implementation", "train", "layers", "hidden")
_TARGET_HINT = "Write file.py:function or package.module:factory"
_NO_TRAINING_HINT = "Leave out --train, give the factory a `train` parameter, or return (module, inputs)"


def target_builder(target: str) -> Builder:
    """A builder for the function that `target` names; the function's file is imported now."""
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise InputError(f"'{target}' names no function", hint=_TARGET_HINT)
    function = function_of(load_module(where, hint=_TARGET_HINT), name, where)
    accepted = _accepted_parameters(function, target)
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
            values = {**vars(options), "batch_size": batch_size, "seq_len": seq_len}
            values |= {"device": torch.device(options.device), "dtype": getattr(torch, options.dtype)}
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
    named = [p for p in parameters if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    accepted = tuple(p.name for p in named if p.name in _ACCEPTED and p.kind is not p.POSITIONAL_ONLY)
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

    build = models.build_bert if name == "bert" else models.build_transformer
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
