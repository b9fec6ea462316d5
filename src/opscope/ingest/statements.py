"""Named SQL statements of a `.sql` file beside the code that runs them (`-- :name x` begins one)."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

__all__ = ["statements"]


@cache
def statements(package: str, file: str) -> dict[str, str]:
    """Statement texts by name.

    Args:
        package: Package the file is in, e.g. `opscope.ingest`.
        file: Its name, e.g. `kineto.sql`.
    """
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    parts = re.split(r"^-- :name (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
