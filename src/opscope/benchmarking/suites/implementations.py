"""How suites make their implementations: torch functions, CUDA C++, Triton, torch.compile.

What a machine lacks is found out when an implementation is built, and said in an error with what to install;
nothing here decides by itself to leave one out.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from opscope.benchmarking.problem import Implementation
from opscope.benchmarking.suites.suite import Settings
from opscope.errors import DependencyError, MeasurementError
from opscope.kernels.triton_loader import interpreted, load_triton, require_triton
from opscope.model.benchmark import Engine
from opscope.workloads.runtime import require_torch

__all__ = ["by_torch", "compiled", "cuda", "triton"]

_Function = Callable[..., Any]


def by_torch(name: str, function: _Function, note: str, *, tolerance: float | None = None) -> Implementation:
    """A function that calls torch's operators; there is nothing to build."""
    return Implementation(name, lambda: function, Engine.TORCH, note=note, tolerance=tolerance)


def cuda(
    settings: Settings, kernel: str, note: str, *, teaching: bool = False, **constants: Any
) -> Implementation:
    """An operator of `opscope.kernels.build`, of that name or `<name>_teaching`, with further arguments."""
    attribute = f"{kernel}_teaching" if teaching else kernel

    def build() -> _Function:
        if not settings.is_cuda:
            raise MeasurementError(
                "CUDA C++ needs a CUDA device", hint="Use --device cuda on a machine with a GPU"
            )
        from opscope.kernels.build import load_cuda_kernels  # noqa: PLC0415 - it looks for a compiler

        function: _Function = getattr(load_cuda_kernels(), attribute)
        return functools.partial(function, **constants)

    name = "cuda_teaching" if teaching else "cuda"
    return Implementation(name, build, Engine.CUDA, teaching=teaching, note=note)


def triton(
    settings: Settings,
    kernel: str,
    note: str,
    *,
    module: str | None = None,
    name: str | None = None,
    teaching: bool = False,
    tolerance: float | None = None,
    **constants: Any,
) -> Implementation:
    """A Triton kernel, compiled for a GPU; on a CPU, in Triton's interpreter.

    Args:
        settings: Says which.
        kernel: The function, or `<kernel>_teaching`.
        note: What it is.
        module: Of `opscope.kernels.triton`; named like the kernel if None.
        name: Of the implementation; `"triton"` or `"triton_teaching"` if None.
        teaching: Whether it is the simple version.
        tolerance: Of its check.
        constants: Further arguments of the function.
    """
    attribute = f"{kernel}_teaching" if teaching else kernel

    def build() -> _Function:
        function: _Function = getattr(
            load_triton(module or kernel, interpret=not settings.is_cuda), attribute
        )
        if constants:
            function = functools.partial(function, **constants)
        if not settings.is_cuda:
            return interpreted(function)
        _check_triton_driver()
        return function

    return Implementation(
        name or ("triton_teaching" if teaching else "triton"),
        build,
        Engine.TRITON,
        teaching=teaching,
        note=note,
        tolerance=tolerance,
        is_interpreted=not settings.is_cuda,
    )


def compiled(settings: Settings, function: _Function) -> Implementation:
    """A composition of torch's operators through torch.compile, for exactly the sizes it is called with."""

    def build() -> _Function:
        _check_code_generator(settings)
        torch: Any = require_torch()
        result: _Function = torch.compile(_fresh(function), fullgraph=True, dynamic=False)
        return result

    return Implementation("compile", build, Engine.COMPILE, note="torch.compile of naive")


def _fresh(function: _Function) -> _Function:
    """The function with a code object of its own.

    torch keeps what it compiled by code object: functions that share one are recompiled for every new size,
    and after eight sizes run eagerly instead.
    """
    if isinstance(function, functools.partial):
        return functools.partial(_fresh(function.func), *function.args, **function.keywords)
    assert isinstance(function, types.FunctionType)
    fresh = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    fresh.__kwdefaults__ = function.__kwdefaults__
    return fresh


def _check_code_generator(settings: Settings) -> None:
    """What torch.compile hands its code to: Triton for a GPU, a C++ compiler for a CPU."""
    if settings.is_cuda:
        require_triton()
        _check_triton_driver()
        return
    from torch._inductor import cpp_builder  # noqa: PLC0415 - imports torch

    try:
        cpp_builder.get_cpp_compiler()
    except RuntimeError as error:  # torch._inductor.exc.InvalidCxxCompiler
        raise DependencyError(
            "torch.compile needs a C++ compiler on a CPU, and torch finds none",
            hint="Install g++, or name one in the environment variable CXX",
        ) from error


def _check_triton_driver() -> None:
    """Triton reaches the GPU: it compiles a small C module for that, at its first use."""
    triton_module = require_triton()
    try:
        triton_module.runtime.driver.active.get_current_target()
    except RuntimeError as error:
        message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DependencyError(
            f"Triton cannot use this GPU ({message})",
            hint="It needs an NVIDIA driver and a C compiler (gcc, clang or the one named in CC)",
        ) from error
