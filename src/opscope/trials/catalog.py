"""The catalogue of changes: what suggests each, where it applies, how it is applied, what to write instead.

A change is one entry. `applies` is asked with what the running program showed; `on` switches it on between
two of its steps, and leaves in `hooks.undo` what switches it off. One that cannot be switched is on from the
start of a process. A user's own change is a file with a function `on(hooks)`, or `change(hooks)` for one of
these. Importing this module does not import torch.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from opscope.benchmarking.inputs import copied, map_tensors, tensors_of
from opscope.errors import InputError
from opscope.trials.hooks import Hooks
from opscope.trials.replay import PLAIN
from opscope.workloads.target import import_file


class ProgramTraits(msgspec.Struct, kw_only=True):
    device: str = "cpu"  # `cuda` or `cpu`: where the first model's parameters lie
    is_training: bool = False  # A backward pass was seen
    dtypes: list[str] = []  # Types of the parameters of all models, and of autocast
    # Names of the optimizers' classes; `(fused)` or `(foreach)` follows where asked for
    optimizers: list[str] = []
    loaders: int = 0  # DataLoaders without worker processes
    convolutions: int = 0  # Modules that are 2-d or 3-d convolutions
    attention: list[str] = []  # Attention implementations of transformers models
    filled_gradients: int = 0  # Calls of zero_grad that fill gradients with zeros
    is_graphed: bool = False  # CUDA graphs or compiled models are used
    precision: str = "highest"  # torch.get_float32_matmul_precision()
    is_autocast: bool = False  # The first model was called under autocast
    device_name: str | None = None  # Of the GPU, once the program has used it

    @property
    def is_float32(self) -> bool:
        return "float32" in self.dtypes and not self.is_autocast


# Relative rounding of a type: half of the distance from 1 to the next number.
_BFLOAT16, _FLOAT16, _TF32 = 2.0**-8, 2.0**-11, 2.0**-11
_ROUNDINGS = {"bfloat16": _BFLOAT16, "float16": _FLOAT16}
# Torch's own, 65536, is too much for many a first step, which is left out then.
_LOSS_SCALE = 1024.0
# The same operations in another order, in float32.
_REORDERED = 2.0**-14
_ADDS = math.log(0.995)  # what is worth a place in a set


class TriedChange(msgspec.Struct, frozen=True):
    name: str  # On the command line
    title: str  # For people
    on: Callable[[Hooks], None]  # Switches it on
    needs: tuple[str, ...]  # Of `NEEDS`
    patch: str  # What to write
    findings: tuple[str, ...] = ()  # Codes of advice that suggest it, without `advice.`
    rounding: float = 0.0  # What one of its operations may change, relative to the result; 0 for nothing
    group: str | None = None  # Of changes of one group at most one is part of a set
    redraws: bool = False  # Random numbers come in another order, so that dropout drops other elements
    on_request: bool = False  # Tried only when named: it takes minutes
    is_costly: bool = False  # It takes much longer than others, because it compiles
    replays: bool = False  # It launches the model's kernels as a CUDA graph
    is_live: bool = True  # It can be switched between steps; else it is on from the import of torch
    in_training: str = ""  # What to write beside it in a program that trains

    def applies(self, traits: ProgramTraits) -> str | None:
        """Why it does not apply to a program: the reason of the first condition that fails; None if none."""
        needs = (NEEDS[one] for one in self.needs)
        return next((reason for holds, reason in needs if not holds(traits)), None)

    def is_priced_by(self, code: str, traits: ProgramTraits) -> bool:
        """Whether what a finding says is gained is what this change gains.

        Of launches it is the gain of one graph of the whole step: in training, a graph of the model leaves
        the optimizer out.
        """
        return code != "advice.launch_bound" or (self.replays and not traits.is_training)


FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
# What has to hold of a program, and the reason why a change does not apply if it does not.
NEEDS: dict[str, tuple[Callable[[ProgramTraits], object], str]] = {
    "cuda": (lambda facts: facts.device == "cuda", "its models are not on a GPU"),
    "float32": (lambda facts: facts.is_float32, "its models do not compute in float32"),
    "highest": (lambda facts: facts.precision == "highest", "TF32 is allowed already"),
    "inference": (lambda facts: not facts.is_training, "it trains"),
    "training": (lambda facts: facts.is_training, "it does not train"),
    "eager": (lambda facts: not facts.is_graphed, "it compiles or captures its models itself"),
    "eager_attends": (lambda facts: "eager" in facts.attention, "no transformers model attends eagerly"),
    "convolutions": (lambda facts: facts.convolutions, "its models hold no convolutions"),
    "optimizer": (
        lambda facts: any(name in FUSED for name in facts.optimizers),
        "it creates no optimizer with such an implementation that does not use it",
    ),
    "fills": (lambda facts: facts.filled_gradients, "zero_grad fills no gradients"),
    "loader": (lambda facts: facts.loaders, "it creates no DataLoader without workers"),
}


def _set(hooks: Hooks, setter: Callable[[Any], object], old: Any, new: Any) -> None:
    """Change one of torch's settings until the change is off."""
    hooks.undo.callback(setter, old)
    setter(new)
    hooks.applied.add("settings")


