"""One row of table `traces`, whatever kind of file it came from."""

from __future__ import annotations

from typing import Any

from opscope.model import schema
from opscope.model.session import Session

__all__ = ["integer", "valid_text", "write_trace"]


def write_trace(session: Session, **values: Any) -> None:
    """Insert a row into `traces`; columns that are not given are NULL."""
    columns = schema.table("traces").column_names
    row = [values.pop(name, None) for name in columns]
    assert not values, f"no columns of traces: {sorted(values)}"
    session.connection.execute(f"INSERT INTO traces VALUES ({', '.join('?' * len(row))})", row)


def integer(value: Any, *, bits: int = 32) -> int | None:
    """A value as a signed integer of that width; None if it is none."""
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << (bits - 1) else None


def valid_text(text: str) -> str:
    """The text without lone surrogates: half characters of JSON escapes, foreign bytes of file names."""
    return text.encode("utf-8", "replace").decode("utf-8")
