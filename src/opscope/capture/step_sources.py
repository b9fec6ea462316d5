"""What ends a step of a program that does not say so itself: an optimizer's step, a forward, a function.

A source is told once torch is there and then calls back at the end of each step, on the thread that made it.
Importing this module does not import torch.
"""

from __future__ import annotations

import functools
import importlib
import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from opscope.errors import InputError
from opscope.workloads.runtime import require_torch

__all__ = ["ForwardSteps", "FunctionSteps", "OptimizerSteps", "StepSource", "step_source"]

_OnStep = Callable[[], object]


class StepSource(Protocol):
    """Recognizes the steps of a running program.

    Attributes:
        what: What ends a step, for people.
        hint: What to do if it never happens.
    """

    what: str
    hint: str

    def watch(self, on_step: _OnStep) -> None:
        """Call `on_step` at the end of every step from now on; torch is imported."""
        ...

    def stop(self) -> None:
        """Leave no trace in torch; the program may go on."""
        ...


def step_source(name: str) -> StepSource | None:
    """The source that a name stands for: `optimizer`, `forward`, a function, or None for `none`.

    Args:
        name: A function is written `FUNCTION`, for one of the program itself, or `MODULE:FUNCTION`.

    Raises:
        InputError: It is none of these.
    """
    if name == "none":
        return None
    if name == "optimizer":
        return OptimizerSteps()
    if name == "forward":
        return ForwardSteps()
    module, _, function = name.rpartition(":")
    parts = [*module.split("."), *function.split(".")] if module else function.split(".")
    if not all(part.isidentifier() for part in parts) or (":" in name and not module):
        raise InputError(
            f"'{name}' tells no steps", hint="Use optimizer, forward, none, FUNCTION or MODULE:FUNCTION"
        )
    return FunctionSteps(module or "__main__", function)


class OptimizerSteps:
    """A step ends when the optimizer that steps first in the program has stepped."""

    what = "optimizer.step()"
    hint = "Record the whole program with --steps none, or name what ends a step: --steps forward or FUNCTION"

    def __init__(self) -> None:
        self._first: weakref.ref[Any] | None = None
        self._handle: Any = None

    def watch(self, on_step: _OnStep) -> None:
        """Register with all optimizers there are and will be."""

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._first is None:
                self._first = weakref.ref(optimizer)
            if self._first() is optimizer:
                _untraced(on_step)

        # A compiled optimizer calls it between its graphs instead of tracing into it.
        stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
        module = importlib.import_module("torch.optim.optimizer")
        self._handle = module.register_optimizer_step_post_hook(stepped)

    def stop(self) -> None:
        """Withdraw the registration."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()


class ForwardSteps:
    """A step ends when the model returns: the first module that is called a second time from outside of any.

    `nn.Module.__call__` is replaced only while no module runs, so that the layers inside one are called as
    ever; torch's own hooks on all modules would cost each of their calls, and torch.compile warns of them. A
    compiled model may have kept the replacement, and the compiler looks through that.
    """

    what = "the call of a model"
    hint = "Record the whole program with --steps none, or name a function that ends a step: --steps FUNCTION"

    def __init__(self) -> None:
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._model: weakref.ref[Any] | None = None
        self._on_step: _OnStep | None = None
        self._calls: tuple[Any, Any] = (None, None)  # of torch, and ours

    def watch(self, on_step: _OnStep) -> None:
        """Look at the next call of any module."""
        torch = require_torch()
        module_class, original, compiler = torch.nn.Module, torch.nn.Module.__call__, torch.compiler

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if compiler.is_compiling() or module_class.__call__ is not call:
                return original(module, *args, **kwargs)
            module_class.__call__ = original
            try:
                self._entered(module)
                result = original(module, *args, **kwargs)
            finally:
                if self._on_step is not None:
                    module_class.__call__ = call
            self._returned(module)
            return result

        self._on_step, self._calls = on_step, (original, call)
        module_class.__call__ = call

    def stop(self) -> None:
        """Look at no more calls."""
        if self._on_step is not None:
            self._on_step = None
            require_torch().nn.Module.__call__ = self._calls[0]

    def _entered(self, module: Any) -> None:
        if self._model is None and module in self._seen:
            self._model = weakref.ref(module)
            self._tell()  # of its first call, now that it turns out to have been one
        self._seen.add(module)

    def _returned(self, module: Any) -> None:
        if self._model is not None and self._model() is module:
            self._tell()

    def _tell(self) -> None:
        if self._on_step is not None:
            _untraced(self._on_step)


class FunctionSteps:
    """A step ends when a function returns.

    Args:
        module: Full name of its module; `__main__` is the program, whose loader calls `wrapped` itself.
        function: Its name there, with dots for a method.
    """

    def __init__(self, module: str, function: str) -> None:
        self.module = module
        self.function = function
        self.what = f"a call of {function}" if module == "__main__" else f"a call of {module}:{function}"
        self.hint = "Name a function that is called in every step, or record the whole program: --steps none"
        self._on_step: _OnStep | None = None

    def watch(self, on_step: _OnStep) -> None:
        """Tell of calls from now on."""
        self._on_step = on_step

    def stop(self) -> None:
        """Tell of no more calls."""
        self._on_step = None

    def wrap_in(self, module: Any) -> None:
        """Put the wrapped function in its place in an imported module; nothing where there is none."""
        *owners, name = self.function.split(".")
        owner = functools.reduce(lambda one, part: getattr(one, part, None), owners, module)
        # From the dictionary, because getattr would bind static and class methods.
        function = getattr(owner, "__dict__", {}).get(name)
        if function is not None:
            setattr(owner, name, self.wrapped(function))

    def wrapped(self, function: Any) -> Any:
        """The function, telling when it has returned; what cannot be called, as it is."""
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self.wrapped(function.__func__))
        if not callable(function):
            return function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self._on_step is not None:
                _untraced(self._on_step)
            return result

        return call


def _untraced(on_step: _OnStep) -> None:
    """Call it so that torch's compiler, if it is at work in the caller, compiles nothing of it."""
    if "torch._dynamo" in sys.modules:
        on_step = require_torch().compiler.disable(on_step)
    on_step()
