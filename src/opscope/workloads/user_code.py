"""Importing code the user names: `file.py:function`, `package.module:function` or a whole `file.py`.

A file is imported under a name of its own, so that two files called train.py do not replace each other. Its
folder (for a module: the working folder) is put at the end of `sys.path`, so that its siblings can be
imported. Every failure is an InputError that names the file and the line. Imports nothing of torch.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from opscope.errors import InputError

__all__ = ["failure_place", "function_of", "import_file", "is_file_name", "load_function", "load_module"]

_DEFAULT_HINT = "Write file.py:function or package.module:function"


def load_function(target: str, *, hint: str = _DEFAULT_HINT) -> Callable[..., Any]:
    """The function that `target` names; its file or module is imported now.

    Args:
        target: `file.py:function` or `package.module:function`; attributes of attributes are found too.
        hint: How such a target is written, for errors.

    Raises:
        InputError: No such file, module or attribute, not callable, or its import fails.
    """
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise InputError(f"'{target}' names no function", hint=hint)
    return function_of(load_module(where, hint=hint), name, where)


def load_module(where: str, *, hint: str = _DEFAULT_HINT) -> ModuleType:
    """The module of a file or of a dotted name.

    Raises:
        InputError: No such file or module, or its import fails.
    """
    return import_file(Path(where), hint=hint) if is_file_name(where) else _import_module(where)


def is_file_name(where: str) -> bool:
    """Whether the part before the colon names a file rather than a module."""
    return where.endswith(".py") or "/" in where or "\\" in where


def function_of(module: ModuleType, name: str, where: str) -> Callable[..., Any]:
    """The function of that name in a module.

    Args:
        module: Where to look.
        name: Dotted for attributes of attributes.
        where: What the user called the module, for errors.

    Raises:
        InputError: There is none; the message lists what there is.
    """
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
        if function is None:
            defined = sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_")
            raise InputError(
                f"there is no '{name}'", source=where, hint=f"It defines: {', '.join(defined) or '-'}"
            )
    if not callable(function):
        raise InputError(f"'{name}' is a {type(function).__name__}, not a function", source=where)
    return function  # type: ignore[no-any-return]


def import_file(file: Path, *, hint: str = _DEFAULT_HINT) -> ModuleType:
    """The module of a Python file, which is executed at every call.

    Raises:
        InputError: No such file, or its import fails.
    """
    if not file.is_file():
        raise InputError("no such file", source=file, hint=hint)
    path = file.resolve()
    # A name of its own per path: two targets called train.py must not replace each other in sys.modules.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"opscope_target_{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file", source=file, hint=hint)
    _make_importable(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a function's module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise InputError(
            _import_failure(error, path), source=file, hint="Run it with python to see it all"
        ) from error
    return module


def failure_place(error: BaseException, path: Path | None) -> str | None:
    """The last line of the file that was executed before an error, or of the last file if `path` is None."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if path is not None and frame.filename == str(path)]
    if own:
        return f"line {own[-1].lineno}"
    if path is None and frames:
        return f"{Path(frames[-1].filename).name} line {frames[-1].lineno}"
    return None


def _import_module(name: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(
                f"there is no module '{name}'", hint="Install it or run from its folder"
            ) from error
        raise InputError(_import_failure(error, None), source=name) from error
    except (Exception, SystemExit) as error:
        raise InputError(_import_failure(error, None), source=name) from error


def _make_importable(directory: Path) -> None:
    folder = str(directory)
    if folder not in sys.path:
        sys.path.append(folder)


def _import_failure(error: BaseException, path: Path | None) -> str:
    """What went wrong and on which line of the file, or of the last file executed if `path` is None."""
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, SyntaxError):
        return f"its import fails in line {error.lineno} ({type(error).__name__}: {error.msg})"
    place = failure_place(error, path)
    return f"its import fails in {place} ({reason})" if place else f"its import fails ({reason})"
