"""An export as a read-only SQLite database: opened, and whatever is wrong with it said in one sentence.

The file is never written, not even a lock or journal beside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from opscope.errors import InputError
from opscope.ingest.source import EXPORT_COMMAND
from opscope.model.session import Session, registered

# Some other program may be writing it; a second tells a slow write from a held lock.
_LOCK_TIMEOUT_S = 1.0
# Steps of SQLite's machine: a row takes some dozens. A view or a recursion can have rows without an end.
_LEAST_STEPS, _STEPS_PER_BYTE, _STEPS_AT_ONCE = 20_000_000, 1000, 100_000
_LENGTH, _LONGEST_VALUE_BYTES = 0, 64 << 20  # SQLITE_LIMIT_LENGTH
# What tells an export from other databases: texts by id, and one table of nsys at least.
_STRINGS = "StringIds"
_MARKS = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_", "META_DATA_", "ANALYSIS_")


class Export(msgspec.Struct, frozen=True):
    name: str  # The file, for people
    connection: sqlite3.Connection  # Read-only
    columns: Mapping[str, frozenset[str]]  # Names of the columns by table

    def has(self, table: str, *columns: str) -> bool:
        """Whether it has a table with these columns."""
        return table in self.columns and self.columns[table].issuperset(columns)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, parameters).fetchall()

    def of(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """These columns of a small table; no rows if it has not all of them."""
        return self.rows(f"SELECT {', '.join(columns)} FROM {table}") if self.has(table, *columns) else []


@contextmanager
def open_export(name: str, path: Path) -> Iterator[Export]:
    size_bytes = path.stat().st_size
    if not size_bytes:
        raise InputError("the file is empty", source=name, byte_offset=0)
    try:
        with closing(_connect(path)) as connection:
            _ration(connection, size_bytes)
            listed = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            columns = {
                table: frozenset(one for (one,) in connection.execute(_COLUMNS, (table,)))
                for (table,) in listed.fetchall()
            }
            if _STRINGS not in columns or not any(table.startswith(_MARKS) for table in columns):
                shown = ", ".join(sorted(columns)[:3])
                found = f"its tables are {shown} …" if columns else "it has no tables"
                raise InputError(
                    f"a SQLite database, but not an export of Nsight Systems ({found})",
                    source=name,
                    hint=f"{EXPORT_COMMAND} FILE.nsys-rep makes one",
                )
            yield Export(name, connection, columns)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _explained(error, name) from error


_COLUMNS = "SELECT name FROM pragma_table_info(?)"


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
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
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
# Stands for NULL among integers; nsys writes nothing near it.
_NULL = -(1 << 63)
_PLACE = "start end deviceId contextId streamId correlationId globalPid"
# What each table becomes in the staging database, and the columns read of it; the first two are required.
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "kernels",
        f"{_PLACE} demangledName shortName mangledName registersPerThread gridX gridY gridZ blockX blockY "
        "blockZ staticSharedMemory dynamicSharedMemory graphId graphNodeId",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("copies", f"{_PLACE} bytes copyKind srcKind dstKind graphNodeId"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("sets", f"{_PLACE} bytes memKind graphNodeId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("graphs", f"{_PLACE} graphId"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("calls", "start end eventClass globalTid correlationId nameId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ("syncs", f"{_PLACE} syncType eventId"),
    "NVTX_EVENTS": ("ranges", "start end eventType globalTid endGlobalTid textId domainId text"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": ("cuda_overheads", "start end globalTid nameId overheadType"),
    "PROFILER_OVERHEAD": ("overheads", "start end globalTid nameId overheadType"),
    "ThreadNames": ("thread_names", "nameId globalTid"),
    "PROCESSES": ("processes", "globalPid pid name"),
    "StringIds": ("strings", "id value"),
}
_EVENTS = tuple(name for name, columns in _TABLES.values() if columns.startswith("start"))
_TEXTS = {"text", "name", "value"}
# Written only where there is something to write, or not by every version: that they lack says nothing.
_OPTIONAL = {
    "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD", "NVTX_EVENTS",
}  # fmt: skip
# Of texts an export may hold millions more than are used.
_TEXT_IDS = frozenset(("demangledName", "shortName", "mangledName", "nameId", "textId"))
_OPTIONAL_COLUMNS = {"graphId", "memKind", "contextId", "endGlobalTid"}


class Missing(msgspec.Struct, frozen=True):
    """What an export lacks: tables, columns as `TABLE.column`, and of some rows which process they are of."""

    tables: tuple[str, ...]
    columns: tuple[str, ...]
    row_count: int = 0


def copy_tables(session: Session, export: Export) -> Missing:
    """Copy all tables into the staging database; what is not there becomes an empty table, or NULL.

    Each gets `process` and `thread` in place of a global id.
    """
    tables: list[str] = []
    columns: list[str] = []
    used: list[str] = []
    is_mixed = False
    for table, (staged, listed) in _TABLES.items():
        present, wanted = export.columns.get(table, frozenset()), listed.split()
        selected = _selected(wanted, present)
        kinds = ", ".join(f'"{name}" {"VARCHAR" if name in _TEXTS else "BIGINT"}' for name in selected)
        session.connection.execute(f"CREATE OR REPLACE TABLE staging.raw_{staged} ({kinds})")
        if present.issuperset(wanted[:2]):
            only = f" WHERE id IN ({' UNION '.join(used or ['SELECT NULL'])})" if table == _STRINGS else ""
            _copy(session, export, table, selected, only)
            lacking = {column for column in wanted if column not in present} - _OPTIONAL_COLUMNS
            columns += [f"{table}.{one}" for one in wanted if one in lacking]
            is_mixed |= bool(lacking & {"globalPid", "globalTid"})
            used += [
                f'SELECT "{one}" FROM "{table}"' for one in _TEXT_IDS if one in present and one in wanted
            ]
        elif table not in _OPTIONAL or present:
            tables.append(table)
    return Missing(tuple(tables), tuple(columns), _complete_processes(session, is_mixed=is_mixed))


def _selected(columns: Sequence[str], present: frozenset[str]) -> dict[str, str]:
    """What SQLite selects for each staged column.

    A global id has process and thread in 24 bits each. Source: Nsight Systems user guide, "Serialized Process
    and Thread Identifiers".
    """
    selected: dict[str, str] = {}
    for column in columns:
        value = f'"{column}"' if column in present else "NULL"
        if column == "endGlobalTid":
            selected["end_thread"] = f"{value} & 16777215"
        elif column in {"globalPid", "globalTid"}:
            selected["process"], selected["thread"] = f"{value} >> 24 & 16777215", f"{value} & 16777215"
        else:
            selected[column] = value
    return selected


def _copy(session: Session, export: Export, table: str, selected: Mapping[str, str], only: str) -> None:
    """Some thousands of rows at a time."""
    wanted = (value if name in _TEXTS else f"ifnull({value}, {_NULL})" for name, value in selected.items())
    rows = export.connection.execute(f'SELECT {", ".join(wanted)} FROM "{table}"{only}')
    names = ", ".join(f'"{one}"' if one in _TEXTS else f'nullif("{one}", {_NULL})' for one in selected)
    while batch := rows.fetchmany(_CHUNK_ROWS):
        try:
            chunk = {
                name: np.array(values, dtype=object if name in _TEXTS else np.int64)
                for name, values in zip(selected, zip(*batch, strict=True), strict=True)
            }
        except (TypeError, ValueError) as error:
            raise InputError(
                f"table {table} holds something else than numbers ({error})", source=export.name
            ) from error
        with registered(session.connection, export_chunk=chunk):
            session.connection.execute(
                f"INSERT INTO staging.raw_{_TABLES[table][0]} SELECT {names} FROM export_chunk"
            )


def _complete_processes(session: Session, *, is_mixed: bool) -> int:
    """Give rows without a process the only one there is (all, if a table has none); how many stay without."""
    union = " UNION ALL ".join(f"SELECT process FROM staging.raw_{name}" for name in _EVENTS)
    counts = dict(session.query(f"SELECT process, count(*) FROM ({union}) GROUP BY process"))
    without = int(counts.pop(None, 0))
    if not is_mixed and len(counts) != 1:
        return without
    for name in _EVENTS:
        condition = "" if is_mixed else " WHERE process IS NULL"
        session.connection.execute(
            f"UPDATE staging.raw_{name} SET process = {min(counts, default=0)}{condition}"
        )
    return 0
