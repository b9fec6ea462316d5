"""A hook of mkdocs: what the site needs beside what the pages say to a reader of the repository.

Links from docs to files outside of it become text, since the site does not hold those files; pages that show
reports use the width of the table of contents for them.
"""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)+(?:src|examples|benchmarks|CONTRIBUTING|README|CHANGELOG)[^)]*\)"
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page as the site shows it."""
    if "```console" in markdown or page.file.src_uri.startswith("notebooks/"):
        page.meta["hide"] = ["toc"]
    return _OUTSIDE.sub(r"\1", markdown)
