"""Which functions of the user are benchmarked: those of files by name, marked ones, or functions themselves.

Importing this module does not import torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from opscope.benchmarking.decorator import FunctionGroup, mark_of, marked_functions, marked_groups
from opscope.errors import InputError
from opscope.workloads.user_code import function_of, is_file_name, load_module

__all__ = [
    "DEFAULT_INPUTS",
    "group_of_functions",
    "groups_of_targets",
    "is_target",
    "named_functions",
    "plain_name",
    "selected",
]

DEFAULT_INPUTS = "make_inputs"
_TARGET_HINT = "Write FILE.py:function or PACKAGE.MODULE:function"


def is_target(text: str) -> bool:
    """Whether a text names a file or a function rather than a suite."""
    return ":" in text or is_file_name(text)


def groups_of_targets(
    targets: Sequence[str],
    *,
    inputs: Any = None,
    expected: Any = None,
) -> tuple[FunctionGroup, ...]:
    """The functions a command line names: the marked ones of a `FILE.py`, or those of `FILE.py:function …`.

    Args:
        targets: As written; a file without a function stands alone.
        inputs: The inputs function or its target; if None, the mark's, or the first file's `make_inputs`.
        expected: The function that computes the right answer, or its target.

    Raises:
        InputError: A target cannot be loaded, or a file has no marked functions.
    """
    modules = _Modules()
    alone = [target for target in targets if ":" not in target]
    if alone and len(targets) > 1:
        raise InputError(
            f"'{alone[0]}' names no function, and stands beside other targets",
            hint="Give one FILE.py with @opscope.benchmark functions, or a FILE.py:function for each",
        )
    groups = _marked(modules, targets[0]) if alone else (_named(modules, targets),)
    return tuple(
        replace(
            group,
            inputs=group.inputs if inputs is None else modules.resolved(inputs),
            expected=group.expected if expected is None else modules.resolved(expected),
        )
        for group in groups
    )


class _Modules:
    """Loads each file once, so that functions of one file are of one module."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}

    def module(self, where: str) -> ModuleType:
        key = str(Path(where).resolve()) if is_file_name(where) else where
        if key not in self._modules:
            self._modules[key] = load_module(where, hint=_TARGET_HINT)
        return self._modules[key]

    def function(self, target: str) -> Callable[..., Any]:
        where, name = _split(target)
        return function_of(self.module(where), name, where)

    def resolved(self, source: Any) -> Any:
        return self.function(source) if isinstance(source, str) else source


def _split(target: str) -> tuple[str, str]:
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise InputError(f"'{target}' names no function", hint=_TARGET_HINT)
    return where, name


def _marked(modules: _Modules, target: str) -> tuple[FunctionGroup, ...]:
    module = modules.module(target)
    functions = marked_functions(module)
    if not functions:
        raise InputError(
            "no function of this file is marked with @opscope.benchmark",
            source=target,
            hint=f"Mark them, or name them: {target}:fast {target}:slow --inputs {target}:make_inputs",
        )
    own = Path(target).name
    groups = marked_groups(functions, own)
    default = getattr(module, DEFAULT_INPUTS, None)
    return tuple(
        replace(
            group,
            name=group.name if group.name == own else f"{own}:{group.name}",
            inputs=default if group.inputs is None else group.inputs,
        )
        for group in groups
    )


def _named(modules: _Modules, targets: Sequence[str]) -> FunctionGroup:
    pairs = [_split(target) for target in targets]
    functions = [modules.function(target) for target in targets]
    names = _distinct([(Path(where).stem, name) for where, name in pairs])
    files = dict.fromkeys(Path(where).name for where, _ in pairs)
    group = group_of_functions(dict(zip(names, functions, strict=True)), name=", ".join(files))
    default = getattr(modules.module(pairs[0][0]), DEFAULT_INPUTS, None)
    return replace(group, inputs=default if group.inputs is None else group.inputs)


def _distinct(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Names of functions; with their file where those are alike, counted where that is alike too."""
    names = [name for _, name in pairs]
    if len(set(names)) < len(names) and len({stem for stem, _ in pairs}) > 1:
        names = [f"{stem}:{name}" for stem, name in pairs]
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[index] = f"{name} ({seen[name]})"
    return names


def named_functions(targets: Sequence[Any]) -> dict[str, Callable[..., Any]]:
    """Functions by name, from functions and mappings of them.

    Raises:
        InputError: One is neither.
    """
    pairs: list[tuple[str, Callable[..., Any]]] = []
    for target in targets:
        if isinstance(target, Mapping):
            pairs += target.items()
        elif callable(target):
            mark = mark_of(target)
            pairs.append(((mark.name if mark else None) or plain_name(target), target))
        else:
            raise InputError(
                f"a {type(target).__name__} is neither a function nor a suite", hint="Give functions by name"
            )
    names = _distinct([("", name) for name, _ in pairs])
    return {name: function for name, (_, function) in zip(names, pairs, strict=True)}


def plain_name(function: Any) -> str:
    """What a function calls itself."""
    if isinstance(function, functools.partial):
        return plain_name(function.func)
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def group_of_functions(
    functions: Mapping[str, Callable[..., Any]],
    *,
    name: str | None = None,
    inputs: Any = None,
    reference: str | None = None,
    expected: Callable[..., Any] | None = None,
) -> FunctionGroup:
    """A group of functions by name; what is not given comes from the marks of those that have one.

    Raises:
        InputError: There is none, one is no function, or their marks contradict each other.
    """
    if not functions:
        raise InputError("there is nothing to benchmark", hint="Give functions, or the name of a suite")
    marks = []
    for key, function in functions.items():
        if not callable(function):
            raise InputError(f"'{key}' is a {type(function).__name__}, not a function")
        marks.append(mark_of(function))
    stated = [mark for mark in marks if mark is not None]
    chosen = reference or next((mark.reference for mark in stated if mark.reference), None)
    chosen = chosen or next(
        (key for key, m in zip(functions, marks, strict=True) if m and m.is_reference), None
    )
    return FunctionGroup(
        name or ", ".join(functions),
        dict(functions),
        inputs=next((m.inputs for m in stated if m.inputs is not None), None) if inputs is None else inputs,
        reference=chosen,
        expected=expected or next((mark.expected for mark in stated if mark.expected), None),
        params=next((mark.params for mark in stated if mark.params), {}),
    )


def selected(group: FunctionGroup, names: Collection[str]) -> FunctionGroup:
    """The group without the functions that are neither named nor the reference; whole if none is named.

    Raises:
        InputError: There is no function of a name; the message lists those there are.
    """
    for name in [*names, *([group.reference] if group.reference else [])]:
        if name not in group.functions:
            raise InputError(
                f"'{group.name}' has no function '{name}'", hint=f"It has: {', '.join(group.functions)}"
            )
    if not names:
        return group
    reference = group.reference or next(iter(group.functions))
    kept = {key: fn for key, fn in group.functions.items() if key in names or key == reference}
    return replace(group, functions=kept, reference=reference)
