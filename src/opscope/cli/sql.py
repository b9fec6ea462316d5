"""`opscope sql`: query the tables of a trace or a saved session."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import duckdb
from cyclopts import Parameter

from opscope.cli.console import FORMAT, Force, Json, Top, check_outputs, open_source, say_wrote, wide_console
from opscope.errors import InputError
from opscope.model.files import replacing, scratch_prefix
from opscope.model.schema import PROVENANCE_TABLES, TABLES
from opscope.model.session import Session, literal
from opscope.report.tables import query_document
from opscope.report.terminal import render_terminal
from opscope.units import counted
from opscope.visible_text import BETWEEN_SHOWN, visible

_FORMATS = {".csv": "csv, HEADER", ".json": "json, ARRAY", ".parquet": "parquet"}
# Of this connection alone: a saved session holds tables only. As `is_shown_as`.
_KERNELS = f"""
CREATE TEMP MACRO shown_as(name, shown) AS list_bool_and([contains(name, piece)
    for piece in string_split_regex(shown, '{BETWEEN_SHOWN}')]);
CREATE TEMP VIEW kernels AS SELECT name, activities.* EXCLUDE (kind, size_bytes)
FROM device_activities AS activities JOIN kernel_names USING (name_id) WHERE activities.kind = 'kernel'"""

_TABLES_QUERY = " UNION ALL BY NAME ".join(
    f'SELECT {literal(table.name)} AS "table", count(*) AS "rows", '
    f'{literal(table.row.partition(". ")[0])} AS "a row is", '
    f'{literal(", ".join(column.name for column in table.columns))} AS "columns" FROM "{table.name}"'
    for table in TABLES
)


def sql(
    source: Annotated[str, Parameter(name="SOURCE")],
    query: Annotated[str | None, Parameter(name="QUERY")] = None,
    /,
    *,
    json: Annotated[Json, FORMAT] = False,
    csv: Annotated[bool, FORMAT] = False,
    output: Annotated[tuple[Path, ...], Parameter(name=["--output", "-o"])] = (),
    top: Top = 100,
    force: Force = False,
) -> int:
    """Query the tables of a trace or a saved session (docs/reference/tables.md lists them).

    The view kernels lists kernel launches with their names. shown_as(name, 'sgemm…64x64') is true of names
    that reports shorten so. Queries can neither read nor write files.

    Example: opscope sql trace.json.gz "SELECT name, self_device_ns FROM operators LIMIT 10"

    Args:
        source: A trace, a folder of rank files, an address, or a saved session.
        query: One SELECT statement, e.g. "SELECT name, self_device_ns FROM operators LIMIT 10"; without
            it, list the tables and their columns.
        csv: Print the rows as CSV.
        output: Write all rows to FILE.parquet, FILE.csv or FILE.json instead; may be repeated.
    """
    for path in output:
        if path.suffix not in _FORMATS:
            raise InputError(
                "its name has no known ending",
                source=path,
                hint="Such as rows.parquet, rows.csv or rows.json",
            )
    check_outputs(output, force=force, inputs=[source])
    with open_source([source], merge=True) as session, ExitStack() as files:
        if any(table in (query or "").lower() for table in PROVENANCE_TABLES):
            from opscope.provenance.resolution.resolvers import annotate  # noqa: PLC0415 - most queries need none

            annotate(session)
        session.defer("kernels", lambda session: session.execute(_KERNELS))
        statement = _single_statement(session, _TABLES_QUERY if query is None else query)
        targets = [files.enter_context(replacing(path.absolute())) for path in output]
        printed = None
        if json or csv:
            scratch = files.enter_context(TemporaryDirectory(prefix=scratch_prefix()))
            printed = Path(scratch) / f"rows{'.csv' if csv else '.json'}"
        written = [*targets, *([] if printed is None else [printed])]
        # Names of Python variables are no tables here; results keep their order, also through COPY.
        session.execute("SET python_enable_replacements = false")
        session.execute("SET preserve_insertion_order = true")
        if written:
            session.execute(f"SET allowed_paths = [{', '.join(literal(str(one)) for one in written)}]")
        session.lock()
        session.prepare(statement)
        session.engine.execute("BEGIN TRANSACTION READ ONLY")
        try:
            for target, path in zip(written, [*output, *written[len(output) :]], strict=True):
                _copy(session, statement, target, _FORMATS[path.suffix])
            if not written:
                _print_table(session, statement, None if top == "all" else top)
        except duckdb.Error as error:
            raise _query_error(error) from error
        if printed is not None:
            with printed.open(encoding="utf-8", newline="") as rows:
                if csv:  # for a terminal; JSON has escapes of its own
                    sys.stdout.writelines(visible(line, len(line)) for line in rows)
                else:
                    shutil.copyfileobj(rows, sys.stdout)
    say_wrote(output, on_stderr=json or csv)
    return 0


def _single_statement(session: Session, query: str) -> str:
    try:
        statements = session.engine.extract_statements(query)
    except duckdb.Error as error:
        raise _query_error(error) from error
    except RuntimeError as error:  # a kind of statement the Python client has no name for
        raise InputError("the query is not a SELECT") from error
    if len(statements) != 1:
        raise InputError(f"{len(statements)} statements where one SELECT is expected")
    statement = statements[0]
    if statement.type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise InputError(
            f"{statement.type.name} is not a query",
            hint="Only SELECT (also WITH, FROM, DESCRIBE) and EXPLAIN run",
        )
    # Without the semicolon, so that it can stand in parentheses.
    return query.strip().rstrip(";").rstrip()


def _copy(session: Session, statement: str, path: Path, form: str) -> None:
    # The newline ends a trailing comment; a query that closes the parenthesis does not parse alone.
    rows = f"(\n{statement}\n)"
    if form.startswith("json"):
        shown = []
        for index, (name, kind, *_) in enumerate(session.query(f"DESCRIBE SELECT * FROM {rows}"), 1):
            quoted, finite = name.replace('"', '""'), f"CASE WHEN isfinite(#{index}) THEN #{index} END"
            shown.append(f'{finite} AS "{quoted}"' if kind == "DOUBLE" else f"#{index}")
        rows = f"(SELECT {', '.join(shown)} FROM {rows})"
    session.execute(f"COPY {rows} TO {literal(str(path))} (FORMAT {form})")


def _print_table(session: Session, statement: str, top: int | None) -> None:
    rows = session.execute(statement)
    names = [str(column[0]) for column in rows.description or []]
    found: list[tuple[Any, ...]] = rows.fetchall() if top is None else rows.fetchmany(top + 1)
    shown_rows = found[:top]
    console = wide_console(sys.stdout)
    console.print(render_terminal(query_document(names, shown_rows, width=console.width)))
    note = f"the first {counted(len(shown_rows), 'row')}; there are more (--top)"
    console.print(note if len(found) > len(shown_rows) else counted(len(found), "row"), style="dim")


def _query_error(error: duckdb.Error) -> InputError:
    # The engine shows the place in the query on lines of its own; one line must do here.
    message = " ".join(str(error).split("\n\nLINE ")[0].split())
    is_refused = isinstance(error, duckdb.PermissionException)
    hint = "A query can neither read nor write files" if is_refused else None
    return InputError(f"the query failed: {message}", hint=hint)
