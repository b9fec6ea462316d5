"""The document model: what a report says, free of how it looks.

A Document is a tree of sections holding blocks; a block's texts are made of plain words, code and emphasis.
Composers build it from data, renderers turn it into Markdown or terminal text. Names are kept in full here:
shortening is a renderer's business. Imports nothing of opscope but findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from opscope.model.finding import Finding

__all__ = [
    "Align",
    "BarList",
    "Block",
    "BulletList",
    "Code",
    "CodeBlock",
    "Column",
    "Document",
    "FactList",
    "FindingList",
    "Inline",
    "Link",
    "Paragraph",
    "Section",
    "Strong",
    "Table",
    "Text",
    "inlines",
    "numeric",
    "plain",
]


@dataclass(frozen=True)
class Code:
    """A name as machines write it: an operator, a kernel, a file.

    Renderers may shorten it for display, unless it stands where the full name is given (`is_whole`).
    """

    text: str
    is_whole: bool = False


@dataclass(frozen=True)
class Strong:
    """Words that must not be missed."""

    text: str


@dataclass(frozen=True)
class Link:
    """A file or page as machines write it, with the address it opens."""

    text: str
    url: str


Inline = str | Code | Strong | Link
Text = Inline | tuple[Inline, ...]


class Align(str, Enum):
    """Side a table column is set flush with."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True)
class Column:
    """Heading and alignment of one table column."""

    title: str
    align: Align = Align.LEFT


def numeric(title: str) -> Column:
    """A column of numbers, flush right."""
    return Column(title, Align.RIGHT)


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: Text


@dataclass(frozen=True)
class Table:
    """Rows of cells, one per column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Text, ...], ...]
    caption: Text | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns")


@dataclass(frozen=True)
class FactList:
    """Label and value pairs, in order."""

    facts: tuple[tuple[str, Text], ...]


@dataclass(frozen=True)
class BarList:
    """Labelled shares of one whole; a row is (label, fraction of the whole, cells shown beside it)."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Text, float, tuple[Text, ...]], ...]

    def as_table(self) -> Table:
        """The same as a table, for renderers that draw no bars."""
        return Table(self.columns, tuple((label, *cells) for label, _, cells in self.rows))


@dataclass(frozen=True)
class CodeBlock:
    """Preformatted text in a language."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class BulletList:
    """Unordered points."""

    items: tuple[Text, ...]


@dataclass(frozen=True)
class FindingList:
    """Findings, the gravest first."""

    findings: tuple[Finding, ...]


Block = Paragraph | Table | FactList | BarList | CodeBlock | BulletList | FindingList


@dataclass(frozen=True)
class Section:
    """A heading with what belongs under it. `number` is part of what is said: reports are searched by it."""

    title: str
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()
    number: str | None = None


@dataclass(frozen=True)
class Document:
    """A titled report."""

    title: str
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()

    def walk(self) -> Iterator[Section]:
        """Every section in reading order."""
        stack = list(reversed(self.sections))
        while stack:
            section = stack.pop()
            yield section
            stack.extend(reversed(section.sections))


def inlines(text: Text) -> tuple[Inline, ...]:
    """A text as the sequence of its parts."""
    return text if isinstance(text, tuple) else (text,)


def plain(text: Text) -> str:
    """The words of a text without markup."""
    return "".join(part if isinstance(part, str) else part.text for part in inlines(text))
