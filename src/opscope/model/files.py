"""Files that are whole whenever they are read, and values that JSON can hold.

Imports nothing that computes.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opscope.errors import InputError

__all__ = ["finite", "write_text"]


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text to a file and return its path. An existing file is replaced in one step.

    Raises:
        InputError: The file cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Names in damaged traces may hold lone surrogates, which UTF-8 cannot carry.
        partial.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        partial.replace(target)
    except OSError as error:
        raise InputError(f"the file cannot be written ({error.strerror or error})", source=target) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return target


def finite(value: Any) -> Any:
    """The value in lists and dicts, with None for floats that are no numbers: JSON has none of those."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [finite(item) for item in value]
    return value
