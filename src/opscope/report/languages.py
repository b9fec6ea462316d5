"""A Document in another language: translated once, as a whole, just before it is rendered.

Composers write English and call nothing: messages are found in finished texts, by the catalogs in
`locale/LANGUAGE.json`. A message is a whole text or a template, `{} of device time is {}`,
whose places hold what is itself a message, a number or a name. A text is matched with the template that
explains most of it; what matches none is translated clause by clause, or stays English whole: never in part.
Names, code and paths stay as they are. English is given back as it came, without a look.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import resources
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from opscope.model.finding import Severity
from opscope.model.queries import grouped
from opscope.provenance.packaged import lazy_pattern
from opscope.report import document as doc
from opscope.text_enum import TextEnum


class Language(TextEnum):
    EN = "en"
    ZH = "zh"


def language_of(environment: Iterable[str | None]) -> Language:
    """That which the first of these variables asks for: `zh`, `zh_CN.UTF-8`; English where none does."""
    asked = next((one for one in environment if one), "")
    return Language.ZH if re.match(r"zh\b|zh_", asked) else Language.EN


def translated(document: doc.Document, language: Language) -> doc.Document:
    if language is Language.EN:
        return document
    return catalog(language).part(document)


def translated_words(text: str, language: Language) -> str:
    """A line that stands in no document."""
    return text if language is Language.EN else catalog(language).words(text)


@cache
def catalog(language: Language) -> Catalog:
    path = resources.files("opscope").joinpath(f"locale/{language}.json")
    return Catalog(catalog_entries(msgspec.json.decode(path.read_bytes())))


_Part = TypeVar("_Part", doc.Document, doc.Section)


# Where a message has a name as code stands a character of Unicode's private use area.
FIRST_MARK = 0xE000
_MARK = lazy_pattern("([\ue000-\uf8ff])")
_WIDE_STOPS = frozenset("。：；，）？")


_PLACE = "{}"
_WORD = lazy_pattern(r"[A-Za-z][A-Za-z']*")
# A word that touches a place may go on in it.
_WHOLE_WORD = lazy_pattern(r"(?<![\w'\0])[A-Za-z][A-Za-z']*(?![\w'\0])")
# `Tesla V100-SXM2-16GB`, `AMD Instinct MI300X`
_MODEL = lazy_pattern(r"(?:[A-Z]\w* )+[A-Z]+\d[\w-]*")
# Words of prose, as against names.
_PROSE = lazy_pattern(r"(?:[A-Z]?[a-z]+(?:['’-][a-z]+)*|[a-z]+(?:-[A-Z]?[a-z]+)*)")
_UNITS = frozenset(("ns", "µs", "us", "ms", "s", "min", "h", "kB", "kFLOP", "cycle"))
_FUNCTION_WORDS = frozenset((
    "a", "an", "the", "of", "in", "on", "at", "by", "to", "for", "from", "with", "and", "or", "nor", "not",
    "no", "but", "so", "as", "than", "that", "this", "these", "those", "it", "its", "is", "are", "was",
    "were", "be", "been", "has", "have", "had", "they", "them", "their", "each", "every", "all", "outside",
    "inside", "without", "within", "between", "while", "which", "more", "less", "only", "alone",
    "beside", "per", "into", "over", "under", "before", "after", "until", "if", "when",
))  # fmt: skip
_SENTENCE = lazy_pattern(r"^ |\. |(?<!\S)[a-z]+ [a-z]+(?!\S)")
_CLAUSE = lazy_pattern(r"[.,;:] ")
_PLACE_IN_PROGRAM = lazy_pattern(r"<[^<>]*>| at \S+:\d+")
# What ends and joins clauses, the loosest joint first, in English and in Chinese.
_STOPS = str.maketrans(".:;,?", "。：；，？")
# A clause behind a name begins with a joint.
_EDGES = lazy_pattern(r"\A((?:[,;:] )?\s*)(.*?)([.,:;?]?\s*)\Z", re.DOTALL)
_JOINTS = (
    (". ", "。"), ("; ", "；"), (": ", "："), (", ", "，"),
    (" and ", " 和 "), (" or ", " 或 "), (" → ", " → "),
)  # fmt: skip
_NAME = lazy_pattern("[^ ]*[A-Za-z\ue000-\uf8ff][^ ]*")
_WIDE = lazy_pattern("[\u3000-\u9fff]")
# Between Chinese characters, and beside their punctuation, stands no blank.
_BLANK = lazy_pattern(
    "(?<=[\u3000-\u9fff\uff00-\uffef]) +(?=[\u3000-\u9fff])|(?<=[。：；，）（]) +| +(?=[。：；，）（])"
)
# Words in brackets: the last ones, else the first.
_INNER = r"\(([^()]*(?:\([^()]*\)[^()]*)*)\)"
_BRACKETED = (lazy_pattern(rf"(.*) {_INNER}()"), lazy_pattern(rf"(.*?) ?{_INNER}(.*)"))


class _Template(msgspec.Struct, frozen=True):
    literals: tuple[str, ...]  # the words around the places
    text: str  # the translation, with `{}` or `{0}` for the places

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


class Catalog:
    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        self._whole: dict[str, str] = {}
        self._found: dict[str, str | None] = {}
        templates: list[_Template] = []
        for message, text in entries:
            if _PLACE in message:
                templates.append(_Template(tuple(message.split(_PLACE)), text))
            else:
                self._whole[message] = text
        templates.sort(key=lambda one: -one.weight)
        # By the rarest word of each; with its rank.
        words = [set(_WHOLE_WORD.findall("\0".join(one.literals))) for one in templates]
        frequency = Counter(word for one in words for word in one)
        self._by_word = grouped(
            (min(found, key=lambda word: (frequency[word], word)), (rank, template))
            for rank, (template, found) in enumerate(zip(templates, words, strict=True))
            if found
        )

    def part(self, part: _Part) -> _Part:
        return replace(
            part,
            title=self.words(part.title),
            blocks=tuple(map(self._block, part.blocks)),
            sections=tuple(map(self.part, part.sections)),
        )

    def _block(self, block: doc.Block) -> doc.Block:
        ways: dict[type, Callable[[Any], doc.Block]] = {
            doc.Paragraph: lambda one: doc.Paragraph(self._text(one.text)),
            doc.Meaning: lambda one: doc.Meaning(self._text(one.text)),
            doc.Table: lambda one: replace(
                one,
                columns=tuple(replace(column, title=self.words(column.title)) for column in one.columns),
                rows=tuple(tuple(map(self._text, row)) for row in one.rows),
                caption=one.caption and self._text(one.caption),
                left_out=self.words(one.left_out),
            ),
            doc.FactList: lambda one: doc.FactList(
                tuple((self.words(label), self._text(value)) for label, value in one.facts)
            ),
            doc.BulletList: lambda one: doc.BulletList(tuple(map(self._text, one.items))),
            doc.FindingList: lambda one: doc.FindingList(
                tuple(
                    replace(
                        each,
                        message=self.words(each.message) + self.words(each.suggestion or ""),
                        suggestion=None,
                    )
                    for each in one.findings
                ),
                {each: self.words(str(each)) for each in Severity},
            ),
            doc.CodeBlock: lambda one: one,
        }
        return ways[type(block)](block)

    def _text(self, text: doc.Text) -> doc.Text:
        """The parts of a text are one message: names in it may stand in another order."""
        if not isinstance(text, tuple):
            return self._inline(text)
        parts = text
        if any(isinstance(part, str) and _MARK.search(part) for part in parts):
            return tuple(map(self._inline, parts))
        marks = {chr(FIRST_MARK + index): part for index, part in enumerate(parts)}
        message = "".join(part if isinstance(part, str) else mark for mark, part in marks.items())
        found = self.translate(message)
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
            return self.words(part)
        return doc.Strong(self.words(part.text)) if isinstance(part, doc.Strong) else part

    def words(self, text: str) -> str:
        """The text in the language, or as it is."""
        return self.translate(text) or text

    def translate(self, text: str) -> str | None:
        """The text in the language; itself if it has no words, None where it has an unknown one."""
        if text not in self._found:
            found = self._translate(text)
            self._found[text] = found if found is None or found == text else _BLANK.sub("", found)
        return self._found[text]

    def _translate(self, text: str) -> str | None:
        if text in self._whole:
            return self._whole[text]
        # Longer texts are lists of names; and what a stranger's trace holds must not keep the report busy.
        if len(text) > 2_000:
            return None
        if is_neutral(text):
            return text
        start, core, end = _EDGES.findall(text)[0]
        if core != text:
            found = self.translate(core)
            return None if found is None else start.translate(_STOPS) + found + end.translate(_STOPS)
        ways = (self._matched, self._joined, self._bracketed, partial(self._matched, is_loose=True))
        return next((found for way in ways if (found := way(text)) is not None), None)

    def _matched(self, text: str, *, is_loose: bool = False) -> str | None:
        """By the template that fits and explains most, all of whose places are understood.

        Loosely its places may hold clauses, or what may be a name.
        """
        ranked = {rank: one for word in set(_WORD.findall(text)) for rank, one in self._by_word[word]}
        for _, template in sorted(ranked.items(), key=itemgetter(0)):
            places = template.match(text)
            # No place holds half of a bracket.
            if places is None or any(one.count("(") != one.count(")") for one in places):
                continue
            # `{} of {}` is found in many sentences.
            is_telling = template.weight >= 6 or all(_is_figure(one) and _name(one) for one in places)
            first = places[0]  # `gelu takes 3 ms` does not begin `{} of device time`
            is_begun = template.literals[0] or first in self._whole or is_neutral(first) or _is_figure(first)
            is_plain = not any(
                _CLAUSE.search(place) and not all(map(_NAME.fullmatch, re.split(", | and ", place)))
                for place in places
            )
            if is_telling and (is_loose or (is_begun and is_plain)):
                found = [self.translate(place) or (_name(place) if is_loose else None) for place in places]
                if None not in found:
                    return template.text.format(*found)
        return None

    def _joined(self, text: str) -> str | None:
        for joint, own in _JOINTS:
            parts, depth = [""], 0
            for piece in re.split(f"([()\\[\\]]|{re.escape(joint)})", text):
                depth += piece in ("(", "[")
                depth -= piece in (")", "]")
                if piece == joint and depth <= 0:
                    parts.append("")
                else:
                    parts[-1] += piece
            clauses = [part for part in parts if part]
            found = [self.translate(part) for part in clauses] if len(clauses) > 1 else [None]
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
                return (
                    f"{before}（{inside}）{after}" if _WIDE.search(inside) else f"{before} ({inside}){after}"
                )
        return None


def _joints(clauses: list[str], joint: str) -> Iterator[str]:
    """What stands between clauses: names in a row are enumerated."""
    for before, after in pairwise(clauses):
        is_list = joint == "，" and _NAME.fullmatch(before) and not _WIDE.match(after)
        # Names in a list have a comma of their own.
        yield "、" if is_list else joint


def is_neutral(text: str) -> bool:
    """Whether it reads the same in every language: numbers, units, names; one word alone may be a name."""
    tokens = [token.strip(".,;:()[]'\"…–") for token in text.split()]
    if len(tokens) == 1:
        return tokens[0].lower() not in _FUNCTION_WORDS
    return bool(_MODEL.fullmatch(text)) or not any(
        _PROSE.fullmatch(token) and token not in _UNITS for token in tokens
    )


def _name(text: str) -> str | None:
    """What may be the name of a kernel, a device or a place in a program; None for prose."""
    bare = _PLACE_IN_PROGRAM.sub("", text).lstrip()
    is_prose = _SENTENCE.search(bare) or not _FUNCTION_WORDS.isdisjoint(re.split(r"[^\w:'-]+", bare.lower()))
    return None if is_prose else text


def _is_figure(text: str) -> bool:
    """Whether it is a number, with what it counts, or a name with a mark in it."""
    return bool(re.match(r"[^A-Za-z]|\S*[\d:_]\S*$", text)) and not re.search(" and |, |: ", text)


def catalog_entries(files: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Each message of a catalog with its translation, and its clauses; what has none is left out."""
    for message, text in (entry for messages in files.values() for entry in messages.items() if entry[1]):
        yield message, text
        for joint, stop in _JOINTS[:2]:  # its clauses may stand beside others
            clauses, own = message.split(joint), text.split(stop)
            if len(clauses) == len(own) > 1 and "{0}" not in text:
                yield from zip(clauses, own, strict=True)
