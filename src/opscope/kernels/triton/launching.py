"""What every launcher needs around its kernel: checked arguments, the right device, tuned configurations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton

from opscope.errors import InputError
from opscope.hardware.architectures import WARP_SIZE

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def is_compiled(function: object) -> bool:
    return isinstance(function, triton.JITFunction)


def autotuned(
    function: Any,
    configs: Sequence[triton.Config],
    *,
    key: Sequence[str],
    prune: Callable[..., list[triton.Config]] | None = None,
) -> Any:
    """The kernel in the fastest of some configurations, measured once for each value of the key.

    The key names the arguments whose values, with the dtypes, decide anew. The interpreter has no speed to
    tune; there the first configuration that fits is used, so the usually best one stands first. `prune` is
    Triton's `early_config_prune`.
    """
    if not is_compiled(_declared(function)):
        return _FirstConfiguration(function, list(configs), prune)
    pruning = {"early_config_prune": prune} if prune else None
    return triton.autotune(configs=list(configs), key=list(key), prune_configs_by=pruning)(function)


def _declared(function: Any) -> Any:
    """What `@triton.jit` made, below other decorators."""
    while not is_compiled(function) and hasattr(function, "fn") and not inspect.isfunction(function.fn):
        function = function.fn
    return function


@dataclass
class _FirstConfiguration:
    function: Any
    configs: list[triton.Config]
    prune: Callable[..., list[triton.Config]] | None

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(self._run, grid)

    def _run(self, grid: Any, *args: Any, **kwargs: Any) -> None:
        named = dict(zip(inspect.signature(_declared(self.function).fn).parameters, args, strict=False))
        configs = self.prune(self.configs, named, **kwargs) if self.prune else self.configs
        if configs[0].pre_hook is not None:
            configs[0].pre_hook({**named, **kwargs, **configs[0].kwargs})
        self.function[grid](*args, **kwargs, **configs[0].kwargs)


def check_arguments(**tensors: torch.Tensor) -> None:
    """The kernels read contiguous memory of one device in one dtype; anything else is refused."""
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


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many the device has; 1 for a CPU, where the interpreter runs one program after another."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


# How programs share out the rows of a matrix: how many each takes, how long a row registers can hold.

# 1024 threads share 65536 registers, 64 each: with 32 elements in every thread, half of them are left for
# addresses and temporaries. Longer rows would spill.
_MOST_COLUMNS = 32 * 1024

_LEAST_PER_THREAD, _MOST_PER_THREAD = 4, 32


# Elements that a program holds at a time (one long row, or several short ones), and its warps.
ROW_CONFIGS = [
    triton.Config({"TILE": tile}, num_warps=warps)
    for tile, warps in ((8192, 16), (8192, 8), (4096, 4), (4096, 8), (16384, 16), (16384, 32), (32768, 32))
]


def launched_by_rows(
    kernels: Sequence[Any], *tensors: torch.Tensor, sizes: Sequence[float] = (), teaching: bool
) -> torch.Tensor:
    """What a kernel makes of the first tensor seen as a matrix: its last dimension are the columns.

    Of the kernels the first holds whole rows in registers, the second takes rows too long for them, a block
    at a time, the third is the one to learn from.
    """
    x, (whole, long, simple) = tensors[0], kernels
    if x.dim() == 0:
        raise InputError("a single number has no rows", hint="Pass a tensor of at least one dimension")
    column_count, out = x.shape[-1], torch.empty_like(x)
    row_count = x.numel() // column_count if column_count else 0
    columns = triton.next_power_of_2(max(column_count, 1))
    if teaching or columns > _MOST_COLUMNS:
        kernel, constants = (
            (simple, {"BLOCK": 1024}) if teaching else (long, {"BLOCK": 8192, "num_warps": 16})
        )
        return launched(out, kernel, (row_count,), *tensors, out, column_count, *sizes, **constants)

    def grid(meta: Mapping[str, Any]) -> tuple[int]:
        return (triton.cdiv(row_count, meta["TILE"] // columns),)  # a program for each tile

    return launched(out, whole, grid, *tensors, out, row_count, column_count, *sizes, COLUMNS=columns)


def tuned_by_rows(kernel: Any) -> Any:
    return autotuned(kernel, ROW_CONFIGS, key=["column_count"], prune=fitting_configs)


def fitting_configs(
    configs: list[triton.Config], named_args: Mapping[str, Any], **constants: Any
) -> list[triton.Config]:
    """Those configurations whose tile holds a row and few more, in neither too few nor too many threads."""
    columns = constants["COLUMNS"]
    largest = max(8192, 2 * columns)
    return [
        config
        for config in configs
        if columns <= config.kwargs["TILE"] <= largest
        and _LEAST_PER_THREAD <= config.kwargs["TILE"] // (WARP_SIZE * config.num_warps) <= _MOST_PER_THREAD
    ]
