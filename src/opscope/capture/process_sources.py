"""Where the kernels of this process come from, by file and line, and what it knows of its Python frames.

torch.compile and Triton keep no public list of graphs, compiled or as traced, and of kernel functions, so the
garbage collector is asked: 0.2 s per million objects. A trace names no file for a Triton kernel that the
program launches itself, so its function is found by name: only functions that were launched count (Triton's
own library has many that are only called), and of several equal names none, unless they lie in one place. Of
a library that `torch.utils.cpp_extension` built here, `build.ninja` beside it names the `.cu` files; torch's
own libraries have none. A library that the program has not loaded has no such objects.

A trace names a Python function by its first line, a module by class and count, and cuts folders off file
names. Torch's own event tree, from which it writes the trace, has more: the line each call was made from and
the identity of each module, which is still alive. Read after the window has closed, it becomes the sidecar's
`RecordedStructure`. Importing this module imports nothing of torch or Triton.
"""

from __future__ import annotations

import ast
import gc
import linecache
import re
import site
import sys
import sysconfig
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from opscope.model.origin import (
    RecordedKernel,
    RecordedSource,
    SourceEvidence,
    SourceKind,
    is_program_file,
    parse_frame,
)
from opscope.model.queries import grouped
from opscope.model.sidecar import RecordedModule, RecordedStructure
from opscope.provenance.generated_code import CompiledGraph, parse_graph, parse_tracking
from opscope.workloads.runtime import require_torch


def live_objects() -> Sequence[list[Any]]:
    """`CompiledFxGraph`s of torch, `JITFunction`s of Triton and `GraphModule`s of torch in this process."""
    graphs = _class_ids("torch._inductor.output_code", "CompiledFxGraph")
    traced = _class_ids("torch.fx.graph_module", "GraphModule") if graphs else set()
    kinds = (graphs, _class_ids("triton.runtime.jit", "JITFunction"), traced)
    wanted = set[int]().union(*kinds)
    # By the identity of the class: isinstance asks the objects, and lazy ones would wake up.
    found = [one for one in tracked_objects() if id(type(one)) in wanted] if wanted else []
    return [[one for one in found if id(type(one)) in kind] for kind in kinds]


def tracked_objects() -> list[Any]:
    """All objects that the garbage collector lists, and those that `gc.freeze()` hides from it."""
    found: list[Any] = gc.get_objects()
    if gc.get_freeze_count():
        frames = [frame for top in sys._current_frames().values() for frame, _ in traceback.walk_stack(top)]
        seen = {*map(id, found)}
        added = [sys.modules, *(value for one in frames for value in one.f_locals.values()), *found]
        while added:
            referents = {id(one): one for one in gc.get_referents(*added) if gc.is_tracked(one)}
            added = [one for identity, one in referents.items() if identity not in seen]
            seen.update(map(id, added))
            found += added
    return found


def _class_ids(module: str, name: str) -> set[int]:
    """Identities of a class and its subclasses; none if its module is not loaded."""
    root = getattr(sys.modules.get(module), name, None)
    found = [root] if isinstance(root, type) else []
    for one in found:  # which grows meanwhile
        found += one.__subclasses__()
    return set(map(id, found))


def compiled_graphs(graphs: Iterable[Any], traced: Iterable[Any] = ()) -> Iterator[CompiledGraph]:
    """The graphs that define Triton kernels, read from torch's objects and what those were compiled from."""
    modules = [found for one in traced if (found := modules_of_nodes(one))]
    for graph in graphs:
        code = getattr(graph, "source_code", None)
        if not isinstance(code, str) or "async_compile.triton(" not in code:
            continue
        stacks, nodes = parse_tracking(
            getattr(graph, "inductor_provenance_stack_traces_str", None),
            getattr(graph, "inductor_provenance_mapping_str", None),
        )
        parsed, key = parse_graph(code), getattr(graph, "_fx_graph_cache_key", None)
        # Modules of a compiled graph's nodes; none where several traced graphs with these nodes disagree.
        wanted = {node for kernel in parsed.kernels for node in kernel.source_nodes}
        fitting = [{node: one[node] for node in wanted if node in one} for one in modules]
        most = max(map(len, fitting), default=0)
        best = [one for one in fitting if len(one) == most]
        # A graph that holds few of the nodes is another one's, in which some are called alike. Nodes that are
        # made after tracing have no module: a few of each graph.
        is_whole = most > 0 and most >= 0.8 * len(wanted)
        of_nodes = best[0] if is_whole and all(one == best[0] for one in best) else {}
        yield CompiledGraph(parsed, key, stacks, nodes, of_nodes)


