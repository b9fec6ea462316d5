"""Saving, opening, refusing, locking: what a Session promises about its file."""

import shutil
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pytest

import opscope
from case_tables import cases, tables
from fakes import TraceBuilder
from opscope.errors import InputError
from opscope.model import schema
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session, is_session_file

SAMPLES = {
    "INTEGER": 1, "BIGINT": 2**40, "DOUBLE": 0.5, "BOOLEAN": True, "VARCHAR": "'x' \U0001f600",
    "VARCHAR[]": ["x", ""], "JSON": {"a": [None, 1.5]},
}  # fmt: skip


def full_trace():
    """Something in every table that a trace alone fills."""
    built = TraceBuilder(deviceProperties=[{"id": 0, "name": "X"}], distributedInfo={"rank": 1})
    built.step(1, 0, 100).operator("aten::mm", 10, 20, **{"Input Dims": [[1, 2]], "Sequence number": 1})
    built.launch(12).kernel("k", 30, 5.125).kernel("early", 1, 1, correlation=2)
    built.event("python_function", "nn.Module: Linear_0", 5, 50, 1, {"Python id": 1, "Python module id": 0})
    built.event("overhead", "Buffer", 60, 1, 9, {})
    built.operator("record_param_comms", 70, 5, **{"Collective name": "allreduce"})
    built.operator("triton", 80, 5, **{"kernel_backend": "triton", "kernel_flop": 1.5})
    built.operator("MmBackward0", 90, 5, **{"Sequence number": 1, "Fwd thread id": 1})
    built.event("cuda_sync", "Stream Sync", 65, 1, 7, {"stream": 7})
    built.events.append(
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 11,
         "args": {"Addr": 2**63 + 5, "Bytes": -8, "Device Type": 0}}
    )  # fmt: skip
    return built


def content(session):
    return {
        table.name: session.query(f'SELECT * FROM "{table.name}" ORDER BY ALL') for table in schema.TABLES
    }


def filled(session):
    """The Session with something in every table: what a sidecar or a later step fills gets a made-up row."""
    for table in schema.TABLES:
        if not session.scalar(f'SELECT count(*) FROM "{table.name}"'):
            session.replace_rows(
                table.name, [{column.name: SAMPLES[column.type] for column in table.columns}]
            )
    return session


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    path = full_trace().write(tmp_path_factory.mktemp("full") / "trace.json")
    with opscope.load(path, threads=1) as session:
        yield filled(session)


@pytest.fixture(scope="module")
def saved_once(session, tmp_path_factory):
    return session.save(tmp_path_factory.mktemp("saved") / "s.opscope")


@pytest.fixture
def saved(saved_once, tmp_path):
    """A copy of what `session` was saved as."""
    return Path(shutil.copy(saved_once, tmp_path))


@pytest.fixture
def reopen():
    opened = []

    def open_session(path):
        opened.append(Session.open(path))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


class TestSaving:
    def test_every_table_comes_back_equal(self, session, saved, reopen):
        before = content(session)
        assert all(before.values()), "a table of this test's trace is empty"
        assert content(reopen(saved)) == before
        assert reopen(saved).findings() == session.findings()

    def test_a_session_kept_in_a_file_comes_back_equal(self, load, tmp_path, reopen):
        session = load(full_trace(), memory_limit="500MB")
        assert content(reopen(session.save(tmp_path / "s.opscope"))) == content(session)

    def test_an_existing_file_is_not_overwritten_and_folders_are_made(self, session, tmp_path):
        target = tmp_path / "s.opscope"
        target.write_text("precious")
        with pytest.raises(InputError, match="the file exists") as caught:
            session.save(target)
        assert caught.value.source == str(target)
        assert target.read_text() == "precious"
        session.save(target, overwrite=True)
        assert is_session_file(target)
        target = session.save(tmp_path / "it's" / "a folder" / "s.opscope")
        assert [path.name for path in target.parent.iterdir()] == ["s.opscope"]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_place_that_cannot_be_written(self, session, tmp_path, overwrite):
        (tmp_path / "file").touch()
        with pytest.raises(InputError):
            session.save(tmp_path / "file" / "s.opscope", overwrite=overwrite)
        with pytest.raises(InputError):
            session.save(tmp_path, overwrite=overwrite)
        assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []

    def test_a_failed_save_leaves_the_old_file(self, session, saved, monkeypatch):
        before = saved.read_bytes()

        def fail(_, file):
            file.write_bytes(b"half")
            raise duckdb.IOException("No space left on device")

        monkeypatch.setattr(Session, "_copy_to", fail)
        with pytest.raises(InputError, match="No space left"):
            session.save(saved, overwrite=True)
        assert saved.read_bytes() == before
        assert list(saved.parent.iterdir()) == [saved]


