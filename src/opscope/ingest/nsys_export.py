"""An export as a read-only SQLite database: opened, and whatever is wrong with it said in one sentence.

The file is never written, not even a lock or journal beside it.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from opscope.errors import InputError
from opscope.ingest.kineto import Columns
from opscope.ingest.nesting import Int64
from opscope.ingest.source import EXPORT_COMMAND
from opscope.model.session import Session

# Some other program may be writing it; a second tells a slow write from a held lock.
_LOCK_TIMEOUT_S = 1.0
# Steps of SQLite's machine: a row takes some dozens. A view or a recursion can have rows without an end.
_LEAST_STEPS, _STEPS_PER_BYTE, _STEPS_AT_ONCE = 20_000_000, 1000, 100_000
_LENGTH, _LONGEST_VALUE_BYTES = 0, 64 << 20  # SQLITE_LIMIT_LENGTH
# What tells an export from other databases: texts by id, and one table of nsys at least.
_STRINGS = "StringIds"
_MARKS = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_", "META_DATA_", "ANALYSIS_")


class Export(msgspec.Struct, frozen=True):
    """An open export.

    Args:
        name: The file, for people.
        connection: Read-only.
        columns: Names of the columns by table.
    """

    name: str
    connection: sqlite3.Connection
    columns: Mapping[str, frozenset[str]]

    def has(self, table: str, *columns: str) -> bool:
        """Whether it has a table with these columns."""
        return table in self.columns and self.columns[table].issuperset(columns)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query on a small table."""
        return self.connection.execute(query, parameters).fetchall()


@contextmanager
def open_export(name: str, path: Path) -> Iterator[Export]:
    """The export in a file, for the duration of the block.

    Raises:
        InputError: Not a database, not of nsys, locked, cut off or damaged; now or while the block reads.
    """
    if not path.stat().st_size:
        raise InputError("the file is empty", source=name, byte_offset=0)
    try:
        with closing(_connect(path)) as connection:
            _ration(connection, path.stat().st_size)
            export = Export(name, connection, _columns(connection))
            _check(export)
            yield export
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _explained(error, name) from error


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        return _opened(uri)
    except sqlite3.OperationalError as error:
        # A database with a write-ahead log needs files beside it; in a read-only folder there can be none.
        if "unable to open" not in str(error) or Path(f"{path}-wal").exists():
            raise
        return _opened(f"{uri}&immutable=1")


