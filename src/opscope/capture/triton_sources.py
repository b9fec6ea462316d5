"""Hand-written Triton kernels of a trace → the Python file and line of their functions.

A trace names no file for a kernel that the program launches itself, so the function is found in the process,
by the kernel's name. Only functions that were launched count (Triton's own library has many that are only
called), and of several equal names none, unless they lie in one place. Imports nothing of torch or Triton.
"""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from collections.abc import Iterable, Set
from typing import Any

from opscope.model.origin import RecordedSource, SourceEvidence, SourceKind

__all__ = ["triton_sources"]

_Place = tuple[str, int]  # file, first line (of the decorators)


def triton_sources(kernels: Set[str], functions: Iterable[Any]) -> list[RecordedSource]:
    """Sources of the kernels that one of Triton's functions is named after.

    Args:
        kernels: Kernel names in the trace.
        functions: Triton's `JITFunction`s of this process.
    """
    candidates: dict[str, list[Any]] = defaultdict(list)
    for function in functions:
        name = getattr(getattr(function, "fn", None), "__name__", None)
        if isinstance(name, str) and name in kernels and _was_launched(function):
            candidates[name].append(function)
    sources = (_source(name, same) for name, same in sorted(candidates.items()))
    return [source for source in sources if source is not None]


def _source(name: str, functions: list[Any]) -> RecordedSource | None:
    places = {place for function in functions if (place := _place(function)) is not None}
    if len(places) != 1:
        return None
    ((file, first_line),) = places
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    if not text:  # Not a file anyone can open, as in exec of a string.
        return None
    line, end_line = _definition_lines(text, name, first_line) or (first_line, None)
    return RecordedSource(
        kernel=name,
        kind=SourceKind.TRITON,
        evidence=SourceEvidence.PROCESS,
        file=file,
        line=line,
        end_line=end_line,
    )


def _was_launched(function: Any) -> bool:
    """Whether it ever was: `device_caches` (Triton 3.2 on) or `cache` then holds its binaries.

    True where this Triton has neither, and so cannot tell.
    """
    caches = [getattr(function, name) for name in ("device_caches", "cache") if hasattr(function, name)]
    return any(caches) or not caches


def _place(function: Any) -> _Place | None:
    code = getattr(function.fn, "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def _definition_lines(text: str, name: str, first_line: int) -> tuple[int, int | None] | None:
    """Lines of the `def` whose decorators, or itself, begin at a line; None if the file says otherwise."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            if first_line in {first, node.lineno}:
                return node.lineno, node.end_lineno
    return None
