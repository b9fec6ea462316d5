"""The Triton kernels as functions of tensors, compiled for a GPU or run by Triton's interpreter on the CPU.

Triton decides when a kernel is declared, and for the whole process. Here the source is loaded once for each,
as two modules, so that both can be used side by side; Triton's own settings and functions are left as they
were found. Not for several threads at once: the interpreter replaces functions of `triton.language` while it
runs. Importing this module imports neither torch nor Triton.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from opscope.errors import DependencyError

__all__ = ["TRITON_MODULES", "interpreted", "load_triton", "require_triton"]

TRITON_MODULES = ("elementwise", "softmax", "layer_norm", "matmul")

_PACKAGE = "opscope.kernels.triton"
_INTERPRETED_PACKAGE = "opscope.kernels.triton_interpreted"
_VARIABLE = "TRITON_INTERPRET"


def require_triton() -> Any:
    """The triton module.

    Raises:
        DependencyError: Triton is not installed, or cannot be imported here.
    """
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        what = "is not installed" if error.name == "triton" else f"cannot be imported ({error})"
        raise DependencyError(f"Triton {what}", hint="pip install 'opscope[triton]'") from error


@functools.cache
def load_triton(name: str, *, interpret: bool = False) -> ModuleType:
    """A module of kernels, such as `"softmax"`: its kernels are compiled, or interpreted.

    Functions of an interpreted module are to be called through `interpreted`.

    Raises:
        DependencyError: Triton is not installed.
    """
    require_triton()
    with _interpreter_set(interpret):
        if not interpret:
            return importlib.import_module(f"{_PACKAGE}.{name}")
        return _second_copy(name)


def interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of an interpreted module, made callable in a process that also compiles kernels.

    Triton declared its own helpers (`tl.sum`, `tl.cdiv`, …) as compiled functions when it was imported. While
    this function runs they are interpreted too, and afterwards everything the interpreter replaced is put
    back.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _interpreting():
            return function(*args, **kwargs)

    return call


def _second_copy(name: str) -> ModuleType:
    """The module loaded again, from the same file, under another name."""
    source = importlib.util.find_spec(f"{_PACKAGE}.{name}")
    if source is None or source.origin is None:
        raise ModuleNotFoundError(f"No module named '{_PACKAGE}.{name}'")
    alias = f"{_INTERPRETED_PACKAGE}.{name}"
    spec = importlib.util.spec_from_file_location(alias, source.origin)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise
    return module


@contextmanager
def _interpreter_set(on: bool) -> Iterator[None]:
    """Kernels declared inside the block are interpreted, or compiled; the setting is restored after it."""
    knobs = getattr(require_triton(), "knobs", None)
    if knobs is not None:
        with knobs.runtime.scope():
            knobs.runtime.interpret = on
            yield
        return
    before = os.environ.get(_VARIABLE)  # Triton before 3.4 reads nothing else
    os.environ[_VARIABLE] = "1" if on else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


@contextmanager
def _interpreting() -> Iterator[None]:
    """Compiled helper functions are interpreted inside the block; `triton.language` is restored after it."""
    jit: Any = importlib.import_module("triton.runtime.jit")
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    made: dict[Any, Any] = {}

    def call(compiled: Any, *args: Any, **kwargs: Any) -> Any:
        if compiled.fn not in made:
            made[compiled.fn] = interpreter.InterpretedFunction(compiled.fn)
        return made[compiled.fn](*args, **kwargs)

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)
        tensor.__index__ = _index

    saved = _language_namespaces()
    refusing = jit.JITFunction.__call__
    jit.JITFunction.__call__ = call
    interpreter._patch_lang_tensor = patch_tensor_and_index
    try:
        # As on a GPU, overflow is infinity and no warning.
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            yield
    finally:
        interpreter._patch_lang_tensor = patch_tensor
        jit.JITFunction.__call__ = refusing
        _restore(saved)


def _index(scalar: Any) -> int:
    """An interpreted scalar as an index; Triton up to 3.6 reads it in a way that NumPy 2.4 refuses."""
    return int(scalar.handle.data.item())


def _language_namespaces() -> list[tuple[Any, dict[str, Any]]]:
    """The modules and classes of `triton.language`, each with what it holds now."""
    prefix = "triton.language"
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name == prefix or name.startswith(f"{prefix}.")
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.startswith(prefix)
    }
    return [(owner, dict(vars(owner))) for owner in (*modules, *classes)]


def _restore(saved: list[tuple[Any, dict[str, Any]]]) -> None:
    for owner, before in saved:
        now = dict(vars(owner))
        for name, value in before.items():
            if now.get(name) is not value:
                setattr(owner, name, value)
        if isinstance(owner, type):  # Names added to modules stay: rewritten helpers refer to them.
            for name in now.keys() - before.keys():
                delattr(owner, name)
