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
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from opscope.model.location import is_program_file, parse_frame
from opscope.model.sidecar import RecordedModule, RecordedStructure
from opscope.workloads.runtime import require_torch

_MODULE = "nn.Module: "


class _Module(NamedTuple):
    """A recorded module: its name in the trace, its class and `id()`."""

    name: str
    class_name: str
    identity: int


def read_structure(roots: Iterable[Any], is_own: Callable[[str], bool] | None = None) -> RecordedStructure:
    """The structure behind the frames of torch's `experimental_event_tree`; some microseconds per event.

    `is_own` says whether a file, as the trace names it, is the program's; where it lies decides if None.
    """
    is_own = lru_cache(maxsize=None)(is_own or FileOwners().is_program_file)
    files: set[str] = set()
    # By the start of the call made from there; None where two share a start.
    lines: dict[int, int | None] = {}
    calls: set[tuple[_Module, _Module]] = set()  # modules called directly inside another's call
    kinds = require_torch()._C._profiler._EventType
    python, builtin = int(kinds.PyCall), int(kinds.PyCCall)
    # Each access to an event makes an object of torch's, so there are few.
    pending: list[tuple[Any, _Module | None]] = [(root, None) for root in roots]
    while pending:
        event, around = pending.pop()
        kind = int(event.tag)
        if kind in {python, builtin}:
            fields = event.extra_fields
            if is_own(fields.caller.file_name):
                time_ns = event.start_time_ns
                lines[time_ns] = None if time_ns in lines else fields.caller.line_number
        if kind == python:
            try:
                name = event.name
            except UnicodeDecodeError:  # of a function that was gone when torch named it
                name = ""
            frame = parse_frame(name)
            if frame is not None:
                if is_own(frame.file):
                    files.add(frame.file)
            elif name.startswith(_MODULE) and (info := fields.module) is not None:
                module = _Module(name.removeprefix(_MODULE), info.cls_name, info.self_ptr)
                if around is not None:
                    calls.add((around, module))
                around = module
        pending += [(child, around) for child in event.children]
    starts = sorted((time_ns, line) for time_ns, line in lines.items() if line is not None)
    origin_ns = starts[0][0] if starts else 0
    return RecordedStructure(
        files=tuple(sorted(files)),
        modules=tuple(_named(calls)),
        origin_ns=origin_ns,
        call_starts_ns=tuple(time_ns - origin_ns for time_ns, _ in starts),
        call_lines=tuple(line for _, line in starts),
    )


def _named(calls: set[tuple[_Module, _Module]]) -> list[RecordedModule]:
    """The attribute path of each called module in its caller, where the first is a part of the second."""
    wanted: dict[int, list[_Module]] = {}
    for module in {module for pair in calls for module in pair}:
        wanted.setdefault(module.identity, []).append(module)
    base = getattr(sys.modules.get("torch.nn"), "Module", None)
    if not wanted or base is None:
        return []
    # The objects that are still there: of two modules that had one address in turn, neither. By type:
    # isinstance asks the objects, and lazy ones would wake up.
    live = {
        owners[0]: one
        for one in gc.get_objects()
        if (owners := wanted.get(id(one))) and issubclass(type(one), base)
        if len(owners) == 1 and type(one).__name__ == owners[0].class_name
    }
    paths: dict[_Module, dict[int, str]] = {}
    named = []
    for caller, called in sorted(calls, key=lambda pair: (pair[0].name, pair[1].name)):
        if caller in live and called in live:
            if caller not in paths:
                # Of the base class: wrappers (FSDP) override it to leave their own names out.
                parts = base.named_modules(live[caller])
                paths[caller] = {id(part): name for name, part in parts}
            if name := paths[caller].get(called.identity):
                named.append(RecordedModule(caller.name, called.name, name))
    return named


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
        files = [path.resolve() for path in paths if path.is_file()]
        owned = {not any(path.is_relative_to(folder) for folder in self._libraries) for path in files}
        return owned.pop() if len(owned) == 1 else is_program_file(name)


def _distinct(folders: Iterable[str | Path]) -> set[Path]:
    return {Path(folder).resolve() for folder in folders}
