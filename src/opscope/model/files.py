"""Files that are whole whenever they are read, and values that JSON can hold.

Imports nothing that computes.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opscope.errors import InputError, OpscopeError

__all__ = ["finite", "replacing", "write_text"]


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str],
    what: str = "the file",
    *,
    failures: tuple[type[Exception], ...] = (OSError,),
    error: type[OpscopeError] = InputError,
) -> Iterator[Path]:
    """A file to write that becomes `path` in one step when the block ends, and is gone if it fails.

    Args:
        path: The file; folders above it are made.
        what: What is written, for the message.
        failures: What writing raises.
        error: What is raised of those.
    """
    target = Path(path)
    # Programs that write it may go by the suffix.
    partial = target.with_name(f".{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(target)
    except failures as failure:
        reason = getattr(failure, "strerror", None) or str(failure).partition("\n")[0]
        raise error(f"{what} cannot be written ({reason})", source=target) from failure
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text to a file and return its path. An existing file is replaced in one step.

    Raises:
        InputError: The file cannot be written.
    """
    with replacing(path) as partial:
        # Names in damaged traces may hold lone surrogates, which UTF-8 cannot carry.
        partial.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    return Path(path)


def finite(value: Any) -> Any:
    """The value in lists and dicts, with None for floats that are no numbers: JSON has none of those."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [finite(item) for item in value]
    return value
