"""Kernels that the recorded program itself compiled → their sources and what these compute.

Facts come from the recording's sidecar (table `kernel_sources`), else from the generated files where they are
at hand and have the recorded hash. No file is ever executed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.model.origin import RecordedSource, SourceEvidence
from opscope.model.session import Session
from opscope.model.sidecar import kernels_folder
from opscope.provenance.generated_code import files_by_hash, generated_sources, read_generated

_SOURCES_SQL = (
    "SELECT n.name AS kernel, s.* EXCLUDE (name_id) FROM kernel_sources s JOIN kernel_names n USING (name_id)"
)
_FILES_SQL = "SELECT DISTINCT kernel_file FROM triton_launches WHERE kernel_file <> '' ORDER BY 1"


def complete_sources(session: Session) -> int:
    """Add to `kernel_sources` what generated files tell of kernels that the sidecar does not."""
    ids = dict(session.query("SELECT name, name_id FROM kernel_names WHERE kind = 'kernel'"))
    found = generated_sources(
        ids.keys(),
        files_by_hash(file for (file,) in session.query(_FILES_SQL)),
        read=_reader(session),
    )
    recorded = {_identity(source): source for source in _recorded(session)}
    known = {identity[:2] for identity in recorded}
    added = [source for source, _ in found if _identity(source)[:2] not in known]
    if added:
        rows = [
            {"name_id": ids[source.kernel], **msgspec.structs.asdict(source)}
            for source in (*recorded.values(), *added)
            if source.kernel in ids
        ]
        for row in rows:
            del row["kernel"]
        session.replace_rows("kernel_sources", rows)
    return len(added)


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


def _identity(source: RecordedSource) -> tuple[str, str | None, str | None, str | None]:
    return source.kernel, source.hash or source.file, source.graph_key, source.graph


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