# What torch calls the program's own model in the qualified names of a traced graph.
_ROOT = re.compile(r"^L\['[^']*'\]\.?")


def modules_of_nodes(traced: Any) -> dict[str, str]:
    """By node of a traced graph, the qualified name of the innermost module whose code it is of.

    The model itself is "". Empty where the graph was not traced from modules.
    """
    found: dict[str, str] = {}
    for node in getattr(getattr(traced, "graph", None), "nodes", ()):
        stack = getattr(node, "meta", {}).get("nn_module_stack")
        if isinstance(stack, dict) and stack:
            last = list(stack.values())[-1]
            path = last[0] if isinstance(last, tuple) and last else last
            if isinstance(path, str):
                found[str(node.name)] = _ROOT.sub("", path)
    return found


def triton_sources(kernels: Set[str], functions: Iterable[Any]) -> list[RecordedSource]:
    """Sources of the kernels that one of Triton's `JITFunction`s of this process is named after."""
    places: dict[str, set[tuple[str, int]]] = defaultdict(set)  # file, first line (of the decorators)
    for function in functions:
        name = getattr(getattr(function, "fn", None), "__name__", None)
        # `device_caches` (Triton 3.2 on) or `cache` holds the binaries of one that was launched; it may have
        # been where this Triton has neither.
        caches = [getattr(function, key) for key in ("device_caches", "cache") if hasattr(function, key)]
        code = getattr(getattr(function, "fn", None), "__code__", None)
        if isinstance(name, str) and name in kernels and code is not None and (any(caches) or not caches):
            places[name].add((code.co_filename, code.co_firstlineno))
    sources = []
    for name, found in sorted(places.items()):
        if len(found) == 1:
            ((file, first_line),) = found
            linecache.checkcache(file)
            # Else not a file that anyone can open, as in exec of a string.
            if text := "".join(linecache.getlines(file)):
                lines = _definition_lines(text, name, first_line) or (first_line, None)
                sources.append(_source(name, SourceKind.TRITON, file, lines))
    return sources


def _source(kernel: str, kind: SourceKind, file: str, lines: tuple[int, int | None]) -> RecordedSource:
    return RecordedSource(
        kernel=kernel, kind=kind, evidence=SourceEvidence.PROCESS, file=file, line=lines[0], end_line=lines[1]
    )


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


_MAPS = Path("/proc/self/maps")
# torch/utils/cpp_extension.py, `_write_ninja_file`; ninja escapes blanks, colons and dollars with a dollar.
_CUDA_SOURCE = re.compile(r"^build \S+: cuda_compile ((?:[^\s$]|\$.)+)", re.MULTILINE)
_NINJA_ESCAPE = re.compile(r"\$(.)")
# Comments, literals and preprocessor lines: a macro's `__global__` is nobody's definition.
_NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|^[ \t]*\#(?:\\.|[^\\\n])*""",
    re.DOTALL | re.MULTILINE,
)
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")


def extension_sources(kernels: Iterable[RecordedKernel], maps: Path = _MAPS) -> list[RecordedSource]:
    """Sources of the kernels that come from a library built by `torch.utils.cpp_extension`.

    One is told where exactly one file that the library was made of defines it.
    """
    mapped = mapped_files(maps)
    sources = []
    for kernel in kernels:
        paths = mapped.get(kernel.library or "", [])
        name, units = base_name(kernel.name), {unit.name for unit in kernel.units}
        found, files = [], []
        if len(paths) == 1 and name is not None:
            folder = paths[0].parent
            with suppress(OSError, ValueError):
                text = (folder / "build.ninja").read_text(encoding="utf-8")
                files = [folder / _NINJA_ESCAPE.sub(r"\1", path) for path in _CUDA_SOURCE.findall(text)]
        for file in files:
            with suppress(OSError):
                if not units or file.name in units:
                    text = file.read_text(encoding="utf-8", errors="replace")
                    if (lines := global_function_lines(text, name or "")) is not None:
                        found.append((str(file), lines))
        if len(found) == 1:
            sources.append(_source(kernel.name, SourceKind.CUDA, *found[0]))
    return sources


