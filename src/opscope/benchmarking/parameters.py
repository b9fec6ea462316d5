"""Swept parameters: how they are written, and the points they span. Imports nothing of torch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opscope.errors import InputError

__all__ = ["Values", "parse_parameters", "points", "values_of"]

_USAGE = "Write --param NAME=VALUE,VALUE…, e.g. --param n=1024,4096"
_NAME = re.compile(r"[A-Za-z_]\w*")

Values = Mapping[str, tuple[Any, ...]]


def parse_parameters(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Parameters with their values from `NAME=VALUE,VALUE…`: integers, floats, or else words.

    Raises:
        InputError: A text is not written so, or a name comes twice.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        values = [value.strip() for value in rest.split(",")]
        if not equals or not _NAME.fullmatch(name.strip()) or not all(values):
            raise InputError(f"'{text}' is not a parameter with its values", hint=_USAGE)
        if name.strip() in found:
            raise InputError(f"the parameter '{name.strip()}' is given twice", hint=_USAGE)
        found[name.strip()] = tuple(dict.fromkeys(map(_value, values)))
    return found


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def points(parameters: Values) -> Iterator[dict[str, Any]]:
    """The cross product of the values, the last parameter varying fastest."""
    for values in itertools.product(*parameters.values()):
        yield dict(zip(parameters, values, strict=True))


def values_of(parameters: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Parameters given in Python, with one value or several each.

    Raises:
        InputError: One has no values.
    """
    found = {
        name: tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        for name, given in parameters.items()
    }
    for name, values in found.items():
        if not values:
            raise InputError(f"the parameter '{name}' has no values", hint="Give a list such as [1024, 4096]")
    return found
