"""The user's file or module, imported, and the functions in it.

The file's folder (for a module: the working folder) is put at the end of `sys.path`, so that its siblings can
be imported. A file is imported under a name of its own, so that two files called train.py do not replace each
other; every failure is an InputError that names the file and the line. Importing this module does not import
torch.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from opscope.errors import InputError

_DEFAULT_HINT = "Write file.py:function or package.module:function"


def load_function(target: str, *, hint: str = _DEFAULT_HINT) -> Callable[..., Any]:
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise InputError(f"'{target}' names no function", hint=hint)
    return function_of(load_module(where, hint=hint), name, where)


def load_module(where: str, *, hint: str = _DEFAULT_HINT) -> ModuleType:
    if is_file_name(where):
        return import_file(Path(where), hint=hint)
    _make_importable(Path.cwd())
    try:
        return import_module(where)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (where == missing or where.startswith(f"{missing}.")):
            raise InputError(
                f"there is no module '{where}'", hint="Install it or run from its folder"
            ) from error
        raise InputError(_import_failure(error, None), source=where) from error


def is_file_name(where: str) -> bool:
    return where.endswith(".py") or "/" in where or "\\" in where


def function_of(module: ModuleType, name: str, where: str) -> Callable[..., Any]:
    """The function of that name (dotted for attributes of attributes) in what the user called `where`."""
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
    """The module of a Python file, which is executed at every call."""
    if not file.is_file():
        raise InputError("no such file", source=file, hint=hint)
    path = file.resolve()
    # A name of its own per path: two targets called train.py must not replace each other in sys.modules.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    spec = spec_from_file_location(f"opscope_target_{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file", source=file, hint=hint)
    _make_importable(path.parent)
    module = module_from_spec(spec)
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
