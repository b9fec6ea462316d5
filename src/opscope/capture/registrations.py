"""What this process's dispatcher knows that PyTorch's yaml files do not: custom operators, replaced ones.

Reads private parts of torch 2.6 to 2.14 (`_dispatch_dump`, `OPDEFS`). Where one is missing, what it would
have told is None; nothing here raises for that. Importing this module does not import torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from opscope.model.origin import OperatorRegistration, RegistrationKind
from opscope.workloads.runtime import require_torch

_ATEN = "aten::"
_KERNEL = re.compile(r"(?P<key>\w+)(?:\[alias\])?(?P<inactive> \(inactive\))?: (?P<origin>.*)")
_PLACE = re.compile(r"registered at (?P<place>.+?)(?: :: | \[|$)")
_GENERATED = "/build/aten/src/ATen/"  # PyTorch's own build: all before it is the folder it was built in
# A meta kernel computes shapes only; PyTorch registers hundreds of these in Python.
_SHAPES_ONLY = "Meta"
_CUSTOM_OPS_FILE = "torch/_library/custom_ops.py"
_TRITON_OPS_FILE = "torch/_library/triton.py"
# Where the wrappers live that torch puts around a user's function.
_WRAPPERS = re.compile(r"/torch/(?:_library/|_dynamo/|_compile\.py$|library\.py$)")
_DEFAULT_KERNEL = "CompositeExplicitAutograd"
_DEEPEST_WRAPPER = 8


@dataclass(frozen=True)
class _Place:
    """A Python function's lines."""

    file: str
    line: int
    end_line: int


@dataclass
class _Dump:
    """What `torch._C._dispatch_dump` says of one operator; places as they stand there."""

    schema: str | None = None
    definition: str | None = None
    active: dict[str, str | None] = field(default_factory=dict)
    inactive: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Origins:
    """The folders PyTorch was built in and is installed in, to shorten places and to tell its own code."""

    built_in: str | None
    installed_in: str

    def shortened(self, place: str | None) -> str | None:
        """The place, relative to PyTorch's repository if it is in there."""
        for root in (self.built_in, self.installed_in):
            if place is not None and root is not None and place.startswith(root):
                return place[len(root) :]
        return place

    def is_own_build(self, place: str | None) -> bool:
        """It is C++ that came with PyTorch. Unknown counts as such."""
        return place is None or self.built_in is None or place.startswith(self.built_in)


def collect_registrations(operator_names: Iterable[str]) -> tuple[OperatorRegistration, ...]:
    """Registrations of the named operators that are custom, or whose code was replaced, by name.

    Args:
        operator_names: As a trace records them, with or without overload; unknown ones are passed over.

    Raises:
        DependencyError: torch is not installed.
    """
    torch = require_torch()
    dump = getattr(torch._C, "_dispatch_dump", None)
    if dump is None:
        return ()
    origins = _Origins(_built_in(dump), f"{Path(torch.__file__).parents[1].as_posix()}/")
    found = (
        _registration(torch, name, _parsed(_text(dump, name)), origins)
        for name in sorted(_known_overloads(torch, operator_names))
    )
    return tuple(registration for registration in found if registration is not None)


def _known_overloads(torch: Any, operator_names: Iterable[str]) -> set[str]:
    """Names with overload that the dispatcher knows, of the given names with or without one."""
    list_names = getattr(torch._C, "_dispatch_get_all_op_names", None)
    wanted = set(operator_names)
    if list_names is None:
        return {name for name in wanted if "::" in name}
    return {name for name in list_names() if name in wanted or name.partition(".")[0] in wanted}


def _registration(torch: Any, name: str, dump: _Dump, origins: _Origins) -> OperatorRegistration | None:
    if name.startswith(_ATEN):
        return _replaced(name, dump, origins)
    definition = _custom_op(name)
    if definition is not None:
        return _of_custom_op(torch, name, definition, dump, origins)
    places = (dump.definition, *(place for key, place in dump.active.items() if key != _SHAPES_ONLY))
    place = next((place for place in places if _is_python(place)), None)
    return OperatorRegistration(
        name=name,
        kind=RegistrationKind.CXX if place is None else RegistrationKind.LIBRARY,
        schema=dump.schema,
        definition=origins.shortened(dump.definition),
        kernels={key: origins.shortened(one) for key, one in dump.active.items()},
        python_file=_file_of(origins.shortened(place)),
    )


def _replaced(name: str, dump: _Dump, origins: _Origins) -> OperatorRegistration | None:
    """A registration for an operator of PyTorch; None if all its code is PyTorch's own."""
    foreign = {
        key: place
        for key, place in dump.active.items()
        if key != _SHAPES_ONLY and not origins.is_own_build(place)
    }
    if not foreign:
        return None
    python = next((place for place in foreign.values() if _is_python(place)), None)
    function = _of_native_python(name, foreign, origins)
    return OperatorRegistration(
        name=name,
        kind=RegistrationKind.CXX if python is None else RegistrationKind.LIBRARY,
        schema=dump.schema,
        kernels={key: origins.shortened(place) for key, place in foreign.items()},
        python_file=function.file if function else _file_of(origins.shortened(python)),
        python_line=function.line if function else None,
        end_line=function.end_line if function else None,
        overrides={key: origins.shortened(dump.inactive.get(key)) for key in foreign},
    )


