"""Builds of PyTorch: version labels, and the torch installed here, found and read without importing it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from opscope.provenance.packaged import lazy_pattern

COMMIT = lazy_pattern(r"[0-9a-f]{40}")
_ASSIGNMENT = lazy_pattern(
    r"^(__version__|git_version)\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]+)['\"]", re.MULTILINE
)


def package_folders(name: str) -> tuple[Path, ...]:
    """Folders of the package of that name that this Python would import; empty if there is none."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return ()
    return tuple(Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ())


def installed_torch() -> tuple[str | None, str | None]:
    """Version and commit in the `version.py` of the torch that this Python would import; None is unknown."""
    try:
        folder = package_folders("torch")[0]
        text = (folder / "version.py").read_text(encoding="utf-8", errors="replace")
    except (IndexError, OSError):
        return None, None
    found = dict(_ASSIGNMENT.findall(text))
    return found.get("__version__"), found.get("git_version")


# Version labels of PyTorch builds: `2.11.0`, `2.11.0+cu130`, `2.12.0.dev20260101`, `2.6.0a0+git2236df1`.
# Source: PEP 440 for the grammar.
_LABEL = lazy_pattern(
    r"\s*v?(?P<major>\d+)\.(?P<minor>\d+)(?:\.(?P<patch>\d+))?"
    r"(?P<suffix>[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview|post|rev|r|dev)[-_.]?\d*(?:\.dev\d+)?)?"
    r"(?:\+(?P<local>[a-z0-9._-]+))?\s*",
    re.IGNORECASE,
)
_OFFICIAL_LOCAL = lazy_pattern(r"cu\d+|cpu|", re.IGNORECASE)


_RELEASE = lazy_pattern(r"(\d+)\.(\d+)(?:\.(\d+))?")


class TorchVersion(msgspec.Struct, frozen=True):
    release: tuple[int, int, int]  # major, minor and patch number
    is_official: bool  # it is the release itself, built for CUDA or for CPUs

    @property
    def name(self) -> str:
        """The release as text: `2.11.0`."""
        return ".".join(map(str, self.release))


def parse_version(label: str) -> TorchVersion | None:
    match = _LABEL.fullmatch(label)
    if match is None:
        return None
    release = (int(match["major"]), int(match["minor"]), int(match["patch"] or 0))
    return TorchVersion(
        release, not match["suffix"] and bool(_OFFICIAL_LOCAL.fullmatch(match["local"] or ""))
    )


def nearest_release(label: str | None, known: Sequence[str]) -> str | None:
    """The nearest of some releases by minor version, the later of two; the last for an unknown label.

    The one rule for all that is asked of a release.

    A function that a release lacks was more often added later than removed before.
    """
    wanted = _numbers(label or "")
    if wanted is None:
        return known[-1] if known else None

    def distance(release: str) -> tuple[int, int]:
        major, minor, patch = _numbers(release) or (0, 0, 0)
        return abs(1000 * (major - wanted[0]) + minor - wanted[1]), abs(patch - wanted[2])

    return min(reversed(known), key=distance, default=None)


def _numbers(label: str) -> tuple[int, int, int] | None:
    match = _RELEASE.match(label)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))
