"""Rows of a query → Document: a table where it fits, else one record after the other. NULL reads "–"."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from opscope.report import document as doc
from opscope.report.names import telling_name
from opscope.report.terminal import GAP, column_widths
from opscope.units import counted, format_duration, format_share
from opscope.visible_text import visible

if TYPE_CHECKING:
    from opscope.analysis.nsys_reports import ReportTable

_OF_CODE = frozenset("<>{}[]=")


def query_document(names: Sequence[str], rows: Sequence[Sequence[Any]], *, width: int) -> doc.Document:
    columns = []
    for index, name in enumerate(names):
        values = [row[index] for row in rows if row[index] is not None]
        is_number = all(
            isinstance(one, int | float | Decimal) and not isinstance(one, bool) for one in values
        )
        columns.append(doc.Column(name, bool(values) and is_number))
    cells = tuple(tuple(_cell(value) for value in row) for row in rows)
    least = [column_widths(column, [row[index] for row in cells])[1] for index, column in enumerate(columns)]
    if not rows or sum(least) + GAP * (len(least) - 1) <= width:
        return doc.Document("", sections=(doc.Section("", (doc.Table(tuple(columns), cells),)),))
    records = (doc.FactList(tuple(zip(names, row, strict=True))) for row in cells)
    return doc.Document(
        "", sections=tuple(doc.Section(f"Row {index}", (one,)) for index, one in enumerate(records, 1))
    )


def _cell(value: Any) -> doc.Text:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool | int | Decimal):
        return str(value)
    if isinstance(value, list | dict):
        return doc.Code(json.dumps(value, default=str, ensure_ascii=False))
    text = str(value)
    # A name may be shortened, a sentence is broken into lines.
    return text if text.count(" ") >= 4 and _OF_CODE.isdisjoint(text) else doc.Code(text)


def stats_tables_document(tables: Sequence[ReportTable], *, title: str = "") -> doc.Document:
    totals: list[tuple[str, doc.Text]] = []
    for one in tables:
        amounts = [row["Total (MB)" if one.report.is_size else "Total Time (ns)"] for row in one.rows]
        text: doc.Text = "nothing"
        if whole := sum(amounts):
            first = one.rows[amounts.index(max(amounts))]
            amount = f"{whole:,.3f} MB" if one.report.is_size else format_duration(whole)
            name = doc.Code(telling_name(str(first[one.report.name_column])))
            text = (f"{amount}; {format_share(max(amounts), whole)} in ", name)
        totals.append((one.report.title, text))
    return doc.Document(title, (doc.FactList(tuple(totals)),), tuple(map(_section, tables)))


def totals_document(
    totals: Mapping[str, Sequence[Mapping[str, Any]]], recorder: str, *, title: str, top: int | None
) -> doc.Document:
    """All that is read of some recorders."""
    calls, whole_ns = (sum(one[name] for one in totals["kernels"]) for name in ("calls", "device_ns"))
    facts = doc.facts(
        ("File", recorder),
        ("Device time", f"{format_duration(whole_ns)} in {counted(calls, 'launch', 'launches')}"),
        ("Read", "totals only: neither steps nor idle time"),
    )
    fields = (
        doc.identifier("Name", lambda one: one["name"] or "(tied to nothing)"),
        doc.number("Launches", itemgetter("calls"), "{:,}".format),
        doc.number("Device time", itemgetter("device_ns"), format_duration),
        doc.number("Share", lambda one: format_share(one["device_ns"], whole_ns)),
    )
    titles = {"kernels": "Kernels", "operators": "By operator or scope"}
    sections = (
        doc.Section(titles[of], doc.blocks(doc.table(rows[:top], *fields))) for of, rows in totals.items()
    )
    return doc.Document(title, (facts,), doc.sections(*sections))


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
    return {one.report.name: [dict(row) for row in one.rows] for one in tables}


def _section(shown: ReportTable) -> doc.Section:
    report = shown.report
    title = f"{report.title} ({report.name})"
    if not shown.rows:
        return doc.Section(title, (doc.Paragraph("The trace holds none of these."),))
    decimals = 3 if report.is_size else 1

    def figure(value: float) -> str:
        return f"{value:,.{decimals}f}" if isinstance(value, float) else f"{value:,}"

    def word(value: str, column: str) -> doc.Text:
        # Names of copies and sets are short.
        return value if value.startswith("[CUDA ") or column == "Category" else doc.Code(value)

    fields = (
        doc.words(name, itemgetter(name), partial(word, column=name))
        if name in {"Name", "Operation", "Category"}
        else doc.number(
            name, itemgetter(name), figure, spare=name.startswith(("Med ", "Min ", "Max ", "StdDev "))
        )
        for name in report.columns
    )
    return doc.Section(title, (doc.table(shown.rows, *fields),))
