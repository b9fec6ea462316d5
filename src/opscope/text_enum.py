"""Closed sets of words: enumerations whose members are their text, also where they are printed.

`enum.StrEnum` is this from Python 3.11 on. Imports nothing of opscope.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["TextEnum"]


class TextEnum(str, Enum):
    """Members are strings; `str` and formatting give the value, not `Class.MEMBER`."""

    def __str__(self) -> str:
        return str(self.value)
