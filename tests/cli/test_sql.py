import json

import duckdb
import pytest

from case_tables import cases
from opscope import load

SESSION_OR_TRACE = pytest.mark.parametrize("is_saved", [False, True], ids=["trace", "session"])


@pytest.fixture
def source(request, trace, is_saved):
    return request.getfixturevalue("recording") if is_saved else trace


def test_json_is_a_list_of_objects_with_exact_integers(opscope, recording):
    query = (
        "SELECT 9223372036854775807 AS big, sum(duration_ns) AS total, NULL AS nothing, 1.5 AS x,"
        " 'nan'::DOUBLE AS n, [1, 2] AS list, {'a': 1.25} AS s, DATE '2020-01-02' AS d,"
        " '{\"k\": [1]}'::JSON AS j FROM device_activities"
    )
    assert opscope("sql", recording, query, "--json").json == [
        {
            "big": 9223372036854775807, "total": 452125, "nothing": None, "x": 1.5, "n": None, "list": [1, 2],
            "s": {"a": 1.25}, "d": "2020-01-02", "j": {"k": [1]},
        }
    ]  # fmt: skip


def test_the_limit_says_what_it_hides(opscope, recording):
    outcome = opscope("sql", recording, "SELECT * FROM range(250)", "--top", 10)
    assert outcome.out.splitlines()[-1] == "the first 10 rows; there are more (--top)"
    endless = opscope("sql", recording, "SELECT * FROM range(10000000000000)")
    assert endless.out.splitlines()[-1] == "the first 100 rows; there are more (--top)"
    assert len(opscope("sql", recording, "SELECT * FROM range(250)", "--json").json) == 250


def test_names_repeat_zones_are_text_and_wide_rows_are_records(opscope, recording):
    rows = opscope("sql", recording, "SELECT 1 AS a, 2 AS a, 3 AS a_1", "--json").json
    assert [list(row.values()) for row in rows] == [[1, 2, 3]]
    (row,) = opscope("sql", recording, "SELECT 7 AS n, to_timestamp(0) AS t -- comment", "--json").json
    assert (row["n"], row["t"][:2]) == (7, "19")
    opscope("sql", recording, "SELECT * FROM operators").fine("Row 3")
    assert opscope("sql", recording, "SELECT * FROM operators", "--json").json[0]["name"]


@cases("statement")
def test_other_ways_to_ask_work(opscope, recording, statement):
    assert opscope("sql", recording, statement).code == 0


@SESSION_OR_TRACE
def test_a_query_result_as_parquet(opscope, source, tmp_path):
    file = tmp_path / "new" / "it's.parquet"
    query = "SELECT name FROM operators ORDER BY start_ns"
    # A comment behind the semicolon is harmless, and refused rather than guessed at.
    assert opscope("sql", source, f"{query}; -- done", "--output", file).code == 1
    opscope("sql", source, f"{query} -- done", "--output", file).fine(out=f"Wrote {file}\n")
    assert duckdb.read_parquet(str(file)).fetchall() == [("aten::linear",), ("aten::addmm",), ("aten::gelu",)]
    assert [path.name for path in file.parent.iterdir()] == ["it's.parquet"]


def test_every_format_at_once_and_what_is_printed(opscope, recording, tmp_path):
    files = [tmp_path / f"rows.{form}" for form in ("csv", "json", "parquet")]
    options = [word for file in files for word in ("-o", file)]
    outcome = opscope(
        "sql", recording, "SELECT 'a,b' AS x, 1 = 1 AS y, 'nan'::DOUBLE AS z", *options, "--csv"
    )
    assert outcome.out == files[0].read_text() == 'x,y,z\n"a,b",true,nan\n'
    assert outcome.err.splitlines() == [f"Wrote {file}" for file in files]
    assert json.loads(files[1].read_text()) == [{"x": "a,b", "y": True, "z": None}]
    assert opscope("sql", recording, "SELECT 1", "-o", tmp_path / "x.txt").err.startswith("error: ")


PROVENANCE = (
    "SELECT n.name, p.family, f.cuda_function FROM KERNEL_PROVENANCE p JOIN kernel_names n "
    "USING (name_id), native_functions f WHERE n.name = 'gelu_kernel' AND f.name = 'aten::gelu'"
)


def test_provenance_of_a_session_saved_without_it_is_found_and_not_written(opscope, trace, tmp_path):
    with load(trace) as session:
        saved = session.save(tmp_path / "bare.opscope")
    before = saved.read_bytes()
    assert len(opscope("sql", saved, PROVENANCE, "--json").json) == 1
    file = tmp_path / "f.parquet"
    assert opscope("sql", saved, PROVENANCE, "--output", file).code == 0
    assert len(duckdb.read_parquet(str(file)).fetchall()) == 1
    assert opscope("sql", saved, "FROM native_functions", "-o", tmp_path / "n.parquet").code == 0
    assert len(duckdb.read_parquet(str(tmp_path / "n.parquet")).fetchall()) == 3
    assert saved.read_bytes() == before


def test_without_a_query_tables_are_listed(opscope, recording):
    tables = opscope("sql", recording, "--json").json
    assert {one["table"] for one in tables} >= {"operators", "device_activities", "kernel_names"}
    (operators,) = (one for one in tables if one["table"] == "operators")
    counted = opscope("sql", recording, "SELECT count(*) AS n FROM operators", "--json").json
    assert operators["rows"] == counted[0]["n"]
    assert "One dispatcher call" in operators["a row is"]
    assert "self_device_ns" in operators["columns"].split(", ")


@cases("arguments", "message")
def test_mistakes_are_one_line(opscope, recording, arguments, message):
    opscope("sql", recording, *arguments).fails(message, lines=1)


# Some versions of the engine answer these; they still touch no file.
ANSWERED_BY_SOME = ("PRAGMA database_list", "SELECT * FROM enable_logging(")


@cases("is_saved", "attack")
def test_a_query_reads_and_writes_no_file(opscope, source, tmp_path, attack):
    folder = tmp_path / "victim"
    folder.mkdir()
    secret = folder / "secret.csv"
    secret.write_text("a\nSECRET\n")
    before = source.read_bytes()
    for output in ([], ["--output", tmp_path / "mine.parquet"]):
        outcome = opscope("sql", source, attack.format(secret=secret, folder=folder), *output)
        if not attack.startswith(ANSWERED_BY_SOME):
            assert outcome.code == 1, outcome.out
            assert outcome.err.startswith("error: ")
            assert not (tmp_path / "mine.parquet").exists()
        assert "Traceback" not in outcome.err
        assert "internal error" not in outcome.err
        assert "SECRET" not in outcome.out + outcome.err
        assert [path.name for path in folder.iterdir()] == ["secret.csv"]
        assert not list(tmp_path.glob(".*"))
        assert source.read_bytes() == before
