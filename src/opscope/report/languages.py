"""A Document in another language: translated once, as a whole, just before it is rendered.

Composers write English and call nothing: messages are found in finished texts (`messages.py`), by the gettext
catalogs in `locale/LANGUAGE/LC_MESSAGES/opscope.po`. What no message covers stays English whole. Names, code
and paths stay as they are. English is given back as it came, without a look.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from opscope.model.finding import Finding, Severity
from opscope.report import document as doc
from opscope.text_enum import TextEnum

if TYPE_CHECKING:
    from opscope.report.messages import Catalog


class Language(TextEnum):
    EN = "en"
    ZH = "zh"


def language_of(environment: Iterable[str | None]) -> Language:
    """The language that the first of these asks for: `zh`, `zh_CN.UTF-8`; English where none does.

    Args:
        environment: Values of OPSCOPE_LANG, LC_ALL, LC_MESSAGES and LANG; None and "" say nothing.
    """
    asked = next((one for one in environment if one), "")
    return Language.ZH if re.match(r"zh\b|zh_", asked) else Language.EN


def translated(document: doc.Document, language: Language) -> doc.Document:
    if language is Language.EN:
        return document
    return _Translation(catalog(language)).part(document)


def translated_words(text: str, language: Language) -> str:
    """A line that stands in no document."""
    return text if language is Language.EN else catalog(language).translate(text) or text


@cache
def catalog(language: Language) -> Catalog:
    from opscope.report.messages import Catalog, catalog_entries  # noqa: PLC0415 - English needs none

    path = resources.files("opscope").joinpath(f"locale/{language}/LC_MESSAGES/opscope.po")
    return Catalog(catalog_entries(path.read_text(encoding="utf-8")))


_Part = TypeVar("_Part", doc.Document, doc.Section)


class _Translation:
    def __init__(self, known: Catalog) -> None:
        self._known = known

    def part(self, part: _Part) -> _Part:
        return replace(
            part,
            title=self._words(part.title),
            blocks=tuple(map(self._block, part.blocks)),
            sections=tuple(map(self.part, part.sections)),
        )

    def _block(self, block: doc.Block) -> doc.Block:
        ways: dict[type, Callable[[Any], doc.Block]] = {
            doc.Paragraph: lambda one: doc.Paragraph(self._text(one.text)),
            doc.Meaning: lambda one: doc.Meaning(self._text(one.text)),
            doc.Table: self._table,
            doc.FactList: lambda one: doc.FactList(
                tuple((self._words(label), self._text(value)) for label, value in one.facts)
            ),
            doc.BulletList: lambda one: doc.BulletList(tuple(map(self._text, one.items))),
            doc.FindingList: lambda one: doc.FindingList(
                tuple(map(self._finding, one.findings)), {each: self._words(str(each)) for each in Severity}
            ),
            doc.CodeBlock: lambda one: one,
        }
        return ways[type(block)](block)

    def _table(self, table: doc.Table) -> doc.Table:
        return doc.Table(
            tuple(replace(column, title=self._words(column.title)) for column in table.columns),
            tuple(tuple(map(self._text, row)) for row in table.rows),
            None if table.caption is None else self._text(table.caption),
            self._words(table.left_out),
            table.fractions,
        )

    def _finding(self, one: Finding) -> Finding:
        said = self._words(one.message) + self._words(one.suggestion or "")
        return replace(one, message=said, suggestion=None)

    def _words(self, text: str) -> str:
        return self._known.translate(text) or text

    def _text(self, text: doc.Text) -> doc.Text:
        """The parts of a text are one message: names in it may stand in another order."""
        if not isinstance(text, tuple):
            return self._inline(text)
        parts = text
        if any(isinstance(part, str) and _MARK.search(part) for part in parts):
            return tuple(map(self._inline, parts))
        marks = {chr(FIRST_MARK + index): part for index, part in enumerate(parts)}
        message = "".join(part if isinstance(part, str) else mark for mark, part in marks.items())
        found = self._known.translate(message)
        if found is None or sorted(_MARK.findall(found)) != sorted(_MARK.findall(message)):
            return tuple(map(self._inline, parts))
        pieces = [marks.get(piece, piece) for piece in _MARK.split(found) if piece]
        said = [self._inline(piece) if isinstance(piece, doc.Strong) else piece for piece in pieces]
        for index, (before, piece) in enumerate(pairwise(said), 1):
            if isinstance(piece, str) and doc.plain(before)[-1:] in _WIDE_STOPS:
                said[index] = piece.lstrip(" ")
        return tuple(said)

    def _inline(self, part: doc.Inline) -> doc.Inline:
        if isinstance(part, str):
            return self._words(part)
        return doc.Strong(self._words(part.text)) if isinstance(part, doc.Strong) else part


# Where a message has a name as code stands a character of Unicode's private use area.
FIRST_MARK = 0xE000
_MARK = re.compile("([\ue000-\uf8ff])")
_WIDE_STOPS = frozenset("。：；，）？")
