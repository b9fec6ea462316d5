"""What every launcher needs around its kernel: checked arguments, the right device, tuned configurations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton

from opscope.errors import InputError

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def is_compiled(function: object) -> bool:
    """Whether `@triton.jit` made a function that is compiled, not one of the interpreter."""
    return isinstance(function, triton.JITFunction)


def autotuned(
    configs: Sequence[triton.Config],
    *,
    key: Sequence[str],
    prune: Callable[..., list[triton.Config]] | None = None,
) -> Callable[[Any], Any]:
    """Decorator: the fastest of some configurations, measured once for each value of the key.

    The interpreter has no speed to tune; there the first configuration that fits is used.

    Args:
        configs: Candidates, the one that is usually best first.
        key: Names of the arguments whose values, with the dtypes, decide anew.
        prune: Triton's `early_config_prune`: leaves out candidates that make no sense for given arguments.
    """

    def decorate(function: Any) -> Any:
        if not is_compiled(_declared(function)):
            return _FirstConfiguration(function, configs, prune)
        pruning = {"early_config_prune": prune} if prune else None
        return triton.autotune(configs=list(configs), key=list(key), prune_configs_by=pruning)(function)

    return decorate


def _declared(function: Any) -> Any:
    """What `@triton.jit` made, below other decorators."""
    while not is_compiled(function) and hasattr(function, "fn") and not inspect.isfunction(function.fn):
        function = function.fn
    return function


class _FirstConfiguration:
    """A kernel with the first configuration that fits: `triton.autotune` without a GPU to try them on."""

    def __init__(
        self,
        function: Any,
        configs: Sequence[triton.Config],
        prune: Callable[..., list[triton.Config]] | None,
    ) -> None:
        self._function = function
        self._configs = list(configs)
        self._prune = prune
        self._names = list(inspect.signature(_declared(function).fn).parameters)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(self._run, grid)

    def _run(self, grid: Any, *args: Any, **kwargs: Any) -> None:
        named = dict(zip(self._names, args, strict=False))
        configs = self._prune(self._configs, named, **kwargs) if self._prune else self._configs
        if configs[0].pre_hook is not None:
            configs[0].pre_hook({**named, **kwargs, **configs[0].kwargs})
        self._function[grid](*args, **kwargs, **configs[0].kwargs)


def check_arguments(**tensors: torch.Tensor) -> None:
    """The kernels read contiguous memory of one device in one dtype; anything else is refused.

    Raises:
        InputError: Which argument is not so.
    """
    first_name, first = next(iter(tensors.items()))
    if first.dtype not in _DTYPES:
        raise InputError(f"{first_name} is {first.dtype}", hint="Use float32, float16 or bfloat16")
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise InputError(f"{name} is not contiguous", hint=f"Pass {name}.contiguous()")
        if (tensor.dtype, tensor.device) != (first.dtype, first.device):
            raise InputError(
                f"{name} is {tensor.dtype} on {tensor.device}, {first_name} {first.dtype} on {first.device}",
                hint="Use one dtype on one device",
            )


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Makes the tensor's device the current one: Triton launches on that. Nothing to do on a CPU."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    device: AbstractContextManager[Any] = torch.cuda.device(tensor.device)
    return device


def launched(out: torch.Tensor, kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> torch.Tensor:
    """The tensor that a kernel fills; nothing is launched for one without elements."""
    if out.numel():
        with on_device_of(out):
            kernel[grid](*arguments, **constants)
    return out


def multiprocessors(device: torch.device) -> int:
    """How many the device has; 1 for a CPU, where the interpreter runs one program after another."""
    if device.type != "cuda":
        return 1
    return _multiprocessors(device.index)


@functools.cache
def _multiprocessors(index: int) -> int:
    count: int = torch.cuda.get_device_properties(index).multi_processor_count
    return count
