"""Comparing version numbers as CUDA, drivers and Python write them."""

from __future__ import annotations

import re

__all__ = ["major_minor", "numbers"]


def numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 11, 0) of `2.11.0+cu130`; empty for None and for other words."""
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(int(one) for one in found.group().split(".")) if found else ()


def major_minor(version: str | None) -> tuple[int, int] | None:
    """Its first two numbers; None where there are none. A missing second is 0."""
    found = numbers(version)
    return None if not found else (found[0], found[1] if len(found) > 1 else 0)
