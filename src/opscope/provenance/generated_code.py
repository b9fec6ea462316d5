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
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path, PurePath
from typing import Any

import msgspec

from opscope.model.files import UNREADABLE_JSON
from opscope.model.origin import RecordedSource, SourceEvidence, SourceFrame, SourceKind, Stack

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
# The lines of a graph's code: comments come before what they describe.
_LINE = re.compile(
    r"""
    ^[ \t]*\#\ (?:Topologically\ Sorted\ |Unsorted\ )?Source\ Nodes:\ \[(?P<nodes>.*?)\],
        \ Original\ ATen:\ \[(?P<aten>.*?)\]
    |^\#\ kernel\ path:\ (?P<path>.+)$
    |^\#\ Original\ path:\ (?P<user_file>.+):(?P<user_line>\d{1,18})$
    |^[ \t]*\#
    |^(?P<name>\w+)\ =\ async_compile\.triton\('(?P<function>\w+)',\ (?P<quote>r?''').*
        (?P<body>(?:\n(?!''',\ device_str=).*)*)(?:\n''',\ device_str=)?
    |^[ \t]+(?:raw_)?stream\d+\ =[ ]
    |^(?P<other>[ \t]+(?P<launched>\w+)\.run\(|[ \t]*\S)
    """,
    re.MULTILINE | re.VERBOSE,
)  # fmt: skip
_OPERATOR = re.compile(r"(\w+)\.(\w+)")


class GraphKernel(msgspec.Struct, frozen=True):
    """One Triton kernel that the code of a graph defines."""

    name: str  # Variable it is launched through; also the name of its launches in a trace
    function: str  # Name on the device
    hash: str | None  # Of its source, or None if its text cannot be read
    text: str | None  # The source, or None if it cannot be read
    file: str | None = None  # Where inductor put the source, where noted
    user_file: str | None = None  # File of the user's own Triton kernel it was made from
    user_line: int | None = None  # Its line there
    original_aten: tuple[str, ...] = ()  # ATen operators of its first use, named as in traces (`aten::gelu`)
    source_nodes: tuple[str, ...] = ()  # Nodes of the program's graph, of all uses


class GraphCode(msgspec.Struct, frozen=True):
    """The code generated for one graph: its id (`0_forward`, `1_backward`, …), if known, and its kernels."""

    graph: str | None
    kernels: tuple[GraphKernel, ...]


def source_hash(text: str) -> str:
    """Inductor's hash of a source text; also the stem of the file it is in.

    Source: torch/_inductor/codecache.py, `code_hash` and `write`: blanks around the text do not count.
    """
    digest = hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).digest()
    return "c" + base64.b32encode(digest)[:_HASH_LENGTH].decode().lower()


def parse_kernel(text: str, function: str | None = None) -> dict[str, Any] | None:
    """The kernel of that name which a source text defines; None if it defines none, or several equals.

    Without a name, the one decorated by `triton_heuristics`, or the only one. Facts have the names that
    fields of a `RecordedSource` have.
    """
    if len(text) > _LARGEST_TEXT:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and function in (None, node.name)
        and any(_dotted(one).endswith("triton.jit") for one in node.decorator_list)
    ]
    if len(found) > 1:  # The others are functions it calls.
        found = [node for node in found if _heuristic(node) is not None]
    if len(found) != 1:
        return None
    (node,) = found
    heuristic = _heuristic(node)
    given = () if heuristic is None else heuristic.keywords
    stated = {keyword.arg: _literal(keyword.value) for keyword in given if keyword.arg}
    inductor_meta = stated.get("inductor_meta")
    meta = {key: inductor_meta.get(key) for key in _META} if isinstance(inductor_meta, dict) else {}
    meta |= {key: stated.get(key) for key in _DECORATOR_FACTS}
    return {
        "kernel": node.name,
        "line": node.lineno,
        "end_line": node.end_lineno or node.lineno,
        "heuristic": None if heuristic is None else _dotted(heuristic).rpartition(".")[2],
        "meta": {key: value for key, value in meta.items() if value is not None},
    }


