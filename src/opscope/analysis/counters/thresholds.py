"""The numbers that findings on counters are held against: `thresholds.toml`, each with its reason."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["threshold", "thresholds"]


@cache
def thresholds() -> Mapping[str, tuple[float, str]]:
    """Value and reason by name."""
    text = resources.files(__package__).joinpath("thresholds.toml").read_text(encoding="utf-8")
    return {
        name: (float(entry["value"]), str(entry["reason"])) for name, entry in tomllib.loads(text).items()
    }


def threshold(name: str) -> float:
    """A value by name."""
    return thresholds()[name][0]
