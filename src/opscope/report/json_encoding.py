"""JSON files and text: UTF-8, keys in the order given, no NaN, and a file that is either whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from opscope.model.files import finite, write_text

__all__ = ["from_json_text", "to_json", "to_json_line", "write_json"]


def to_json(document: Any) -> str:
    """The document as indented JSON text ending in a newline; a float that is no number becomes null."""
    return json.dumps(finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_json_line(document: Any) -> str:
    """The document as JSON text on one line, without a newline."""
    return json.dumps(finite(document), ensure_ascii=False, allow_nan=False)


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
