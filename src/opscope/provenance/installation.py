"""Builds of PyTorch: version labels, and the torch installed here, found and read without importing it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from opscope.provenance.packaged import lazy_pattern

COMMIT = lazy_pattern(r"[0-9a-f]{40}")
_VERSION = lazy_pattern(r"^__version__\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]+)['\"]", re.MULTILINE)


def package_folders(name: str) -> tuple[Path, ...]:
    """Folders of the package of that name that this Python would import; empty if there is none."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return ()
    return tuple(Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ())


def installed_torch() -> str | None:
    """Version in the `version.py` of the torch that this Python would import; None is unknown."""
    try:
        text = (package_folders("torch")[0] / "version.py").read_text(encoding="utf-8", errors="replace")
    except (IndexError, OSError):
        return None
    found = _VERSION.search(text)
    return None if found is None else found[1]


_OFFICIAL_LOCAL = lazy_pattern(r"cu\d+|cpu|", re.IGNORECASE)


class TorchVersion(msgspec.Struct, frozen=True):
    release: tuple[int, int, int]  # major, minor and patch number
    is_official: bool  # it is the release itself, built for CUDA or for CPUs

    @property
    def name(self) -> str:
        """The release as text: `2.11.0`."""
        return ".".join(map(str, self.release))


@cache
def parse_version(label: str) -> TorchVersion | None:
    """The release of a build: `2.11.0`, `2.11.0+cu130`, `2.12.0.dev20260101`, `2.6.0a0+git2236df1`."""
    try:
        version = Version(label)
    except InvalidVersion:
        return None
    if not 2 <= len(version.release) <= 3:
        return None
    major, minor, patch = (*version.release, 0)[:3]
    is_release = not (version.is_prerelease or version.is_postrelease)
    is_official = is_release and _OFFICIAL_LOCAL.fullmatch(version.local or "") is not None
    return TorchVersion((major, minor, patch), is_official)


def release_of(label: str) -> tuple[int, int, int]:
    parsed = parse_version(label)
    return (0, 0, 0) if parsed is None else parsed.release


def nearest_release(label: str | None, known: Sequence[str]) -> str | None:
    """The nearest of some releases by minor version, the later of two; the last for an unknown label.

    The one rule for all that is asked of a release.

    A function that a release lacks was more often added later than removed before.
    """
    wanted = parse_version(label or "")
    if wanted is None:
        return known[-1] if known else None

    def distance(name: str) -> tuple[int, int]:
        pairs = zip(release_of(name), wanted.release, strict=True)
        major, minor, patch = (one - other for one, other in pairs)
        return abs(1000 * major + minor), abs(patch)

    return min(reversed(known), key=distance, default=None)
