"""A stranger's query on a Session, unable to read or write any file.

Three walls: only a single SELECT (or EXPLAIN) is accepted; the engine runs with external access off and its
configuration locked; and the query runs in a read-only transaction. Exports are written by our own COPY
statement to the one path allowed before the lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb

from opscope.errors import InputError
from opscope.model.schema import TABLES
from opscope.model.session import Session

__all__ = ["QueryResult", "export_query", "export_table", "run_query"]

_ROWS_PER_FETCH = 10_000
_ACCEPTED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
# The Python client needs the pytz package for it, which is no dependency.
_ZONED_TIMESTAMP = "TIMESTAMP WITH TIME ZONE"


@dataclass(frozen=True)
class QueryResult:
    """Columns of a result (names unique) and a cursor over its rows."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    cursor: duckdb.DuckDBPyConnection

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows, fetched in portions; JSON columns parsed."""
        json_columns = [index for index, name in enumerate(self.types) if name == "JSON"]
        try:
            while rows := self.cursor.fetchmany(_ROWS_PER_FETCH):
                for row in rows:
                    yield _parsed(row, json_columns) if json_columns else row
        except duckdb.Error as error:
            raise _query_error(error) from error


def run_query(session: Session, query: str) -> QueryResult:
    """The result of a query on a Session that is locked from then on.

    Raises:
        InputError: It is not a single SELECT, or it fails.
    """
    statement = _single_statement(session, query)
    _lock(session, allowed=None)
    return _execute(session, statement)


def export_query(session: Session, query: str, path: Path) -> Path:
    """Write a query's result as Parquet, on a Session that is locked from then on.

    Raises:
        InputError: It is not a single SELECT, it fails, or the file cannot be written.
    """
    statement = _single_statement(session, query)
    with _partial_file(path) as partial:
        _lock(session, allowed=partial)
        # The newline ends a trailing comment; a query that closes the parenthesis does not parse alone.
        _copy(session, f"(\n{statement}\n)", partial)
    return path


def export_table(session: Session, name: str, path: Path) -> Path:
    """Write one table of an unlocked Session as Parquet.

    Raises:
        InputError: No such table, or the file cannot be written.
    """
    names = [table.name for table in TABLES]
    if name not in names:
        raise InputError(f"no table '{name}'", hint=f"Tables: {', '.join(names)}")
    with _partial_file(path) as partial:
        _copy(session, f'"{name}"', partial)
    return path


def _single_statement(session: Session, query: str) -> str:
    try:
        statements = session.connection.extract_statements(query)
    except duckdb.Error as error:
        raise _query_error(error) from error
    except RuntimeError as error:  # a kind of statement the Python client has no name for
        raise InputError("the query is no SELECT") from error
    if len(statements) != 1:
        raise InputError(f"{len(statements)} statements where one SELECT is expected")
    statement = statements[0]
    if statement.type not in _ACCEPTED:
        raise InputError(
            f"{statement.type.name} is not a query",
            hint="Only SELECT (also WITH, FROM, DESCRIBE) and EXPLAIN run",
        )
    # Without the semicolon, so that it can stand in parentheses.
    return query.strip().rstrip(";").rstrip()


def _lock(session: Session, *, allowed: Path | None) -> None:
    connection = session.connection
    # Names of Python variables are no tables here.
    connection.execute("SET python_enable_replacements = false")
    # Results keep the order they were asked for, also through COPY.
    connection.execute("SET preserve_insertion_order = true")
    if allowed is not None:
        connection.execute(f"SET allowed_paths = [{_literal(str(allowed))}]")
    session.lock()
    connection.execute("BEGIN TRANSACTION READ ONLY")


def _execute(session: Session, statement: str) -> QueryResult:
    try:
        cursor = session.connection.execute(statement)
        description = cursor.description or []
        if any(str(column[1]) == _ZONED_TIMESTAMP for column in description):
            cursor = session.connection.execute(_without_zones(statement, description))
    except duckdb.Error as error:
        raise _query_error(error) from error
    names = _unique([str(column[0]) for column in description])
    return QueryResult(tuple(names), tuple(str(column[1]) for column in description), cursor)


def _without_zones(statement: str, description: list[Any]) -> str:
    columns = ", ".join(
        f"CAST(#{index} AS VARCHAR)" if str(column[1]) == _ZONED_TIMESTAMP else f"#{index}"
        for index, column in enumerate(description, 1)
    )
    return f"SELECT {columns} FROM (\n{statement}\n)"


def _copy(session: Session, what: str, path: Path) -> None:
    try:
        session.connection.execute(f"COPY {what} TO {_literal(str(path))} (FORMAT parquet)")
    except duckdb.Error as error:
        raise _query_error(error) from error


@contextmanager
def _partial_file(path: Path) -> Iterator[Path]:
    target = path.absolute()
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(target)
    except OSError as error:
        raise InputError(f"the file cannot be written ({error.strerror or error})", source=path) from error
    finally:
        partial.unlink(missing_ok=True)


def _parsed(row: tuple[Any, ...], json_columns: list[int]) -> tuple[Any, ...]:
    cells = list(row)
    for index in json_columns:
        if cells[index] is not None:
            cells[index] = json.loads(cells[index], parse_float=Decimal)
    return tuple(cells)


def _unique(names: list[str]) -> list[str]:
    """The names, a repeated one numbered as the engine does: `start_ns`, `start_ns_1`."""
    taken: set[str] = set()
    unique = []
    for name in names:
        candidate, number = name, 0
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        unique.append(candidate)
    return unique


def _query_error(error: duckdb.Error) -> InputError:
    # The engine shows the place in the query on lines of its own; one line must do here.
    text = str(error).split("\n\nLINE ")[0]
    message = " ".join(text.split())
    hint = None
    if isinstance(error, duckdb.PermissionException):
        hint = "A query can neither read nor write files"
    return InputError(f"the query failed: {message}", hint=hint)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
