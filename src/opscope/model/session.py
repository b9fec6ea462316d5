"""The Session: one DuckDB database holding every table of `model.schema`, in memory or in one file.

Everything opscope knows about a recording is in it; every analysis and renderer runs on any Session. A saved
Session is one `.opscope` file with a schema version; a newer version is refused, never guessed at.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from opscope._version import __version__
from opscope.errors import InputError
from opscope.model import schema
from opscope.model.files import confined, replacing, scratch_prefix
from opscope.model.finding import Finding, Severity
from opscope.model.notebook import QueryRows, Shown
from opscope.model.queries import statements
from opscope.signals import interrupts, raise_if_interrupted
from opscope.units import parse_bytes

if TYPE_CHECKING:
    import duckdb as duckdb  # noqa: PLC0414 - others have it from here
else:

    class _Engine:
        """Imported when it is first asked: that takes a while, in which a trace is read already."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("duckdb"), name)

    duckdb = _Engine()

R = TypeVar("R")

_DUCKDB_MAGIC = b"DUCK"
_DUCKDB_MAGIC_OFFSET = 8
# Of a DuckDB file: three headers, then blocks of the size that the second one tells.
_HEADER_BYTES, _BLOCK_SIZE_AT = 1 << 12, (1 << 12) + 40
# DuckDB's limit counts neither the interpreter nor arrays, file windows and results. On a trace of 1 GB: with
# this share the whole process stays under two thirds of the user's limit.
_ENGINE_SHARE = 0.3
# Of a session that is only asked, where that is more than it needs: what is computed of long traces lies
# beside it.
_ASKED_SHARE, _ASKED_BYTES = 0.16, 256 << 20
# Giving freed memory back to the system after every 128 MB, and touching it anew, takes a quarter of the time
# of loading 1 GB. It is given back when the Session closes.
_NEVER_FLUSH = "1TB"
# A query may read what it does not name: by names in texts or escapes, whole databases, lists of tables. And
# what is written inside a transaction may be undone with it.
_HIDES_NAMES = re.compile(
    r"query|database|_schema|_master|show|duckdb_|pg_|u&|\be'|\b(?:begin|transaction)\b|describe\W*\Z"
)


class Check(msgspec.Struct, frozen=True):
    """Outcome of one law. `violations` holds at most ten offending rows, by column name."""

    name: str
    law: str
    violations: tuple[dict[str, Any], ...]

    @property
    def holds(self) -> bool:
        return not self.violations


