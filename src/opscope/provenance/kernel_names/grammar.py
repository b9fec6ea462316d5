"""Reads names that generators write, by `grammars.toml`: a pattern for each, whose groups are fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import msgspec

from opscope.data import packaged_toml
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel, Reading
from opscope.provenance.kernel_names.vocabulary import LETTERS, element_type

_FIELDS = frozenset(one.name for one in fields(DecodedKernel))
_NUMBERS = frozenset(("stages", "alignment", "vector_width", "head_dimension"))
_FLAGS = frozenset(("tensor_core", "split_k"))


class Found(msgspec.Struct):
    fields: dict[str, Any]
    groups: Mapping[str, str | None]  # of the pattern
    stated: frozenset[str]  # fields of a documented grammar

    def reading(self, **further: Any) -> Reading:
        """All fields, those given here too, by what the grammar is worth."""
        known = {**self.fields, **further}
        stated = {name: value for name, value in known.items() if name in self.stated}
        return Reading(stated, {name: value for name, value in known.items() if name not in self.stated})


class _Grammar(msgspec.Struct):
    match: Callable[[str], re.Match[str] | None]
    set: dict[str, Any]
    stated: frozenset[str]
    parts: list[tuple[str, str, re.Pattern[str]]]  # field, group, pattern
    choices: list[tuple[str, re.Pattern[str], Any]]  # field, pattern, value
    maps: dict[str, Mapping[str, str]]


def find_grammar(name: str, text: str) -> Found | None:
    grammar = _grammar(name)
    match = grammar.match(text)
    if match is None:
        return None
    groups = match.groupdict()
    found = dict(grammar.set)
    for group, value in groups.items():
        _put(found, group, value, grammar)
    for group, within, pattern in grammar.parts:
        part = pattern.search(groups[within] or "")
        _put(found, group, part and part[part.lastindex or 0], grammar)
    for field, pattern, value in grammar.choices:
        if field not in found and pattern.search(text):
            found[field] = value
    return Found(found, groups, grammar.stated)


def read_grammar(name: str, text: str) -> Reading | None:
    """What a grammar reads from a text; None if that is not of it."""
    found = find_grammar(name, text)
    return None if found is None else found.reading()


def _put(found: dict[str, Any], group: str, value: str | None, grammar: _Grammar) -> None:
    """Keep what a group holds, if it is of a field: as the value it stands for."""
    field = group.rstrip("0123456789")
    if value is None or field not in _FIELDS:
        return
    known = grammar.maps.get(group, grammar.maps.get(field))
    kept: Any = value
    if field in _FLAGS:
        kept = True
    elif field in _NUMBERS:
        kept = int(value) or None
    elif known is not None and group != field and group not in grammar.maps:  # mapped once together
        kept = f"{found.pop(field)}x{value}" if field in found else value
        kept = known.get(kept, kept if kept == value else None)
    elif known is not None:
        kept = f"{known['prefix']}{value.lower()}" if "prefix" in known else known.get(value, known.get("*"))
    elif field.endswith("_type"):
        kept = element_type(value)
    elif group != field and group[-1] != "1":
        kept = f"{found[field]}x{value}" if found.get(field) else None
    if kept is not None:
        found[field] = kept


@cache
def _grammar(name: str) -> _Grammar:
    document = packaged_toml(__package__, "grammars.toml")
    entry, named = document[name], {**document["maps"], "letters": LETTERS}
    stated = entry.get("stated", "")
    parts = [
        (field, ["rest", part] if isinstance(part, str) else part)
        for field, part in entry.get("parts", {}).items()
    ]
    return _Grammar(
        _matcher(entry["pattern"]),
        entry.get("set", {}),
        _FIELDS if stated == "all" else frozenset(stated.split()),
        [(field, within, re.compile(pattern)) for field, (within, pattern) in parts],
        [
            (field, re.compile(pattern), value)
            for field, choices in entry.get("choices", {}).items()
            for pattern, value in choices
        ],
        {field: named[one] if isinstance(one, str) else one for field, one in entry.get("maps", {}).items()},
    )


def _matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    """Of a pattern of several lines, blanks do not count."""
    compiled = re.compile(pattern, re.VERBOSE if "\n" in pattern else 0)
    return compiled.match if pattern.startswith("\\A") else compiled.search
