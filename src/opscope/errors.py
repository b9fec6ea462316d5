"""The one error tree of opscope.

    OpscopeError
    ├── InputError        a file or an argument the user gave cannot be used
    ├── CaptureError      recording a program failed; the program's own error is its cause
    ├── MeasurementError  a timing could not be taken
    └── DependencyError   an optional package is missing; the hint is the install line

Every error says what happened, where (file, byte offset), and what to do. The library raises them;
only the command line turns them into an exit code. This module imports nothing of opscope.
"""

from __future__ import annotations

from os import PathLike, fspath


class OpscopeError(Exception):
    """An error a user can act on.

    Args:
        message: What happened, one sentence without a trailing period.
        source: File or address it happened in.
        byte_offset: Position in `source`, in bytes from its start.
        hint: What to do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        source: str | PathLike[str] | None = None,
        byte_offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = message
        self.source = None if source is None else fspath(source)
        self.byte_offset = byte_offset
        self.hint = hint
        text = f"{self.where}{message}"
        super().__init__(f"{text}. {hint}" if hint else text)

    @property
    def where(self) -> str:
        """`FILE, byte 12: `, as far as it is known."""
        place = [self.source] if self.source else []
        place += [] if self.byte_offset is None else [f"byte {self.byte_offset}"]
        return f"{', '.join(place)}: " if place else ""


class InputError(OpscopeError):
    """A file or an argument the user gave cannot be used."""


class CaptureError(OpscopeError):
    """A program could not be recorded."""


class MeasurementError(OpscopeError):
    """A timing could not be taken."""


class DependencyError(OpscopeError):
    """An optional package is missing; `hint` holds the install line."""
