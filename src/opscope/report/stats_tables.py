"""nsys' statistics reports for display: tables as nsys prints them, CSV, and JSON by report name."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from opscope.analysis.nsys_reports import ReportTable
from opscope.report.document import Code, Column, Document, Paragraph, Section, Table, Text, numeric

__all__ = ["stats_csv", "stats_json", "stats_tables_document"]

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
        tuple(_cell(name, row[name], is_size=report.is_size) for name in report.columns) for row in table.rows
    )
    return Section(title, (Table(columns, rows),))


def _cell(column: str, value: Any, *, is_size: bool) -> Text:
    if column in _WORDS:
        return value if value.startswith(_OPERATION) or column == "Category" else Code(value)
    if isinstance(value, float):
        return f"{value:,.3f}" if is_size else f"{value:,.1f}"
    return f"{value:,}"