class Session(Shown):
    """A DuckDB database with the declared tables.

    Use `opscope.load` or `Session.open`; the constructor makes an empty one.

    Args:
        path: Database file to create; in memory if None.
        memory_limit: Memory limit of the process, e.g. `"1GB"`; unbounded if None.
        threads: Worker threads; all cores if None.
        is_temporary_file: Keep the tables in a temporary file instead of memory; removed on close.

    Attributes:
        is_read_only: The stored tables cannot be written; `replace_rows` hides them with temporary ones.
        examined: What the processes that read files worked out of each rank, by trace id; not saved.
    """

    is_read_only = False
    is_open = True
    _scratch: _ScratchFolder | None = None
    _memory_limit: str | None = None
    _whole_bytes: float | None = None  # of the engine, once it has made room

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        memory_limit: str | None = None,
        threads: int | None = None,
        is_temporary_file: bool = False,
    ) -> None:
        self._memory_limit, self.threads = memory_limit, threads
        self.examined: dict[int, Any] = {}
        self._known: dict[str, Sequence[tuple[Any, ...]]] = {}
        # What writes tables, by their names. It is given the Session, which would hold itself otherwise.
        self._unwritten: dict[str, list[Callable[[Session], object]]] = {}
        self.path = None if path is None else Path(path)
        if self.path is not None and self.path.exists():
            raise InputError(
                "the file exists", source=self.path, hint="Sessions are opened with Session.open"
            )
        self.is_file_backed = is_temporary_file or self.path is not None
        # Row order is carried by ids, so both cores may write at once.
        config: dict[str, Any] = {
            "allocator_flush_threshold": _NEVER_FLUSH, "preserve_insertion_order": False,
            "temp_directory": str(self.temporary_directory),
        }  # fmt: skip
        if memory_limit is not None:
            config["memory_limit"] = f"{int(_ENGINE_SHARE * parse_bytes(memory_limit))}B"
        if threads is not None:
            config["threads"] = threads
        self._config = config
        interrupts.add(self)
        if self.path is not None or threads is not None:
            _ = self.engine  # the file is there from now on, and so many threads can be had

    @property
    def has_rows(self) -> bool:
        """Whether anything was written, or is to be: nothing is asked of the engine before."""
        return "engine" in vars(self) or bool(self._unwritten)

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The engine, with all rows in its tables."""
        self.prepare(None)
        return self.engine

    @cached_property
    def engine(self) -> duckdb.DuckDBPyConnection:
        """The engine, opened when it is first asked. It may not have all rows yet: `execute` sees to that."""
        if not self.is_open:
            raise InputError("the session is closed", source=self.path)
        database = ":memory:" if self.path is None else str(self.path)
        if self.is_file_backed and self.path is None:
            database = str(self.temporary_directory / "session.duckdb")
        try:
            connection = duckdb.connect(database, config=self._config)
        except duckdb.Error as error:
            raise InputError(
                f"the session cannot be created ({first_line(error)})",
                source=self.path,
                hint="Check the path, the memory limit and the number of threads",
            ) from error
        tables = "; ".join(declared.create_statement() for declared in schema.TABLES)
        versions = f"('schema_version', '{schema.SCHEMA_VERSION}'), ('opscope_version', '{__version__}')"
        connection.execute(f"BEGIN; {tables}; INSERT INTO metadata VALUES {versions}; COMMIT")
        if self.path is None:  # nobody opens it again
            connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        return connection

    def defer(self, name: str, write: Callable[[Session], object]) -> None:
        """Have a table written, or a view made, when a query first names it; at once in a file."""
        self._known.clear()
        self._unwritten.setdefault(name, []).append(write)
        self.prepare(name if self.is_file_backed else "")

    def prepare(self, query: str | None) -> None:
        """Have all tables written that a query may read; all for None."""
        text = None if query is None or _HIDES_NAMES.search(query.lower()) else query.lower()
        for name in [one for one in self._unwritten if text is None or one in text]:
            writes = self._unwritten.pop(name, [])  # those of another one may have needed it
            try:
                while writes:
                    writes[0](self)
                    del writes[0]
            except duckdb.Error as error:
                raise_if_interrupted(error)  # the engine makes an error of its own of that
                raise
            finally:
                self._unwritten |= {name: writes} if writes else {}  # it was interrupted

    def execute(self, text: str, parameters: Any = None) -> duckdb.DuckDBPyConnection:
        """Run a statement, once the tables that it may read are written."""
        self.prepare(text)
        return self.engine.execute(text, parameters)

    def make_room(self) -> None:
        """Let the engine keep less memory from now on, where it was limited: all has been written."""
        if self._memory_limit is None:
            return
        limit_bytes = parse_bytes(self._memory_limit)
        self._whole_bytes = _ENGINE_SHARE * limit_bytes
        self._limit_engine(max(_ASKED_SHARE * limit_bytes, min(self._whole_bytes, _ASKED_BYTES)))

    def _limit_engine(self, most_bytes: float) -> None:
        self.execute(f"SET memory_limit = '{int(most_bytes)}B'")

    def _in_room(self, ask: Callable[[], R]) -> R:
        """What it returns; a query that does not fit in what the engine was left gets all of its share."""
        try:
            return ask()
        except duckdb.OutOfMemoryException:
            if self._whole_bytes is None:
                raise
            self._limit_engine(self._whole_bytes)
            try:
                return ask()
            finally:
                self.make_room()

    @property
    def temporary_directory(self) -> Path:
        """A folder for scratch files that goes with the Session."""
        if self._scratch is None:
            self._scratch = _ScratchFolder()
        return self._scratch.path

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Session:
        """Open a saved Session, read-only.

        Raises:
            InputError: No such file, not a Session, or written by a newer opscope.
        """
        file = Path(path)
        if not is_session_file(file):
            raise InputError(
                "not an opscope session" if file.exists() else "no such file",
                source=file,
                hint="Sessions are written by `opscope analyze TRACE --save FILE.opscope`",
            )
        with file.open("rb") as opened:
            opened.seek(_BLOCK_SIZE_AT)
            block_bytes = int.from_bytes(opened.read(8), "little")
        # Of some files that are cut off the engine makes no end.
        if not block_bytes or (file.stat().st_size - 3 * _HEADER_BYTES) % block_bytes:
            raise InputError("the session is cut off or damaged", source=file, hint="Copy it again")
        if _state_of(file) not in _own_files:
            confined(_look_at, file, reader="the engine")
        session = cls._opened(file)
        # Tables that were declared after the file was written are there, empty, for this connection.
        rows = session.query(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()"
        )
        for declared in schema.TABLES:
            if (declared.name,) not in rows:
                session.execute(declared.create_statement(temporary=True))
        return session

    @classmethod
    def _opened(cls, file: Path) -> Session:
        session = cls.__new__(cls)
        session.path = file
        session.is_file_backed = session.is_read_only = True
        session.examined, session._known, session._unwritten = {}, {}, {}
        try:
            connection: Any = _SavedConnection(duckdb.connect(str(file), read_only=True), file)
        except duckdb.Error as error:
            raise InputError(f"the session cannot be opened ({first_line(error)})", source=file) from error
        session.engine = connection
        interrupts.add(session)
        return session

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the Session to one file and return its path; the file appears only when complete.

        Raises:
            InputError: The file exists and `overwrite` is false, or it cannot be written.
        """
        target = Path(path)
        if target.is_file() and not overwrite:
            raise InputError(
                "the file exists",
                source=target,
                hint="Overwrite it with --force, or overwrite=True in Python",
            )
        with replacing(target, "the session", failures=(OSError, duckdb.Error)) as partial:
            self._copy_to(partial)
        _own_files.add(_state_of(target))
        return target

    def _copy_to(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        source = self.scalar("SELECT current_database()")
        self.connection.execute(f"ATTACH {literal(str(file))} AS saved (READ_WRITE)")
        try:
            self.execute(f'COPY FROM DATABASE "{source}" TO saved')
            self.execute("CHECKPOINT saved")
        finally:
            self.execute("DETACH saved")

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> QueryRows:
        """All rows of a query on this Session's tables; `.df()`, `.pl()`, `.arrow()` make frames."""
        given = list(parameters)
        rows = self._in_room(lambda: self.execute(sql, given).fetchall())
        return QueryRows(rows, lambda: self.engine.sql(sql, params=given))

    def known(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """All rows of a query of what is written while traces are read, and not changed later: asked once."""
        if sql not in self._known:
            self._known[sql] = self.query(sql)
        return self._known[sql]

    def holds(self, table: str) -> bool:
        """Whether a table has rows: to plan a long query takes some milliseconds, on however few rows."""
        return bool(self.known(f"SELECT EXISTS (FROM {table})")[0][0])

    def scalar(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        return next((value for value, *_ in self.query(sql, parameters)), None)

    def records(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        def ask() -> list[dict[str, Any]]:
            cursor = self.execute(sql, list(parameters))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        return self._in_room(ask)

    def metadata(self, key: str) -> str | None:
        value = self.scalar("SELECT value FROM metadata WHERE key = ?", [key])
        return None if value is None else str(value)

    def replace_rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Make these the rows of a declared table; on a read-only Session for this connection only.

        Args:
            table: Name of the table.
            rows: Values by column name; a missing column is NULL, a JSON column takes any JSON value.
        """
        declared = schema.table(table)
        if self.is_read_only:
            self.execute(f'DROP TABLE IF EXISTS temp."{table}"')
            self.execute(declared.create_statement(temporary=True))
        else:
            self.execute(f'DELETE FROM "{table}"')
        self.insert_rows(table, rows)

    def insert_rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a declared table; values as in `replace_rows`."""
        types = {one.name: one.type for one in schema.table(table).columns}
        if not rows:
            return
        lists = {name: [kind.removesuffix("[]")] for name, kind in types.items() if kind.endswith("[]")}
        structure = literal(json.dumps([types | lists]))
        self.execute(
            f'INSERT INTO "{table}" SELECT row.* FROM '
            f"(SELECT unnest(from_json(?::JSON, {structure})) AS row)",
            [msgspec.json.encode(rows).decode()],
        )

    def add_findings(self, findings: Iterable[Finding]) -> None:
        rows = [
            [f.code, f.severity.value, f.message, f.suggestion, f.trace_id, json.dumps(f.evidence)]
            for f in findings
        ]
        if rows:
            self.engine.executemany("INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?)", rows)

    def findings(self) -> list[Finding]:
        """All findings, errors first, in the order of their codes."""
        rows = self.query(
            "SELECT code, severity, message, suggestion, trace_id, evidence FROM findings "
            "ORDER BY array_position(['error', 'warning', 'info'], severity), code, trace_id"
        )
        return [
            Finding(code, Severity(severity), message, suggestion, trace_id, json.loads(evidence or "{}"))
            for code, severity, message, suggestion, trace_id, evidence in rows
        ]

    def check(self) -> tuple[Check, ...]:
        """Test conservation and every other law of `checks.sql`; exact, in integer nanoseconds."""
        return tuple(
            Check(name, text.partition("\n")[0].removeprefix("-- "), tuple(self.records(f"{text} LIMIT 10")))
            for name, text in statements(__package__, "checks").items()
        )

    def lock(self) -> None:
        """Shut the database off from files and the network, for good: queries can neither read nor write."""
        self.execute("SET enable_external_access = false; SET lock_configuration = true")

    def interrupt(self) -> None:
        """End what the engine computes, if it is open; from any thread."""
        if "engine" in vars(self):
            with suppress(duckdb.ConnectionException):
                self.engine.interrupt()

    def close(self) -> None:
        self.is_open = False
        self._unwritten.clear()
        if "engine" in vars(self):
            self.engine.close()
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else str(self.path)
        return f"<opscope.Session {where}>"


# What this process has saved, which it need not look at.
_own_files: set[tuple[int, ...]] = set()


def _state_of(file: Path) -> tuple[int, ...]:
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _look_at(file: Path) -> None:
    """Return if a file can be opened, is a Session, and is one that this opscope reads."""
    with Session._opened(file) as session:
        try:
            version = int(session.metadata("schema_version") or "")
        except (duckdb.Error, ValueError):
            raise InputError("a DuckDB database without opscope's tables", source=file) from None
        if version > schema.SCHEMA_VERSION:
            raise InputError(
                f"written with schema version {version}; this opscope {__version__} reads up to "
                f"{schema.SCHEMA_VERSION}",
                source=file,
                hint="Upgrade opscope to read it",
            )
        try:
            made = session.scalar(
                "SELECT (SELECT count(*) FROM duckdb_views() WHERE NOT internal)"
                " + (SELECT count(*) FROM duckdb_functions() WHERE NOT internal)"
            )
        except duckdb.Error as error:
            raise InputError(f"the session cannot be read ({first_line(error)})", source=file) from error
        # Such read more than the file itself when they are queried: it may be a stranger's.
        if made:
            raise InputError("it holds views or functions, which no session has", source=file)


class _SavedConnection:
    """A connection to a saved Session: what the engine says of a damaged file is one error that names it.

    Blocks are read when a query needs them, so a file that opens may be damaged all the same.
    """

    _DAMAGE = ("Error", "IOException", "InternalException", "FatalException", "SerializationException")

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path) -> None:
        self._connection, self._path = connection, path

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._connection, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                result = value(*arguments, **options)
            except duckdb.Error as error:
                if type(error).__name__ not in self._DAMAGE:  # of the query, not of the file
                    raise
                raise InputError(
                    f"the session is damaged ({first_line(error)})",
                    source=self._path,
                    hint="Copy it again, or save it anew from the trace",
                ) from error
            return self if result is self._connection else result

        return call


class _ScratchFolder:
    """A temporary folder that goes when asked to, when forgotten, or when the interpreter exits; silently."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=scratch_prefix()))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@contextmanager
def registered(session: Session, **relations: Any) -> Iterator[None]:
    """Columns in memory (arrays by name, or Arrow's interface) as tables of these names, inside the block."""
    for name, relation in relations.items():
        session.engine.register(name, relation)
    try:
        yield
    finally:
        with suppress(duckdb.ConnectionException):  # a signal came meanwhile, and it has been closed
            for name in relations:
                session.engine.unregister(name)


def is_session_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file starts like a DuckDB database, whatever its name."""
    try:
        if not Path(path).is_file():  # what a pipe holds can be read only once
            return False
        with Path(path).open("rb") as file:
            head = file.read(_DUCKDB_MAGIC_OFFSET + len(_DUCKDB_MAGIC))
    except OSError:
        return False
    return head[_DUCKDB_MAGIC_OFFSET:] == _DUCKDB_MAGIC


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