def _tf32(hooks: Hooks) -> None:
    torch = hooks.torch
    _set(hooks, torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), "high")
    cudnn = torch.backends.cudnn
    _set(hooks, partial(setattr, cudnn, "allow_tf32"), cudnn.allow_tf32, True)


def _autocast(dtype: str, hooks: Hooks) -> None:
    torch = hooks.torch

    def context() -> Any:
        device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"
        return torch.autocast(device, dtype=getattr(torch, dtype))

    hooks.around.append(context)
    hooks.outputs.append(_whole_for_losses)
    if dtype == "float16":
        _scale_losses(hooks)


def _whole_for_losses(output: Any) -> Any:
    """An output in float32, so that its loss is, as inside of autocast; one that holds its loss stays."""

    def whole(one: Any) -> Any:
        return one.float() if one.requires_grad and one.dtype.itemsize == 2 else one

    return output if isinstance(output, dict) and "loss" in output else map_tensors(whole, output)


def _scale_losses(hooks: Hooks) -> None:
    torch = hooks.torch
    scaler = hooks.made.setdefault("scaler", torch.amp.GradScaler(init_scale=_LOSS_SCALE))
    backward = torch.Tensor.backward

    def scaled(loss: Any, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Not the loss itself: its value is compared with the program's.
        gradient = torch.ones_like(loss) if gradient is None else gradient
        return backward(loss, scaler.scale(gradient), *args, **kwargs)

    def unscale(optimizer: Any) -> None:
        scaler.unscale_(optimizer)
        if any(found.item() for found in scaler._found_inf_per_device(optimizer).values()):
            for group in optimizer.param_groups:  # a step without gradients changes nothing
                for one in group["params"]:
                    one.grad = None

    hooks.patch(torch.Tensor, "backward", scaled)
    hooks.stepping.append(unscale)
    hooks.stepped.append(scaler.update)


def _swap(hooks: Hooks, one: Any, convert: Callable[[Any], Any], *, keeps: bool = True) -> None:
    """Have a tensor hold its values in another form, always in the same memory: graphs know the address.

    `keeps`: what becomes of the values meanwhile is kept; else they are as before.
    """
    _, made = hooks.made.setdefault(id(one), (one, convert(one.data)))
    made.copy_(one.data)

    def back(old: Any) -> None:
        one.data = old.copy_(one.data) if keeps else old

    hooks.undo.callback(back, one.data)
    one.data = made


def _look_again(model: Any) -> None:
    """Have compiled code check its tensors again, which some releases do only where a module's dict changed.

    Seen in torch 2.11: a graph compiled for float32 ran with weights of bfloat16.
    """
    for one in model.modules():
        if type(one._parameters) is dict:  # TorchScript has its own, and no such guards
            one._parameters["changed"] = None
            del one._parameters["changed"]


def _weights(dtype: str, hooks: Hooks) -> None:
    torch = hooks.torch
    target = getattr(torch, dtype)

    def cast(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(target) if is_float else value

    for model in list(hooks.models.values()):
        hooks.undo.callback(_look_again, model)
        for one in [*model.parameters(), *model.buffers()]:
            if one.is_floating_point():
                _swap(hooks, one, cast, keeps=False)
                hooks.applied.add("model")
        _look_again(model)
    hooks.inputs.append(cast)


def _attention(implementation: str, hooks: Hooks) -> None:
    for model in list(hooks.models.values()):
        if hasattr(model, "set_attn_implementation"):
            hooks.undo.callback(model.set_attn_implementation, model.config._attn_implementation)
            model.set_attn_implementation(implementation)
            hooks.applied.add("model")


_WITH_GRAPHS = ("reduce-overhead", "max-autotune")
_OWN_GRADIENTS = "optimizer.zero_grad(set_to_none=True)   # gradients are the graph's own buffers"
_MOST_COMPILED = 64  # forms of one frame: models, sets of changes, shapes


def _compiled(hooks: Hooks, **options: Any) -> None:
    torch = hooks.torch

    def prepare(model: Any) -> Any:
        dynamo = importlib.import_module("torch._dynamo")
        limits = {"recompile_limit": _MOST_COMPILED, "cache_size_limit": _MOST_COMPILED}
        for name, value in {**limits, "fail_on_recompile_limit_hit": True}.items():
            if hasattr(dynamo.config, name):
                setattr(dynamo.config, name, value)
        captured = importlib.import_module("torch._dynamo.utils").counters["stats"]
        # Not of the model itself, of which `compile` captures nothing where it is one of torch's containers.
        call = model._call_impl if isinstance(model, torch.nn.Module) else model
        is_captured = runs_as_it_is = began_as_it_is = False

        def run_model(*args: Any, **kwargs: Any) -> Any:
            nonlocal runs_as_it_is
            if not torch.compiler.is_compiling():  # it is, wherever this line is compiled
                runs_as_it_is = True
            return call(*args, **kwargs)

        # Code of its own: all that was compiled of one code object is looked through at each call.
        run_model.__code__ = run_model.__code__.replace()
        compiled = torch.compile(run_model, **options)

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_captured, runs_as_it_is, began_as_it_is
            before, runs_as_it_is = captured["unique_graphs"], False
            output = compiled(*args, **kwargs)
            if not is_captured:
                if captured["unique_graphs"] == before:
                    raise RuntimeError("torch.compile captured nothing of the model")
                is_captured, began_as_it_is = True, runs_as_it_is
            elif runs_as_it_is and not began_as_it_is:
                raise RuntimeError("torch.compile no longer runs what it compiled")
            hooks.applied.add("model")
            return output

        return run

    hooks.prepare.append(prepare)
    if options.get("mode") in _WITH_GRAPHS:
        _take_over_gradients(hooks)


def _graphed(hooks: Hooks) -> None:
    torch = hooks.torch

    def prepare(model: Any) -> Any:
        graphed: dict[Any, Any] = {}
        eager = model._call_impl if isinstance(model, torch.nn.Module) else model
        weights = dict(model.named_parameters())

        def call(*args: Any, **kwargs: Any) -> Any:
            values = (*args, *kwargs.values())
            tensors = tuple(one for one in values if isinstance(one, torch.Tensor))
            are_plain = all(isinstance(one, (torch.Tensor, *PLAIN)) for one in values)
            if not (tensors and are_plain and all(one.is_cuda for one in tensors)):
                return eager(*args, **kwargs)
            given = weights if torch.is_grad_enabled() else {}
            forms = [(one.shape, one.dtype) if isinstance(one, torch.Tensor) else one for one in values]
            key = model.training, bool(given), len(args), *kwargs, *forms
            if key not in graphed:
                # A graph would keep the addresses of casted weights that autocast has cached.
                cast = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
                of_tensors = _of_tensors(torch, model, args, kwargs, given)
                # Leaves of its own: those of the program may hang on an open graph, whose stream a capture
                # cannot wait for.
                leaves = [one.detach().requires_grad_(one.requires_grad) for one in given.values()]
                inputs = (*map(copied, tensors), *leaves)
                with torch.autocast("cuda", *cast, cache_enabled=False), _own_workspaces(torch):
                    _require_no_waits(torch, of_tensors, inputs)
                    graphed[key] = torch.cuda.make_graphed_callables(
                        of_tensors, inputs, allow_unused_input=True
                    )
            hooks.applied.add("model")
            return graphed[key](*tensors, *given.values())

        return call

    hooks.prepare.append(prepare)
    _take_over_gradients(hooks)


def _require_no_waits(torch: Any, function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Refuse what waits for the device, forward or backward: a capture that fails breaks the process."""
    before, is_capturing = torch.cuda.get_sync_debug_mode(), torch.cuda.is_current_stream_capturing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is called a prototype
        torch.cuda.set_sync_debug_mode("error")
        # Libraries leave out what waits where they are captured.
        torch.cuda.is_current_stream_capturing = lambda: True
        try:
            outputs = [one for one in tensors_of(function(*inputs)) if one.requires_grad]
            leaves = [one for one in inputs if one.requires_grad]
            if outputs and leaves:
                torch.autograd.grad(outputs, leaves, [*map(torch.ones_like, outputs)], allow_unused=True)
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            others = re.compile(f"site-packages|{re.escape(str(Path(__file__).parents[1]))}")
            frames = traceback.extract_tb(error.__traceback__)[::-1]
            at = next((one for one in frames if not others.search(one.filename)), frames[0])
            raise RuntimeError(
                f"it waits for the device ({Path(at.filename).name}:{at.lineno}), which no graph can hold"
            ) from None
        finally:
            torch.cuda.is_current_stream_capturing = is_capturing
            torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _own_workspaces(torch: Any) -> Iterator[None]:
    """Have what is captured take cuBLAS's workspaces from its own pool.

    They are kept by stream. One of an earlier capture goes with that graph, or when the compiler clears them
    all, as it does for its own graphs: a graph that uses it would then write into memory of others.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    clear()
    try:
        yield
    finally:
        clear()


def _of_tensors(
    torch: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], weights: dict[str, Any]
) -> Callable[..., Any]:
    """The model as a function of the tensors of these arguments and of these weights alone."""
    if any(one._forward_hooks or one._forward_pre_hooks or one._backward_hooks for one in model.modules()):
        raise RuntimeError("its modules have hooks, which a graph would not call")

    def run(*tensors: Any) -> Any:
        given = iter(tensors)
        filled = [next(given) if isinstance(one, torch.Tensor) else one for one in (*args, *kwargs.values())]
        named = dict(zip(kwargs, filled[len(args) :], strict=True))
        return torch.func.functional_call(
            model, dict(zip(weights, given, strict=True)), tuple(filled[: len(args)]), named
        )

    return run


def _drop_gradients(hooks: Hooks) -> None:
    for owner in (hooks.torch.optim.Optimizer, hooks.torch.nn.Module):
        hooks.wrap_arguments(owner, "zero_grad", lambda one, *_, **__: ((one,), {"set_to_none": True}))
    hooks.applied.add("optimizer")


def _take_over_gradients(hooks: Hooks) -> None:
    """A graph's gradients are its own buffers: kept, they are overwritten by the next replay, or added to."""

    def copy() -> None:
        for optimizer in list(hooks.optimizers.values()):
            for group in optimizer.param_groups:
                for one in group["params"]:
                    one.grad = None if one.grad is None else one.grad.clone()

    _drop_gradients(hooks)
    hooks.applied.discard("optimizer")  # it is the model that it is to take hold of
    hooks.undo.callback(copy)


def _fused(hooks: Hooks) -> None:
    for one in list(hooks.optimizers.values()):
        for group in one.param_groups if type(one).__name__ in FUSED else ():
            if "fused" in group and not group["fused"]:
                old = {key: group[key] for key in ("fused", "foreach")}
                scales = getattr(one, "_step_supports_amp_scaling", False)
                hooks.undo.callback(_take_form, hooks.torch, one, group, old, scales)
                _take_form(hooks.torch, one, group, {"fused": True, "foreach": False}, scales=True)
                hooks.applied.add("optimizer")


def _take_form(torch: Any, one: Any, group: dict[str, Any], options: dict[str, Any], scales: object) -> None:
    group.update(options)
    one._step_supports_amp_scaling = scales  # a GradScaler leaves unscaling to fused ones
    for parameter in group["params"]:
        # Fused ones count steps on the parameter's device, the others on the host.
        steps = one.state.get(parameter, {}).get("step")
        if isinstance(steps, torch.Tensor):
            is_there = options["fused"] or group.get("capturable")
            one.state[parameter]["step"] = steps.to(parameter.device if is_there else "cpu", torch.float32)


def _channels_last(hooks: Hooks) -> None:
    torch = hooks.torch

    def turned(value: Any) -> Any:
        is_image = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if is_image else value

    def as_it_lies(one: Any) -> None:
        if one.grad is not None:
            one.grad = torch.empty_like(one).copy_(one.grad)

    for model in list(hooks.models.values()):
        hooks.undo.callback(_look_again, model)
        for one in model.parameters():
            if one.dim() == 4:
                hooks.undo.callback(as_it_lies, one)  # a gradient that is filled keeps its layout
                states = [each.state.get(one, {}).values() for each in hooks.optimizers.values()]
                kept = [value for values in states for value in values if isinstance(value, torch.Tensor)]
                for value in [one, *(value for value in kept if value.dim() == 4)]:
                    _swap(hooks, value, turned)
                as_it_lies(one)
                hooks.applied.add("model")
        _look_again(model)
    hooks.inputs.append(turned)


def _workers(hooks: Hooks) -> None:
    def change(_: Any, arguments: dict[str, Any]) -> None:
        if not arguments.get("num_workers"):
            count = max(1, min(8, (os.cpu_count() or 2) - 1))
            arguments.update(num_workers=count, persistent_workers=True)
            hooks.applied.add("loader")

    hooks.on_making("torch.utils.data:DataLoader", change)


_TF32_LINES = 'torch.set_float32_matmul_precision("high")\ntorch.backends.cudnn.allow_tf32 = True'

CATALOG = (
    TriedChange(
        "tf32", "TF32 for float32 products and convolutions", _tf32,
        ("cuda", "float32", "highest"),
        _TF32_LINES,
        ("tf32_off",), _TF32, "precision",
    ),
    TriedChange(
        "bf16_autocast", "bfloat16 autocast around the model", partial(_autocast, "bfloat16"),
        ("float32",),
        'with torch.autocast("cuda", dtype=torch.bfloat16):   # "cpu" on a CPU\n'
        "    output = model(batch)   # and its loss: outside it would be computed in 16 bits",
        ("reduced_precision",), _BFLOAT16, "precision",
    ),
    TriedChange(
        "fp16_autocast", "float16 autocast around the model, with scaled losses",
        partial(_autocast, "float16"),
        ("cuda", "float32"),
        'scaler = torch.amp.GradScaler(init_scale=1024)\nwith torch.autocast("cuda", dtype=torch.float16):\n'
        "    output = model(batch)   # and its loss\nscaler.scale(loss).backward()\n"
        "scaler.step(optimizer)\nscaler.update()",
        ("reduced_precision",), _FLOAT16, "precision",
    ),
    TriedChange(
        "bf16_weights", "bfloat16 weights and inputs", partial(_weights, "bfloat16"),
        ("inference", "float32"),
        "model = model.to(torch.bfloat16)   # and its floating-point inputs",
        ("reduced_precision",), _BFLOAT16, "precision",
    ),
    TriedChange(
        "inference_mode", "inference mode around the model",
        lambda hooks: hooks.around.append(hooks.torch.inference_mode),
        ("inference",), "with torch.inference_mode():\n    output = model(batch)",
    ),
    TriedChange(
        "sdpa", "transformers' attention by scaled_dot_product_attention", partial(_attention, "sdpa"),
        ("eager_attends",),
        'model = AutoModel.from_pretrained(…, attn_implementation="sdpa")',
        ("eager_attention",), _REORDERED, "attention",
    ),
    TriedChange(
        "compile", "torch.compile of the model", _compiled,
        ("eager",), "model = torch.compile(model)",
        ("unfused_pointwise", "launch_bound"), _REORDERED, "capture", redraws=True, is_costly=True,
    ),
    TriedChange(
        "compile_reduce_overhead", "torch.compile of the model with CUDA graphs",
        partial(_compiled, mode="reduce-overhead"),
        ("cuda", "eager"), 'model = torch.compile(model, mode="reduce-overhead")',
        ("launch_bound",), _REORDERED, "capture", redraws=True, is_costly=True, replays=True,
        in_training=_OWN_GRADIENTS,
    ),
    TriedChange(
        "compile_max_autotune", "torch.compile of the model, kernels chosen by timing",
        partial(_compiled, mode="max-autotune"),
        ("eager",), 'model = torch.compile(model, mode="max-autotune")',
        ("unfused_pointwise", "launch_bound"), _REORDERED, "capture", redraws=True, is_costly=True,
        on_request=True, replays=True, in_training=_OWN_GRADIENTS,
    ),
    TriedChange(
        "cuda_graph", "a CUDA graph of the model's forward, and backward in training", _graphed,
        ("cuda", "eager"),
        "model = torch.cuda.make_graphed_callables(model, (example_batch,))   # of fixed shapes",
        ("launch_bound",), _REORDERED, "capture", redraws=True, replays=True, in_training=_OWN_GRADIENTS,
    ),
    TriedChange(
        "fused_optimizer", "the optimizer's fused implementation", _fused,
        ("training", "optimizer"), "torch.optim.AdamW(model.parameters(), …, fused=True)",
        (), _REORDERED, "optimizer",
    ),
    TriedChange(
        "set_to_none", "gradients dropped instead of filled with zeros", _drop_gradients,
        ("training", "fills"),
        "optimizer.zero_grad(set_to_none=True)   # the default since PyTorch 2.0",
    ),
    TriedChange(
        "channels_last", "channels-last memory format", _channels_last, ("convolutions",),
        "model = model.to(memory_format=torch.channels_last)\n"
        "batch = batch.to(memory_format=torch.channels_last)",
        ("layout_conversion",), _REORDERED,
    ),
    TriedChange(
        "loader_workers", "worker processes in the DataLoader, kept between epochs", _workers,
        ("loader",),
        "DataLoader(…, num_workers=8, persistent_workers=True)",
        ("data_loading",), is_live=False,
    ),
)  # fmt: skip


def rounding_of(changes: Sequence[TriedChange], dtypes: Sequence[str]) -> float:
    """What these changes may do to a result in a program of these types, relative to it; 0 for nothing."""
    rounding = max(one.rounding for one in changes)
    return max([rounding, *(_ROUNDINGS.get(one, 0.0) for one in dtypes)]) if rounding else 0.0


def addable(held: Sequence[TriedChange], alone: Sequence[tuple[TriedChange, float]]) -> list[TriedChange]:
    """What may join a set, the most promising first, of changes with the logarithm of what each alone takes.

    Alone a change is priced by what binds the program. What captures the model takes the host's part away:
    then fewer digits come first, and whatever computes otherwise may help, though alone it was the same or
    slower. In turn it may help itself once the device is faster than the host.
    """
    groups = {one.group for one in held} - {None}
    is_captured = "capture" in groups
    digits = {one.name: one.rounding * is_captured for one, _ in alone if one.group == "precision"}
    return [
        change
        for change, alone_log in sorted(alone, key=lambda one: (-digits.get(one[0].name, 0.0), one[1]))
        if change not in held
        and change.group not in groups
        and (alone_log < _ADDS or change.group == "capture" or (is_captured and change.rounding > 0))
    ]


def changes_named(names: Sequence[str] | None) -> tuple[TriedChange, ...]:
    """The changes of these names, in the order of the catalogue; all that need no request if None."""
    if names is None:
        return tuple(change for change in CATALOG if not change.on_request)
    known = {change.name for change in CATALOG}
    for name in names:
        if name not in known:
            raise InputError(f"there is no change '{name}'", hint=f"Name some of {', '.join(sorted(known))}")
    return tuple(change for change in CATALOG if change.name in names)


def change_of_file(path: Path) -> TriedChange:
    """A user's own change: the function `on(hooks)` of a Python file, or `change(hooks)`.

    The first is switched on and off between steps, the second is on from the start of a process.

    Raises:
        InputError: No such file, it cannot be imported, or holds no such function.
    """
    module = import_file(path)
    name = next((one for one in ("on", "change") if callable(getattr(module, one, None))), None)
    if name is None:
        raise InputError("it holds no function 'on' or 'change'", source=path, hint="def on(hooks): …")
    function = getattr(module, name)
    title = (function.__doc__ or path.stem).strip().partition("\n")[0]

    def on(hooks: Hooks) -> None:
        hooks.applied.add("own")
        function(hooks)

    return TriedChange(
        path.stem, title, on, (), path.read_text(encoding="utf-8"), (), _REORDERED,
        is_live=name == "on",
    )  # fmt: skip
