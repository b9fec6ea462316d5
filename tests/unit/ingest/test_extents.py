"""A long trace is nested in extents of time: its tables are those of the whole, to the row."""

from pathlib import Path

import pytest

import opscope
from fakes import TraceBuilder
from opscope.ingest import kineto, scan
from opscope.model.schema import TABLES

TRACES = Path(__file__).parents[2] / "golden/traces"
RECORDED = (
    Path(__file__).parents[3] / "examples/traces/gpt2_generate_fp16.json.gz",
    *sorted(TRACES.rglob("*.json.gz"), key=lambda file: file.stat().st_size),
)


def tables(path, *, memory_limit=None):
    """All rows; under a memory limit events lie on disk."""
    with opscope.load(path, threads=1, memory_limit=memory_limit) as session:
        return {one.name: sorted(map(str, session.query(f'SELECT * FROM "{one.name}"'))) for one in TABLES}


def compare(path, monkeypatch, most):
    """The number of extents in which the trace was read."""
    extents = []
    plain = kineto.Filler._operators

    def noted(*arguments):
        for one in plain(*arguments):
            extents.append(one[0])
            yield one

    whole = tables(path)
    with monkeypatch.context() as patch:
        patch.setattr(kineto, "_MOST_OPERATORS", most)
        patch.setattr(kineto.Filler, "_operators", noted)
        assert tables(path) == whole
        assert tables(path, memory_limit="500MB") == whole
    del extents[len(extents) // 2 :]
    return len(extents)


@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_of_every_recording(path, monkeypatch):
    compare(path, monkeypatch, 1_000 if path == RECORDED[0] else 100)


def built():
    apart = TraceBuilder()
    for number in range(12):
        at = 100.0 * number
        apart.operator("aten::mm", at, 30, external_id=number + 1).launch(at + 10, 4)
        # What was launched in the first extent runs, and is named, in others.
        apart.kernel("gemm", at + 500, 30, **{"External id": 12 - number})
    yield "activities of operators of other extents", apart
    over = TraceBuilder()
    over.operator("outer", 0, 5_000)
    for number in range(12):
        over.operator("aten::mm", 100.0 * number + 5, 30).launch(100.0 * number + 10, 4).kernel("k", 6_000, 2)
    yield "an operator that is always open", over
    twins = TraceBuilder()
    for number in range(12):
        twins.operator("aten::mm", 100.0 * number, 30, external_id=number % 6 + 1)
        twins.launch(100.0 * number + 10, 4, external_id=number % 6 + 1).kernel("k", 2_000, 2)
    yield "ids of two operators", twins
    mended = TraceBuilder().event("user_annotation", "ProfilerStep#1", 0, None, 1, {})
    for number in range(40):
        mended.operator("aten::mm", 100.0 * number + 5, 30).launch(100.0 * number + 10, 4)
        mended.kernel("k", 100.0 * number - 290 + 5_000_000_000_000 * (number == 9), 60)
    yield "a clock, a step and a record that are not right", mended


@pytest.mark.parametrize(("name", "builder"), [pytest.param(*one, id=one[0]) for one in built()])
@pytest.mark.parametrize(
    "most", [3, *(pytest.param(one, marks=pytest.mark.exhaustive(few=False)) for one in (1, 5))]
)
def test_of_a_built_trace(name, builder, most, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text(builder.text())
    extents = compare(path, monkeypatch, most)
    assert extents == 1 if "always open" in name else extents > 1


def test_rows_keep_their_order_where_several_threads_read_them(monkeypatch):
    """Rows in memory come in parts, which the engine may filter side by side."""
    monkeypatch.setattr(kineto, "_MOST_OPERATORS", 1_000)
    monkeypatch.setattr(scan, "_CHUNK_BYTES", 1 << 16)
    with opscope.load(RECORDED[0], threads=4) as session:
        assert session.scalar("SELECT count(*) FROM operators") > 10_000
        assert all(check.holds for check in session.check())
