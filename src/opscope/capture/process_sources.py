"""Where the kernels of this process come from: Triton functions and CUDA extensions, by file and line.

torch.compile and Triton keep no public list of graphs, compiled or as traced, and of kernel functions, so the
garbage collector is asked: 0.2 s per million objects. A trace names no file for a Triton kernel that the
program launches itself, so its function is found by name: only functions that were launched count (Triton's
own library has many that are only called), and of several equal names none, unless they lie in one place. Of
a library that `torch.utils.cpp_extension` built here, `build.ninja` beside it names the `.cu` files; torch's
own libraries have none. Imports nothing of torch or Triton: a library that the program has not loaded has no
such objects.
"""

from __future__ import annotations

import ast
import gc
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opscope.model.generated_code import CompiledGraph, GraphCode, parse_graph, parse_tracking
from opscope.model.origin import RecordedKernel, RecordedSource, SourceEvidence, SourceKind

_TRACED_CLASS = ("torch.fx.graph_module", "GraphModule")
_GRAPH_CLASS = ("torch._inductor.output_code", "CompiledFxGraph")
_FUNCTION_CLASS = ("triton.runtime.jit", "JITFunction")
_KERNEL_DEFINITION = "async_compile.triton("


@dataclass(frozen=True)
class LiveObjects:
    """Objects of this process: torch's `CompiledFxGraph`s and `GraphModule`s, and Triton's `JITFunction`s."""

    graphs: tuple[Any, ...] = ()
    functions: tuple[Any, ...] = ()
    traced: tuple[Any, ...] = ()


def live_objects() -> LiveObjects:
    """The objects, found in one pass over all that the garbage collector tracks."""
    graphs, functions = _class_ids(*_GRAPH_CLASS), _class_ids(*_FUNCTION_CLASS)
    if not graphs | functions:
        return LiveObjects()
    traced = _class_ids(*_TRACED_CLASS) if graphs else set()
    wanted = graphs | functions | traced
    # By the identity of the class: isinstance asks the objects, and lazy ones would wake up.
    found = [one for one in gc.get_objects() if id(type(one)) in wanted]
    return LiveObjects(
        tuple(one for one in found if id(type(one)) in graphs),
        tuple(one for one in found if id(type(one)) in functions),
        tuple(one for one in found if id(type(one)) in traced),
    )


def compiled_graphs(graphs: tuple[Any, ...], traced: tuple[Any, ...] = ()) -> Iterator[CompiledGraph]:
    """The graphs that define Triton kernels, read from torch's objects.

    Args:
        graphs: `CompiledFxGraph`s.
        traced: `GraphModule`s, among them those that graphs were compiled from.
    """
    modules = [found for one in traced if (found := modules_of_nodes(one))]
    for graph in graphs:
        code = getattr(graph, "source_code", None)
        if not isinstance(code, str) or _KERNEL_DEFINITION not in code:
            continue
        stacks, nodes = parse_tracking(
            getattr(graph, "inductor_provenance_stack_traces_str", None),
            getattr(graph, "inductor_provenance_mapping_str", None),
        )
        parsed = parse_graph(code)
        key = getattr(graph, "_fx_graph_cache_key", None)
        yield CompiledGraph(parsed, key, stacks, nodes, _modules_of(parsed, modules))


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


def _modules_of(graph: GraphCode, traced: list[dict[str, str]]) -> dict[str, str]:
    """Modules of a compiled graph's nodes; none where several traced graphs with these nodes disagree."""
    wanted = {node for kernel in graph.kernels for node in kernel.source_nodes}
    fitting = [{node: one[node] for node in wanted if node in one} for one in traced]
    most = max(map(len, fitting), default=0)
    best = [one for one in fitting if len(one) == most]
    # A graph that holds few of the nodes is another one's, in which some are called alike.
    is_whole = most > 0 and most >= _LEAST_KNOWN * len(wanted)
    return best[0] if is_whole and all(one == best[0] for one in best) else {}