def parse_graph(text: str) -> GraphCode:
    """What the code of one graph says of its Triton kernels, in order of definition."""
    graph_id = _GRAPH_ID.search(text, 0, 4096)
    kernels: dict[str, GraphKernel] = {}
    comments: dict[str, Any] = {}
    for found in _LINE.finditer(text):
        if found["nodes"] is not None:
            operators = ((_OPERATOR.fullmatch(one), one) for one in _names(found["aten"]))
            comments |= {
                "source_nodes": tuple(dict.fromkeys(_names(found["nodes"]))),
                # Operators as traces name them: `aten.gelu` is `aten::gelu`.
                "original_aten": tuple(f"{is_[1]}::{is_[2]}" if is_ else one for is_, one in operators),
            }
        elif found["path"]:
            comments = {"file": found["path"].strip()}
        elif found["user_file"]:
            comments |= {"user_file": found["user_file"], "user_line": int(found["user_line"])}
        elif found["name"]:
            source = _quoted(found["quote"], found["body"])
            hash_ = None if source is None else source_hash(source)
            kernels[found["name"]] = GraphKernel(found["name"], found["function"], hash_, source, **comments)
            comments = {}
        elif found["other"]:
            if (kernel := kernels.get(found["launched"])) is not None:
                nodes = dict.fromkeys((*kernel.source_nodes, *comments.get("source_nodes", ())))
                kernels[kernel.name] = msgspec.structs.replace(kernel, source_nodes=tuple(nodes))
            comments = {}
    return GraphCode(None if graph_id is None else graph_id[1], tuple(kernels.values()))


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _quoted(quote: str, body: str) -> str | None:
    """The value of a string literal's text, whose lines begin with line ends."""
    try:
        value = ast.literal_eval(f"{quote}{body or chr(10)}\n'''")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, str) else None


def _dotted(node: ast.expr) -> str:
    """`a.b.c` of a decorator, called or not; empty for anything else."""
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _heuristic(node: ast.FunctionDef) -> ast.Call | None:
    calls = (one for one in node.decorator_list if isinstance(one, ast.Call))
    return next((one for one in calls if "triton_heuristics." in f"{_dotted(one)}."), None)


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


# "cppCodeToPost" names the kernels of every backend.
_KERNEL_NODES = "cppCodeToPost"
_FRAME = re.compile(r'^\s*File "(.+)", line (\d{1,18}), in (.+)$')
_CARETS = re.compile(r"^[\s^~]+$")


class CompiledGraph(msgspec.Struct, frozen=True):
    code: GraphCode  # Its generated code
    # Its cache key, which annotations of a trace name; None if caches were off or it is not known
    key: str | None = None
    # By `kernel:handle`, the lines of the program that a use of a kernel stands for, if tracked
    stacks: Mapping[str, tuple[Stack, ...]] = msgspec.field(default_factory=dict)
    # By `kernel:handle`, the nodes of the lowered graph
    nodes: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    # By node of the program's graph, the qualified name of the module whose code it is of
    modules: Mapping[str, str] = msgspec.field(default_factory=dict)


def parse_tracking(
    stack_traces: str | None, node_mappings: str | None
) -> tuple[dict[str, tuple[Stack, ...]], dict[str, tuple[str, ...]]]:
    """Stacks and nodes by `kernel:handle`, from the two JSON texts of provenance tracking."""
    stacks = {
        use: tuple(dict.fromkeys(stack for text in texts if (stack := parse_stack(str(text)))))
        for use, texts in _object(stack_traces).items()
        if isinstance(texts, list)
    }
    by_kernel = _object(node_mappings).get(_KERNEL_NODES)
    nodes = {
        str(use): tuple(map(str, names))
        for use, names in (by_kernel if isinstance(by_kernel, dict) else {}).items()
        if isinstance(names, list)
    }
    return stacks, nodes


def parse_stack(text: str) -> Stack:
    """Frames of a stack as Python prints it, innermost last."""
    frames: list[SourceFrame] = []
    for line in text.split("\n"):
        found = _FRAME.match(line)
        if found:
            frames.append(SourceFrame(found[1], int(found[2]), found[3].strip()))
        elif frames and frames[-1].code is None and line.strip() and not _CARETS.match(line):
            frames[-1] = msgspec.structs.replace(frames[-1], code=line.strip())
    return tuple(frames)


