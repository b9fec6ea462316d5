"""Tables are written when a query first may read them; however it names them, none is missing."""

import duckdb
import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.api import load
from opscope.errors import InputError
from opscope.model.session import Session


@pytest.fixture
def trace(tmp_path):
    built = TraceBuilder().operator("aten::mm", 0, 50, external_id=1).launch(5, 4, external_id=1)
    return built.kernel("gemm", 60, 30).write(tmp_path / "trace.json")


def waiting(session):
    return set(session._unwritten)


def test_reading_asks_nothing_of_the_engine(trace):
    with load(trace) as session:
        assert "engine" not in vars(session)
        assert {"operators", "device_activities", "findings"} <= waiting(session)


def test_a_query_has_those_written_that_it_names(trace):
    with load(trace) as session:
        before = waiting(session)
        assert session.scalar("SELECT count(*) FROM Operators") == 1
        assert before - waiting(session) == {"operators"}
        assert session.scalar("SELECT count(*) FROM autograd_links") == 0


@cases("query")
def test_names_may_be_hidden(trace, query):
    with load(trace) as session:
        try:
            assert session.scalar(query) == 1
        except duckdb.ParserException:  # the engine has no such names
            assert "E'" in query


def test_what_shows_all_tables_has_all_rows(trace, tmp_path):
    with load(trace) as session:
        assert session.connection.table("device_activities").fetchall()
        assert not waiting(session)
    with load(trace) as session, Session.open(session.save(tmp_path / "saved.opscope")) as saved:
        assert saved.scalar("SELECT count(*) FROM operators") == 1


def test_a_transaction_that_is_undone_undoes_no_rows(trace):
    with load(trace) as session:
        session.query("BEGIN")
        session.query("DELETE FROM operators")
        session.query("ROLLBACK")
        assert session.scalar("SELECT count(*) FROM operators") == 1


def test_a_table_whose_writing_was_interrupted_is_written_by_the_next_query(trace):
    def fail(session):
        raise KeyboardInterrupt

    with load(trace) as session:
        writes = session._unwritten["operators"]
        writes.insert(0, fail)
        with pytest.raises(KeyboardInterrupt):
            session.query("FROM operators")
        del writes[0]
        assert session.scalar("SELECT count(*) FROM operators") == 1


def test_what_is_closed_keeps_no_arrays_and_answers_nothing(trace):
    session = load(trace)
    session.close()
    assert not waiting(session)
    with pytest.raises(InputError, match="closed"):
        session.query("FROM operators")


def test_views_and_macros_read_what_they_were_made_of(trace):
    with load(trace) as session:
        session.query("CREATE TEMP VIEW mine AS SELECT name FROM operators")
        session.query("CREATE TEMP MACRO kinds() AS TABLE SELECT kind FROM device_activities")
        assert session.query("FROM mine") == [("aten::mm",)]
        assert session.query("FROM kinds()") == [("kernel",)]


def test_times_whose_sums_fit_no_column_are_an_error_of_the_file(tmp_path):
    built = TraceBuilder().operator("a", 0, 9e15)
    for number in range(2):
        built.launch(number).kernel("k", 10 + number, 9e15)
    with pytest.raises(InputError, match="cannot be loaded"):
        load(built.write(tmp_path / "trace.json"))
