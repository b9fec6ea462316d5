"""The user's cache folder, and writing into it so that no reader ever sees half a file.

Whatever lies there can be made again: readers rebuild what they cannot use.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/opscope`, else `~/.cache/opscope`; for a user without a home, a temporary folder.

    It may not exist yet.

    Source: XDG Base Directory Specification 0.8; a relative `XDG_CACHE_HOME` is to be ignored.
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "opscope"
    try:
        return Path.home() / ".cache" / "opscope"
    except RuntimeError:
        return Path(tempfile.gettempdir(), "opscope")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it; its folder is made if need be.

    Raises:
        OSError: The folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
