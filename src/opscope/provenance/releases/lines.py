"""How far the lines of a file moved from the indexed source tree to another release.

Checks (`TORCH_CHECK`, launch checks) leave their line in the libraries of every release. Between two checks
that moved equally far everything did; else a definition lies somewhere between them.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache

import msgspec

from opscope.model.evidence import Grade
from opscope.provenance.operators.table import Place
from opscope.provenance.packaged import TableFormat, release_file
from opscope.provenance.sources.index import Definition

LINES_FILE = "lines.msgpack.zst"
# A wider range of lines helps nobody to find a function.
_WIDEST_BRACKET = 150

# First and last line of the index between which every check moved by the same number of lines, and that.
Segment = tuple[int, int, int]


class StoredLines(msgspec.Struct, array_like=True):
    """What a file of the package holds."""

    format_version: int
    indexed: str  # the release whose source tree is indexed
    files: dict[str, tuple[Segment, ...]]  # in the order of their lines


LINES_FORMAT = TableFormat("a table of lines", StoredLines)


class Moved(msgspec.Struct, frozen=True):
    """Where something that begins at a line of the index begins: from `line` to `last`, if that is not None.

    `line` is None where the evidence contradicts the indexed line and tells no other one. The grade is
    `COMPILED`, `BRACKET`, or `NEIGHBOR_VERSION` for the indexed line itself.
    """

    line: int | None
    last: int | None = None
    grade: Grade = Grade.NEIGHBOR_VERSION


def place_of(found: Definition, lines: StoredLines | None, *, is_own: bool) -> Place:
    """Where a definition of an index lies in a release: the index's own one, or one whose lines moved so."""
    file, line, last = found.file, found.line, found.end_line
    if is_own:
        return Place(file, "release", line, last, "release" if line else None)
    if line is None or lines is None:
        return Place(file, "neighbor_version", line, last, "neighbor_version" if line else None, None, False)
    moved = moved_in(lines, file, line)
    if moved.line is None:
        return Place(file, "neighbor_version")
    if moved.grade is Grade.NEIGHBOR_VERSION:
        return Place(file, "neighbor_version", line, last, "neighbor_version", None, False)
    if moved.grade is Grade.BRACKET:
        about = min(max(line, moved.line), moved.last or moved.line)
        return Place(file, "bracket", moved.line, moved.last, "bracket", about)
    end = moved_in(lines, file, last or line)
    end_line = end.line if end.grade is Grade.COMPILED else None
    return Place(file, "compiled", moved.line, end_line, "compiled")


def moved_in(table: StoredLines, file: str, line: int) -> Moved:
    """Where a line of a file lies, by a table."""
    segments = table.files.get(file, ())
    if not segments:
        return Moved(line)
    # The beginning of the file stayed where it is.
    known = ((0, 0, 0), *segments)
    index = bisect_right(known, line, key=lambda segment: segment[0]) - 1
    _, last, delta = known[index]
    if line <= last:
        return Moved(line + delta, grade=Grade.COMPILED)
    if index + 1 == len(known):
        return Moved(line if delta == 0 else None)
    after, _, next_delta = known[index + 1]
    if next_delta == delta:
        return Moved(line + delta, grade=Grade.COMPILED)
    lowest, highest = max(1, last + delta + 1), after + next_delta
    if highest - lowest <= _WIDEST_BRACKET:
        return Moved(lowest, highest, Grade.BRACKET)
    return Moved(line if lowest <= line <= highest else None)


@cache
def release_lines(version: str, indexed: str) -> StoredLines | None:
    """How far lines moved from an indexed release to another one; None if that is not known."""
    file = release_file(version, LINES_FILE)
    table = LINES_FORMAT.read(file) if file.is_file() else None
    return None if table is None or table.indexed != indexed else table
