"""`opscope sql`: query the tables of a trace or a saved session."""

from __future__ import annotations

import csv as csv_format
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from threading import Event, Timer
from typing import Annotated, Any

import duckdb
from cyclopts import Group, Parameter
from cyclopts.validators import Number, mutually_exclusive

from opscope.cli.console import check_outputs, open_source, say_wrote, seconds_of, stdout_console
from opscope.errors import InputError
from opscope.model.files import replacing
from opscope.model.schema import TABLES
from opscope.model.session import Session
from opscope.provenance.resolution import PROVENANCE_TABLES, annotate
from opscope.report.json_encoding import to_json_line
from opscope.report.tables import query_document
from opscope.report.terminal import render_terminal
from opscope.units import counted
from opscope.visible_text import visible

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
    with replacing(path.absolute()) as partial:
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
    with replacing(path.absolute()) as partial:
        _copy(session, f'"{name}"', partial)
    return path


def _single_statement(session: Session, query: str) -> str:
    try:
        statements = session.connection.extract_statements(query)
    except duckdb.Error as error:
        raise _query_error(error) from error
    except RuntimeError as error:  # a kind of statement the Python client has no name for
        raise InputError("the query is not a SELECT") from error
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


def _parsed(row: tuple[Any, ...], json_columns: list[int]) -> tuple[Any, ...]:
    cells = list(row)
    for index in json_columns:
        if cells[index] is not None:
            with suppress(ValueError, RecursionError):  # nested too deeply: as text
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


_FORMAT = Group("Output format", validator=mutually_exclusive)


def sql(
    source: Annotated[str, Parameter(name="SOURCE")],
    query: Annotated[str | None, Parameter(name="QUERY")] = None,
    /,
    *,
    json: Annotated[bool, Parameter(group=_FORMAT)] = False,
    csv: Annotated[bool, Parameter(group=_FORMAT)] = False,
    parquet: Annotated[Path | None, Parameter(group=_FORMAT)] = None,
    export_parquet: tuple[str, ...] = (),
    limit: Annotated[int, Parameter(validator=Number(gte=1))] = 100,
    timeout: str | None = None,
    force: bool = False,
) -> int:
    """Query the tables of a trace or a saved session (docs/reference/tables.md lists them).

    A query can neither read nor write files: external access is off.

    Example: opscope sql trace.json.gz "SELECT name, self_device_ns FROM operators LIMIT 10"

    Args:
        source: A trace, a folder of rank files, an address, or a saved session.
        query: One SELECT statement, e.g. "SELECT name, self_device_ns FROM operators LIMIT 10"; without
            one, the tables are listed.
        json: Print the rows as a JSON array of objects and nothing else.
        csv: Print the rows as CSV.
        parquet: Write the query's result to this Parquet file.
        export_parquet: TABLE=FILE: write a whole table to a Parquet file; may be given several times.
        limit: Rows to show in the table; JSON, CSV and Parquet are always complete.
        timeout: Give up on the query after this time, e.g. 30s.
        force: Overwrite existing files.
    """
    exports = [_table_export(text) for text in export_parquet]
    if query is None and parquet is not None:
        raise InputError(
            "no query was given", hint='Example: opscope sql TRACE "SELECT name FROM operators LIMIT 5"'
        )
    if query is None and not exports:
        query = _tables_query()
    check_outputs([*(path for _, path in exports), parquet], force=force, inputs=[source])

    with open_source([source], merge=True) as session:
        asked = " ".join([query or "", *(name for name, _ in exports)]).lower()
        if any(table in asked for table in PROVENANCE_TABLES):
            annotate(session)
        with _at_most(session, timeout):
            written = [export_table(session, name, path) for name, path in exports]
            if query is not None and parquet is not None:
                written.append(export_query(session, query, parquet))
            elif query is not None:
                _print(run_query(session, query), json=json, csv=csv, limit=limit)
    say_wrote(written, on_stderr=json or csv)
    return 0


@contextmanager
def _at_most(session: Session, timeout: str | None) -> Iterator[None]:
    """Interrupts the engine when the time is over.

    Raises:
        InputError: It was.
    """
    if timeout is None:
        yield
        return
    is_over = Event()

    def end() -> None:
        is_over.set()
        session.connection.interrupt()

    timer = Timer(seconds_of(timeout), end)
    timer.start()
    try:
        yield
    except (InputError, duckdb.Error, RuntimeError) as error:
        if not is_over.is_set():
            raise
        raise InputError(f"no result within {timeout}", hint="Raise --timeout, or ask for less") from error
    finally:
        timer.cancel()


def _table_export(text: str) -> tuple[str, Path]:
    name, separator, file = text.partition("=")
    if not separator or not file:
        raise InputError(
            f"'{text}' does not name a table and a file", hint="Write --export-parquet TABLE=FILE"
        )
    return name, Path(file)


def _tables_query() -> str:
    """Every table with its number of rows and what one row is."""
    rows = [
        f'SELECT {_literal(table.name)} AS "table", count(*) AS "rows", '
        f'{_literal(table.row.partition(". ")[0])} AS "a row is" FROM "{table.name}"'
        for table in TABLES
    ]
    return " UNION ALL BY NAME ".join(rows)


def _print(result: QueryResult, *, json: bool, csv: bool, limit: int) -> None:
    if json:
        for part in _json_parts(result):
            sys.stdout.write(part)
    elif csv:
        writer = csv_format.writer(sys.stdout, lineterminator="\n")
        for row in chain([result.names], result.rows()):
            writer.writerow([visible(one, len(one)) if isinstance(one, str) else one for one in row])
    else:
        _print_table(result, limit)


def _json_parts(result: QueryResult) -> Iterator[str]:

    separator = "[\n"
    for row in result.rows():
        record = {name: _json_value(value) for name, value in zip(result.names, row, strict=True)}
        yield separator + to_json_line(record)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def _json_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        number = float(value)
        return number if Decimal(repr(number)) == value else str(value)
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _print_table(result: QueryResult, limit: int) -> None:

    rows = result.rows()
    shown = list(islice(rows, limit))
    has_more = next(rows, None) is not None
    console = stdout_console()
    console.print(render_terminal(query_document(result.names, shown, width=console.width)))
    note = f"the first {counted(len(shown), 'row')}; there are more (--limit)" if has_more else None
    console.print(note or counted(len(shown), "row"), style="dim")