# Nodes that are made after tracing have no module: a few of each graph.
_LEAST_KNOWN = 0.8


def _class_ids(module: str, name: str) -> set[int]:
    """Identities of a class and its subclasses; none if its module is not loaded."""
    root = getattr(sys.modules.get(module), name, None)
    pending = [root] if isinstance(root, type) else []
    ids = set()
    while pending:
        one = pending.pop()
        ids.add(id(one))
        pending.extend(one.__subclasses__())
    return ids


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


_MAPS = Path("/proc/self/maps")
# torch/utils/cpp_extension.py, `_write_ninja_file`; ninja escapes blanks, colons and dollars with a dollar.
_CUDA_SOURCE = re.compile(r"^build \S+: cuda_compile ((?:[^\s$]|\$.)+)", re.MULTILINE)
_NINJA_ESCAPE = re.compile(r"\$(.)")
# Comments, literals and preprocessor lines: a macro's `__global__` is nobody's definition.
_NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|^[ \t]*\#(?:\\.|[^\\\n])*""",
    re.DOTALL | re.MULTILINE,
)
_GLOBAL = re.compile(r"\b__global__\b")
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")


def extension_sources(kernels: Iterable[RecordedKernel], maps: Path = _MAPS) -> list[RecordedSource]:
    """Sources of the kernels that come from a library built by `torch.utils.cpp_extension`.

    Args:
        kernels: Kernels with the library that registered them.
        maps: What the kernel says of this process's mappings.
    """
    files = mapped_files(maps)
    sources = []
    for kernel in kernels:
        paths = [] if kernel.library is None else files.get(kernel.library, [])
        if (
            len(paths) == 1
            and (source := _extension_sources_source(kernel, _cuda_sources(paths[0].parent))) is not None
        ):
            sources.append(source)
    return sources


def mapped_files(maps: Path = _MAPS) -> dict[str, list[Path]]:
    """Paths of the files mapped into this process, by their name; empty where the system does not say."""
    try:
        text = maps.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return {}
    files: dict[str, list[Path]] = {}
    for path in dict.fromkeys(re.findall(r"(/[^\n]+)$", text, re.MULTILINE)):
        files.setdefault(path.rpartition("/")[2], []).append(Path(path))
    return files


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
    for marker in _GLOBAL.finditer(code):
        end = re.search(r"[{;]", code[marker.end() :])
        if end is None or end[0] == ";":  # A declaration, or an explicit instantiation.
            continue
        opening = marker.end() + end.start()
        if wanted.search(code, marker.end(), opening):
            found.append((marker.start(), _closing_brace(code, opening)))
    if len(found) != 1:
        return None
    first, last = found[0]
    return code.count("\n", 0, first) + 1, code.count("\n", 0, last) + 1


def _closing_brace(code: str, opening: int) -> int:
    depth = 0
    for brace in re.finditer(r"[{}]", code[opening:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return opening + brace.start()
    return len(code)


def _cuda_sources(folder: Path) -> list[Path]:
    """CUDA sources that a build folder's libraries were made from."""
    try:
        text = (folder / "build.ninja").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return []
    return [folder / _NINJA_ESCAPE.sub(r"\1", path) for path in _CUDA_SOURCE.findall(text)]


def _extension_sources_source(kernel: RecordedKernel, files: list[Path]) -> RecordedSource | None:
    """The source of a kernel among the files of its library; None unless exactly one defines it."""
    name = base_name(kernel.name)
    units = {unit.name for unit in kernel.units}
    found = []
    for file in files:
        if name is None or (units and file.name not in units):
            continue
        try:
            lines = global_function_lines(file.read_text(encoding="utf-8", errors="replace"), name)
        except OSError:
            continue
        if lines is not None:
            found.append((file, lines))
    if len(found) != 1:
        return None
    file, (line, end_line) = found[0]
    return RecordedSource(
        kernel=kernel.name,
        kind=SourceKind.CUDA,
        evidence=SourceEvidence.PROCESS,
        file=str(file),
        line=line,
        end_line=end_line,
    )
