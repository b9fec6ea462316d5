"""The document model: what a report says, free of how it looks.

A Document is a tree of sections holding blocks; a block's texts are made of plain words, code and emphasis.
Composers build it from data, renderers turn it into Markdown or terminal text. Names are kept in full here:
shortening is a renderer's business. A table over rows of one kind is made by `table` from one field for each
column: its heading and the attribute it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.errors import InputError
from opscope.model.finding import Finding, Severity
from opscope.units import UNKNOWN, format_quantity


class Code(msgspec.Struct, frozen=True):
    """A name as machines write it: an operator, a kernel, a file.

    Renderers may shorten it for display, unless it stands where the full name is given (`is_whole`).
    """

    text: str
    is_whole: bool = False


class Strong(msgspec.Struct, frozen=True):
    """Words that must not be missed."""

    text: str


class Link(msgspec.Struct, frozen=True):
    """A file or page as machines write it, with the address it opens."""

    text: str
    url: str


Inline = str | Code | Strong | Link
Text = Inline | tuple[Inline, ...]


class Column(msgspec.Struct, frozen=True):
    """Heading of one table column; numbers are set flush right.

    A `spare` one may be left out where all are too wide: the one with the largest number first.
    """

    title: str
    is_number: bool = False
    spare: int = 0


def numeric(title: str, *, spare: int = 0) -> Column:
    return Column(title, is_number=True, spare=spare)


class Paragraph(msgspec.Struct, frozen=True):
    text: Text


class Meaning(msgspec.Struct, frozen=True):
    """What a section comes to: the sentence it ends in."""

    text: Text


class Table(msgspec.Struct, frozen=True):
    """Rows of cells, one per column; `left_out` names columns for which a display has no room."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Text, ...], ...]
    caption: Text | None = None
    left_out: str = "Hidden at this width: {}"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns")


class FactList(msgspec.Struct, frozen=True):
    facts: tuple[tuple[str, Text], ...]


class CodeBlock(msgspec.Struct, frozen=True):
    text: str
    language: str = ""


class BulletList(msgspec.Struct, frozen=True):
    items: tuple[Text, ...]


class FindingList(msgspec.Struct, frozen=True):
    """Findings, the most severe first; `severities` are words for how severe, else that of the finding."""

    findings: tuple[Finding, ...]
    severities: Mapping[Severity, str] = {}


Block = Paragraph | Meaning | Table | FactList | CodeBlock | BulletList | FindingList


class Section(msgspec.Struct, frozen=True):
    """A heading with what belongs under it. `number` is part of what is said: reports are searched by it."""

    title: str
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()
    number: str | None = None


class Document(msgspec.Struct, frozen=True):
    title: str
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()


def only_sections(document: Document, titles: Sequence[str], spoken: Callable[[str], str] = str) -> Document:
    """Its first screen, for which `first` stands, and sections so `titled`; an InputError where none is."""
    chosen: list[Section] = []
    for title in (one for one in titles if one.lower() != "first"):
        found = titled(document.sections, title, spoken)
        if not found:
            there = ", ".join(spoken(one.title) for one in document.sections)
            raise InputError(
                f"the report has no section '{title}'",
                hint=f"It has: {there}" if there else "It has no sections",
            )
        chosen += found
    return replace(document, sections=tuple(one for one in document.sections if one in chosen))


def titled(
    sections: Sequence[Section], beginning: str, spoken: Callable[[str], str] = str
) -> tuple[Section, ...]:
    """Those in whose titles, or as they are shown, a word begins so, whatever its case."""
    asked = beginning.lower()
    found = tuple(one for one in sections if f" {asked}" in f" {one.title.lower()}")
    # Words of some languages are not apart.
    return found or tuple(one for one in sections if asked in spoken(one.title).lower())


