"""Where changes take hold of a running program: models as they are called, optimizers before they step.

A change never touches the program's source. Switched on, it sets torch's global settings, or asks here to be
called around each call of a model (a module that is called from outside of any other), and leaves in `undo`
what switches it off again. The program as it is takes the same way, so that both pay for it. Importing this
module does not import torch.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from opscope.capture.outermost_calls import OutermostCalls

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Hooks:
    """What one change does while it is on."""

    def __init__(self, switches: Switches) -> None:
        self.torch = switches.torch  # the module
        self.models, self.optimizers = switches.models, switches.optimizers  # of the program so far, by id
        # Called with a model before its first call; what it returns is called in its place.
        self.prepare: list[Callable[[Any], Any]] = []
        self.inputs: list[Callable[[Any], Any]] = []  # change each argument of a call of a model
        self.around: list[Callable[[], AbstractContextManager[Any]]] = []  # a context for each call
        self.outputs: list[Callable[[Any], Any]] = []  # change the output of each call
        self.stepping: list[Callable[[Any], object]] = []  # called with an optimizer before it steps
        self.stepped: list[Callable[[], object]] = []  # called after it
        self.applied: set[str] = set()  # what it took hold of; empty where there was nothing to change
        self.made: dict[Any, Any] = {}  # what it keeps from one time to the next
        self.undo = ExitStack()

    def off(self) -> None:
        self.undo.close()
        for every in (self.prepare, self.inputs, self.around, self.outputs, self.stepping, self.stepped):
            every.clear()

    def patch(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until the change is off."""
        old = vars(owner).get(name, self)
        self.undo.callback(*((delattr, owner, name) if old is self else (setattr, owner, name, old)))
        setattr(owner, name, value)

    def wrap_arguments(self, owner: Any, name: str, change: Callable[..., _Arguments]) -> None:
        """Have a function of an object called with other arguments."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = change(*args, **kwargs)
            return original(*args, **kwargs)

        self.patch(owner, name, call)

    def on_making(self, where: str, change: Callable[[Any, dict[str, Any]], None]) -> None:
        """Have keyword arguments of a class's objects (of `module:Class`) changed as they are made.

        Its subclasses' too; `change` is called with the object and the arguments.
        """
        module, _, name = where.partition(":")

        def changed(made: Any, *args: Any, **kwargs: Any) -> _Arguments:
            change(made, kwargs)
            return (made, *args), kwargs

        self.wrap_arguments(getattr(importlib.import_module(module), name), "__init__", changed)


class _ModelCalls(OutermostCalls):
    """Calls of models; where others, who look at them too, come to ours, the class is left as it is.

    With each change of it Python forgets what it looked up on modules: with two that put themselves back in
    turns, a step of 0.1 ms took 0.08 ms more.
    """

    def watch(self) -> None:
        known = vars(self._module_class)["__call__"]
        while isinstance(known, OutermostCalls) and known is not self:
            known = known._before
        if known is not self:
            super().watch()


class Switches:
    """Takes hold of a program's models and optimizers, once torch is imported.

    Attributes:
        calls: Watched; again if the compiler, which may have run in a backward pass, took that away.
        installed: Changes that are on from the start to the end.
        on: Those that are switched on now.
        made: Callables in place of models, of what is on.
        prepared: Models that may be replaced, by id: a copy of one is not of the step. None for all.
        keep: Called in the place of a model, to keep what it is called with; None while nothing is kept.
        is_replaying: Calls and steps are ours; what a change raises then is raised.
        gave_up: Told of the error of a change in a call of a model; the call is made again without it.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.models: Any = weakref.WeakValueDictionary()
        self.optimizers: dict[int, Any] = {}
        self.installed: list[Hooks] = []
        self.on: Sequence[Hooks] = ()
        self.made: dict[int, Callable[..., Any]] = {}
        self.prepared: set[int] | None = None
        self.called: list[Callable[[Any, Any], object]] = []  # observers of models and their outputs
        self.keep: Callable[..., Any] | None = None
        self.is_replaying = self.is_inside = False
        self.gave_up: Callable[[Exception], object] = lambda error: None
        self.has_stepped: Callable[[Any], object] = lambda optimizer: None
        self.losses: list[Any] | None = None  # takes what `backward` is called on

    def install(self) -> None:
        """Look at calls from now on; inside of a model nothing is slower."""
        self.calls = _ModelCalls(self._call)
        self.calls.watch()
        optim = importlib.import_module("torch.optim.optimizer")
        optim.register_optimizer_step_pre_hook(lambda one, *_: self.stepping(one))
        optim.register_optimizer_step_post_hook(lambda one, *_: self.stepped(one))

    def stepping(self, optimizer: Any) -> None:
        """An optimizer is about to step; in a replay it is told by that."""
        self.optimizers[id(optimizer)] = optimizer
        for hooks in () if self.is_replaying else self.on:
            for told in hooks.stepping:
                told(optimizer)

    def stepped(self, optimizer: Any) -> None:
        for hooks in self.on:
            for told in hooks.stepped:
                told()
        if not self.is_replaying:
            self.has_stepped(optimizer)

    def _call(self, model: Any, call: Any, args: Any, kwargs: Any) -> Any:
        self.models[id(model)] = model
        self.is_inside = True
        try:
            if self.keep is not None:
                return self.keep(model, call, args, kwargs)
            output = self._changed(model, call, args, kwargs)
        except Exception as error:
            if self.is_replaying or not self.on:
                raise
            self.gave_up(error)
            output = self._changed(model, call, args, kwargs)
        finally:
            self.is_inside = False
        for observe in self.called:
            observe(model, output)
        return output

    def _changed(self, model: Any, call: Any, args: Any, kwargs: Any) -> Any:
        every = [*self.installed, *self.on]
        run, prepares = call, [prepare for hooks in every for prepare in hooks.prepare]
        if prepares and (self.prepared is None or id(model) in self.prepared):
            if id(model) not in self.made:
                self.made[id(model)] = functools.reduce(lambda one, prepare: prepare(one), prepares, model)
            prepared = self.made[id(model)]
            run = call if prepared is model else prepared
        for hooks in every:
            for change in hooks.inputs:
                args = tuple(map(change, args))
                kwargs = {name: change(value) for name, value in kwargs.items()}
        with ExitStack() as stack:
            for hooks in every:
                for make in hooks.around:
                    stack.enter_context(make())
                    hooks.applied.add("model")
            output = run(*args, **kwargs)
        for hooks in every:
            for change in hooks.outputs:
                output = change(output)
        return output
