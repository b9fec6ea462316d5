"""The torch installed here, found and read without importing it: its folders, version and commit."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_ASSIGNMENT = re.compile(r"^(__version__|git_version)\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]+)['\"]", re.MULTILINE)


class TorchBuild(NamedTuple):
    """What a torch installation says of itself; None where it says nothing."""

    version: str | None
    git_version: str | None


def package_folders(name: str) -> tuple[Path, ...]:
    """Folders of the package of that name that this Python would import; empty if there is none."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return ()
    return tuple(Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ())


def torch_build(folder: Path) -> TorchBuild | None:
    """Version and commit in the `version.py` of a torch folder; None if there is no such file."""
    try:
        text = (folder / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = dict(_ASSIGNMENT.findall(text))
    return TorchBuild(found.get("__version__"), found.get("git_version"))
