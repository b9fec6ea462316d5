"""Which generated source belongs to which kernel of a trace: the one rule, at capture and afterwards.

A launch in a trace names its file, and the file's name is the hash of its text. Kernels replayed from a CUDA
graph have no launch; they are matched by name, among the compiled graphs that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path, PurePath

import msgspec

from opscope.model.compiled_graph import CompiledGraph, recorded_source
from opscope.model.generated_code import GraphKernel, parse_kernel, source_hash
from opscope.model.origin import RecordedSource, SourceEvidence, SourceKind

__all__ = ["files_by_hash", "generated_sources", "read_generated"]

# Annotations write this for a graph that was compiled with caches off.
_NO_KEY = "None"


def files_by_hash(files: Iterable[str]) -> dict[str, str]:
    """Paths of generated files by the hash of their text, which is their stem."""
    return {PurePath(file).stem: file for file in files}


def read_generated(file: str | Path, hash_: str) -> str | None:
    """The text of a file if it has that hash; None if it has another, or cannot be read."""
    try:
        text = Path(file).read_bytes().decode("utf-8")
    except (OSError, ValueError):
        return None
    return text if source_hash(text) == hash_ else None


def generated_sources(
    kernels: Set[str],
    files: Mapping[str, str],
    graph_keys: Set[str],
    graphs: Iterable[CompiledGraph],
    *,
    read: Callable[[str | None, str], str | None],
    by_name: SourceEvidence,
) -> list[tuple[RecordedSource, str | None]]:
    """Sources of the kernels that torch.compile generated, with their texts.

    Args:
        kernels: Kernel names in the trace.
        files: By hash, the files that its launches name.
        graph_keys: Cache keys of the graphs its annotations name; empty if it has none.
        graphs: Compiled graphs that may have run.
        read: The text of a generated file, given its path, if known, and hash; None if it is not at hand.
        by_name: The evidence of a source that no launch names.

    Returns:
        One pair per kernel and graph.
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
            evidence = by_name
        else:
            continue  # Launches of that name had another source.
        sources.append(_of_graph(graph, kernel, files.get(hash_, kernel.file), read, evidence))
    known = {source.hash for source, _ in sources}
    alone = (_of_file(file, hash_, read, kernels) for hash_, file in files.items() if hash_ not in known)
    return [*sources, *(source for source in alone if source is not None)]


def _of_graph(
    graph: CompiledGraph,
    kernel: GraphKernel,
    file: str | None,
    read: Callable[[str | None, str], str | None],
    evidence: SourceEvidence,
) -> tuple[RecordedSource, str | None]:
    # Lines count in the file; the text within the graph's code may begin elsewhere.
    text = read(file, kernel.hash or "") or kernel.text
    source = recorded_source(graph, kernel, text, evidence)
    return msgspec.structs.replace(source, file=file), text


def _of_file(
    file: str, hash_: str, read: Callable[[str | None, str], str | None], kernels: Set[str]
) -> tuple[RecordedSource, str] | None:
    """What a file alone says, if it defines one of the kernels."""
    text = read(file, hash_)
    kernel = None if text is None else parse_kernel(text)
    if text is None or kernel is None or kernel.function not in kernels:
        return None
    source = RecordedSource(
        kernel=kernel.function,
        kind=SourceKind.INDUCTOR,
        evidence=SourceEvidence.LAUNCH,
        file=file,
        line=kernel.line,
        end_line=kernel.end_line,
        hash=hash_,
        heuristic=kernel.heuristic,
        meta=kernel.meta,
    )
    return source, text
