"""Write docs/reference/tables.md from the declared schema; `--check` fails if the file is stale.

Deterministic: the same declarations give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from opscope.model.schema import SCHEMA_VERSION, TABLES, Attribution, Column, Table
from opscope.report.document import (
    BulletList,
    Code,
    Document,
    Paragraph,
    Section,
    Text,
)
from opscope.report.document import Column as Heading
from opscope.report.document import Table as Grid
from opscope.report.markdown import render_markdown

TABLES_PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "tables.md"


def tables_page() -> str:
    introduction = (
        f"Every Session holds these tables (schema version {SCHEMA_VERSION}). They are declared in ",
        Code("src/opscope/model/schema.py"),
        ", and this page is generated from there. Query them with ",
        Code('opscope sql TRACE "SELECT …"'),
        ". Missing is NULL, never -1. Times are int64 nanoseconds on the clock of their trace.",
    )
    return render_markdown(
        Document("Tables", (Paragraph(introduction),), tuple(_section(table) for table in TABLES))
    )


def _section(table: Table) -> Section:
    headings = tuple(map(Heading, ("Column", "Type", "Unit", "Meaning", "Joins")))
    grid = Grid(headings, tuple(_row(column) for column in table.columns))
    blocks: list[Paragraph | Grid | BulletList] = [Paragraph(f"One row: {_lowered(table.row)}"), grid]
    if table.name == "device_activities":
        meanings: tuple[Text, ...] = tuple((Code(value.value), f": {value.meaning}") for value in Attribution)
        blocks += [Paragraph(("Values of ", Code("attribution"), ":")), BulletList(meanings)]
    return Section(table.name, tuple(blocks))


def _row(column: Column) -> tuple[Text, ...]:
    # The declarations write names in backticks; they are code here too.
    parts = column.doc.split("`")
    doc: tuple[str | Code, ...] = tuple(
        Code(part) if index % 2 else part for index, part in enumerate(parts) if part
    )
    joins: Text = Code(column.joins) if column.joins else ""
    return (Code(column.name), column.type, column.unit or "", doc, joins)


def _lowered(row: str) -> str:
    return row[0].lower() + row[1:]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is stale; write nothing")
    check = parser.parse_args(argv).check
    page = tables_page()
    if not check:
        TABLES_PAGE.parent.mkdir(parents=True, exist_ok=True)
        TABLES_PAGE.write_text(page, encoding="utf-8", newline="\n")
        return 0
    current = TABLES_PAGE.read_text(encoding="utf-8") if TABLES_PAGE.exists() else ""
    if current != page:
        print(f"{TABLES_PAGE} is stale: run scripts/generate_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
