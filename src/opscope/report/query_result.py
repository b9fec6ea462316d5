"""Rows of a query → Document: a table where it fits, else one record after the other. NULL reads "–"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from opscope.report.column_widths import GAP, column_need
from opscope.report.document import Align, Block, Code, Column, Document, FactList, Section, Table, Text

__all__ = ["query_document"]


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
