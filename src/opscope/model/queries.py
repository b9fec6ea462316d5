"""SQL kept in `.sql` files beside the modules that run it; a head comment says what a row of each is."""

from __future__ import annotations

import pkgutil
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from functools import cache
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@cache
def sql(package: str, name: str) -> str:
    """The text of `NAME.sql` of a package; of `FILE:STATEMENT` what `-- :name STATEMENT` begins in a file."""
    file, _, statement = name.partition(":")
    if statement:
        return statements(package, file)[statement]
    return (pkgutil.get_data(package, f"{file}.sql") or b"").decode()


@cache
def statements(package: str, file: str) -> dict[str, str]:
    """All statements of a file, by their names."""
    parts = re.split(r"^-- :name (\w+)\n", sql(package, file), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def summed(pairs: Iterable[tuple[Key, float]]) -> Counter[Key]:
    """The sum of the numbers beside each key; keys in the order in which they come."""
    sums: Counter[Key] = Counter()
    for key, number in pairs:
        sums[key] += number  # type: ignore[assignment]  # a float, where they are
    return sums


def grouped(pairs: Iterable[tuple[Key, Value]]) -> defaultdict[Key, list[Value]]:
    """What pairs hold beside each key, in the order in which they come; nothing of a key that is in none."""
    groups: defaultdict[Key, list[Value]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups
