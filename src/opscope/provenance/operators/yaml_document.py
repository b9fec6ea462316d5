"""YAML lists of mappings, each with the line it starts at. Reading is all this module does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opscope.errors import InputError

__all__ = ["LINE", "read_mappings", "text_of", "words"]

LINE = "__line__"


def read_mappings(path: Path) -> list[dict[str, Any]]:
    """The mappings of a file that is a list of mappings; key `LINE` holds the line of each, from 1.

    Raises:
        InputError: The file cannot be read, is not YAML, or is something else.
    """
    import yaml  # noqa: PLC0415  (needed once per torch installation; 25 ms)

    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", source=path) from error
    try:
        document = yaml.load(content, Loader=_loader())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not YAML ({_first_line(error)})", source=path) from error
    if not isinstance(document, list) or not all(isinstance(item, dict) for item in document):
        raise InputError("not a list of mappings", source=path)
    return document


def text_of(item: Mapping[str, Any], key: str) -> str | None:
    """The text under a key; None if there is none.

    Raises:
        ValueError: Something else is there.
    """
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"'{key}' is not text: {value!r}")
    return value


def words(value: Any) -> tuple[str, ...]:
    """The words of a text separated by commas, or of a list.

    Raises:
        ValueError: It is neither.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(word for part in value.split(",") if (word := part.strip()))
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError(f"neither words nor a list of words: {value!r}")


def _loader() -> Any:
    import yaml  # noqa: PLC0415

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is absent from some builds

    class LineLoader(base):  # type: ignore[misc]
        """Notes in each mapping where it starts."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            mapping[LINE] = node.start_mark.line + 1
            return mapping

    return LineLoader


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
