"""Rows of a query → Document: a table where it fits, else one record after the other. NULL reads "–"."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import accumulate
from typing import Any

from opscope.analysis.nsys_reports import ReportTable
from opscope.report.document import (
    Align,
    Block,
    Code,
    Column,
    Document,
    FactList,
    Meaning,
    Paragraph,
    Section,
    Table,
    Text,
    facts,
    number,
    table,
    words,
)
from opscope.report.names import telling_name
from opscope.report.terminal import GAP, column_widths
from opscope.units import counted, format_duration, format_share
from opscope.visible_text import visible

_FEWEST_GAPS = 4
_OF_CODE = frozenset("<>{}[]=")


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
    for index, row in enumerate(cells, 1):
        facts: Block = FactList(tuple(zip(names, row, strict=True)))
        records.append(Section(f"Row {index}", (facts,)))
    return Document("", sections=tuple(records))


def _fits(table: Table, width: int) -> bool:
    cells = ([row[index] for row in table.rows] for index in range(len(table.columns)))
    least = [column_widths(*pair)[1] for pair in zip(table.columns, cells, strict=True)]
    return sum(least) + GAP * (len(least) - 1) <= width


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
    text = str(value)
    # A name may be shortened, a sentence is broken into lines.
    return text if text.count(" ") >= _FEWEST_GAPS and _OF_CODE.isdisjoint(text) else Code(text)


_MOST = 0.8
_OPERATION = "[CUDA "  # copies and sets, which are short
_WORDS = frozenset(("Name", "Operation", "Category"))
_SPREAD = ("Med ", "Min ", "Max ", "StdDev ")


def stats_tables_document(tables: Sequence[ReportTable], *, title: str = "") -> Document:
    """A section for each report."""
    return Document(
        title,
        (facts(*((one.report.title, _total(one)) for one in tables)),),
        tuple(_section(one) for one in tables),
    )


def _total(shown: ReportTable) -> Text:
    column = total_column(shown)
    whole = sum(row[column] for row in shown.rows)
    if not whole:
        return "nothing"
    first = max(shown.rows, key=lambda row: row[column])
    text = f"{whole:,.3f} MB" if shown.report.is_size else format_duration(whole)
    share = format_share(first[column], whole)
    return (f"{text}; {share} in ", Code(telling_name(str(first[shown.report.name_column]))))


def total_column(shown: ReportTable) -> str:
    """The column that says how much a row takes."""
    return "Total (MB)" if shown.report.is_size else "Total Time (ns)"


def stats_csv(tables: Sequence[ReportTable]) -> str:
    """The reports as CSV, one after the other, an empty line between them; numbers ungrouped."""
    texts = []
    for one in tables:
        stream = io.StringIO()
        writer = csv.DictWriter(stream, one.report.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: visible(cell, len(cell)) if isinstance(cell, str) else cell for name, cell in row.items()}
            for row in one.rows
        )
        texts.append(stream.getvalue())
    return "\n".join(texts)


def stats_json(tables: Sequence[ReportTable]) -> dict[str, list[dict[str, Any]]]:
    """The rows by report name, keys as nsys heads its columns."""
    return {one.report.name: [dict(row) for row in one.rows] for one in tables}


def _section(shown: ReportTable) -> Section:
    report = shown.report
    title = f"{report.title} ({report.name})"
    if not shown.rows:
        return Section(title, (Paragraph("The trace holds none of these."),))
    decimals = 3 if report.is_size else 1
    fields = (
        words(name, partial(_word, column=name))
        if name in _WORDS
        else number(name, partial(_number, column=name, decimals=decimals), spare=name.startswith(_SPREAD))
        for name in report.columns
    )
    return Section(title, (table(shown.rows, *fields), _meaning(shown)))


def _meaning(shown: ReportTable) -> Meaning:
    """How few rows make up most of the report."""
    totals = sorted((row[total_column(shown)] for row in shown.rows), reverse=True)
    sums = list(accumulate(totals))
    count = next((index for index, total in enumerate(sums, 1) if total >= _MOST * sums[-1]), len(sums))
    share = format_share(sums[count - 1], sums[-1])
    return Meaning(f"{count} of {counted(len(totals), 'row')} make up {share} of it.")


def _number(row: Mapping[str, Any], *, column: str, decimals: int) -> str:
    value = row[column]
    return f"{value:,.{decimals}f}" if isinstance(value, float) else f"{value:,}"


def _word(row: Mapping[str, Any], *, column: str) -> Text:
    value = row[column]
    return value if value.startswith(_OPERATION) or column == "Category" else Code(value)
