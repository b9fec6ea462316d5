"""Lines of releases whose sources are not at hand, from the checks in their libraries."""

from collections import Counter

import pytest

from case_tables import cases
from opscope.model.origin import Grade
from opscope.provenance import packaged, sources
from opscope.provenance.torch_releases import release_versions

INDEXED = "2.6.0"
FILE = "aten/src/ATen/native/cuda/A.cu"
# Checks at 20 and 40 stayed, those at 50 and 90 moved by 7, those at 300 and 400 by 100.
SEGMENTS = {FILE: ((20, 40, 0), (50, 90, 7), (300, 400, 100))}


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    for real in packaged.packaged_releases().iterdir():
        (tmp_path / real.name).symlink_to(real)
    file = tmp_path / "2.99.0" / sources.LINES_FORMAT.file
    file.parent.mkdir()
    file.write_bytes(sources.LINES_FORMAT.encode(sources.StoredLines(1, INDEXED, SEGMENTS, {FILE: (210,)})))
    monkeypatch.setattr(packaged, "packaged_releases", lambda: tmp_path)
    caches = (sources.LINES_FORMAT.releases, sources.LINES_FORMAT.of_release)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def moved(version, indexed, file, line):
    table = sources.release_lines(version, indexed)
    return sources.Moved(line) if table is None else sources.moved_in(table, file, line)


@cases("line", "at", "until", "grade")
def test_a_line_follows_the_checks_around_it(line, at, until, grade):
    expected = sources.Moved(at) if grade is None else sources.Moved(at, until, Grade(grade))
    assert moved("2.99.0", INDEXED, FILE, line) == expected


@cases("version", "indexed", "file")
def test_without_evidence_the_indexed_line_is_a_neighbors(version, indexed, file):
    assert moved(version, indexed, file, 45) == sources.Moved(45)


LAST = release_versions()[-1]


@pytest.mark.parametrize(
    "version", [LAST, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in release_versions()[1:-1])]
)
def test_lines_of_headers_are_those_that_the_release_ships(version):
    index, headers = sources.source_index(INDEXED), sources.HEADERS_FORMAT.of_release(version)
    assert index is not None and headers is not None
    before, after = by_name(index), by_name(headers)
    counts = Counter()
    for name in before.keys() & after.keys():
        line, true = before[name].line, after[name].line
        found = moved(version, INDEXED, name[0], line or 0)
        if found.line is not None and true is not None:
            counts[found.grade, found.line <= true <= (found.last or found.line)] += 1
    assert counts[Grade.COMPILED, True] > 200
    assert counts[Grade.COMPILED, False] <= 1  # three lines came and three went between two checks
    assert counts[Grade.BRACKET, False] == 0


def by_name(definitions):
    """Definitions whose names occur once."""
    found = {}
    for one in definitions:
        found.setdefault((one.file, one.scope, one.name, one.kind), []).append(one)
    return {name: of[0] for name, of in found.items() if len(of) == 1}
