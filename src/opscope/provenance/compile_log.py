"""Reading the structured log of torch.compile (`TORCH_TRACE=FOLDER`): the graphs it compiled.

A record is a line `V1121 11:52:03.777000 29142 torch/_inductor/compile_fx.py:1624] {JSON}`, and its payload
the lines after it, indented by one tab. A graph's code comes first, then what provenance tracking noted of
it, then its cache key; several compilations are told apart by their ids. Format: torch/_logging/_internal.py,
`trace_structured`; releases 2.6 to 2.13 (2.6 has no provenance tracking).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from opscope.errors import InputError
from opscope.model.generated_code import CompiledGraph, parse_graph, parse_tracking

__all__ = ["read_compile_log"]

_RECORD = re.compile(r"^(?:\[rank\d+\]:)?[VDIWEC]\d{4} \S+ \d+ \S+\] (\{.*)$")
_COMPILE_ID = ("rank", "compiled_autograd_id", "frame_id", "frame_compile_id", "attempt")
_CODE = "inductor_output_code"
_STACKS = "inductor_provenance_tracking_kernel_stack_traces"
_NODES = "inductor_provenance_tracking_node_mappings"
_KEYS = ("fx_graph_cache_miss", "fx_graph_cache_hit", "fx_graph_cache_bypass")
_KEY = "key"


def read_compile_log(source: str | Path) -> tuple[CompiledGraph, ...]:
    """The compiled graphs in a log file, or in all `*.log` of a folder, each once.

    Raises:
        InputError: It cannot be read, or holds no record of the compiler.
    """
    path = Path(source)
    files = sorted(path.glob("*.log")) if path.is_dir() else [path]
    graphs: list[CompiledGraph] = []
    record_count = 0
    for file in files:
        reader = _LogReader()
        for metadata, payload in _records(file):
            record_count += 1
            reader.read(metadata, payload)
        graphs += [graph for graph in reader.graphs() if graph not in graphs]
    if not record_count:
        raise InputError(
            "no log of torch.compile",
            source=path,
            hint="Run the program with TORCH_TRACE=FOLDER and INDUCTOR_PROVENANCE=1",
        )
    return tuple(graphs)


def _records(file: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The records about graphs, with their payloads; of all others the metadata, and an empty text."""
    metadata: dict[str, Any] | None = None
    lines: list[str] = []
    try:
        with file.open(encoding="utf-8", errors="replace", newline="\n") as log:
            for line in log:
                if line.startswith("\t"):
                    if metadata is not None and _name(metadata) is not None:
                        lines.append(line[1:])
                elif (found := _metadata(line)) is not None:
                    if metadata is not None:
                        yield metadata, "".join(lines)
                    metadata, lines = found, []
    except OSError as error:
        raise InputError(f"the log cannot be read ({error.strerror})", source=file) from error
    if metadata is not None:
        yield metadata, "".join(lines)


def _metadata(line: str) -> dict[str, Any] | None:
    found = _RECORD.match(line)
    if found is None:
        return None
    try:
        value = msgspec.json.decode(found[1])
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None


def _name(metadata: dict[str, Any]) -> str | None:
    """What a record holds of a graph: its code, or the name of an artifact about it."""
    if _CODE in metadata:
        return _CODE
    artifact = metadata.get("artifact")
    name = artifact.get("name") if isinstance(artifact, dict) else None
    return name if name in {_STACKS, _NODES, *_KEYS} else None


class _LogReader:
    """Puts the records of each compilation together."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, ...], dict[str, str]] = {}
        self._graphs: list[dict[str, str]] = []

    def read(self, metadata: dict[str, Any], payload: str) -> None:
        """Take in the next record."""
        name = _name(metadata)
        if name is None:
            return
        compilation = tuple(metadata.get(field) for field in _COMPILE_ID)
        if name == _CODE:
            self._open[compilation] = {}
            self._graphs.append(self._open[compilation])
        graph = self._open.get(compilation)
        if graph is not None:
            graph.setdefault(_KEY if name in _KEYS else name, payload)

    def graphs(self) -> Iterator[CompiledGraph]:
        """The graphs read so far."""
        for graph in self._graphs:
            stacks, nodes = parse_tracking(graph.get(_STACKS), graph.get(_NODES))
            yield CompiledGraph(parse_graph(graph[_CODE]), _key(graph.get(_KEY)), stacks, nodes)


def _key(payload: str | None) -> str | None:
    found = None if payload is None else re.search(r'"key": "([^"]+)"', payload[:4096])
    return None if found is None else found[1]