class TestOpening:
    def test_it_is_read_only(self, saved, reopen):
        opened = reopen(saved)
        for statement in ("DELETE FROM operators", "CREATE TABLE x (a INT)", "DROP TABLE findings"):
            with pytest.raises(duckdb.Error):
                opened.query(statement)

    def test_blocks_may_be_of_any_size(self, saved, tmp_path):
        small = tmp_path / "small.opscope"
        with duckdb.connect() as connection:
            connection.execute(f"ATTACH '{saved}' AS whole (READ_ONLY)")
            connection.execute(f"ATTACH '{small}' AS small (BLOCK_SIZE 16384)")
            connection.execute("COPY FROM DATABASE whole TO small")
        with Session.open(saved) as one, Session.open(small) as other:
            assert one.query("FROM operators") == other.query("FROM operators")

    def test_a_newer_version_is_refused(self, saved):
        self.tamper(
            saved, f"UPDATE metadata SET value = '{schema.SCHEMA_VERSION + 1}' WHERE key = 'schema_version'"
        )
        with pytest.raises(InputError, match=f"schema version {schema.SCHEMA_VERSION + 1}") as caught:
            Session.open(saved)
        assert caught.value.hint == "Upgrade opscope to read it"
        with pytest.raises(InputError):
            opscope.load(saved)

    @cases("statement")
    def test_another_database_is_refused(self, saved, statement):
        self.tamper(saved, statement)
        with pytest.raises(InputError, match="a DuckDB database without opscope's tables"):
            Session.open(saved)

    @staticmethod
    def tamper(path, statement):
        with duckdb.connect(str(path)) as connection:
            connection.execute(statement)

    @pytest.mark.parametrize("data", [b"", b"{}", b"not a database at all", b"12345678DUC"])
    def test_what_is_no_session(self, tmp_path, data):
        path = tmp_path / "s.opscope"
        path.write_bytes(data)
        assert not is_session_file(path)
        with pytest.raises(InputError, match="not an opscope session"):
            Session.open(path)

    @cases("statement")
    def test_what_reads_other_files_when_it_is_asked_is_refused(self, saved, statement):
        self.tamper(saved, f"DROP TABLE IF EXISTS kernel_names; {statement}")
        with pytest.raises(InputError, match="holds views or functions"):
            Session.open(saved)

    def test_a_damaged_session(self, saved):
        saved.write_bytes(saved.read_bytes()[:2_000])
        with pytest.raises(InputError, match="cut off or damaged"):
            Session.open(saved)


class TestQuerying:
    def test_findings_come_errors_first_then_by_code_and_trace(self):
        findings = [
            Finding("b", Severity.INFO, "m"),
            Finding("z", Severity.ERROR, "m", "do it", 3, {"a_ns": 1, "b": [1.5, None]}),
            Finding("a", Severity.INFO, "m", trace_id=2),
            Finding("a", Severity.INFO, "m", trace_id=1),
            Finding("c", Severity.WARNING, "m"),
        ]
        with Session() as session:
            session.add_findings([])
            session.add_findings(findings)
            found = session.findings()
        assert found == [findings[place] for place in (1, 4, 3, 2, 0)]

    def test_a_place_where_no_session_can_be_made(self, tmp_path):
        with pytest.raises(InputError, match="the session cannot be created"):
            Session(tmp_path / "no folder" / "s.opscope")


