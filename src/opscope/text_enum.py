"""Closed sets of words: enumerations whose members are their text, also where they are printed.

`enum.StrEnum` is this from Python 3.11 on. Imports nothing of opscope.
"""

from __future__ import annotations

from enum import Enum


class TextEnum(str, Enum):
    """Members are strings; `str` and formatting give the value, not `Class.MEMBER`."""

    def __str__(self) -> str:
        return str(self.value)


class MeaningEnum(TextEnum):
    """Members that also say what they mean: `EXACT = "exact", "read from the file itself"`."""

    meaning: str  # one phrase for people

    def __new__(cls, text: str, meaning: str = "") -> MeaningEnum:
        """The member that is this text."""
        member = str.__new__(cls, text)
        member._value_ = text
        member.meaning = meaning
        return member
