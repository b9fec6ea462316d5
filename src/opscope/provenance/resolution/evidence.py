"""All evidence at hand for one Session: recorded facts and packaged tables.

Gathered once; the resolvers ask it and never look elsewhere. No file is ever executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from opscope.model.origin import (
    Grade,
    OperatorRegistration,
    RecordedKernel,
    RecordedSource,
    RecordedUnit,
    SourceEvidence,
    SourceLocation,
    weakest,
)
from opscope.model.queries import grouped
from opscope.model.session import Session
from opscope.model.sidecar import kernels_folder
from opscope.provenance.generated_code import files_by_hash, generated_sources, read_generated
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.native_functions import OperatorTable, Place, table_for
from opscope.provenance.sources import (
    HEADERS_FORMAT,
    Definition,
    SourceIndex,
    nearest_index,
    permalink,
    place_of,
    release_lines,
    source_index,
)
from opscope.provenance.torch_releases import Recognition, git_version, kernel_units, recognize, release


class KernelProvenance(msgspec.Struct, frozen=True):
    decoded: DecodedKernel  # the fields its name states
    category: str  # kind of work
    # (parameter name in the source or None, argument), in order
    template_arguments: tuple[tuple[str | None, str], ...] = ()
    # Translation units that hold it, as repository paths where known; empty if unknown
    units: tuple[str, ...] = ()
    unit_grade: Grade | None = None  # how the units are known; None exactly if there are none
    binary: str | None = None  # shared library that registered it, where recorded or at hand
    # Where its own code lies: the functor of a generic launcher, else the template, else the unit
    location: SourceLocation | None = None
    template: SourceLocation | None = None  # where its `__global__` function is defined


class NativeFunctionFacts(msgspec.Struct, frozen=True):
    """One native function (an overload) as the trace's device reaches it. None is unknown.

    `kind` is `native`, `composite`, `generated`, `backward`, `custom` or `triton`. `location` is the
    function's own, `stub_location` that of the function through which it reaches the device: what its
    dispatch stub calls, or without a stub (`stub` is None) the one function of a `.cu` file that it calls.
    """

    name: str
    overload: str | None
    kind: str
    category: str
    schema: str | None = None
    overload_grade: Grade | None = None
    structured_delegate: str | None = None
    dispatch_key: str | None = None
    cuda_function: str | None = None
    stub: str | None = None
    tags: tuple[str, ...] = ()
    yaml_line: int | None = None
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    location: SourceLocation | None = None
    stub_location: SourceLocation | None = None


class IndexedSource(msgspec.Struct, frozen=True):
    """One source index and what its answers are worth for this Session."""

    index: SourceIndex
    grade: Grade
    # The release that answers, if it is another one than the index's, and how well that is known
    release: str | None = None
    release_grade: Grade = Grade.NEIGHBOR_VERSION

    def locate(self, definition: Definition, file_grade: Grade | None = None) -> SourceLocation:
        """The location of a definition of this index; its file may be known better than its line."""
        own = self.index.git_version
        if self.release is None:
            return _location(place_of(definition, None, is_own=True), self.grade, (own, own), file_grade)
        lines = release_lines(self.release, self.index.version)
        commits = git_version(self.release), own
        return _location(place_of(definition, lines, is_own=False), self.release_grade, commits, file_grade)


class Evidence(msgspec.Struct, frozen=True):
    recognition: Recognition  # which torch release made the trace, and how that is known
    operators: OperatorTable  # the table of native functions that fits it best
    sources: tuple[IndexedSource, ...]  # source indexes, the best first
    # By kernel name, what the recording itself noted
    recorded: Mapping[str, RecordedKernel] = msgspec.field(default_factory=dict)
    # By kernel name, where a user's own kernel or a generated one is defined
    user_sources: Mapping[str, SourceLocation] = msgspec.field(default_factory=dict)
    # By operator name with overload, what the recording process's dispatcher said of custom and overridden
    # ones
    registrations: Mapping[str, OperatorRegistration] = msgspec.field(default_factory=dict)
    triton_kernels: frozenset[str] = frozenset()  # names of kernels that Triton compiled, as recorded
    backend: str = "CUDA"  # `CUDA`, or `CPU` where no device was used

    def units(self, kernel_name: str) -> tuple[tuple[str, ...], Grade | None, str | None]:
        """Units of a kernel, their grade, and the library that registered it.

        What the recording noted comes first, then the release's table.
        """
        recorded = self.recorded.get(kernel_name)
        tabled, grade = kernel_units(kernel_name, self.recognition)
        if recorded is None:
            return tabled, grade if tabled else None, None
        if recorded.units:
            return *_with_paths(recorded.units, tabled, grade), recorded.library
        # A stripped library tells no units. A table answers for the libraries it was read from.
        version = self.recognition.version
        libraries = release(version).libraries if tabled and version is not None else ()
        is_tabled = any(one.name == recorded.library for one in libraries)
        return (tabled, grade, recorded.library) if is_tabled else ((), None, recorded.library)

    def registration(self, name: str, overload: str | None) -> OperatorRegistration | None:
        """What the dispatcher said of an operator; of an unknown overload only where there is just one."""
        if overload is not None:
            return self.registrations.get(f"{name}.{overload}" if overload else name)
        found = [one for known, one in self.registrations.items() if known.partition(".")[0] == name]
        return found[0] if len(found) == 1 else None

    def location(self, place: Place | None) -> SourceLocation | None:
        """Where something of the operator table lies; no surer than the release is known."""
        if place is None:
            return None
        commits = self.operators.git_version, self.operators.neighbor_git_version
        return _location(place, self.recognition.grade, commits)

    def file_url(self, file: str) -> str | None:
        """Permalink to a whole file at the recognized release's commit."""
        version = self.recognition.version
        return permalink(None if version is None else git_version(version), file)