class TestReplacingRows:
    ROWS: ClassVar[list[dict[str, Any]]] = [
        {"name_id": 1, "units": ["a.cu", "b's"], "fields": {"tile": [128, 64], "text": "\"'\\"}},
        {"name_id": 2, "tensor_core": True, "file": "\U0001f600", "line": 3, "fields": None},
    ]
    QUERY = (
        "SELECT name_id, units, fields::VARCHAR, tensor_core, file, line FROM kernel_provenance ORDER BY 1"
    )
    EXPECTED: ClassVar[list[tuple[Any, ...]]] = [
        (1, ["a.cu", "b's"], '{"tile":[128,64],"text":"\\"\'\\\\"}', None, None, None),
        (2, None, None, True, "\U0001f600", 3),
    ]

    def test_a_missing_column_is_null_json_takes_any_value_and_the_rows_before_are_gone(self):
        with Session() as session:
            session.replace_rows("kernel_provenance", self.ROWS)
            assert session.query(self.QUERY) == self.EXPECTED
            session.replace_rows("kernel_provenance", self.ROWS[:1])
            assert session.query(self.QUERY) == self.EXPECTED[:1]
            session.replace_rows("kernel_provenance", [])
            assert session.query(self.QUERY) == []

    def test_a_locked_session_takes_rows(self, saved, reopen):
        opened = reopen(saved)
        opened.lock()
        opened.replace_rows("kernel_provenance", self.ROWS)
        assert opened.query(self.QUERY) == self.EXPECTED


@pytest.mark.parametrize("is_loaded", [True, False])
def test_no_query_reaches_a_file_or_the_network(load, saved, reopen, tmp_path, is_loaded):
    session = load(full_trace()) if is_loaded else reopen(saved)
    session.lock()
    secret, target = tmp_path / "secret.csv", tmp_path / "target.csv"
    secret.write_text("a,b\n1,2\n")
    before = sorted(tmp_path.iterdir())
    statements = Path(__file__).with_suffix(".toml")
    for statement in tables(statements)["no_query_reaches_a_file_or_the_network"]:
        with pytest.raises(duckdb.Error):
            session.query(statement.format(secret=secret, target=target, folder=tmp_path))
        assert sorted(tmp_path.iterdir()) == before, statement


class _Full:
    """A connection whose queries fit only in all of the engine's share."""

    def __init__(self, connection):
        self._connection = connection
        self.limits: list[str] = []

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, query, parameters=()):
        if query.startswith("SET memory_limit"):
            self.limits.append(query.split("'")[1])
        elif self.limits and self.limits[-1] != "300000000B":
            raise duckdb.OutOfMemoryException("Out of Memory Error")
        return self._connection.execute(query, parameters)


def test_a_query_that_does_not_fit_in_what_the_engine_was_left_gets_all_of_its_share():
    with Session(memory_limit="1GB") as session:
        session.engine = full = _Full(session.engine)
        session.make_room()
        assert session.scalar("SELECT 1") == 1
        assert session.records("SELECT 2 AS two") == [{"two": 2}]
        assert full.limits == ["268435456B", "300000000B", "268435456B", "300000000B", "268435456B"]
    with Session() as unbounded:
        unbounded.make_room()
        assert unbounded.scalar("SELECT 1") == 1


def test_what_is_closed_has_nothing_to_interrupt(tmp_path):
    """A signal may come while a Session closes; the thread that ends what the engine computes goes on."""
    with Session() as session:
        session.save(tmp_path / "saved.opscope")
    with Session.open(tmp_path / "saved.opscope") as saved:
        saved.interrupt()
        assert saved.scalar("SELECT 1") == 1
    session.interrupt()
    saved.interrupt()


def test_a_file_of_others_is_looked_at_in_a_process_of_its_own(tmp_path, monkeypatch):
    with Session() as session:
        own = session.save(tmp_path / "own.opscope")
    other = tmp_path / "other.opscope"
    other.write_bytes(own.read_bytes())
    looked = []
    monkeypatch.setattr("opscope.model.session.confined", lambda look, file, reader: looked.append(file))
    for file in (own, other, own):
        Session.open(file).close()
    assert looked == [other]
    own.write_bytes(other.read_bytes())
    Session.open(own).close()
    assert looked == [other, own]
