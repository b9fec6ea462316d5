"""The provenance tables of a Session: filled once, kept when saved, right for every kind of trace."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from fakes import TraceBuilder
from opscope.model.origin import OperatorRegistration, RegistrationKind
from opscope.model.schema import PROVENANCE_TABLES
from opscope.provenance.resolution.resolvers import annotate

# The function of the package hides the module of its name.
MODULE = import_module("opscope.provenance.resolution.resolvers")

SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>"
    "(float*, float const*, int, int, int, bool const*, int, bool)"
)
GOLDEN = sorted((Path(__file__).parents[3] / "golden" / "traces").glob("*.json.gz"))
SOFTMAX_FILE = "aten/src/ATen/native/cuda/SoftMax.cu"


def types(*recorded):
    return {"Input type": list(recorded)}


def softmax_trace():
    return (
        TraceBuilder()
        .operator("aten::softmax", 0, 20)
        .operator("aten::_softmax", 1, 10, **types("float", "Scalar", "Scalar"))
        .launch(2).kernel(SOFTMAX, 30, 5)
        .operator("aten::_softmax", 41, 10, **types("float", "Scalar", "Scalar"))
        .launch(42).kernel(SOFTMAX, 60, 7)
    )  # fmt: skip


def provenance(session):
    return {table: session.query(f"SELECT * FROM {table} ORDER BY ALL") for table in PROVENANCE_TABLES}


def refuse(*_):
    raise AssertionError("evidence was gathered again")


class TestRows:
    def test_a_function_is_as_sure_as_its_least_sure_call(self, annotated, record):
        trace = TraceBuilder()
        trace.operator("aten::sum", 0, 5, **types("float", "ScalarList", "Scalar", ""))
        trace.launch(1).kernel("k", 30, 5)
        # This list does not rule out all other overloads.
        trace.operator("aten::sum", 10, 5, **types("float", "", "Scalar", ""))
        session = annotated(record(trace))
        assert session.query("SELECT overload, overload_grade FROM native_functions") == [
            ("dim_IntList", "inferred")
        ]
        assert session.query("SELECT count(*) FROM operator_functions") == [(2,)]

    def test_a_registration_is_kept_with_its_operator(self, annotated, record):
        mine = OperatorRegistration(
            "my::f", RegistrationKind.CUSTOM_OP, python_file="/me/ops.py", python_line=3, end_line=6
        )
        session = annotated(record(TraceBuilder().operator("my::f", 1, 5), registrations=(mine,)))
        (row,) = session.records("SELECT * FROM native_functions")
        assert (row["kind"], row["file"], row["line"], row["line_grade"]) == (
            "custom", "/me/ops.py", 3, "exact",
        )  # fmt: skip
        assert json.loads(row["details"])["registration"]["kind"] == "custom_op"


class TestOnce:
    def test_two_sessions_are_equal_and_a_second_time_changes_nothing(self, annotated, record, monkeypatch):
        path = record(softmax_trace())
        assert provenance(annotated(path)) == provenance(annotated(path))
        session = annotated(record(softmax_trace()))
        before = provenance(session)
        assert all(before.values())
        monkeypatch.setattr(MODULE, "gather_evidence", refuse)
        annotate(session)
        assert provenance(session) == before

    def test_a_saved_session_keeps_its_facts_under_another_torch(
        self, annotated, load, record, tmp_path, monkeypatch
    ):
        session = annotated(record(softmax_trace()))
        saved = session.save(tmp_path / "s.opscope")
        monkeypatch.setattr(MODULE, "gather_evidence", refuse)
        opened = load(saved)
        annotate(opened)
        assert provenance(opened) == provenance(session)

    def test_a_failure_leaves_the_session_to_be_filled_later(self, load, record, monkeypatch):
        session = load(record(softmax_trace()))
        with monkeypatch.context() as patch:
            patch.setattr(MODULE, "resolve_operator", refuse)
            with pytest.raises(AssertionError):
                annotate(session)
        annotate(session)
        assert all(provenance(session).values())


class TestTraces:
    def test_ranks_share_names_and_add_up(self, annotated, record):
        session = annotated([record(softmax_trace(), f"r{rank}.json") for rank in range(3)])
        assert session.query("SELECT units FROM kernel_provenance") == [([SOFTMAX_FILE],)]
        assert session.query("SELECT name, calls, self_device_ns FROM operator_functions ORDER BY name") == [
            ("aten::_softmax", 6, 36_000),
            ("aten::softmax", 3, 0),
        ]

    def test_recorded_types_that_are_none(self, annotated):
        built = TraceBuilder()
        none = {"add": 5, "bmm": {"a": 1}, "div": "float", "mm": [["float"], 3, None], "mul": None, "sum": []}
        for index, (name, types) in enumerate(none.items()):
            built.operator(f"aten::{name}", 100 * index, 10, **{"Input type": types})
        calls = annotated(built).query("SELECT name, calls FROM operator_functions ORDER BY name")
        assert calls == [(f"aten::{name}", 1) for name in none]


LOCATIONS = (
    ("kernel_provenance", ""),
    ("kernel_provenance", "template_"),
    ("native_functions", ""),
    ("native_functions", "stub_"),
)


@pytest.mark.parametrize("trace", GOLDEN, ids=lambda path: path.name.partition(".")[0])
def test_laws_of_every_trace(annotated, trace):
    session = annotated(trace)
    # Nothing is lost.
    figures = "count(*), coalesce(sum(self_device_ns), 0)"
    calls = "sum(calls), coalesce(sum(self_device_ns), 0)"
    assert session.query(f"SELECT {figures} FROM operators") == session.query(
        f"SELECT {calls} FROM operator_functions"
    )
    ids = "SELECT name_id FROM {} ORDER BY 1"
    assert session.query(ids.format("kernel_names")) == session.query(ids.format("kernel_provenance"))

    # Every place has its grades.
    for table, prefix in LOCATIONS:
        columns = ", ".join(
            f"{prefix}{name} AS {name}"
            for name in ("file", "line", "end_line", "url", "file_grade", "line_grade")
        )
        wrong = f"""SELECT * FROM (SELECT {columns} FROM {table})
            WHERE (file IS NULL) <> (file_grade IS NULL) OR (line IS NULL) <> (line_grade IS NULL)
            OR (file IS NULL AND line IS NOT NULL) OR end_line < line
            OR (contains(url, '#L') <> (line IS NOT NULL))"""
        assert session.query(wrong) == []

    # Units have a grade exactly if there are any.
    query = "SELECT len(units) > 0, unit_grade IS NOT NULL FROM kernel_provenance"
    assert all(has_units is has_grade for has_units, has_grade in session.query(query))


def test_where_overloads_are_recorded_a_name_without_one_is_the_default(annotated, record):
    trace = TraceBuilder().operator("aten::mul.Tensor", 0, 10).operator("aten::mm", 20, 10)
    rows = annotated(record(trace)).query("SELECT name, overload FROM native_functions ORDER BY name")
    assert rows == [("aten::mm", ""), ("aten::mul", "Tensor")]
    without = TraceBuilder().operator("aten::mul", 0, 10).operator("aten::mm", 20, 10)
    rows = annotated(record(without)).query("SELECT name, overload FROM native_functions ORDER BY name")
    assert rows == [("aten::mm", None), ("aten::mul", None)]
