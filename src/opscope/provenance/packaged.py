"""Where the data of provenance lie: in the package, tables of a release under `<version>/<file name>`."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any, AnyStr, cast


def packaged_path(*parts: str) -> Path:
    """A file or folder of provenance's own data."""
    return Path(str(resources.files("opscope.provenance")), *parts)


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """A regular expression that is compiled when first used: hundreds would slow every start."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))


class _LazyPattern:
    def __init__(self, pattern: Any, flags: int) -> None:
        self._pattern = pattern, flags

    def __getattr__(self, name: str) -> Any:
        method = getattr(re.compile(*self._pattern), name)
        setattr(self, name, method)  # found at once from now on
        return method


def packaged_releases() -> Path:
    return packaged_path("releases", "data")


def release_file(release: str, name: str) -> Path:
    """Where a packaged table of a release lies, which may be any text; there may be none."""
    return packaged_releases() / (release if re.fullmatch(r"\w[\w.+-]{0,63}", release) else "unknown") / name


def release_files(name: str) -> dict[str, Path]:
    return {path.parent.name: path for path in sorted(packaged_releases().glob(f"*/{name}"))}
