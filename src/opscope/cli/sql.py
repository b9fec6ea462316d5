"""`opscope sql`: any query on the tables of a trace or a saved session."""

from __future__ import annotations

import csv as csv_format
import sys
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number, mutually_exclusive

from opscope.cli.console import open_source, refuse_existing, say_wrote, stdout_console
from opscope.cli.locked_query import QueryResult, export_query, export_table, run_query
from opscope.errors import InputError
from opscope.provenance.resolution import PROVENANCE_TABLES, annotate
from opscope.report.json_encoding import to_json_line
from opscope.report.tables import query_document
from opscope.report.terminal import render_terminal

__all__ = ["sql"]

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
    force: bool = False,
) -> int:
    """Query the tables of a trace or a saved session (docs/reference/tables.md lists them).

    A query can neither read nor write files: external access is off.

    Args:
        source: A trace, a folder of rank files, an address, or a saved session.
        query: One SELECT statement, e.g. "SELECT name, self_device_ns FROM operators LIMIT 10".
        json: Print the rows as a JSON array of objects and nothing else.
        csv: Print the rows as CSV.
        parquet: Write the query's result to this Parquet file.
        export_parquet: TABLE=FILE: write a whole table to a Parquet file; may be given several times.
        limit: Rows to show in the table; JSON, CSV and Parquet are always complete.
        force: Overwrite existing files.
    """
    exports = [_table_export(text) for text in export_parquet]
    if query is None and (parquet is not None or not exports):
        raise InputError(
            "no query was given", hint='Example: opscope sql TRACE "SELECT name FROM operators LIMIT 5"'
        )
    refuse_existing([*(path for _, path in exports), *([parquet] if parquet else [])], force=force)

    with open_source([source]) as session:
        asked = " ".join([query or "", *(name for name, _ in exports)]).lower()
        if any(table in asked for table in PROVENANCE_TABLES):
            annotate(session)
        written = [export_table(session, name, path) for name, path in exports]
        if query is not None and parquet is not None:
            written.append(export_query(session, query, parquet))
        elif query is not None:
            _print(run_query(session, query), json=json, csv=csv, limit=limit)
    say_wrote(written, on_stderr=json or csv)
    return 0


def _table_export(text: str) -> tuple[str, Path]:
    name, separator, file = text.partition("=")
    if not separator or not file:
        raise InputError(
            f"'{text}' does not name a table and a file", hint="Write --export-parquet TABLE=FILE"
        )
    return name, Path(file)


def _print(result: QueryResult, *, json: bool, csv: bool, limit: int) -> None:
    if json:
        for part in _json_parts(result):
            sys.stdout.write(part)
    elif csv:
        writer = csv_format.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.names)
        writer.writerows(result.rows())
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
    rest = sum(1 for _ in rows)
    console = stdout_console()
    console.print(render_terminal(query_document(result.names, shown, width=console.width)))
    note = f"{len(shown) + rest:,} rows" + (f", the first {len(shown):,} shown (--limit)" if rest else "")
    console.print(note, style="dim")