def _opened(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
    try:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.execute("SELECT count(*) FROM sqlite_master")
    except BaseException:
        connection.close()
        raise
    return connection


def _ration(connection: sqlite3.Connection, size_bytes: int) -> None:
    """Bound what reading may cost: a few words of a schema describe tables without an end."""
    left = _LEAST_STEPS + _STEPS_PER_BYTE * size_bytes

    def take() -> bool:
        nonlocal left
        left -= _STEPS_AT_ONCE
        return left < 0

    connection.set_progress_handler(take, _STEPS_AT_ONCE)
    connection.execute("PRAGMA trusted_schema = OFF")
    if hasattr(connection, "setlimit"):  # Python 3.11
        connection.setlimit(_LENGTH, _LONGEST_VALUE_BYTES)


def _columns(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    columns = "SELECT name FROM pragma_table_info(?)"
    return {
        table: frozenset(column for (column,) in connection.execute(columns, (table,))) for (table,) in tables
    }


def _check(export: Export) -> None:
    tables = export.columns
    if _STRINGS in tables and any(table.startswith(_MARKS) for table in tables):
        return
    found = f"its tables are {', '.join(sorted(tables)[:3])} …" if tables else "it has no tables"
    raise InputError(
        f"a SQLite database, but not an export of Nsight Systems ({found})",
        source=export.name,
        hint=f"{EXPORT_COMMAND} FILE.nsys-rep makes one",
    )


def _explained(error: sqlite3.Error | UnicodeDecodeError, name: str) -> InputError:
    reason = str(error)
    if "locked" in reason or "busy" in reason:
        return InputError(
            "another program is writing it (the database is locked)",
            source=name,
            hint="Wait until nsys has finished the export",
        )
    if "not a database" in reason:
        return InputError(
            "not a SQLite database: damaged, cut off or encrypted",
            source=name,
            hint=f"Copy it again, or export again: {EXPORT_COMMAND} FILE.nsys-rep",
        )
    return InputError(
        f"the database cannot be read, it is cut off or damaged (SQLite: {reason})",
        source=name,
        hint=f"Copy it again, or export again: {EXPORT_COMMAND} FILE.nsys-rep",
    )


_CHUNK_ROWS = 16384
_GLOBAL_IDS = {"globalPid", "globalTid", "endGlobalTid"}
# Stands for NULL among integers; nsys writes nothing near it.
_NULL = -(1 << 63)


class ExportTable(msgspec.Struct, frozen=True):
    """One table of an export.

    Args:
        name: As nsys calls it.
        staged: What it becomes, in the staging database.
        integers: Columns of integers; the first two are required, or the table is not used.
        text: A column of texts.
    """

    name: str
    staged: str
    integers: tuple[str, ...]
    text: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        return self.integers if self.text is None else (*self.integers, self.text)


_PLACE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_OVERHEAD = ("start", "end", "globalTid", "nameId", "overheadType")
TABLES = (
    ExportTable(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "kernels",
        (
            *_PLACE, "demangledName", "shortName", "mangledName", "registersPerThread", "gridX", "gridY",
            "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "graphId",
            "graphNodeId",
        ),
    ),
    ExportTable(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "copies",
        (*_PLACE, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"),
    ),
    ExportTable("CUPTI_ACTIVITY_KIND_MEMSET", "sets", (*_PLACE, "bytes", "memKind", "graphNodeId")),
    ExportTable("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graphs", (*_PLACE, "graphId")),
    ExportTable(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "calls",
        ("start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
    ),
    ExportTable("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "syncs", (*_PLACE, "syncType", "eventId")),
    ExportTable(
        "NVTX_EVENTS",
        "ranges",
        ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId"),
        text="text",
    ),
    ExportTable("CUPTI_ACTIVITY_KIND_OVERHEAD", "cuda_overheads", _OVERHEAD),
    ExportTable("PROFILER_OVERHEAD", "overheads", _OVERHEAD),
    ExportTable("ThreadNames", "thread_names", ("nameId", "globalTid")),
    ExportTable("PROCESSES", "processes", ("globalPid", "pid"), text="name"),
)  # fmt: skip
# Written only where there is something to write, or not by every version: that they lack says nothing.
_OPTIONAL = {
    "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD", "NVTX_EVENTS",
}  # fmt: skip
_OPTIONAL_COLUMNS = {"graphId", "memKind", "contextId", "endGlobalTid"}


class Missing(msgspec.Struct, frozen=True):
    """What an export lacks of what is read.

    Args:
        tables: Tables.
        columns: Columns, as `TABLE.column`.
        row_count: Rows that name no process, where there are several: they belong nowhere.
    """

    tables: tuple[str, ...]
    columns: tuple[str, ...]
    row_count: int = 0


def copy_tables(session: Session, export: Export) -> Missing:
    """Copy all tables into the staging database; what is not there becomes an empty table, or NULL.

    Each gets `process` and `thread` in place of a global id.

    Raises:
        InputError: A value is of another type than its column.
    """
    tables: list[str] = []
    columns: list[str] = []
    is_mixed = False
    for table in TABLES:
        present = export.columns.get(table.name, frozenset())
        is_usable = present.issuperset(table.integers[:2])
        _create(session, table)
        if is_usable:
            _copy(session, export, table, present)
            lacking = [column for column in table.columns if column not in present]
            columns += [f"{table.name}.{one}" for one in lacking if one not in _OPTIONAL_COLUMNS]
            is_mixed |= bool(_GLOBAL_IDS.intersection(lacking) - _OPTIONAL_COLUMNS)
        elif table.name not in _OPTIONAL or present:
            tables.append(table.name)
    row_count = _complete_processes(session, is_mixed=is_mixed)
    return Missing(tuple(tables), tuple(columns), row_count)


def _complete_processes(session: Session, *, is_mixed: bool) -> int:
    """Give rows without a process the only one there is; if a table has none at all, every row is of one.

    Returns:
        Rows that are left without a process.
    """
    staged = [table.staged for table in TABLES if _GLOBAL_IDS.intersection(table.integers)]
    events = [name for name in staged if name not in {"processes", "thread_names"}]
    union = " UNION ALL ".join(f"SELECT process FROM staging.raw_{name}" for name in events)
    counts = dict(session.query(f"SELECT process, count(*) FROM ({union}) GROUP BY process"))
    without = int(counts.pop(None, 0))
    if not is_mixed and len(counts) != 1:
        return without
    for name in events:
        condition = "" if is_mixed else " WHERE process IS NULL"
        session.connection.execute(
            f"UPDATE staging.raw_{name} SET process = {min(counts, default=0)}{condition}"
        )
    return 0


def _staged_columns(table: ExportTable) -> Iterator[tuple[str, str]]:
    for column in table.integers:
        if column == "endGlobalTid":
            yield "end_thread", "BIGINT"
        elif column in _GLOBAL_IDS:
            yield "process", "BIGINT"
            yield "thread", "BIGINT"
        else:
            yield column, "BIGINT"
    if table.text is not None:
        yield table.text, "VARCHAR"


def _create(session: Session, table: ExportTable) -> None:
    columns = ", ".join(f'"{name}" {kind}' for name, kind in _staged_columns(table))
    session.connection.execute(f"CREATE OR REPLACE TABLE staging.raw_{table.staged} ({columns})")


def _copy(session: Session, export: Export, table: ExportTable, present: frozenset[str]) -> None:
    target = f"staging.raw_{table.staged}"
    names = ", ".join(
        f'nullif("{name}", {_NULL})' if kind == "BIGINT" else f'"{name}"'
        for name, kind in _staged_columns(table)
    )
    for chunk in _chunks(export, table, present):
        session.connection.register("export_chunk", chunk)
        try:
            session.connection.execute(f"INSERT INTO {target} SELECT {names} FROM export_chunk")
        finally:
            session.connection.unregister("export_chunk")


def _chunks(export: Export, table: ExportTable, present: frozenset[str]) -> Iterator[Columns]:
    """The rows as columns, some thousands at a time."""
    wanted = [f'ifnull("{name}", {_NULL})' if name in present else str(_NULL) for name in table.integers]
    count = len(wanted)
    if table.text is not None:
        wanted.append(f'"{table.text}"' if table.text in present else "NULL")
    rows = export.connection.execute(f'SELECT {", ".join(wanted)} FROM "{table.name}"')
    while batch := rows.fetchmany(_CHUNK_ROWS):
        numbers = batch if table.text is None else [row[:count] for row in batch]
        try:
            flat = np.fromiter(
                itertools.chain.from_iterable(numbers), dtype=np.int64, count=len(batch) * count
            )
        except (TypeError, ValueError) as error:
            raise InputError(
                f"table {table.name} holds something else than numbers ({error})", source=export.name
            ) from error
        chunk = _split(table, np.ascontiguousarray(flat.reshape(len(batch), count).T))
        if table.text is not None:
            chunk[table.text] = np.array([row[count] for row in batch], dtype=object)
        yield chunk


def _split(table: ExportTable, values: Int64) -> Columns:
    chunk: Columns = {}
    for name, column in zip(table.integers, values, strict=True):
        if name not in _GLOBAL_IDS:
            chunk[name] = column
            continue
        process, thread = split_global_id(column)
        if name == "endGlobalTid":
            chunk["end_thread"] = thread
        else:
            chunk["process"], chunk["thread"] = process, thread
    return chunk


def split_global_id(ids: Int64) -> tuple[Int64, Int64]:
    """Process and thread of global ids, each in 24 bits; NULL stays what it is.

    Source: Nsight Systems user guide, "Serialized Process and Thread Identifiers".
    """
    is_null = ids == _NULL
    return (
        np.where(is_null, _NULL, (ids >> 24) & 0xFFFFFF),
        np.where(is_null, _NULL, ids & 0xFFFFFF),
    )
