"""Gathering the evidence for one Session: what it recorded, what is installed here, what is packaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from opscope.model.evidence import Grade
from opscope.model.origin import OperatorRegistration
from opscope.model.session import Session
from opscope.provenance.binaries.translation_unit import internal_names, named_unit
from opscope.provenance.inductor import complete_sources, source_locations
from opscope.provenance.operators import OperatorTable, table_for
from opscope.provenance.releases import Recognition, git_version, kernel_units, recognize
from opscope.provenance.releases.version import parse_version
from opscope.provenance.resolution.evidence import Evidence, IndexedSource, RecordedUnits
from opscope.provenance.resolution.local_libraries import installed_libraries
from opscope.provenance.sources import SourceIndex, source_index
from opscope.provenance.sources.at_hand import (
    installed_headers,
    nearest_index,
    release_headers,
)

__all__ = ["gather_evidence"]


def gather_evidence(session: Session, kernel_names: Sequence[str]) -> Evidence:
    """All evidence for a Session with these kernel names."""
    version, commit = _recorded_torch(session)
    complete_sources(session)
    recognition = recognize(kernel_names, torch_version=version, cuda_major=_cuda_major(session))
    if commit is None and recognition.version is not None and recognition.grade is Grade.RELEASE_INDEX:
        commit = git_version(recognition.version)
    operators = table_for(version or recognition.version, commit)
    if version is None and recognition.grade is Grade.NEIGHBOR_VERSION:
        operators = operators.graded(Grade.NEIGHBOR_VERSION)
    return Evidence(
        recognition=recognition,
        operators=operators,
        sources=tuple(_sources(recognition, operators, commit)),
        recorded={**_symbol_units(session, recognition), **_recorded_units(session)},
        user_sources=source_locations(session),
        registrations=_registrations(session),
        libraries=installed_libraries() if _is_installed(commit) else None,
        triton_kernels=_triton_kernels(session),
        backend="CUDA" if _has_device(session) else "CPU",
    )


def _recorded_torch(session: Session) -> tuple[str | None, str | None]:
    """Version and commit of the torch that recorded, where all traces agree."""
    recorded = session.query("SELECT DISTINCT torch_version, torch_git_version FROM traces")
    return recorded[0] if len(recorded) == 1 else (None, None)


def _is_installed(commit: str | None) -> bool:
    headers = installed_headers()
    return headers is not None and commit is not None and headers.git_version == commit


def _triton_kernels(session: Session) -> frozenset[str]:
    rows = session.query(
        "SELECT DISTINCT name FROM kernel_sources JOIN kernel_names USING (name_id) "
        "WHERE kernel_sources.kind IN ('inductor', 'triton')"
    )
    return frozenset(name for (name,) in rows)


def _cuda_major(session: Session) -> int | None:
    version = session.scalar("SELECT max(cuda_runtime_version) FROM traces")
    return None if version is None else int(version) // 1000


def _sources(
    recognition: Recognition, operators: OperatorTable, commit: str | None
) -> Iterator[IndexedSource]:
    """The recording build's own headers, its release's index or headers, then the nearest release's index."""
    headers = installed_headers()
    if headers is not None and _is_installed(commit):
        yield IndexedSource(headers, Grade.EXACT)
    version = recognition.version or operators.version
    grade = recognition.grade if recognition.version else Grade.NEIGHBOR_VERSION
    index = None if version is None else source_index(version)
    if index is not None:
        yield IndexedSource(index, grade if _is_of(index, version, commit) else Grade.NEIGHBOR_VERSION)
        return
    shipped = None if version is None else release_headers(version)
    if shipped is not None:
        yield IndexedSource(shipped, grade)
    neighbor = nearest_index(version)
    if neighbor is not None:
        yield IndexedSource(neighbor, Grade.NEIGHBOR_VERSION)


def _is_of(index: SourceIndex, version: str | None, commit: str | None) -> bool:
    """Whether an index found for a version is of that very build, and not of the release it came before."""
    is_same = version is not None and _release_name(index.version) == _release_name(version)
    return is_same or (commit is not None and index.git_version == commit)


def _release_name(label: str) -> str:
    parsed = parse_version(label)
    return parsed.name if parsed is not None and parsed.is_official else label


# Ranks of other builds name the same units; units of one name differ in the module id.
_ORIGINS_SQL = """
SELECT DISTINCT n.name, o.library, o.unit, o.source_path, o.module_id
FROM kernel_origins o JOIN kernel_names n USING (name_id) ORDER BY ALL"""


def _recorded_units(session: Session) -> dict[str, RecordedUnits]:
    """By kernel name. Libraries that share a name cannot be told apart in a trace: their units are joined."""
    found: dict[str, dict[str, list[tuple[str | None, str | None]]]] = defaultdict(lambda: defaultdict(list))
    for name, library, unit, path, _ in session.query(_ORIGINS_SQL):
        found[name][library].append((unit, path))
    return {name: _joined(libraries) for name, libraries in found.items()}


# A name with something of one unit in it, as nvcc writes it.
_SYMBOLS_SQL = """
SELECT n.name, s.mangled_name FROM kernel_symbols s JOIN kernel_names n USING (name_id)
WHERE contains(s.mangled_name, '_GLOBAL__N_') OR contains(s.mangled_name, '_INTERNAL_') ORDER BY ALL"""


def _symbol_units(session: Session, recognition: Recognition) -> dict[str, RecordedUnits]:
    """By kernel name, units that its mangled names tell.

    What cannot be in an identifier stands there as `_`, so that a name with it counts only if the release has
    a unit of that name.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for name, mangled in session.query(_SYMBOLS_SQL):
        found[name] |= {named_unit(one).name for one in internal_names(mangled.encode())}
    units: dict[str, RecordedUnits] = {}
    for name, names in found.items():
        answer = kernel_units(name, recognition)
        known = {unit.rpartition("/")[2] for unit in answer.units} if answer else set()
        if names and all(unit in known or "_" not in unit for unit in names):
            units[name] = RecordedUnits(None, tuple(sorted(names)), (None,) * len(names))
    return units


def _joined(libraries: Mapping[str, Sequence[tuple[str | None, str | None]]]) -> RecordedUnits:
    """The units of all libraries; none if one of them tells none."""
    binary = next(iter(libraries)) if len(libraries) == 1 else None
    pairs = [pair for found in libraries.values() for pair in found]
    if any(unit is None for unit, _ in pairs):
        return RecordedUnits(binary, (), ())
    return RecordedUnits(binary, tuple(str(unit) for unit, _ in pairs), tuple(path for _, path in pairs))


def _registrations(session: Session) -> dict[str, OperatorRegistration]:
    """What the recording process's dispatcher said, by operator name with overload; of the first rank."""
    found: dict[str, OperatorRegistration] = {}
    for row in session.records("SELECT * FROM operator_registrations ORDER BY ALL"):
        values = {**row, "kernels": _decoded(row["kernels"]), "overrides": _decoded(row["overrides"])}
        registration = msgspec.convert(values, OperatorRegistration)
        found.setdefault(registration.name, registration)
    return found


def _decoded(text: str | None) -> dict[str, str | None]:
    return {} if text is None else msgspec.json.decode(text, type=dict[str, str | None])


def _has_device(session: Session) -> bool:
    is_names_only = session.scalar("SELECT bool_and(format = 'names') FROM traces")
    return bool(is_names_only) or bool(session.scalar("SELECT count(*) FROM device_activities"))