def mapped_files(maps: Path = _MAPS) -> dict[str, list[Path]]:
    """Paths of the files mapped into this process, by their name; empty where the system does not say."""
    try:
        text = maps.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return {}
    paths = map(Path, dict.fromkeys(re.findall(r"(/[^\n]+)$", text, re.MULTILINE)))
    return grouped((path.name, path) for path in paths)


def base_name(kernel: str) -> str | None:
    """Name of the function in a demangled kernel name, without scope, arguments and parameters."""
    text = kernel.replace("(anonymous namespace)", "")
    while (shorter := _TEMPLATE_ARGUMENTS.sub("", text)) != text:
        text = shorter
    found = re.search(r"(\w+)\s*(?:\(|$)", text)
    return None if found is None else found[1]


def global_function_lines(text: str, name: str) -> tuple[int, int] | None:
    """First and last line of the one `__global__` function of that name; None if there is not exactly one."""
    code = _NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    wanted = re.compile(rf"\b{re.escape(name)}\s*\(")
    found = []
    for marker in re.finditer(r"\b__global__\b", code):
        end = re.search(r"[{;]", code[marker.end() :])
        if end is None or end[0] == ";":  # A declaration, or an explicit instantiation.
            continue
        opening = marker.end() + end.start()
        if wanted.search(code, marker.end(), opening):
            depth, last = 0, len(code)
            for brace in re.finditer(r"[{}]", code[opening:]):
                depth += 1 if brace[0] == "{" else -1
                if depth == 0:
                    last = opening + brace.start()
                    break
            found.append((marker.start(), last))
    if len(found) != 1:
        return None
    first, last = found[0]
    return code.count("\n", 0, first) + 1, code.count("\n", 0, last) + 1


_MODULE = "nn.Module: "


class _Module(NamedTuple):
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
    wanted = grouped((module.identity, module) for module in {module for pair in calls for module in pair})
    base = getattr(sys.modules.get("torch.nn"), "Module", None)
    if not wanted or base is None:
        return []
    # The objects that are still there: of two modules that had one address in turn, neither. By type:
    # isinstance asks the objects, and lazy ones would wake up.
    live = {
        owners[0]: one
        for one in tracked_objects()
        if (owners := wanted.get(id(one))) and issubclass(type(one), base)
        if len(owners) == 1 and type(one).__name__ == owners[0].class_name
    }
    callers = {caller for caller, called in calls if caller in live and called in live}
    # Of the base class: wrappers (FSDP) override it to leave their own names out.
    paths = {one: {id(part): name for name, part in base.named_modules(live[one])} for one in callers}
    return [
        RecordedModule(caller.name, called.name, name)
        for caller, called in sorted(calls, key=lambda pair: (pair[0].name, pair[1].name))
        if called in live and (name := paths.get(caller, {}).get(called.identity))
    ]


class FileOwners:
    """Tells the program's files from those of libraries by where they lie on this machine."""

    def __init__(self) -> None:
        packages = [*site.getsitepackages(), site.getusersitepackages()]
        torch_file = getattr(sys.modules.get("torch"), "__file__", None)
        torch_folder = [Path(torch_file).parent] if torch_file else []
        # What the tracer cuts off file names: torch/profiler/python_tracer.py, `_prefix_regex`.
        self._prefixes = _distinct(
            [*packages, *sys.path, site.getuserbase(), *(folder.parent for folder in torch_folder)]
        )
        installed = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib", "scripts"))
        self._libraries = _distinct([*packages, *installed, *torch_folder, Path(__file__).parent.parent])

    def is_program_file(self, name: str) -> bool:
        """Whether a file, as the trace names it, is the program's; by its name where it is not found."""
        files = [path.resolve() for prefix in self._prefixes if (path := prefix / name).is_file()]
        owned = {not any(path.is_relative_to(folder) for folder in self._libraries) for path in files}
        return owned.pop() if len(owned) == 1 else is_program_file(name)


def _distinct(folders: Iterable[str | Path]) -> set[Path]:
    return {Path(folder).resolve() for folder in folders}
