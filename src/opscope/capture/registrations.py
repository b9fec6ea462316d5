"""What this process's dispatcher knows that PyTorch's yaml files do not: custom operators, replaced ones.

Reads private parts of torch 2.6 to 2.15 (`_dispatch_dump`, `OPDEFS`). Where one is missing, what it would
have told is None; nothing here raises for that. Importing this module does not import torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from opscope.model.origin import OperatorRegistration, RegistrationKind
from opscope.workloads.runtime import require_torch

_ATEN = "aten::"
_KERNEL = re.compile(r"(?P<key>\w+)(?:\[alias\])?(?P<inactive> \(inactive\))?: (?P<origin>.*)")
_PLACE = re.compile(r"registered at (?P<place>.+?)(?: :: | \[|$)")
_NOWHERE = "/dev/null"  # where releases up to 2.6 say that Python registers
_CUSTOM_OPS_FILE, _TRITON_OPS_FILE = "torch/_library/custom_ops.py", "torch/_library/triton.py"
# Where the wrappers live that torch puts around a user's function.
_WRAPPERS = re.compile(r"/torch/(?:_library/|_dynamo/|_compile\.py$|library\.py$)")
_DEFAULT_KERNEL = "CompositeExplicitAutograd"


def collect_registrations(operator_names: Iterable[str]) -> tuple[OperatorRegistration, ...]:
    """Registrations of the named operators that are custom, or whose code was replaced, by name.

    Names are as a trace records them, with or without overload; unknown ones are passed over.
    """
    torch = require_torch()
    if not hasattr(torch._C, "_dispatch_dump"):
        return ()
    # An operator that always exists says in which folder PyTorch was built.
    origin = _dump(torch, f"{_ATEN}empty.memory_format")[1] or ""
    built_in, is_found, _ = origin.partition("/build/aten/src/ATen/")
    folders = (f"{built_in}/" if is_found else None, f"{Path(torch.__file__).parents[1].as_posix()}/")
    wanted, list_names = set(operator_names), getattr(torch._C, "_dispatch_get_all_op_names", None)
    if list_names is None:
        known = {name for name in wanted if "::" in name}
    else:
        known = {name for name in list_names() if name in wanted or name.partition(".")[0] in wanted}
    found = map(_Reader(torch, folders).registration, sorted(known))
    return tuple(one for one in found if one is not None)


_Places = dict[str, str | None]  # by dispatch key, as they stand in the dump


def _dump(torch: Any, name: str) -> tuple[str | None, str | None, _Places, _Places]:
    """Schema, place of the definition, and places of the kernels in force and of those behind them."""
    schema = definition = None
    active: _Places = {}
    inactive: _Places = {}
    lines: list[str] = []
    with suppress(RuntimeError):  # not registered (any more)
        lines = torch._C._dispatch_dump(name).splitlines()
    for line in lines:
        head, _, rest = line.partition(": ")
        if head == "schema":
            schema = rest
        elif head == "debug":
            definition = _place_in(rest)
        elif head not in {"name", "alias analysis kind"} and (kernel := _KERNEL.fullmatch(line)) is not None:
            kernels = inactive if kernel["inactive"] else active
            kernels.setdefault(kernel["key"], _place_in(kernel["origin"]))
    return schema, definition, active, inactive


def _place_in(origin: str) -> str | None:
    found = _PLACE.match(origin)
    return None if found is None else found["place"]


@dataclass(frozen=True)
class _Reader:
    """Reads one operator after another; places in PyTorch become relative to its repository.

    Its folders are where PyTorch was built, if that is known, and where it is installed.
    """

    torch: Any
    folders: tuple[str | None, str]

    def registration(self, name: str) -> OperatorRegistration | None:
        """What is to be told of an operator; None if all its code is PyTorch's own."""
        schema, definition, active, inactive = _dump(self.torch, name)
        is_aten, built_in = name.startswith(_ATEN), self.folders[0]
        definitions = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", None) or {}
        custom = definitions.get(name.partition(".")[0])
        if custom is not None and not is_aten:
            return self._custom(name, schema, active, custom)
        # A meta kernel computes shapes only; PyTorch registers hundreds of these in Python.
        code = {key: place for key, place in active.items() if key != "Meta"}
        if is_aten:
            # C++ that came with PyTorch is its own; unknown counts as such.
            code = {
                key: one for key, one in code.items() if built_in and one and not one.startswith(built_in)
            }
            if not code:
                return None
        found = next(filter(_is_python, (*(() if is_aten else (definition,)), *code.values())), None)
        function = self._native_python(name, code) if is_aten else None
        file, line, end_line = function or ((self._short(found) or "").rpartition(":")[0] or None, None, None)
        return OperatorRegistration(
            name=name,
            kind=RegistrationKind.CXX if found is None else RegistrationKind.LIBRARY,
            schema=schema,
            definition=None if is_aten else self._short(definition),
            kernels={key: self._short(one) for key, one in (code if is_aten else active).items()},
            python_file=file,
            python_line=line,
            end_line=end_line,
            overrides={key: self._short(inactive.get(key)) for key in code} if is_aten else {},
        )

    def _native_python(self, name: str, keys: Iterable[str]) -> tuple[str, int, int] | None:
        """The function that PyTorch's own Python kernels (2.13 on) put in place of a compiled one."""
        graphs = getattr(sys.modules.get("torch._native.registry"), "_graphs", None)
        if not isinstance(graphs, Mapping):
            return None
        for key in keys:
            for node in graphs.get((name.removeprefix(_ATEN), key), ()):
                place = self._function(getattr(node, "impl_fn", None))
                if place is not None and getattr(node, "active", False):
                    return place
        return None

    def _custom(
        self, name: str, schema: str | None, active: _Places, definition: Any
    ) -> OperatorRegistration:
        """Its functions are at hand, so that places are theirs and not PyTorch's `custom_ops.py`."""
        written = getattr(definition, "_init_fn", None)
        file, line, end_line = self._function(written) or (None, None, None)
        kernels = {key: self._short(place) for key, place in active.items()}
        of_devices = getattr(definition, "_backend_fns", None)
        key_of = getattr(self.torch._C, "_dispatch_key_for_device", str.upper)
        for device, function in dict(of_devices).items() if isinstance(of_devices, Mapping) else ():
            key = _DEFAULT_KERNEL if device is None else str(key_of(str(device)))
            if key in kernels and (place := self._function(function)) is not None:
                kernels[key] = f"{place[0]}:{place[1]}"
        if file is not None and _CUSTOM_OPS_FILE in (kernels.get(_DEFAULT_KERNEL) or ""):
            kernels[_DEFAULT_KERNEL] = f"{file}:{line}"
        is_triton = _TRITON_OPS_FILE in _file_of(written)
        return OperatorRegistration(
            name=name,
            kind=RegistrationKind.TRITON_OP if is_triton else RegistrationKind.CUSTOM_OP,
            schema=schema,
            definition=None if file is None else f"{file}:{line}",
            kernels=kernels,
            python_file=file,
            python_line=line,
            end_line=end_line,
        )

    def _short(self, place: str | None) -> str | None:
        if place is not None and place.rpartition(":")[0] == _NOWHERE:
            return None
        for root in self.folders:
            if place is not None and root is not None and place.startswith(root):
                return place[len(root) :]
        return place

    def _function(self, function: Any) -> tuple[str, int, int] | None:
        """File, first and last line of the innermost function that torch's decorators wrapped."""
        for _ in range(8):
            code = getattr(function, "__code__", None)
            if not isinstance(code, CodeType):
                return None
            if _WRAPPERS.search(_file_of(function)) is None:
                last = max((line for line in _lines(code) if line is not None), default=code.co_firstlineno)
                return self._short(code.co_filename) or code.co_filename, code.co_firstlineno, last
            function = _wrapped(function)
        return None


def _wrapped(function: FunctionType) -> Any:
    """What a wrapper calls: `__wrapped__`, else what it holds under the name `fn`, else its only function."""
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
        return wrapped
    functions = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # it is empty
            if isinstance(cell.cell_contents, FunctionType):
                functions[name] = cell.cell_contents
    return functions.get("fn") or (next(iter(functions.values())) if len(functions) == 1 else None)


def _lines(code: CodeType) -> Iterator[int | None]:
    for _, _, line in code.co_lines():
        yield line
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)


def _is_python(place: str | None) -> bool:
    return place is not None and place.rpartition(":")[0].endswith((".py", ">", _NOWHERE))


def _file_of(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return code.co_filename.replace("\\", "/") if isinstance(code, CodeType) else ""
