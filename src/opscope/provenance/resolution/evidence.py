"""All evidence at hand for one Session: recorded facts, local libraries and headers, packaged tables.

Gathered once; the resolvers ask it and never look elsewhere. Local evidence counts as exact only for the
build that made the trace (same `git_version`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from opscope.model.evidence import Grade, weakest
from opscope.model.location import SourceLocation
from opscope.model.origin import OperatorRegistration
from opscope.provenance.operators import OperatorTable
from opscope.provenance.releases import Recognition, UnitAnswer, git_version, kernel_units, release
from opscope.provenance.releases.functions import function_files
from opscope.provenance.resolution.local_libraries import LocalLibraries
from opscope.provenance.sources import Definition, SourceIndex, permalink
from opscope.provenance.sources.backends import is_compiled

__all__ = ["Evidence", "IndexedSource", "RecordedUnits"]


@dataclass(frozen=True)
class RecordedUnits:
    """What a recording says of one kernel.

    Args:
        binary: Library that registered it; None where several did.
        units: File names of its units; empty if the library tells none.
        paths: The path of each, where the library tells it.
    """

    binary: str | None
    units: tuple[str, ...]
    paths: tuple[str | None, ...]


@dataclass(frozen=True)
class IndexedSource:
    """One source index and what its answers are worth for this Session."""

    index: SourceIndex
    grade: Grade

    def locate(self, definition: Definition, file_grade: Grade | None = None) -> SourceLocation:
        """The location of a definition of this index; its file may be known better than its line."""
        return SourceLocation(
            definition.file,
            file_grade or self.grade,
            definition.line,
            definition.end_line,
            None if definition.line is None else self.grade,
            permalink(self.index.git_version, definition.file, definition.line, definition.end_line),
        )


@dataclass(frozen=True)
class Evidence:
    """The evidence for one Session.

    Args:
        recognition: Which torch release made the trace, and how that is known.
        operators: The table of native functions that fits it best.
        sources: Source indexes, the best first.
        recorded: By kernel name, what the recording itself noted.
        user_sources: By kernel name, where a user's own kernel or a generated one is defined.
        registrations: By operator name with overload, what the recording process's dispatcher said of
            custom and overridden ones.
        libraries: Those installed here, if the torch that recorded is the installed one.
        triton_kernels: Names of kernels that Triton compiled, as recorded.
        backend: `CUDA`, or `CPU` where no device was used.
    """

    recognition: Recognition
    operators: OperatorTable
    sources: tuple[IndexedSource, ...]
    recorded: Mapping[str, RecordedUnits] = field(default_factory=dict)
    user_sources: Mapping[str, SourceLocation] = field(default_factory=dict)
    registrations: Mapping[str, OperatorRegistration] = field(default_factory=dict)
    libraries: LocalLibraries | None = None
    triton_kernels: frozenset[str] = frozenset()
    backend: str = "CUDA"

    def units(self, kernel_name: str) -> tuple[tuple[str, ...], Grade | None, str | None]:
        """Units of a kernel, their grade, and the library that registered it.

        What the recording noted comes first, then the build's own libraries, then the release's table.
        """
        recorded = self.recorded.get(kernel_name) or self._local(kernel_name)
        answer = kernel_units(kernel_name, self.recognition)
        if recorded is None:
            return (answer.units, answer.grade, None) if answer else ((), None, None)
        if recorded.units:
            units, grade = _with_paths(recorded, answer)
            return units, grade, recorded.binary
        # A stripped library tells no units. A table answers for the libraries it was read from.
        if answer is not None and recorded.binary in self._tabled_libraries():
            return answer.units, answer.grade, recorded.binary
        return (), None, recorded.binary

    def registration(self, name: str, overload: str | None) -> OperatorRegistration | None:
        """What the dispatcher said of an operator; of an unknown overload only where there is just one."""
        if overload is not None:
            return self.registrations.get(f"{name}.{overload}" if overload else name)
        found = [one for known, one in self.registrations.items() if known.partition(".")[0] == name]
        return found[0] if len(found) == 1 else None

    def _local(self, kernel_name: str) -> RecordedUnits | None:
        library = None if self.libraries is None else self.libraries.holding(kernel_name)
        if library is None:
            return None
        units = library.units_of(kernel_name)
        return RecordedUnits(
            Path(library.path).name,
            tuple(unit.name for unit in units),
            tuple(unit.source_path for unit in units),
        )

    def function_location(self, name: str, indexed: SourceLocation | None) -> SourceLocation | None:
        """Where a native function is defined: what the index says, held against the release's binary.

        A file that the binary supports is known as well as the binary; one that it contradicts is dropped,
        and so is its line. It says nothing of headers: their functions lie in the units that include them.
        """
        version = self.recognition.version
        files = () if version is None else function_files(version, name)
        is_settled = indexed is not None and (
            indexed.file_grade is Grade.EXACT or not is_compiled(indexed.file)
        )
        if not files or is_settled:
            return indexed
        if indexed is not None and indexed.file in files:
            return replace(indexed, file_grade=self.recognition.grade)
        if len(files) > 1:
            return None
        return SourceLocation(files[0], self.recognition.grade, url=self.file_url(files[0]))

    def file_url(self, file: str) -> str | None:
        """Permalink to a whole file at the recognized release's commit."""
        version = self.recognition.version
        commit = None if version is None else git_version(version)
        return None if commit is None else permalink(commit, file, None, None)

    def _tabled_libraries(self) -> frozenset[str]:
        version = self.recognition.version
        return frozenset(() if version is None else (one.name for one in release(version).libraries))


def _with_paths(recorded: RecordedUnits, answer: UnitAnswer | None) -> tuple[tuple[str, ...], Grade | None]:
    """Recorded units, by path where that is recorded or a table has one of that name only, and their grade.

    With a path from a table they are known as well as by that table.
    """
    units: list[str] = []
    grades = [Grade.EXACT]
    for unit, path in zip(recorded.units, recorded.paths, strict=True):
        tabled = [one for one in (answer.units if answer else ()) if one.endswith(f"/{unit}")]
        if path is None and answer is not None and len(tabled) == recorded.units.count(unit) == 1:
            units.append(tabled[0])
            grades.append(answer.grade)
        else:
            units.append(path or unit)
    return tuple(units), weakest(grades)
