"""The user's cache folder, and what is kept in it.

Whatever lies there can be made again: readers rebuild what they cannot use.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from opscope.errors import InputError
from opscope.model.files import replacing

Kept = TypeVar("Kept")


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


def kept(
    path: Path,
    decode: Callable[[bytes], Kept | None],
    make: Callable[[], Kept],
    encode: Callable[[Kept], bytes],
) -> Kept:
    """What a file in the cache holds; if it is absent or damaged, what `make` gives, kept for the next time.

    A cache that cannot be written costs time only.
    """
    with suppress(OSError, InputError):
        if (found := decode(path.read_bytes())) is not None:
            return found
    made = make()
    with suppress(InputError), replacing(path) as partial:
        partial.write_bytes(encode(made))
    return made
