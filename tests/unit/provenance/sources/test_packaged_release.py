"""The packaged index of 2.6.0: its size, and agreement with independent tables."""

import json
import lzma
import re
from collections import defaultdict
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from opscope.provenance.sources import source_index

_TEMPLATE = re.compile(r"void (at::native::(?:\(anonymous namespace\)::|\w+::)*\w+)<")


@pytest.fixture(scope="module")
def index():
    found = source_index("2.6.0+cu124")
    assert found is not None
    return found


def test_it_is_small():
    path = Path(str(files("opscope.provenance"))) / "releases/data/2.6.0/sources.msgpack.zst"
    assert path.stat().st_size <= 400_000


@cache
def _document(path):
    return json.loads(lzma.decompress(path.read_bytes()))


def test_agreement_with_another_index(index, shared):
    """Kernels and structured functions of another reader of the same tree are where this one has them."""
    document = _document(shared / "provenance" / "source_index_2.6.0.json.xz")
    kinds = {"kernel": "kernel", "structured": "structured", "func": "function"}
    ours = defaultdict(set)
    for row in index:
        ours[row.kind, row.file, row.name].add(row.line)
    indexed = set(index.files)
    counts = defaultdict(list)
    for kind, name, _, file, line, *_ in document["rows"]:
        path = document["files"][file]
        if kind in kinds and path in indexed:
            counts[kind].append(line in ours[kinds[kind], path, name.rpartition("::")[2]])
    assert sum(counts["structured"]) == len(counts["structured"]) > 300
    assert sum(counts["kernel"]) / len(counts["kernel"]) > 0.97
    assert sum(counts["func"]) / len(counts["func"]) > 0.95


def test_kernels_of_the_wheel_are_located_in_their_units(index, shared):
    """Every 20th kernel of the release: its template, in its unit's file or a header."""
    units = _document(shared / "provenance" / "kernel_units_2.6.0.json.xz")
    known = {file.rpartition("/")[2] for file in index.files}
    located, missed = 0, []
    for name, of in sorted(units.items())[::20]:
        match = _TEMPLATE.match(name)
        if match is None or not known.issuperset(unit.rpartition("/")[2] for unit in of):
            continue
        found = index.kernel(match.group(1), of)
        if found is None:
            missed.append(name)
        else:
            located += 1
            assert found.file.endswith((".cuh", ".h")) or found.file.rpartition("/")[2] in {
                unit.rpartition("/")[2] for unit in of
            }
    assert located > 500
    assert missed == []
