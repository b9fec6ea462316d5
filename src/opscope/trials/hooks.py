"""Where changes take hold of a running program: models when called, optimizers and loaders when made.

A change never touches the program's source. It sets torch's global settings, or asks here to be called: with
each model (a module that is called from outside of any other) before its first call, around each of its
calls, or with the arguments of each optimizer or DataLoader that is made. Importing this module does not
import torch.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from typing import Any

from opscope.capture.outermost_calls import OutermostCalls

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Hooks:
    """The hooks of one program; installed once torch is imported."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch  # the module
        # Called with a model before its first call; what it returns is called in its place.
        self.prepare: list[Callable[[Any], Any]] = []
        # The same of the function whose calls are steps, if it takes no arguments.
        self.prepare_step: list[Callable[[Callable[[], Any]], Callable[[], Any]]] = []
        self.inputs: list[Callable[[Any], Any]] = []  # change each argument of a call of a model
        self.around: list[Callable[[], AbstractContextManager[Any]]] = []  # a context for each call
        self.outputs: list[Callable[[Any], Any]] = []  # change the output of each call
        self.called: list[Callable[[Any, Any], object]] = []  # called with a model and its output
        self.applied: set[str] = set()  # what a change took hold of; empty where there was nothing to change
        self.first_calls_ns = 0  # of each model, compilation included
        self._callables: dict[int, tuple[Any, Callable[..., Any]]] = {}

    def of_one_change(self) -> Hooks:
        """The same hooks, with a note of its own of what was taken hold of."""
        own = copy(self)
        own.applied = set()
        return own

    def install(self) -> None:
        """Take hold of models as they are called; inside of one nothing is slower."""

        def around(module: Any, call: Any, args: Any, kwargs: Any) -> Any:
            began_ns, is_first = time.perf_counter_ns(), id(module) not in self._callables
            if is_first:
                run = module
                for prepare in self.prepare:
                    run = prepare(run)
                self._callables[id(module)] = (module, run)
            _, run = self._callables[id(module)]
            for change in self.inputs:
                args = tuple(map(change, args))
                kwargs = {name: change(value) for name, value in kwargs.items()}
            with ExitStack() as stack:
                for make in self.around:
                    stack.enter_context(make())
                output = run(*args, **kwargs)
            for change in self.outputs:
                output = change(output)
            if is_first:
                self.first_calls_ns += time.perf_counter_ns() - began_ns
            for observe in self.called:
                observe(module, output)
            return output

        OutermostCalls(around).watch()

    def step_in_place_of(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """What to call for each step instead of a function without arguments; asked before its first call."""
        began_ns = time.perf_counter_ns()
        for prepare in self.prepare_step:
            function = prepare(function)
        self.first_calls_ns += time.perf_counter_ns() - began_ns
        return function

    @property
    def optimizers(self) -> Any:
        """The module in which hooks on all optimizers are registered."""
        return importlib.import_module("torch.optim.optimizer")

    def wrap_arguments(self, owner: Any, name: str, change: Callable[..., _Arguments]) -> None:
        """Have a function of an object changed to be called with other arguments."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = change(*args, **kwargs)
            return original(*args, **kwargs)

        setattr(owner, name, call)

    def on_making(self, where: str, change: Callable[[Any, dict[str, Any]], None]) -> None:
        """Have keyword arguments of a class's objects (of `module:Class`) changed as they are made.

        Its subclasses' too; `change` is called with the object and the arguments.
        """
        module, _, name = where.partition(":")

        def changed(made: Any, *args: Any, **kwargs: Any) -> _Arguments:
            change(made, kwargs)
            return (made, *args), kwargs

        self.wrap_arguments(getattr(importlib.import_module(module), name), "__init__", changed)
