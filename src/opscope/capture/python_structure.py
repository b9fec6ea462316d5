"""What the program knows of its recorded Python frames → `RecordedStructure` of the sidecar.

A trace names a function by its first line, a module by class and count, and cuts folders off file names.
Torch's own event tree, from which it writes the trace, has more: the line each call was made from and the
identity of each module, which is still alive. Read after the window has closed. Importing this module does
not import torch.
"""

from __future__ import annotations

import gc
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from opscope.model.location import is_program_file, parse_frame
from opscope.model.sidecar import RecordedModule, RecordedStructure
from opscope.workloads.runtime import require_torch

_MODULE = "nn.Module: "


def read_structure(roots: Iterable[Any], is_own: Callable[[str], bool] | None = None) -> RecordedStructure:
    """The structure behind the frames of an event tree; takes some microseconds per event.

    Args:
        roots: Of torch's `experimental_event_tree`.
        is_own: Whether a file, as the trace names it, is the program's; decided by where it lies if None.
    """
    seen = _Calls(lru_cache(maxsize=None)(is_own or FileOwners().is_program_file))
    seen.read(roots)
    calls = sorted((time_ns, line) for time_ns, line in seen.lines.items() if line is not None)
    origin_ns = calls[0][0] if calls else 0
    return RecordedStructure(
        files=tuple(sorted(seen.files)),
        modules=tuple(_named(seen.modules)),
        origin_ns=origin_ns,
        call_starts_ns=tuple(time_ns - origin_ns for time_ns, _ in calls),
        call_lines=tuple(line for _, line in calls),
    )


@dataclass(frozen=True)
class _Module:
    """A recorded module: its name in the trace, its class and `id()`."""

    name: str
    class_name: str
    identity: int


@dataclass
class _Calls:
    """What one walk over the tree collects.

    Attributes:
        is_own: Whether a file is the program's.
        files: The program's files.
        lines: Line of the program by the start of the call made from it; None where two calls share a start.
        modules: Modules called directly inside another's call, as (caller, called).
    """

    is_own: Callable[[str], bool]
    files: set[str] = field(default_factory=set)
    lines: dict[int, int | None] = field(default_factory=dict)
    modules: set[tuple[_Module, _Module]] = field(default_factory=set)

    def read(self, roots: Iterable[Any]) -> None:
        """Collect everything under the roots. Each access makes an object of torch's, so there are few."""
        kinds = require_torch()._C._profiler._EventType
        python, builtin = int(kinds.PyCall), int(kinds.PyCCall)
        pending: list[tuple[Any, _Module | None]] = [(root, None) for root in roots]
        while pending:
            event, around = pending.pop()
            kind = int(event.tag)
            if kind in {python, builtin}:
                fields = event.extra_fields
                self._note_line(event, fields.caller)
                if kind == python:
                    around = self._note_frame(event.name, fields, around)
            pending += [(child, around) for child in event.children]

    def _note_line(self, event: Any, caller: Any) -> None:
        if self.is_own(caller.file_name):
            time_ns = event.start_time_ns
            self.lines[time_ns] = None if time_ns in self.lines else caller.line_number

    def _note_frame(self, name: str, fields: Any, around: _Module | None) -> _Module | None:
        """The module whose call is open below this frame."""
        frame = parse_frame(name)
        if frame is not None and self.is_own(frame.file):
            self.files.add(frame.file)
        if frame is not None or not name.startswith(_MODULE) or (info := fields.module) is None:
            return around
        module = _Module(name.removeprefix(_MODULE), info.cls_name, info.self_ptr)
        if around is not None:
            self.modules.add((around, module))
        return module


def _named(calls: set[tuple[_Module, _Module]]) -> list[RecordedModule]:
    """The attribute path of each called module in its caller, where the first is a part of the second."""
    live = _live_modules({module for pair in calls for module in pair})
    paths: dict[_Module, dict[int, str]] = {}
    named = []
    for caller, called in sorted(calls, key=lambda pair: (pair[0].name, pair[1].name)):
        if caller not in live or called not in live:
            continue
        if caller not in paths:
            paths[caller] = _paths(live[caller])
        name = paths[caller].get(called.identity)
        if name:
            named.append(RecordedModule(caller.name, called.name, name))
    return named


def _live_modules(modules: set[_Module]) -> dict[_Module, Any]:
    """The objects, those that are still there: of two modules that had one address in turn, neither."""
    wanted: dict[int, list[_Module]] = {}
    for module in modules:
        wanted.setdefault(module.identity, []).append(module)
    base = getattr(sys.modules.get("torch.nn"), "Module", None)
    if not wanted or base is None:
        return {}
    # By type: isinstance asks the objects, and lazy ones would wake up.
    found = (one for one in gc.get_objects() if id(one) in wanted and issubclass(type(one), base))
    return {
        owners[0]: one
        for one in found
        if len(owners := wanted[id(one)]) == 1 and type(one).__name__ == owners[0].class_name
    }


def _paths(module: Any) -> dict[int, str]:
    """Attribute path of each module inside another one, by its identity."""
    # Of the base class: wrappers (FSDP) override it to leave their own names out.
    base = sys.modules["torch.nn"].Module
    return {id(part): name for name, part in base.named_modules(module)}


class FileOwners:
    """Tells the program's files from those of libraries by where they lie on this machine."""

    def __init__(self) -> None:
        packages = [*site.getsitepackages(), site.getusersitepackages()]
        torch_file = getattr(sys.modules.get("torch"), "__file__", None)
        torch_folder = [Path(torch_file).parent] if torch_file else []
        # What the tracer cuts off file names: torch/profiler/python_tracer.py, `_prefix_regex`.
        beside_torch = [folder.parent for folder in torch_folder]
        self._prefixes = _distinct([*packages, *sys.path, site.getuserbase(), *beside_torch])
        kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
        installed = [sysconfig.get_path(kind) for kind in kinds]
        opscope_folder = Path(__file__).parent.parent
        self._libraries = _distinct([*packages, *installed, *torch_folder, opscope_folder])

    def is_program_file(self, name: str) -> bool:
        """Whether a file, as the trace names it, is the program's; by its name where it is not found."""
        paths = {prefix / name for prefix in self._prefixes}
        owned = {not self._is_library(path.resolve()) for path in paths if path.is_file()}
        return owned.pop() if len(owned) == 1 else is_program_file(name)

    def _is_library(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._libraries)


def _distinct(folders: Iterable[str | Path]) -> set[Path]:
    return {Path(folder).resolve() for folder in folders}