def recorded_source(
    graph: CompiledGraph,
    kernel: GraphKernel,
    text: str | None,
    evidence: SourceEvidence,
    file: str | None = None,
) -> RecordedSource:
    """All that is known of one kernel of a graph; lines are those of `text`, its file where at hand."""
    parsed = None if text is None else parse_kernel(text, kernel.function)

    def of_uses(values: Mapping[str, Iterable[Any]]) -> tuple[Any, ...]:
        """What all uses of the kernel have, each once."""
        uses = (of_use for use, of_use in values.items() if use.partition(":")[0] == kernel.name)
        return tuple(dict.fromkeys(value for of_use in uses for value in of_use))

    return RecordedSource(
        kind=SourceKind.INDUCTOR,
        evidence=evidence,
        file=file or kernel.file,
        hash=kernel.hash,
        user_file=kernel.user_file,
        user_line=kernel.user_line,
        graph=graph.code.graph,
        graph_key=graph.key,
        original_aten=kernel.original_aten,
        source_nodes=kernel.source_nodes,
        modules=tuple(
            dict.fromkeys(graph.modules[node] for node in kernel.source_nodes if node in graph.modules)
        ),
        post_grad_nodes=of_uses(graph.nodes),
        stacks=of_uses(graph.stacks),
        **(parsed or {"kernel": kernel.function}),
    )


def _object(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = msgspec.json.decode(text)
    except UNREADABLE_JSON:
        return {}
    return value if isinstance(value, dict) else {}


# Annotations write this for a graph that was compiled with caches off.
_NO_KEY = "None"


_GENERATED_FILE = re.compile(r"c[a-z2-7]{51}\.py")
LARGEST_FILE_BYTES = 8 << 20


def is_generated(name: str) -> bool:
    """Whether a file is named as torch.compile names what it generates: by the hash of its text."""
    return _GENERATED_FILE.fullmatch(name) is not None


def files_by_hash(files: Iterable[str]) -> dict[str, str]:
    """Paths of generated files by the hash of their text, which is their stem."""
    return {PurePath(file).stem: file for file in files}


def read_generated(file: str | Path, hash_: str) -> str | None:
    """The text of a file if it has that hash; None if it has another, or cannot be read.

    A trace names the file: what has another name than generated code, is no file or too large is not read.
    """
    path = Path(file)
    try:
        if not is_generated(path.name) or not path.is_file() or path.stat().st_size > LARGEST_FILE_BYTES:
            return None
        text = path.read_bytes().decode("utf-8")
    except (OSError, ValueError):
        return None
    return text if source_hash(text) == hash_ else None


def generated_sources(
    kernels: Set[str],
    files: Mapping[str, str],
    graph_keys: Set[str] = frozenset(),
    graphs: Iterable[CompiledGraph] = (),
    *,
    read: Callable[[str | None, str], str | None],
) -> list[tuple[RecordedSource, str | None]]:
    """Sources of the kernels that torch.compile generated, with their texts: one pair per kernel and graph.

    Of kernels of these names in the trace; its launches name files (by hash), its annotations cache keys of
    graphs. `read` gives the text of a generated file, by its path, if known, and hash; None if it is not at
    hand.
    """
    defined = [
        (graph, kernel, kernel.hash)
        for graph in graphs
        if not graph_keys or (graph.key or _NO_KEY) in graph_keys
        for kernel in graph.code.kernels
        if kernel.hash is not None and kernel.function in kernels
    ]
    launched = {kernel.function for _, kernel, hash_ in defined if hash_ in files}
    sources = []
    for graph, kernel, hash_ in defined:
        if hash_ in files:
            evidence = SourceEvidence.LAUNCH
        elif kernel.function not in launched or graph.key in graph_keys:
            evidence = SourceEvidence.PROCESS
        else:
            continue  # Launches of that name had another source.
        file = files.get(hash_, kernel.file)
        # Lines count in the file; the text within the graph's code may begin elsewhere.
        text = read(file, hash_) or kernel.text
        sources.append((recorded_source(graph, kernel, text, evidence, file), text))
    known = {source.hash for source, _ in sources}
    for hash_, file in files.items():
        # What a file alone says, if it defines one of the kernels.
        text = None if hash_ in known else read(file, hash_)
        parsed = (None if text is None else parse_kernel(text)) or {}
        if parsed.get("kernel") in kernels:
            parsed |= {"file": file, "hash": hash_}
            source = RecordedSource(kind=SourceKind.INDUCTOR, evidence=SourceEvidence.LAUNCH, **parsed)
            sources.append((source, text))
    return sources
