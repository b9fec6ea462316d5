"""What this process holds of torch.compile and Triton: compiled graphs and kernel functions.

Neither library keeps a public list of them, so the garbage collector is asked: 0.2 s per million objects.
Nothing is imported here: a library that the program has not loaded has no such objects.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opscope.model.generated_code import CompiledGraph, parse_graph, parse_tracking

__all__ = ["LiveObjects", "compiled_graphs", "live_objects"]

_GRAPH_CLASS = ("torch._inductor.output_code", "CompiledFxGraph")
_FUNCTION_CLASS = ("triton.runtime.jit", "JITFunction")
_KERNEL_DEFINITION = "async_compile.triton("


@dataclass(frozen=True)
class LiveObjects:
    """Objects of this process: torch's `CompiledFxGraph`s and Triton's `JITFunction`s."""

    graphs: tuple[Any, ...] = ()
    functions: tuple[Any, ...] = ()


def live_objects() -> LiveObjects:
    """The objects, found in one pass over all that the garbage collector tracks."""
    graphs, functions = _class_ids(*_GRAPH_CLASS), _class_ids(*_FUNCTION_CLASS)
    wanted = graphs | functions
    if not wanted:
        return LiveObjects()
    # By the identity of the class: isinstance asks the objects, and lazy ones would wake up.
    found = [one for one in gc.get_objects() if id(type(one)) in wanted]
    return LiveObjects(
        tuple(one for one in found if id(type(one)) in graphs),
        tuple(one for one in found if id(type(one)) in functions),
    )


def compiled_graphs(graphs: tuple[Any, ...]) -> Iterator[CompiledGraph]:
    """The graphs that define Triton kernels, read from torch's objects."""
    for graph in graphs:
        code = getattr(graph, "source_code", None)
        if not isinstance(code, str) or _KERNEL_DEFINITION not in code:
            continue
        stacks, nodes = parse_tracking(
            getattr(graph, "inductor_provenance_stack_traces_str", None),
            getattr(graph, "inductor_provenance_mapping_str", None),
        )
        yield CompiledGraph(parse_graph(code), getattr(graph, "_fx_graph_cache_key", None), stacks, nodes)


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
