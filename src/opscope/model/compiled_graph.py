"""One graph compiled by torch.compile: its generated code joined with what provenance tracking noted of it.

Formats: torch/_inductor/debug.py, `_inductor_kernel_stack_trace` and `dump_inductor_provenance_info` (as in
2.13): JSON by `kernel:handle`, where a handle numbers the uses of kernels in one graph from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from opscope.model.generated_code import GraphCode, GraphKernel, parse_kernel
from opscope.model.origin import RecordedSource, SourceEvidence, SourceFrame, SourceKind, Stack

__all__ = ["CompiledGraph", "parse_stack", "parse_tracking", "recorded_source"]

# "cppCodeToPost" names the kernels of every backend.
_KERNEL_NODES = "cppCodeToPost"
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$')
_CARETS = re.compile(r"^[\s^~]+$")


@dataclass(frozen=True)
class CompiledGraph:
    """One compiled graph.

    Args:
        code: Its generated code.
        key: Its cache key, which annotations of a trace name; None if caches were off or it is not known.
        stacks: By `kernel:handle`, the lines of the program that a use of a kernel stands for, if tracked.
        nodes: By `kernel:handle`, the nodes of the lowered graph.
    """

    code: GraphCode
    key: str | None = None
    stacks: Mapping[str, tuple[Stack, ...]] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def stacks_of(self, kernel: GraphKernel) -> tuple[Stack, ...]:
        """Lines of the program that all uses of a kernel stand for, each once."""
        return _union(self.stacks, kernel)

    def nodes_of(self, kernel: GraphKernel) -> tuple[str, ...]:
        """Nodes of the lowered graph that all uses of a kernel compute, each once."""
        return _union(self.nodes, kernel)


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
    graph: CompiledGraph, kernel: GraphKernel, text: str | None, evidence: SourceEvidence
) -> RecordedSource:
    """All that is known of one kernel of a graph.

    Args:
        graph: The graph.
        kernel: One of its kernels.
        text: The kernel's source file, where at hand: its lines are the ones that count.
        evidence: How the kernel was tied to a name of the trace.
    """
    parsed = None if text is None else parse_kernel(text, kernel.function)
    return RecordedSource(
        kernel=kernel.function,
        kind=SourceKind.INDUCTOR,
        evidence=evidence,
        file=kernel.file,
        line=None if parsed is None else parsed.line,
        end_line=None if parsed is None else parsed.end_line,
        hash=kernel.hash,
        user_file=kernel.user_file,
        user_line=kernel.user_line,
        heuristic=None if parsed is None else parsed.heuristic,
        graph=graph.code.graph,
        graph_key=graph.key,
        original_aten=kernel.original_aten,
        source_nodes=kernel.source_nodes,
        post_grad_nodes=graph.nodes_of(kernel),
        stacks=graph.stacks_of(kernel),
        meta={} if parsed is None else parsed.meta,
    )


def _union(values: Mapping[str, Iterable[Any]], kernel: GraphKernel) -> tuple[Any, ...]:
    uses = (of_use for use, of_use in values.items() if use.partition(":")[0] == kernel.name)
    return tuple(dict.fromkeys(value for of_use in uses for value in of_use))


def _object(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
