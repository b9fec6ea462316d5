"""Running a script or a module in this process as `python` would.

It has its own `sys.argv`, `sys.path[0]` and `__main__`; its output is its own, its errors are shown as Python
shows them, and where Python would exit, the exit code is returned. What it sets before its first
`import torch` (threads, devices, logging) must still count, so nothing here imports for it: `after_import`
only tells when a module has been imported. Imports nothing of torch.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from opscope.capture.main_loop import ROUND, MainLoop
from opscope.errors import InputError
from opscope.signals import ending_signals_raise

_EXIT_FAILED = 1
# What stands between Python and the program's own code.
_OWN_FILES = {
    str(Path(__file__).with_name(name))
    for name in ("main_loop.py", "outermost_calls.py", "program.py", "program_recorder.py")
}
_WRAP = "__opscope_step__"


@dataclass(frozen=True)
class Program:
    target: str  # a Python file, or the full name of a module
    arguments: tuple[str, ...] = ()  # what it finds in `sys.argv` after its own name
    is_module: bool = False
    step_function: str | None = None  # of it, to wrap
    wrap: Callable[[Any], Any] | None = None
    main_loop: MainLoop | None = None  # whose rounds may be its steps


@dataclass(frozen=True)
class ProgramEnd:
    """How it ended: what Python would exit with, and what it raised, unless it ended well."""

    exit_code: int
    error: BaseException | None = None


# The code of a program, its file, its loader, and the module that it is of.
_Main = tuple[CodeType, str, Any, ModuleSpec | None]


def check_program(program: Program) -> None:
    """Refuse a script that cannot be run; of a module only a run can tell."""
    if not program.is_module:
        _load_script(program)


def run_program(
    program: Program, on_start: Callable[[], object], on_end: Callable[[ProgramEnd], object]
) -> ProgramEnd:
    """Run it to its end; its error, if any, has been shown.

    `on_start` is called before its first line, and what it raises is raised; `on_end` with the end while the
    program's `__main__` still exists.
    """
    with _as_python(program):
        code, file, loader, spec = (_load_module if program.is_module else _load_script)(program)
        module = ModuleType("__main__")
        module.__dict__.update(
            __file__=file,
            __loader__=loader,
            __spec__=spec,
            __package__=spec.parent if spec else None,
            __cached__=spec.cached if spec else None,
            __builtins__=__builtins__,
        )
        if program.wrap is not None:
            module.__dict__[_WRAP] = program.wrap
        if program.main_loop is not None:
            module.__dict__[ROUND] = program.main_loop.round
        sys.modules["__main__"] = module
        sys.argv[0] = file if program.is_module else program.target
        on_start()
        end = _execute(code, module)
        on_end(end)
    return end


def _execute(code: CodeType, module: ModuleType) -> ProgramEnd:
    try:
        exec(code, module.__dict__)
    except SystemExit as error:
        exit_code = 0 if error.code is None else error.code
        if not isinstance(exit_code, int):  # as Python does, a text is shown and is a failure
            sys.stderr.write(f"{exit_code}\n")
            exit_code = _EXIT_FAILED
        return ProgramEnd(exit_code, error if exit_code else None)
    except BaseException as error:  # noqa: BLE001 - whatever it raises, Python would end with it
        # Shown by the program's own hook if it has one, without the frames of this package.
        error.__traceback__ = trace = _without_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, trace)
        # 128 + SIGINT
        return ProgramEnd(130 if isinstance(error, KeyboardInterrupt) else _EXIT_FAILED, error)
    return ProgramEnd(0)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    if trace is not None:
        trace.tb_next = _without_own_frames(trace.tb_next)
    return trace


@contextmanager
def _as_python(program: Program) -> Iterator[None]:
    """The process as Python prepares it for a program; afterwards as it was."""
    saved = (sys.argv, sys.path[:], sys.modules["__main__"], sys.stdout, sys.stderr)
    folder = str(Path.cwd()) if program.is_module else str(Path(program.target).resolve().parent)
    sys.argv = [program.target, *program.arguments]
    sys.path[:1] = [folder]
    try:
        # Asked to end, it is as if it had exited: what it recorded is saved.
        with ending_signals_raise(lambda number: SystemExit(128 + number)):
            yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or replaced by anything
                stream.flush()
        sys.argv, sys.path[:], sys.modules["__main__"], sys.stdout, sys.stderr = saved


def _load_script(program: Program) -> _Main:
    path = Path(program.target)
    if path.is_dir():
        raise InputError("a folder is not a script", source=path, hint="Name a file in it, or use -m PACKAGE")
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = "no such script" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise InputError(reason, source=path, hint="Name a Python file") from error
    file = os.path.abspath(path)  # noqa: PTH100 - links stay, as in Python's own __file__
    return _compile(content, file, program), file, SourceFileLoader("__main__", file), None


def _load_module(program: Program) -> _Main:
    """A module's code; importing its packages runs their code."""
    spec = _find_spec(program.target)
    if spec.submodule_search_locations is not None:
        spec = _find_spec(f"{program.target}.__main__")
    loader: Any = spec.loader
    source = loader.get_source(spec.name) if hasattr(loader, "get_source") else None
    code: CodeType | None
    if (program.step_function or program.main_loop) and source is not None:
        code = _compile(source.encode(), str(spec.origin), program)
    else:
        code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise InputError(f"module '{program.target}' has no Python code to run")
    return code, str(spec.origin), loader, spec


