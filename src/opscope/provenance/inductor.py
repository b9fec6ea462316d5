"""Kernels that the recorded program itself compiled → their sources and what these compute.

Facts come from the recording's sidecar (table `kernel_sources`), else from the generated files where they are
at hand and have the recorded hash, and from a log of the compiler if one is given. No file is ever executed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from opscope.model.evidence import Grade
from opscope.model.generated_code import files_by_hash, generated_sources, read_generated
from opscope.model.location import SourceLocation
from opscope.model.origin import RecordedSource, SourceEvidence
from opscope.model.session import Session
from opscope.model.sidecar import kernels_folder
from opscope.provenance.compile_log import read_compile_log

__all__ = ["complete_sources", "source_locations"]

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
