"""SQL kept in `.sql` files beside the modules that run it; a head comment says what a row of each is."""

from __future__ import annotations

import pkgutil
import re
from functools import cache


@cache
def sql(package: str, name: str) -> str:
    """The text of `NAME.sql` of a package; of `FILE:STATEMENT` what `-- :name STATEMENT` begins in a file."""
    file, _, statement = name.partition(":")
    text = (pkgutil.get_data(package, f"{file}.sql") or b"").decode()
    return _statements(text)[statement] if statement else text


@cache
def _statements(text: str) -> dict[str, str]:
    parts = re.split(r"^-- :name (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
