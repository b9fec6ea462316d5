"""Reading the Python code that torch.compile generates: one Triton kernel, or the code of a whole graph.

The text is parsed, never executed. Formats: torch/_inductor/codegen/triton.py (`codegen_kernel`,
`define_kernel`), codegen/wrapper.py, utils.py (`get_kernel_metadata`), codecache.py (`code_hash`), releases
2.6 to 2.13.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import math
import re
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GeneratedKernel", "GraphCode", "GraphKernel", "parse_graph", "parse_kernel", "source_hash"]

# A kernel takes a few kilobytes, the code of a large graph a few megabytes.
_LARGEST_TEXT = 64 << 20
_HASH_LENGTH = 51
# What kernels state of themselves in `inductor_meta`; the rest are compiler settings.
_META = (
    "kernel_name", "grid_type", "num_load", "num_store", "num_reduction", "kernel_num_gb", "kernel_flop",
    "mutated_arg_names", "atomic_add_found", "no_x_dim", "tiling_scores",
)  # fmt: skip
_DECORATOR_FACTS = ("size_hints", "reduction_hint", "num_warps", "num_stages", "configs")

_GRAPH_ID = re.compile(r"^# AOT ID: \['([^']*)'\]", re.MULTILINE)
_NODES = re.compile(
    r"^\s*# (?:Topologically Sorted |Unsorted )?Source Nodes: \[(.*?)\], Original ATen: \[(.*?)\]"
)
_PATH = re.compile(r"^# kernel path: (.+)$")
_USER_PATH = re.compile(r"^# Original path: (.+):(\d+)$")
_DEFINITION = re.compile(r"^(\w+) = async_compile\.triton\('(\w+)', (r?''')")
_DEFINITION_END = re.compile(r"^''', device_str=")
_OPERATOR = re.compile(r"(\w+)\.(\w+)")
_LAUNCH = re.compile(r"^\s+(\w+)\.run\(")
_STREAM = re.compile(r"^\s+(?:raw_)?stream\d+ = ")


@dataclass(frozen=True)
class GeneratedKernel:
    """One Triton kernel's generated source.

    Args:
        function: Name of its function, which is the kernel's name on the device.
        decorator_line: First line of the function's decorators.
        line: Of its `def`.
        end_line: Its last.
        heuristic: The function of `triton_heuristics` that decorates it; None for a plain `triton.jit`.
        meta: Facts it states of itself, in JSON types.
    """

    function: str
    decorator_line: int
    line: int
    end_line: int
    heuristic: str | None
    meta: dict[str, Any]


@dataclass(frozen=True)
class GraphKernel:
    """One Triton kernel that the code of a graph defines.

    Args:
        name: Variable it is launched through; also the name of its launches in a trace.
        function: Name on the device.
        hash: Of its source, or None if its text cannot be read.
        file: Where inductor put the source, where noted.
        text: The source, or None if it cannot be read.
        user_file: File of the user's own Triton kernel it was made from.
        user_line: Its line there.
        original_aten: ATen operators of its first use, named as in traces (`aten::gelu`).
        source_nodes: Nodes of the program's graph, of all uses.
    """

    name: str
    function: str
    hash: str | None
    file: str | None
    text: str | None = field(repr=False)
    user_file: str | None = None
    user_line: int | None = None
    original_aten: tuple[str, ...] = ()
    source_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraphCode:
    """The code generated for one graph: its id (`0_forward`, `1_backward`, …), if known, and its kernels."""

    graph: str | None
    kernels: tuple[GraphKernel, ...]


def source_hash(text: str) -> str:
    """Inductor's hash of a source text; also the stem of the file it is in.

    Source: torch/_inductor/codecache.py, `code_hash` and `write`: blanks around the text do not count.
    """
    digest = hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).digest()
    return "c" + base64.b32encode(digest)[:_HASH_LENGTH].decode().lower()


def parse_kernel(text: str, function: str | None = None) -> GeneratedKernel | None:
    """The kernel a source text defines; None if it defines none, or several equals.

    Args:
        text: A generated file, or any Python file with a Triton kernel.
        function: Name of the kernel; if None, the one decorated by `triton_heuristics`, or the only one.
    """
    if len(text) > _LARGEST_TEXT:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_kernel(node)]
    if function is not None:
        found = [node for node in found if node.name == function]
    if len(found) > 1:  # The others are functions it calls.
        found = [node for node in found if _heuristic(node) is not None]
    return _kernel(found[0]) if len(found) == 1 else None


def parse_graph(text: str) -> GraphCode:
    """What the code of one graph says of its Triton kernels, in order of definition."""
    graph_id = _GRAPH_ID.search(text, 0, 4096)
    reader = _GraphReader()
    for line in text.split("\n"):  # Not splitlines: it also splits at characters a literal may hold.
        reader.read(line)
    return GraphCode(None if graph_id is None else graph_id[1], reader.kernels())


def _is_kernel(node: ast.FunctionDef) -> bool:
    return any(_dotted(decorator).endswith("triton.jit") for decorator in node.decorator_list)


def _dotted(node: ast.expr) -> str:
    """`a.b.c` of a decorator, called or not; empty for anything else."""
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _heuristic(node: ast.FunctionDef) -> ast.Call | None:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and "triton_heuristics." in f"{_dotted(decorator)}.":
            return decorator
    return None


def _kernel(node: ast.FunctionDef) -> GeneratedKernel:
    heuristic = _heuristic(node)
    meta: dict[str, Any] = {}
    if heuristic is not None:
        stated = {keyword.arg: keyword.value for keyword in heuristic.keywords if keyword.arg}
        inductor_meta = _literal(stated["inductor_meta"]) if "inductor_meta" in stated else None
        if isinstance(inductor_meta, dict):
            meta = {key: inductor_meta[key] for key in _META if inductor_meta.get(key) is not None}
        meta |= {
            key: value
            for key in _DECORATOR_FACTS
            if key in stated and (value := _literal(stated[key])) is not None
        }
    return GeneratedKernel(
        function=node.name,
        decorator_line=node.decorator_list[0].lineno,
        line=node.lineno,
        end_line=node.end_lineno or node.lineno,
        heuristic=None if heuristic is None else _dotted(heuristic).rpartition(".")[2],
        meta=meta,
    )


def _literal(node: ast.expr) -> Any:
    """The value of a literal in JSON types; None for what is none.

    Keys become text; an attribute (`ReductionHint.INNER`) its last name; `set()` an empty list.
    """
    match node:
        case ast.Constant():
            value: Any = _json_constant(node.value)
        case ast.List() | ast.Tuple() | ast.Set():
            value = [_literal(element) for element in node.elts]
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            value = {str(_literal(key)): _literal(value) for key, value in pairs if key is not None}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            value = _json_constant(-number)
        case ast.Attribute():
            value = node.attr
        case ast.Call(func=ast.Name(id="set" | "OrderedSet"), args=[]):
            value = []
        case _:
            value = None
    return value


def _json_constant(value: object) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else None
    return value if isinstance(value, str) else None


class _GraphReader:
    """Reads the code of a graph line by line: comments come before what they describe."""

    def __init__(self) -> None:
        self._kernels: dict[str, dict[str, Any]] = {}
        self._comments: dict[str, Any] = {}
        self._open: dict[str, Any] | None = None  # The kernel whose source text is being read.

    def kernels(self) -> tuple[GraphKernel, ...]:
        """The kernels read so far."""
        return tuple(_graph_kernel(fields) for fields in self._kernels.values())

    def read(self, line: str) -> None:
        """Take in the next line."""
        if self._open is not None:
            if _DEFINITION_END.match(line):
                self._open = None
            else:
                self._open["lines"].append(line)
        elif line.lstrip().startswith("#"):
            self._read_comment(line)
        elif found := _DEFINITION.match(line):
            self._open = {"source_nodes": [], **self._comments, "lines": []}
            self._open |= {"name": found[1], "function": found[2], "quote": found[3]}
            self._kernels[found[1]] = self._open
            self._comments = {}
        elif line.strip() and not _STREAM.match(line):
            launch = _LAUNCH.match(line)
            if launch is not None and launch[1] in self._kernels:
                self._kernels[launch[1]]["source_nodes"].extend(self._comments.get("source_nodes", ()))
            self._comments = {}

    def _read_comment(self, line: str) -> None:
        if found := _NODES.match(line):
            self._comments |= {"source_nodes": _names(found[1]), "original_aten": _operators(found[2])}
        elif found := _PATH.match(line):
            self._comments = {"file": found[1].strip()}
        elif found := _USER_PATH.match(line):
            self._comments |= {"user_file": found[1], "user_line": int(found[2])}


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _operators(text: str) -> list[str]:
    """Operators as traces name them: `aten.gelu` is `aten::gelu`."""
    found = ((_OPERATOR.fullmatch(name), name) for name in _names(text))
    return [f"{match[1]}::{match[2]}" if match else name for match, name in found]


def _graph_kernel(fields: dict[str, Any]) -> GraphKernel:
    text = _quoted(fields["quote"], "\n".join(fields["lines"]))
    return GraphKernel(
        name=fields["name"],
        function=fields["function"],
        hash=None if text is None else source_hash(text),
        file=fields.get("file"),
        text=text,
        user_file=fields.get("user_file"),
        user_line=fields.get("user_line"),
        original_aten=tuple(fields.get("original_aten", ())),
        source_nodes=tuple(dict.fromkeys(fields["source_nodes"])),
    )


def _quoted(quote: str, body: str) -> str | None:
    """The value of a string literal's text."""
    try:
        value = ast.literal_eval(f"{quote}\n{body}\n'''")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, str) else None
