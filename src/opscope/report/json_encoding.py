"""JSON of value objects, files and text: the one way from frozen values to documents.

A document lists, for each class of value in it, the keys in their order (`Keys`); what it does not list is
every field of a class under its own name. Files are UTF-8, without NaN, and either whole or absent.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

import msgspec

from opscope._version import __version__
from opscope.model.files import finite, write_text
from opscope.units import ns_to_ms


class Keys:
    """The JSON keys of one class, in order.

    Written as words: `calls` is the attribute of that name; `activities=activity_count` another one's (dotted
    where it lies deeper, and converted where the key says `_ms` and the attribute `_ns`); `...` all fields
    that are not named, in the order of their declaration; `-step` is left out; `*time` stands for the keys of
    another value. Keyword arguments compute a key from the object.
    """

    def __init__(self, words: str = "...", /, **computed: Callable[[Any], Any]) -> None:
        self._words = words.split()
        self._computed = computed
        self._getters: dict[type, list[tuple[str, Callable[[Any], Any]]]] = {}

    def record(self, value: Any, keys: Mapping[type, Keys]) -> dict[str, Any]:
        getters = self._getters.get(type(value))
        if getters is None:
            getters = self._getters[type(value)] = list(self._getters_of(type(value)))
        record: dict[str, Any] = {}
        for key, get in getters:
            if key.startswith("*"):
                record.update(encode(get(value), keys) or {})
            else:
                record[key] = encode(get(value), keys)
        return record

    def _getters_of(self, kind: type) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        named = {word.lstrip("-*").partition("=")[2] or word.lstrip("-*") for word in self._words}
        for word in self._words:
            if word == "...":
                unnamed = (name for name in _field_names(kind) if name not in named)
                yield from ((name, self._getter(name, name)) for name in unnamed)
            elif not word.startswith("-"):
                key, _, attribute = word.partition("=")
                yield key, self._getter(key.lstrip("*"), attribute or key.lstrip("*"))

    def _getter(self, key: str, attribute: str) -> Callable[[Any], Any]:
        get = self._computed.get(key) or attrgetter(attribute)
        if "_ms" not in key or "_ns" not in attribute:
            return get
        return lambda value: None if (found := get(value)) is None else ns_to_ms(found)


_ALL = Keys()
_PLAIN = frozenset((str, type(None)))


def encode(value: Any, keys: Mapping[type, Keys] | None = None) -> Any:
    """A value and everything in it as JSON values, objects by the keys of their class."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, int | float):
        return value
    keys = keys or {}
    # mypy takes no class for hashable
    own = keys.get(kind) or (_ALL if _field_names(kind) else None)  # type: ignore[arg-type]
    if own is not None:
        return own.record(value, keys)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(member, keys) for key, member in value.items()}
    if isinstance(value, str | PurePath):
        return str(value)
    return [encode(member, keys) for member in value]


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Of a dataclass, a named tuple or a msgspec struct; empty for others."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names: tuple[str, ...] = getattr(kind, "_fields", ()) or getattr(kind, "__struct_fields__", ())
    return names


def parsed(attribute: str) -> Callable[[Any], Any]:
    """The value of an attribute that holds JSON text, such as shapes; None for None."""
    get = attrgetter(attribute)
    return lambda value: None if get(value) is None else from_json_text(get(value))


def versions(schema_version: int) -> dict[str, Any]:
    """What a document begins with: the version of its keys, and of opscope."""
    return {"schema_version": schema_version, "opscope_version": __version__}


def to_json(document: Any) -> str:
    """The document as indented JSON text ending in a newline; a float that is no number becomes null."""
    # Indented by msgspec: the standard library's encoder does that in Python, ten times slower.
    line = to_json_line(document).encode("utf-8", "surrogatepass")
    return msgspec.json.format(line, indent=2).decode("utf-8", "surrogatepass") + "\n"


def to_json_line(document: Any) -> str:
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
    try:
        return encoder.encode(document)
    except ValueError:  # a float that is no number
        return encoder.encode(finite(document))


def from_json_text(text: str) -> Any:
    """The value of a JSON text; the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def write_json(path: str | os.PathLike[str], document: Any) -> Path:
    return write_text(path, to_json(document))