def numbered(document: Document) -> Document:
    """The document with numbers before its sections: files are searched by them."""

    def below(section: Section, rank: int) -> Section:
        parts = (replace(one, number=f"{rank}.{index}") for index, one in enumerate(section.sections, 1))
        return replace(section, number=str(rank), sections=tuple(parts))

    return replace(
        document, sections=tuple(below(one, rank) for rank, one in enumerate(document.sections, 1))
    )


def inlines(text: Text) -> tuple[Inline, ...]:
    return text if isinstance(text, tuple) else (text,)


def plain(text: Text) -> str:
    """The words of a text without markup."""
    return "".join(part if isinstance(part, str) else part.text for part in inlines(text))


def joined(
    parts: Iterable[Text], between: str = ", ", *, last: str | None = None, most: int | None = None
) -> tuple[Inline, ...]:
    """The parts with commas between them, and `last` before the last; those beyond `most` are counted."""
    members = list(parts)
    shown = members[:most]
    text: list[Inline] = []
    for index, part in enumerate(shown):
        if index:
            text.append(last if last and index == len(shown) - 1 else between)
        text += inlines(part)
    return (*text, f" and {len(members) - len(shown)} more") if len(members) > len(shown) else tuple(text)


def sections(*given: Section | None) -> tuple[Section, ...]:
    """Those that have anything to say: None, and blocks without a word or a row, have not."""
    return tuple(one for one in given if one is not None and (one.sections or blocks(*one.blocks)))


def blocks(*given: Block | None) -> tuple[Block, ...]:
    """Those that say anything: None, and what has no word or row, do not."""
    return tuple(
        one
        for one in given
        if one is not None
        and (one.rows if isinstance(one, Table) else getattr(one, one.__struct_fields__[0]))
    )


def facts(*pairs: tuple[str, Text | None]) -> FactList:
    """Labels with their values; those without a value are left out."""
    return FactList(tuple((label, value) for label, value in pairs if value))


Value = str | Callable[[Any], Any]


class Field(msgspec.Struct, frozen=True):
    """One column of a table over rows of one kind: its heading, and what a row says in it."""

    column: Column
    cell: Callable[[Any], Text]
    if_known: bool = False  # left out where no row says anything


Form = Callable[[Any], Text]


def words(
    title: str, value: Value, form: Form | None = None, *, spare: int = 0, if_known: bool = False
) -> Field:
    """A column of text, from an attribute (a dotted path) or a function of the row; "–" for None."""
    return Field(Column(title, spare=spare), _cell(value, form), if_known)


def identifier(title: str, value: Value, *, if_known: bool = False) -> Field:
    """A column of names as machines write them."""
    return words(
        title, value, lambda found: Code(found) if isinstance(found, str) else found, if_known=if_known
    )


def number(
    title: str, value: Value, form: Form | None = None, *, spare: int = 0, if_known: bool = False
) -> Field:
    """A column of numbers, flush right: by the unit in the attribute's name unless `form` is given."""
    return Field(numeric(title, spare=spare), _cell(value, form), if_known)


def table(rows: Sequence[Any], *fields: Field | None, caption: Text | None = None) -> Table:
    """One row of cells for each row; a field that is None is no column."""
    columns = [(field, [field.cell(row) for row in rows]) for field in fields if field is not None]
    shown = [one for one in columns if not one[0].if_known or any(cell != UNKNOWN for cell in one[1])]
    cells = tuple(zip(*(of for _, of in shown), strict=True)) if shown else ()
    return Table(tuple(field.column for field, _ in shown), cells, caption)


def _cell(value: Value, form: Form | None) -> Form:
    get = attrgetter(value) if isinstance(value, str) else value
    unit = value if isinstance(value, str) else ""

    def cell(row: Any) -> Text:
        if (found := get(row)) is None:
            return UNKNOWN
        if form is not None:
            return form(found)
        if isinstance(found, int | float):
            return format_quantity(unit, found)
        return found if isinstance(found, tuple | Code | Strong | Link) else str(found)

    return cell
