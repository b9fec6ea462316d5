"""Where a number about hardware comes from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from opscope.text_enum import TextEnum

__all__ = ["DEVICE_PROPERTIES", "Evidence", "Source", "read_facts", "sources_of"]


class Evidence(TextEnum):
    """How a number is known. A closed set."""

    PUBLISHED = "published"
    DERIVED = "derived"
    DEVICE_PROPERTIES = "device_properties"

    @property
    def meaning(self) -> str:
        """One phrase for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Evidence.PUBLISHED: "published for this product",
    Evidence.DERIVED: "operations per SM and clock × SMs × boost clock",
    Evidence.DEVICE_PROPERTIES: "as the driver reported it",
}


@dataclass(frozen=True)
class Source:
    """A document, with the year of the edition that the numbers are of."""

    title: str
    date: str

    def __str__(self) -> str:
        return f"{self.title} ({self.date})" if self.date else self.title


DEVICE_PROPERTIES = Source("CUDA device properties of the recorded device", "")


@cache
def read_facts(name: str) -> dict[str, Any]:
    """One packaged TOML file; not to be changed by callers."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    document: dict[str, Any] = tomllib.loads(text)
    return document


def sources_of(document: dict[str, Any]) -> dict[str, Source]:
    """The sources a packaged file declares, by the keys its entries use."""
    return {key: Source(entry["title"], entry["date"]) for key, entry in document["source"].items()}
