"""Rows of a query → Document: a table where it fits, else one record after the other. NULL reads "–"."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from opscope.analysis.nsys_reports import ReportTable
from opscope.report.document import (
    Align,
    Block,
    Code,
    Column,
    Document,
    FactList,
    Paragraph,
    Section,
    Table,
    Text,
    numeric,
)
from opscope.report.terminal import GAP, column_need

__all__ = ["query_document", "stats_csv", "stats_json", "stats_tables_document"]


def query_document(names: Sequence[str], rows: Sequence[Sequence[Any]], *, width: int) -> Document:
    """The rows for a display of `width` columns."""
    columns = tuple(
        Column(name, Align.RIGHT if _is_number_column(rows, index) else Align.LEFT)
        for index, name in enumerate(names)
    )
    cells = tuple(tuple(_cell(value) for value in row) for row in rows)
    table = Table(columns, cells)
    if not rows or _fits(table, width):
        return Document("", sections=(Section("", (table,)),))
    records: list[Section] = []
    for number, row in enumerate(cells, 1):
        facts: Block = FactList(tuple(zip(names, row, strict=True)))
        records.append(Section(f"Row {number}", (facts,)))
    return Document("", sections=tuple(records))


def _fits(table: Table, width: int) -> bool:
    needs = [
        column_need(column, [row[index] for row in table.rows]) for index, column in enumerate(table.columns)
    ]
    return sum(need.least for need in needs) + GAP * (len(needs) - 1) <= width


def _is_number_column(rows: Sequence[Sequence[Any]], index: int) -> bool:
    values = [row[index] for row in rows if row[index] is not None]
    return bool(values) and all(
        isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in values
    )


def _cell(value: Any) -> Text:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool | int | Decimal):
        return str(value)
    if isinstance(value, list | dict):
        return Code(json.dumps(value, default=str, ensure_ascii=False))
    return Code(str(value))


_OPERATION = "[CUDA "  # copies and sets, which are short
_WORDS = frozenset(("Name", "Operation", "Category"))


def stats_tables_document(tables: Sequence[ReportTable]) -> Document:
    """A section for each report."""
    return Document("", sections=tuple(_section(table) for table in tables))


def stats_csv(tables: Sequence[ReportTable]) -> str:
    """The reports as CSV, one after the other, an empty line between them; numbers ungrouped."""
    texts = []
    for table in tables:
        stream = io.StringIO()
        writer = csv.DictWriter(stream, table.report.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.rows)
        texts.append(stream.getvalue())
    return "\n".join(texts)


def stats_json(tables: Sequence[ReportTable]) -> dict[str, list[dict[str, Any]]]:
    """The rows by report name, keys as nsys heads its columns."""
    return {table.report.name: [dict(row) for row in table.rows] for table in tables}


def _section(table: ReportTable) -> Section:
    report = table.report
    title = f"{report.title} ({report.name})"
    if not table.rows:
        return Section(title, (Paragraph("The trace holds none of these."),))
    columns = tuple(Column(name) if name in _WORDS else numeric(name) for name in report.columns)
    rows = tuple(
        tuple(_stats_tables_cell(name, row[name], is_size=report.is_size) for name in report.columns)
        for row in table.rows
    )
    return Section(title, (Table(columns, rows),))


def _stats_tables_cell(column: str, value: Any, *, is_size: bool) -> Text:
    if column in _WORDS:
        return value if value.startswith(_OPERATION) or column == "Category" else Code(value)
    if isinstance(value, float):
        return f"{value:,.3f}" if is_size else f"{value:,.1f}"
    return f"{value:,}"
