"""JSON files and text: UTF-8, keys in the order given, no NaN, and a file that is either whole or absent."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opscope.errors import InputError

__all__ = ["from_json_text", "to_json", "to_json_line", "write_json", "write_text"]


def to_json(document: Any) -> str:
    """The document as indented JSON text ending in a newline; a float that is no number becomes null."""
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_json_line(document: Any) -> str:
    """The document as JSON text on one line, without a newline."""
    return json.dumps(_finite(document), ensure_ascii=False, allow_nan=False)


def from_json_text(text: str) -> Any:
    """The value of a JSON text; the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def write_json(path: str | os.PathLike[str], document: Any) -> Path:
    """Write the document to a file and return its path. An existing file is replaced in one step.

    Raises:
        InputError: The file cannot be written.
    """
    return write_text(path, to_json(document))


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


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_finite(item) for item in value]
    return value
