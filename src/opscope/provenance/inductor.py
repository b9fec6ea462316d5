"""Kernels that the recorded program itself compiled → their sources and what these compute.

Facts come from the recording's sidecar (table `kernel_sources`), else from the generated files where they are
at hand and have the recorded hash, and from a log of the compiler if one is given. No file is ever executed.

A record in the structured log of torch.compile (`TORCH_TRACE=FOLDER`) is a line
`V1121 11:52:03.777000 29142 torch/_inductor/compile_fx.py:1624] {JSON}`, and its payload the lines after it,
each behind a tab. Records of several compilations are told apart by their ids. Format:
torch/_logging/_internal.py, `trace_structured`; releases 2.6 to 2.13 (2.6 has no provenance tracking).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from opscope.errors import InputError
from opscope.model.evidence import Grade
from opscope.model.files import UNREADABLE_JSON
from opscope.model.generated_code import (
    CompiledGraph,
    files_by_hash,
    generated_sources,
    parse_graph,
    parse_tracking,
    read_generated,
)
from opscope.model.location import SourceLocation
from opscope.model.origin import RecordedSource, SourceEvidence
from opscope.model.session import Session
from opscope.model.sidecar import kernels_folder
from opscope.provenance.packaged import lazy_pattern

_RECORD = lazy_pattern(r"^(?:\[rank\d+\]:)?[VDIWEC]\d{4} \S+ \d+ \S+\] (\{.*)$")
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
    except UNREADABLE_JSON:
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


_SOURCES_SQL = (
    "SELECT n.name AS kernel, s.* EXCLUDE (name_id) FROM kernel_sources s JOIN kernel_names n USING (name_id)"
)
_KEYS_SQL = r"""SELECT DISTINCT regexp_extract(name, '^## Call CompiledFxGraph (\S+) ##$', 1) AS graph_key
FROM annotations WHERE name LIKE '## Call CompiledFxGraph %'"""
_FILES_SQL = "SELECT DISTINCT kernel_file FROM triton_launches WHERE kernel_file <> '' ORDER BY 1"


def complete_sources(session: Session, log: str | Path | None = None) -> int:
    """Add to `kernel_sources` what the generated files and a log of the compiler tell beyond the sidecar.

    Args:
        session: Whose table is completed; on a read-only Session for this connection only.
        log: A `TORCH_TRACE` folder, or one file of it, of the recorded program.

    Returns:
        Number of rows of the table that are new or know more.

    Raises:
        InputError: The log cannot be read.
    """
    ids = dict(session.query("SELECT name, name_id FROM kernel_names WHERE kind = 'kernel'"))
    graphs = () if log is None else read_compile_log(log)
    matched = generated_sources(
        ids.keys(),
        files_by_hash(file for (file,) in session.query(_FILES_SQL)),
        {key for (key,) in session.query(_KEYS_SQL)},
        graphs,
        read=_reader(session),
        by_name=SourceEvidence.LOG,
    )
    recorded = _recorded(session)
    merged = _merge(recorded, [source for source, _ in matched])
    changed = len([source for source in merged if source not in recorded])
    if changed:
        rows = [
            {"name_id": ids[source.kernel], **msgspec.structs.asdict(source)}
            for source in merged
            if source.kernel in ids
        ]
        for row in rows:
            del row["kernel"]
        session.replace_rows("kernel_sources", rows)
    return changed


def source_locations(session: Session) -> dict[str, SourceLocation]:
    """By kernel name, where its source lies: the user's own function, else the generated file.

    Launches outweigh names; a kernel whose sources then still lie in different places is left out.
    """
    by_kernel: dict[str, list[RecordedSource]] = defaultdict(list)
    for source in _recorded(session):
        by_kernel[source.kernel].append(source)
    places = {kernel: {_place(source) for source in _best(sources)} for kernel, sources in by_kernel.items()}
    return {
        kernel: place
        for kernel, (place, *others) in ((kernel, tuple(found)) for kernel, found in places.items())
        if place is not None and not others
    }


def _best(sources: Sequence[RecordedSource]) -> Sequence[RecordedSource]:
    """The sources that launches name, if any; else all."""
    return [source for source in sources if source.evidence is SourceEvidence.LAUNCH] or sources


def _place(source: RecordedSource) -> SourceLocation | None:
    if source.user_file is not None:
        file, line, end_line = source.user_file, source.user_line, None
    elif source.file is not None:
        file, line, end_line = source.file, source.line, source.end_line
    else:
        return None
    return SourceLocation(file, Grade.EXACT, line, end_line, None if line is None else Grade.EXACT)


def _recorded(session: Session) -> list[RecordedSource]:
    """The table as it stands."""
    sources = []
    for record in session.records(_SOURCES_SQL):
        for name in ("stacks", "meta"):
            record[name] = None if record[name] is None else msgspec.json.decode(record[name])
        fields = {name: value for name, value in record.items() if value is not None}
        sources.append(msgspec.convert(fields, RecordedSource))
    return sources


def _merge(recorded: Sequence[RecordedSource], found: Iterable[RecordedSource]) -> list[RecordedSource]:
    """Sources of both: one per kernel, hash and graph; what is recorded stays, and gains what it lacks."""
    merged = {_identity(source): source for source in recorded}
    without_graph = {identity: source for identity, source in merged.items() if not _has_graph(source)}
    for source in found:
        alone = (source.kernel, source.hash, None, None)
        if not _has_graph(source) and any(identity[:2] == alone[:2] for identity in merged):
            continue
        known = merged.get(_identity(source)) or without_graph.get(alone)
        merged.pop(alone, None)
        merged[_identity(source)] = source if known is None else _filled(known, source)
    return list(merged.values())


def _identity(source: RecordedSource) -> tuple[str, str | None, str | None, str | None]:
    return source.kernel, source.hash or source.file, source.graph_key, source.graph


def _has_graph(source: RecordedSource) -> bool:
    return source.graph_key is not None or source.graph is not None


def _filled(known: RecordedSource, other: RecordedSource) -> RecordedSource:
    """The first, with every field it lacks from the second."""
    missing = {
        name: value
        for name in known.__struct_fields__
        if not getattr(known, name) and (value := getattr(other, name))
    }
    return msgspec.structs.replace(known, **missing)


def _reader(session: Session) -> Callable[[str | None, str], str | None]:
    """Reads a generated file: its copy beside one of the traces, else where it was recorded."""
    sources = [str(source) for (source,) in session.query("SELECT source FROM traces")]
    folders = [folder for source in sources if (folder := kernels_folder(source)).is_dir()]

    def read(file: str | None, hash_: str) -> str | None:
        places: list[str | Path] = [folder / f"{hash_}.py" for folder in folders]
        places += [] if file is None else [file]
        texts = (read_generated(place, hash_) for place in places)
        return next((text for text in texts if text is not None), None)

    return read
