"""Calls of models, modules with parameters, from outside of any; without a trace in the calls inside.

`nn.Module.__call__` is replaced: torch's own hooks on all modules would cost each call, and torch.compile
warns of them. It stays replaced while a module runs, since with each change of the class Python forgets what
it looked up on modules: an eager step took up to a sixth longer on the host, and a compiled one, whose guards
look the class up, twice as long. A compiled model may have kept the replacement, and the compiler looks
through that. Importing this module does not import torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

from opscope.workloads.runtime import require_torch


class OutermostCalls:
    """Stands for `nn.Module.__call__` where a module is called, not where the class is asked for it.

    Torch's tracer of Python frames takes each frame of the code that the class answers with for the call of a
    module, for as long as the process lives, and reads the module from the local `self` of it. So the class
    answers with torch's own function, and ours is around that.

    `around` is called in place of a model with it, what calls it, and the arguments; it returns the output. A
    module without parameters (a loss, a transform of images) counts as none: what it calls may.
    """

    def __init__(
        self, around: Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        torch = require_torch()
        module_class, compiler = torch.nn.Module, torch.compiler
        # Of torch, or of another of these that watches already.
        before = vars(module_class)["__call__"]
        self._module_class, self._before, self._bound = module_class, before, before.__get__
        self._of_torch = module_class.__call__
        self._is_watching = self._is_inside = False

        @functools.wraps(self._of_torch)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside or compiler.is_compiling() or next(module.parameters(), None) is None:
                return self._bound(module)(*args, **kwargs)
            # What records Python frames would record ours for each module.
            if torch.autograd._profiler_enabled():
                module_class.__call__ = before
            self._is_inside = True
            try:
                return around(module, self._bound(module), args, kwargs)
            finally:
                self._is_inside = False
                if self._is_watching:
                    self.watch()

        self._call = call

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None:
            return self._of_torch
        return self._bound(module) if self._is_inside else MethodType(self._call, module)

    def watch(self) -> None:
        """Look at calls from now on; asked again where the compiler may have run outside of a model's call.

        Torch's tracer of graphs, which the compiler uses, for backward passes too, puts back torch's own.
        """
        self._is_watching = True
        if vars(self._module_class)["__call__"] is not self:
            self._module_class.__call__ = self

    def stop(self) -> None:
        if self._is_watching:
            self._is_watching, self._module_class.__call__ = False, self._before
