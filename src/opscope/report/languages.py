"""A Document in another language: translated once, as a whole, just before it is rendered.

Composers write English. The catalogs are gettext's (`locale/LANGUAGE/LC_MESSAGES/opscope.po`); a message is a
whole text or a template, `{} of device time is {}`, and is found by matching, so that no composer calls
anything. What matches no message whole is translated clause by clause, or stays English whole: a text is never
translated in part. Names, code and paths stay as they are. English is given back as it came, without a look.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import resources

import msgspec
from msgspec.structs import replace

from opscope.model.finding import Severity
from opscope.report.document import (
    BarList,
    Block,
    BulletList,
    CodeBlock,
    Document,
    FactList,
    FindingList,
    Inline,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    inlines,
    plain,
)
from opscope.text_enum import TextEnum

__all__ = ["Catalog", "Language", "catalog", "catalog_entries", "language_of", "translated", "translated_words"]


class Language(TextEnum):
    """What reports can be written in."""

    EN = "en"
    ZH = "zh"


def language_of(environment: Iterable[str | None]) -> Language:
    """The language that the first of these asks for: `zh`, `zh_CN.UTF-8`; English where none does.

    Args:
        environment: Values of OPSCOPE_LANG, LC_ALL, LC_MESSAGES and LANG; None and "" say nothing.
    """
    asked = next((one for one in environment if one), "")
    return Language.ZH if re.match(r"zh\b|zh_", asked) else Language.EN


def translated(document: Document, language: Language) -> Document:
    """The document in a language; the same one for English."""
    if language is Language.EN:
        return document
    return _Translation(catalog(language)).document(document)


def translated_words(text: str, language: Language) -> str:
    """A line that stands in no document."""
    return text if language is Language.EN else catalog(language).translate(text) or text


class _Translation:
    def __init__(self, known: Catalog) -> None:
        self._known = known

    def document(self, document: Document) -> Document:
        return replace(
            document,
            title=self._words(document.title),
            blocks=tuple(map(self._block, document.blocks)),
            sections=tuple(map(self._section, document.sections)),
        )

    def _section(self, section: Section) -> Section:
        return replace(
            section,
            title=self._words(section.title),
            blocks=tuple(map(self._block, section.blocks)),
            sections=tuple(map(self._section, section.sections)),
        )

    def _block(self, block: Block) -> Block:
        if isinstance(block, Paragraph):
            return Paragraph(self._text(block.text))
        if isinstance(block, Table):
            return self._table(block)
        if isinstance(block, BarList):
            return replace(block, table=self._table(block.table))
        if isinstance(block, FactList):
            return FactList(tuple((self._words(label), self._text(value)) for label, value in block.facts))
        if isinstance(block, BulletList):
            return BulletList(tuple(map(self._text, block.items)))
        if isinstance(block, FindingList):
            return self._findings(block)
        assert isinstance(block, CodeBlock)
        return block

    def _table(self, table: Table) -> Table:
        return Table(
            tuple(replace(column, title=self._words(column.title)) for column in table.columns),
            tuple(tuple(map(self._text, row)) for row in table.rows),
            None if table.caption is None else self._text(table.caption),
        )

    def _findings(self, block: FindingList) -> FindingList:
        findings = tuple(
            replace(
                one,
                message=self._words(one.message) + self._words(one.suggestion or ""),
                suggestion=None,
            )
            for one in block.findings
        )
        return FindingList(findings, {one: self._words(str(one)) for one in Severity})

    def _words(self, text: str) -> str:
        return self._known.translate(text) or text

    def _text(self, text: Text) -> Text:
        """The parts of a text are one message: names in it may stand in another order."""
        if isinstance(text, str):
            return self._words(text)
        parts = inlines(text)
        marks = {chr(_FIRST_MARK + index): part for index, part in enumerate(parts)}
        message = "".join(part if isinstance(part, str) else mark for mark, part in marks.items())
        found = self._known.translate(message)
        if found is None or sorted(_MARK.findall(found)) != sorted(_MARK.findall(message)):
            return tuple(self._inline(part) for part in parts)
        pieces = [marks.get(piece, piece) for piece in _MARK.split(found) if piece]
        said = [self._inline(piece) if isinstance(piece, Strong) else piece for piece in pieces]
        for index, (before, piece) in enumerate(zip(said, said[1:], strict=False), 1):
            if isinstance(piece, str) and plain(before)[-1:] in _WIDE_STOPS:
                said[index] = piece.lstrip(" ")
        return tuple(said)

    def _inline(self, part: Inline) -> Inline:
        if isinstance(part, str):
            return self._words(part)
        return Strong(self._words(part.text)) if isinstance(part, Strong) else part


# Where a message has a name as code stands a character of Unicode's private use area.
_FIRST_MARK = 0xE000
_MARK = re.compile("([\ue000-\uf8ff])")


class _Template(msgspec.Struct, frozen=True):
    """A message with places for names and numbers.

    Args:
        literals: The words around the places.
        text: The translation, with `{}` or `{0}` for the places.
    """

    literals: tuple[str, ...]
    text: str

    @property
    def weight(self) -> int:
        """How much of a text it explains."""
        return sum(map(len, self.literals))

    def match(self, text: str) -> list[str] | None:
        """What stands in its places, each as short as can be."""
        first, *others = self.literals
        if not (text.startswith(first) and text.endswith(others[-1])):
            return None
        position, before, places = len(first), first, []
        for literal in others:
            least = position + (not before[-1:].isalnum())  # what is attached to a word may be nothing
            found = text.find(literal, least) if literal is not others[-1] else len(text) - len(literal)
            if found < least:
                return None
            places.append(text[position:found])
            position, before = found + len(literal), literal
        return places


_PLACE = "{}"
_WORD = re.compile(r"[A-Za-z][A-Za-z']*")
_PROSE = re.compile(r"(?:[A-Z]?[a-z]+(?:['’-][a-z]+)*|[a-z]+(?:-[A-Z]?[a-z]+)*)")  # and no name
_UNITS = frozenset("ns ms s µs kB kFLOP us min h cycle".split())
_FUNCTION_WORDS = frozenset(
    "a an the of in on at by to for from with and or nor not no but so as than that this these those it its is are was "
    "were be been has have had they them their each every all outside inside without within between while where which "
    "more less only alone beside per into over under before after until if when".split()
)
_STOPS = {".": "。", ":": "：", ";": "；", ",": "，", "?": "？"}
# What joins clauses, the loosest first, and what joins them in Chinese.
_WIDE_STOPS = frozenset("。：；，）？")
_JOINTS = ((". ", "。"), ("; ", "；"), (": ", "："), (", ", "，"), (" and ", " 和 "), (" or ", " 或 "), (" → ", " → "))
# A name or a joint before a clause.
_LED = re.compile("([\ue000-\uf8ff] |[,;:] )(.+)", re.DOTALL)
# Between Chinese characters, and beside their punctuation, stands no blank.
_BLANK = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef]) +(?=[\u3000-\u9fff])|(?<=[。：；，）（]) +| +(?=[。：；，）（])")
_WIDE = re.compile("[\u3000-\u9fff]")
# Names in a row.
_ENUMERATION = "、"
_SENTENCE = re.compile(r"^ |\. |(?<!\S)[a-z]+ [a-z]+(?!\S)")
_NAME = re.compile("[^ ]*[A-Za-z\ue000-\uf8ff][^ ]*")
_INNER = r"\(([^()]*(?:\([^()]*\)[^()]*)*)\)"
# Words in brackets: the last ones, else the first.
_BRACKETED = (re.compile(rf"(.*) {_INNER}()"), re.compile(rf"(.*?) ?{_INNER}(.*)"))
_LEAST_WEIGHT = 6


class Catalog:
    """The messages of a language.

    Args:
        entries: Messages with their translations.
    """

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        self._whole: dict[str, str] = {}
        self._found: dict[str, str | None] = {}
        self._weak: set[str] = set()
        templates: list[_Template] = []
        for message, text in entries:
            if _PLACE in message:
                templates.append(_Template(tuple(message.split(_PLACE)), text))
            else:
                self._whole[message] = text
        templates.sort(key=lambda one: -one.weight)
        self._by_word = _indexed(templates)

    def translate(self, text: str) -> str | None:
        """The text in the language; itself if it has no words, None where it has an unknown one."""
        if text not in self._found:
            found = self._translate(text)
            self._found[text] = found if found is None or found == text else _BLANK.sub("", found)
        return self._found[text]

    def _translate(self, text: str) -> str | None:
        if text in self._whole:
            return self._whole[text]
        core = text.strip()
        if core != text:
            found = self.translate(core)
            return None if found is None else text.replace(core, found) if core else text
        if is_neutral(text):
            return text
        if text[-1] in _STOPS and len(text) > 1:
            found = self.translate(text[:-1])
            return None if found is None else found + _STOPS[text[-1]]
        ways: tuple[Callable[[str], str | None], ...] = (
            self._matched,
            self._joined,
            self._bracketed,
            self._led,
            self._matched_with_lists,
            self._capital,
            self._matched_with_names,
        )
        return next((found for way in ways if (found := way(text)) is not None), None)

    def _matched(self, text: str, joint: str = r"[.,;:] ") -> str | None:
        """By the template that explains most, all of whose places are understood and no clauses."""
        for template, places in self._matches(text):
            is_weak = template.weight < _LEAST_WEIGHT  # `{} of {}` is found in many sentences
            if is_weak and not all(_is_figure(place) and _may_be_name(place) for place in places):
                continue
            found = [None if re.search(joint, place) else self.translate(place) for place in places]
            if None not in found and self._weak.isdisjoint(places):
                if is_weak:
                    self._weak.add(text)
                return template.text.format(*found)
        return None

    def _matched_with_lists(self, text: str) -> str | None:
        return self._matched(text, joint=r"[.] ")

    def _led(self, text: str) -> str | None:
        """A name or a joint, then a clause."""
        match = _LED.fullmatch(text)
        found = None if match is None else self.translate(match.group(2))
        return None if match is None or found is None else _STOPS.get(text[0], match.group(1)) + found

    def _matched_with_names(self, text: str) -> str | None:
        """The same, where a place holds what may be a name."""
        for template, places in self._matches(text):
            found = [self.translate(place) or (place if _may_be_name(place) else None) for place in places]
            if template.weight >= _LEAST_WEIGHT and None not in found:
                return template.text.format(*found)
        return None

    def _matches(self, text: str) -> Iterator[tuple[_Template, list[str]]]:
        ranked = {rank: one for word in set(_WORD.findall(text)) for rank, one in self._by_word[word]}
        for rank in sorted(ranked):
            places = ranked[rank].match(text)
            if places is not None:
                yield ranked[rank], places

    def _joined(self, text: str) -> str | None:
        for joint, own in _JOINTS:
            clauses = _split(text, joint)
            for parts in (clauses, [clauses[0], joint.join(clauses[1:])])[: len(clauses) - 1]:
                found = [self.translate(part) for part in parts]
                if None not in found:
                    said = [str(one) for one in found]
                    return "".join(map("".join, zip(said, [*_joints(said, own), ""], strict=True)))
        return None

    def _bracketed(self, text: str) -> str | None:
        for pattern in _BRACKETED:
            match = pattern.fullmatch(text)
            found = [one and self.translate(one) for one in match.groups()] if match else [None]
            if None not in found:
                before, inside, after = map(str, found)
                return f"{before}（{inside}）{after}" if _WIDE.search(inside) else f"{before} ({inside}){after}"
        return None

    def _capital(self, text: str) -> str | None:
        """A sentence may begin with a clause that is known from elsewhere."""
        return self.translate(text[0].lower() + text[1:]) if text[0].isupper() else None


def _joints(clauses: list[str], joint: str) -> Iterator[str]:
    """What stands between clauses: names in a row are enumerated."""
    for before, after in zip(clauses, clauses[1:], strict=False):
        is_list = joint == "，" and _NAME.fullmatch(before) and not _WIDE.match(after)
        yield _ENUMERATION if is_list else joint


def is_neutral(text: str) -> bool:
    """Whether it reads the same in every language: numbers, units, names; one word alone may be a name."""
    tokens = [token.strip(".,;:()[]'\"…–") for token in text.split()]
    if len(tokens) == 1:
        return tokens[0].lower() not in _FUNCTION_WORDS and not tokens[0].endswith("'s")
    return not any(_PROSE.fullmatch(token) and token not in _UNITS for token in tokens)


def _may_be_name(text: str) -> bool:
    """Whether it may be the name of a kernel, a device or a place in a program."""
    return not _SENTENCE.search(text) and _FUNCTION_WORDS.isdisjoint(re.split(r"[^\w:'-]+", text.lower()))


def _is_figure(text: str) -> bool:
    """Whether it is a number, with what it counts, or a name with a mark in it."""
    return bool(re.match(r"[^A-Za-z]|\S*[\d:_]\S*$", text)) and not re.search(" and |, |: ", text)


def _indexed(templates: list[_Template]) -> dict[str, list[tuple[int, _Template]]]:
    """By the rarest word of each; with its rank."""
    # Where a word touches a place it may go on in it.
    of = [set(_WORD.findall(re.sub(r"\w*\0\w*", " ", "\0".join(one.literals)))) for one in templates]
    frequency = Counter(word for one in of for word in one)
    by_word: dict[str, list[tuple[int, _Template]]] = defaultdict(list)
    for rank, (template, found) in enumerate(zip(templates, of, strict=True)):
        if found:
            by_word[min(found, key=lambda word: (frequency[word], word))].append((rank, template))
    return by_word


def _split(text: str, joint: str) -> list[str]:
    """At each joint outside of brackets."""
    parts, depth = [""], 0
    for piece in re.split(f"([()\\[\\]]|{re.escape(joint)})", text):
        depth += piece in ("(", "[")
        depth -= piece in (")", "]")
        if piece == joint and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part for part in parts if part]


@cache
def catalog(language: Language) -> Catalog:
    """The packaged messages of a language."""
    return Catalog(catalog_entries(language))


_KEYWORD = re.compile(r"(msg\w+(?:\[\d\])?)? *(\".*\")")


def catalog_entries(language: Language) -> Iterator[tuple[str, str]]:
    """Each message with its translation, singular and plural alike; those not yet translated are left out."""
    path = resources.files("opscope").joinpath(f"locale/{language}/LC_MESSAGES/opscope.po")
    for entry in path.read_text(encoding="utf-8").split("\n\n")[1:]:
        said: dict[str, str] = defaultdict(str)
        keyword = ""
        for line in entry.splitlines():
            match = _KEYWORD.fullmatch(line)
            if match is not None:
                keyword = match.group(1) or keyword
                said[keyword] += json.loads(match.group(2))
        for message in filter(None, (said["msgid"], said["msgid_plural"])):
            yield from _with_sentences(message, said["msgstr"] or said["msgstr[0]"])


def _with_sentences(message: str, text: str) -> Iterator[tuple[str, str]]:
    """A message, and its sentences, which may stand beside others."""
    if text:
        yield message, text
        for joint, stop in _JOINTS[:2]:
            clauses, own = message.split(joint), text.split(stop)
            if len(clauses) == len(own) > 1 and "{0}" not in text:
                yield from zip(clauses, own, strict=True)
