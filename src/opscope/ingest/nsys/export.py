"""An export as a read-only SQLite database: opened, and whatever is wrong with it said in one sentence.

The file is never written, not even a lock or journal beside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opscope.errors import InputError
from opscope.ingest.source import LocalText, TraceFile

__all__ = ["EXPORT_COMMAND", "Export", "is_export", "open_export"]

EXPORT_COMMAND = "nsys export --type sqlite"
_MAGIC = b"SQLite format 3\0"
_SUFFIX = ".sqlite"
_REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
# Some other program may be writing it; a second tells a slow write from a held lock.
_LOCK_TIMEOUT_S = 1.0
# What tells an export from other databases: texts by id, and one table of nsys at least.
_STRINGS = "StringIds"
_MARKS = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_", "META_DATA_", "ANALYSIS_")


@dataclass(frozen=True)
class Export:
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


def is_export(trace: TraceFile, local: LocalText) -> bool:
    """Whether a file is a database, or is called one.

    Raises:
        InputError: It is a report of nsys, which nsys alone can read.
    """
    name = trace.name.lower()
    if name.endswith(_REPORT_SUFFIXES):
        raise InputError(
            "a report of Nsight Systems, in a format that only nsys reads",
            source=trace.name,
            hint=f"Export it where nsys is installed: {EXPORT_COMMAND} {trace.name}",
        )
    with local.path.open("rb") as file:
        head = file.read(len(_MAGIC))
    return head == _MAGIC or name.removesuffix(".gz").removesuffix(".zst").endswith(_SUFFIX)


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
            export = Export(name, connection, _columns(connection))
            _check(export)
            yield export
    except sqlite3.Error as error:
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
        connection.text_factory = _decoded
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


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
        f"a SQLite database, but no export of Nsight Systems ({found})",
        source=export.name,
        hint=f"{EXPORT_COMMAND} FILE.nsys-rep makes one",
    )


def _explained(error: sqlite3.Error, name: str) -> InputError:
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
