"""Being told when a module has been imported, without importing it.

What a program sets before its first `import torch` (threads, devices, logging) must still count, so nothing
here imports for it. Imports nothing of torch.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["after_import"]

_Callbacks = Mapping[str, Callable[[ModuleType], None]]


@contextmanager
def after_import(callbacks: _Callbacks) -> Iterator[None]:
    """Inside the block, call each function once with its module, as soon as that is wholly imported.

    Modules that are imported already count as imported now.

    Args:
        callbacks: Functions by full module name.
    """
    finder = _Finder(callbacks)
    sys.meta_path.insert(0, finder)
    try:
        for name, callback in callbacks.items():
            if name in sys.modules:
                callback(sys.modules[name])
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it has the others find, and hangs the callback on the loader they answer with."""

    def __init__(self, callbacks: _Callbacks) -> None:
        self._waiting = {name: one for name, one in callbacks.items() if name not in sys.modules}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._hang_on(spec, fullname)
                return spec
        return None

    def _hang_on(self, spec: ModuleSpec, name: str) -> None:
        loader = spec.loader
        if loader is None or isinstance(
            loader, type
        ):  # A namespace; a class that all built-in modules share.
            return
        execute = loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._waiting.pop(name)(module)

        # On this one loader, so that the module keeps the loader it would have had.
        loader.exec_module = execute_and_tell  # type: ignore[method-assign]