def _of_custom_op(
    torch: Any, name: str, definition: Any, dump: _Dump, origins: _Origins
) -> OperatorRegistration:
    """Its functions are at hand, so that places are theirs and not PyTorch's `custom_ops.py`."""
    written = getattr(definition, "_init_fn", None)
    is_triton = _TRITON_OPS_FILE in _file_text(written)
    function = _place(written, origins)
    kernels = {key: origins.shortened(place) for key, place in dump.active.items()}
    for key, place in _kernels_of(torch, definition, origins):
        if key in kernels:
            kernels[key] = f"{place.file}:{place.line}"
    if function is not None and _CUSTOM_OPS_FILE in (kernels.get(_DEFAULT_KERNEL) or ""):
        kernels[_DEFAULT_KERNEL] = f"{function.file}:{function.line}"
    return OperatorRegistration(
        name=name,
        kind=RegistrationKind.TRITON_OP if is_triton else RegistrationKind.CUSTOM_OP,
        schema=dump.schema,
        definition=None if function is None else f"{function.file}:{function.line}",
        kernels=kernels,
        python_file=None if function is None else function.file,
        python_line=None if function is None else function.line,
        end_line=None if function is None else function.end_line,
    )


def _custom_op(name: str) -> Any:
    """The CustomOpDef of an operator, None for any other."""
    module = sys.modules.get("torch._library.custom_ops")
    definitions = getattr(module, "OPDEFS", None)
    return None if definitions is None else definitions.get(name.partition(".")[0])


def _kernels_of(torch: Any, definition: Any, origins: _Origins) -> Iterator[tuple[str, _Place]]:
    """Dispatch key and function of the kernels that were given per device."""
    functions = getattr(definition, "_backend_fns", None)
    for device, function in dict(functions).items() if isinstance(functions, Mapping) else ():
        place = _place(function, origins)
        if place is not None:
            yield _DEFAULT_KERNEL if device is None else _dispatch_key(torch, str(device)), place


def _dispatch_key(torch: Any, device: str) -> str:
    key_for = getattr(torch._C, "_dispatch_key_for_device", None)
    return device.upper() if key_for is None else str(key_for(device))


def _of_native_python(name: str, foreign: Mapping[str, str | None], origins: _Origins) -> _Place | None:
    """The function that PyTorch's own Python kernels (2.13 on) put in place of a compiled one."""
    graphs = getattr(sys.modules.get("torch._native.registry"), "_graphs", None)
    if not isinstance(graphs, Mapping):
        return None
    for key in foreign:
        for node in graphs.get((name.removeprefix(_ATEN), key), ()):
            place = _place(getattr(node, "impl_fn", None), origins)
            if place is not None and getattr(node, "active", False):
                return place
    return None


def _place(function: Any, origins: _Origins) -> _Place | None:
    """Where the innermost function is that torch's decorators wrapped."""
    code = _code(function)
    if code is None:
        return None
    lines = [line for line in _lines(code) if line is not None]
    file = origins.shortened(code.co_filename) or code.co_filename
    return _Place(file, code.co_firstlineno, max(lines, default=code.co_firstlineno))


def _code(function: Any) -> CodeType | None:
    for _ in range(_DEEPEST_WRAPPER):
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType):
            return None
        if _WRAPPERS.search(_file_text(function)) is None:
            return code
        function = _wrapped(function)
    return None


def _wrapped(function: FunctionType) -> Any:
    """What a wrapper calls: `__wrapped__`, else what it holds under the name `fn`, else its only function."""
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        return wrapped
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # empty
            continue
    functions = {name: value for name, value in held.items() if isinstance(value, FunctionType)}
    return functions.get("fn") or (next(iter(functions.values())) if len(functions) == 1 else None)


def _lines(code: CodeType) -> Iterator[int | None]:
    for _, _, line in code.co_lines():
        yield line
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)


def _text(dump: Callable[[str], str], name: str) -> str:
    try:
        return dump(name)
    except RuntimeError:  # not registered (any more)
        return ""


def _parsed(text: str) -> _Dump:
    dump = _Dump()
    for line in text.splitlines():
        head, _, rest = line.partition(": ")
        if head == "schema":
            dump.schema = rest
        elif head == "debug":
            dump.definition = _place_in(rest)
        elif head not in {"name", "alias analysis kind"}:
            _add_kernel(dump, line)
    return dump


def _add_kernel(dump: _Dump, line: str) -> None:
    kernel = _KERNEL.fullmatch(line)
    if kernel is not None:
        kernels = dump.inactive if kernel["inactive"] else dump.active
        kernels.setdefault(kernel["key"], _place_in(kernel["origin"]))


def _place_in(origin: str) -> str | None:
    found = _PLACE.match(origin)
    return None if found is None else found["place"]


def _built_in(dump: Callable[[str], str]) -> str | None:
    """The folder PyTorch was built in, with a slash, as an operator that always exists says it."""
    place = _parsed(_text(dump, "aten::empty.memory_format")).definition
    root, found, _ = (place or "").partition(_GENERATED)
    return f"{root}/" if found else None


def _is_python(place: str | None) -> bool:
    return place is not None and place.rpartition(":")[0].endswith((".py", ">"))


def _file_of(place: str | None) -> str | None:
    return None if place is None else place.rpartition(":")[0]


def _file_text(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return code.co_filename.replace("\\", "/") if isinstance(code, CodeType) else ""