def _location(
    place: Place, release: Grade, commits: tuple[str | None, str | None], file_grade: Grade | None = None
) -> SourceLocation:
    """A place by how well the release is known; its file may be known better.

    Commits are those of the release and of the one whose sources are indexed.
    """
    known_file, line_grade = (
        release if known == "release" else weakest((None if known is None else Grade(known), release))
        for known in (place.file_from, place.line_from)
    )
    line, last = place.line, place.last_line
    url = permalink(commits[0] if place.is_of_release else commits[1], place.file, line, last)
    if place.about is not None and line_grade is not Grade.BRACKET:
        line, last = place.about, None  # of a release that is not the user's: about where in that range
    return SourceLocation(place.file, file_grade or known_file or release, line, last, line_grade, url)


def _with_paths(
    recorded: Sequence[RecordedUnit], tabled: Sequence[str], grade: Grade
) -> tuple[tuple[str, ...], Grade | None]:
    """Recorded units, by path where that is recorded or a table has one of that name only, and their grade.

    With a path from a table they are known as well as by that table.
    """
    names, units, grades = [unit.name for unit in recorded], [], [Grade.EXACT]
    for unit in recorded:
        paths = [one for one in tabled if one.endswith(f"/{unit.name}")]
        if unit.source_path is None and len(paths) == names.count(unit.name) == 1:
            units.append(paths[0])
            grades.append(grade)
        else:
            units.append(unit.source_path or unit.name)
    return tuple(units), weakest(grades)


_TRITON_SQL = """
SELECT DISTINCT name FROM kernel_sources JOIN kernel_names USING (name_id)
WHERE kernel_sources.kind IN ('inductor', 'triton')"""

# Libraries that share a name cannot be told apart in a trace: their units are joined; if one of them tells
# none, there are none. Ranks of other builds name the same units; units of one name differ in the module id.
_ORIGINS_SQL = """
SELECT name, if(count(DISTINCT coalesce(library, '')) = 1, any_value(library), NULL),
    if(
        count(unit) = count(*),
        list({'name': unit, 'source_path': source_path} ORDER BY library, unit, source_path, module_id),
        []
    )
FROM (
    SELECT DISTINCT n.name, o.library, o.unit, o.source_path, o.module_id
    FROM kernel_origins o JOIN kernel_names n USING (name_id)
) GROUP BY name ORDER BY name"""


def gather_evidence(session: Session, kernel_names: Sequence[str]) -> Evidence:
    recorded = session.query("SELECT DISTINCT torch_version, torch_git_version FROM traces")
    version = recorded[0][0] if len(recorded) == 1 else None  # where all traces agree
    complete_sources(session)
    cuda_major, is_names_only = session.query(
        "SELECT max(cuda_runtime_version) // 1000, bool_and(format = 'names') FROM traces"
    )[0]
    recognition = recognize(kernel_names, torch_version=version, cuda_major=cuda_major)
    operators = table_for(version or recognition.version, recognized=recognition.version)
    operators = operators.graded(weakest((operators.grade, recognition.grade)) or operators.grade)
    units = {
        name: RecordedKernel(name, library, units=msgspec.convert(found, tuple[RecordedUnit, ...]))
        for name, library, found in (session.query(_ORIGINS_SQL) if session.holds("kernel_origins") else ())
    }
    has_device = is_names_only or session.scalar("SELECT count(*) FROM device_activities")
    return Evidence(
        recognition=recognition,
        operators=operators,
        sources=tuple(_sources(recognition, operators)),
        recorded={**_symbol_units(session, recognition), **units},
        user_sources=source_locations(session),
        registrations=_registrations(session),
        triton_kernels=frozenset(name for (name,) in session.query(_TRITON_SQL)),
        backend="CUDA" if has_device else "CPU",
    )


def _sources(recognition: Recognition, operators: OperatorTable) -> Iterator[IndexedSource]:
    """The release's index or headers, then the nearest release's index."""
    version = recognition.version or operators.version
    grade, index = recognition.grade, source_index(version)
    if index is not None:
        yield IndexedSource(index, grade)
        return
    shipped = HEADERS_FORMAT.of_release(version)
    if shipped is not None:
        yield IndexedSource(shipped, grade)
    neighbor = nearest_index(version)
    if neighbor is not None:
        yield IndexedSource(neighbor, Grade.NEIGHBOR_VERSION, version, grade)


