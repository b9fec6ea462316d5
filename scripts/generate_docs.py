"""Write docs/reference: the tables from the schema, advice rules from rules.toml, changes from the catalogue.

`--check` fails if a page is stale. Deterministic: the same declarations give the same bytes.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from opscope.advice.rules import Rule, rule_book
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
from opscope.trials.catalog import CATALOG, NEEDS, TriedChange

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
TABLES_PAGE = REFERENCE / "tables.md"
RULES_PAGE = REFERENCE / "rules.md"
CHANGES_PAGE = REFERENCE / "changes.md"
_WIDTH = 120


def tables_page() -> str:
    introduction = (
        f"Every Session holds these tables (schema version {SCHEMA_VERSION}). They are declared in ",
        Code("src/opscope/model/schema.sql"),
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


def rules_page() -> str:
    introduction = (
        "What every rule looks for, how it estimates the gain, and what a trace cannot say. "
        "Generated from `src/opscope/advice/rules.toml`; [how gains are estimated](../advice.md)."
    )
    blocks = ["# Advice rules", _wrapped(introduction)]
    blocks += (block for rule in rule_book().rules.values() for block in _rule_blocks(rule))
    return "\n\n".join(blocks) + "\n"


def changes_page() -> str:
    introduction = (
        "What `opscope try` can apply. Generated from `src/opscope/trials/catalog.py`; "
        "[how changes are tried](../trying.md). Changes on request run with `--only NAME`."
    )
    heading = "| change | what is done | suggested by | not tried where | numbers |"
    rows = (
        f"| `{one.name}`{' (on request)' if one.on_request else ''} | {one.title} | "
        f"{', '.join(f'`{code}`' for code in one.findings)} | "
        f"{'; '.join(NEEDS[need][1] for need in one.needs)} | {_effect(one)} |"
        for one in CATALOG
    )
    table = "\n".join([heading, "|---|---|---|---|---|", *rows])
    return f"# Changes that are tried\n\n{_wrapped(introduction)}\n\n{table}\n"


def _effect(change: TriedChange) -> str:
    """What it may do to the numbers, in words."""
    if change.group == "precision":
        return f"roundings of 2^{round(math.log2(change.rounding))}"
    effect = "operations in another order" if change.rounding else "none"
    return f"{effect}; dropout drops other elements" if change.redraws else effect


def _rule_blocks(rule: Rule) -> Iterator[str]:
    gain = f"**Gain:** {rule.gain}"
    points = [gain, f"**Unknown from a trace:** {rule.unknown}"]
    yield f"## {rule.title}"
    yield _wrapped(f"`{rule.code}` ({rule.severity}). {rule.meaning}")
    yield "\n".join(_wrapped(f"* {point}", indent="  ") for point in points)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a page is stale; write nothing")
    check = parser.parse_args(argv).check
    is_stale = False
    pages = {TABLES_PAGE: tables_page(), RULES_PAGE: rules_page(), CHANGES_PAGE: changes_page()}
    for path, page in pages.items():
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        if current == page:
            continue
        is_stale = True
        if check:
            print(f"{path} is stale: run scripts/generate_docs.py", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page, encoding="utf-8", newline="\n")
    return int(check and is_stale)


if __name__ == "__main__":
    sys.exit(main())