def _find_spec(name: str) -> ModuleSpec:
    try:
        spec = find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not name.startswith(error.name):
            raise InputError(f"importing '{name}' fails ({error})") from error
        spec = None
    except (ImportError, ValueError) as error:
        raise InputError(f"'{name}' cannot be imported ({error})") from error
    if spec is None:
        raise InputError(f"there is no module '{name}'", hint="Install it, or run from its folder")
    return spec


def _compile(content: bytes, file: str, program: Program) -> CodeType:
    try:
        tree = ast.parse(content, file)
        if program.step_function is not None:
            _mark(tree, program.step_function, file)
        if program.main_loop is not None:
            program.main_loop.mark(tree, content.decode(errors="replace"))
        return compile(tree, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"line {error.lineno} " if error.lineno else ""
        raise InputError(f"not Python: {where}({error.msg})", source=file) from error
    except ValueError as error:  # a null character, before Python 3.12
        raise InputError(f"not Python ({error})", source=file) from error


def _mark(tree: ast.Module, function: str, file: str) -> None:
    """Decorate a function of the program, outermost, with what `__main__` has under that name."""
    body: list[ast.stmt] = tree.body
    *owners, name = function.split(".")
    for owner in owners:
        found = [one for one in body if isinstance(one, ast.ClassDef) and one.name == owner]
        body = found[-1].body if found else []
    functions = [
        one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name
    ]
    if not functions:
        defined = sorted({one.name for one in tree.body if isinstance(one, ast.FunctionDef)})
        raise InputError(
            f"there is no function '{function}' whose calls are steps",
            source=file,
            hint=f"It defines: {', '.join(defined) or '-'}",
        )
    for one in functions:
        # On the first line of the function as it was, which is what code objects and tools remember.
        place = one.decorator_list[0] if one.decorator_list else one
        one.decorator_list.insert(0, ast.copy_location(ast.Name(_WRAP, ast.Load()), place))


_Callbacks = Mapping[str, Callable[[ModuleType], None]]


@contextmanager
def after_import(callbacks: _Callbacks) -> Iterator[None]:
    """Inside the block, call each function once with its module, as soon as that is wholly imported.

    Modules that are imported already count as imported now.
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


class _Finder(MetaPathFinder):
    """Finds nothing itself: it has the others find, and hangs the callback on the loader they answer with."""

    def __init__(self, callbacks: _Callbacks) -> None:
        self._waiting = {name: one for name, one in callbacks.items() if name not in sys.modules}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                self._hang_on(spec, fullname)
                return spec
        return None

    def _hang_on(self, spec: ModuleSpec, name: str) -> None:
        loader = spec.loader
        if loader is None or isinstance(loader, type):  # a namespace; a class all built-in modules share
            return
        execute = loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._waiting.pop(name)(module)

        # On this one loader, so that the module keeps the loader it would have had.
        loader.exec_module = execute_and_tell  # type: ignore[method-assign]