# A name with something of one unit in it, as nvcc writes it.
_SYMBOLS_SQL = """
SELECT n.name, s.mangled_name FROM kernel_symbols s JOIN kernel_names n USING (name_id)
WHERE contains(s.mangled_name, '_GLOBAL__N_') OR contains(s.mangled_name, '_INTERNAL_') ORDER BY ALL"""


def _symbol_units(session: Session, recognition: Recognition) -> dict[str, RecordedKernel]:
    """By kernel name, units that its mangled names tell.

    What cannot be in an identifier stands there as `_`, so that a name with it counts only if the release has
    a unit of that name.
    """
    rows = session.query(_SYMBOLS_SQL) if session.holds("kernel_symbols") else ()
    if not rows:
        return {}
    from opscope.provenance.binaries.device_code import internal_names, named_unit  # noqa: PLC0415

    units: dict[str, RecordedKernel] = {}
    for name, every in grouped(rows).items():
        names = {named_unit(one).name for mangled in every for one in internal_names(mangled.encode())}
        known = {unit.rpartition("/")[2] for unit in kernel_units(name, recognition)[0]}
        if names and all(unit in known or "_" not in unit for unit in names):
            units[name] = RecordedKernel(name, units=tuple(map(RecordedUnit, sorted(names))))
    return units


def _registrations(session: Session) -> dict[str, OperatorRegistration]:
    """What the recording process's dispatcher said, by operator name with overload; of the first rank."""
    found: dict[str, OperatorRegistration] = {}
    for row in session.records("SELECT * FROM operator_registrations ORDER BY ALL"):
        texts = {name: msgspec.json.decode(row[name] or "{}") for name in ("kernels", "overrides")}
        registration = msgspec.convert({**row, **texts}, OperatorRegistration)
        found.setdefault(registration.name, registration)
    return found


# Kernels that the recorded program itself compiled: facts come from the recording's sidecar (table
# `kernel_sources`), else from the generated files where they are at hand and have the recorded hash.

_SOURCES_SQL = (
    "SELECT n.name AS kernel, s.* EXCLUDE (name_id) FROM kernel_sources s JOIN kernel_names n USING (name_id)"
)
_FILES_SQL = "SELECT DISTINCT kernel_file FROM triton_launches WHERE kernel_file <> '' ORDER BY 1"


def complete_sources(session: Session) -> int:
    """Add to `kernel_sources` what generated files tell of kernels that the sidecar does not."""
    ids = dict(session.query("SELECT name, name_id FROM kernel_names WHERE kind = 'kernel'"))
    traces = [str(source) for (source,) in session.query("SELECT source FROM traces")]
    folders = [folder for trace in traces if (folder := kernels_folder(trace)).is_dir()]

    def read(file: str | None, hash_: str) -> str | None:
        """A generated file: its copy beside one of the traces, else where it was recorded."""
        places: list[str | Path] = [folder / f"{hash_}.py" for folder in folders]
        places += [] if file is None else [file]
        return next(filter(None, (read_generated(place, hash_) for place in places)), None)

    files = files_by_hash(file for (file,) in session.query(_FILES_SQL))
    found = generated_sources(ids.keys(), files, read=read)
    recorded = {_identity(source): source for source in _recorded(session)}
    known = {identity[:2] for identity in recorded}
    added = [source for source, _ in found if _identity(source)[:2] not in known]
    if added:
        rows = [
            {"name_id": ids[source.kernel], **msgspec.structs.asdict(source)}
            for source in (*recorded.values(), *added)
            if source.kernel in ids
        ]
        session.replace_rows("kernel_sources", rows)
    return len(added)


def source_locations(session: Session) -> dict[str, SourceLocation]:
    """By kernel name, where its source lies: the user's own function, else the generated file.

    Launches outweigh names; a kernel whose sources then still lie in different places is left out.
    """
    located: dict[str, SourceLocation] = {}
    for kernel, sources in grouped((source.kernel, source) for source in _recorded(session)).items():
        launched = [source for source in sources if source.evidence is SourceEvidence.LAUNCH]
        (file, line, end_line), *others = {
            (one.file, one.line, one.end_line)
            if one.user_file is None
            else (one.user_file, one.user_line, None)
            for one in launched or sources
        }
        if file is not None and not others:
            line_grade = None if line is None else Grade.EXACT
            located[kernel] = SourceLocation(file, Grade.EXACT, line, end_line, line_grade)
    return located


def _recorded(session: Session) -> list[RecordedSource]:
    sources = []
    for record in session.records(_SOURCES_SQL):
        for name in ("stacks", "meta"):
            record[name] = None if record[name] is None else msgspec.json.decode(record[name])
        fields = {name: value for name, value in record.items() if value is not None}
        sources.append(msgspec.convert(fields, RecordedSource))
    return sources


def _identity(source: RecordedSource) -> tuple[str, str | None, str | None, str | None]:
    return source.kernel, source.hash or source.file, source.graph_key, source.graph
