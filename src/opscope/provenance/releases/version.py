"""Version labels of PyTorch builds: `2.11.0`, `2.11.0+cu130`, `2.12.0.dev20260101`, `2.6.0a0+git2236df1`.

A label is official if its build is the published release for some CUDA version. Source: PEP 440 for the
grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TorchVersion", "label_order", "parse_version"]

_LABEL = re.compile(
    r"\s*v?(?P<major>\d+)\.(?P<minor>\d+)(?:\.(?P<patch>\d+))?"
    r"(?P<suffix>[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview|post|rev|r|dev)[-_.]?\d*(?:\.dev\d+)?)?"
    r"(?:\+(?P<local>[a-z0-9._-]+))?\s*",
    re.IGNORECASE,
)
_OFFICIAL_LOCAL = re.compile(r"cu\d+", re.IGNORECASE)


@dataclass(frozen=True)
class TorchVersion:
    """A version label.

    Args:
        release: Major, minor and patch number.
        suffix: What marks a build before or after the release (`a0`, `rc1`, `.dev20260101`, `.post1`), or
            empty.
        local: What follows the plus sign (`cu130`, `git2236df1`, `rocm6.2`), or empty.
    """

    release: tuple[int, int, int]
    suffix: str
    local: str

    @property
    def name(self) -> str:
        """The release as text: `2.11.0`."""
        return ".".join(map(str, self.release))

    @property
    def is_official(self) -> bool:
        """It is the release itself, built for CUDA."""
        return not self.suffix and (not self.local or _OFFICIAL_LOCAL.fullmatch(self.local) is not None)

    def distance(self, other: TorchVersion) -> tuple[int, int] | None:
        """Minor and patch releases between the two; None between major versions, which are not comparable."""
        if self.release[0] != other.release[0]:
            return None
        return abs(self.release[1] - other.release[1]), abs(self.release[2] - other.release[2])


def parse_version(label: str) -> TorchVersion | None:
    """The version in a label; None if it is none."""
    match = _LABEL.fullmatch(label)
    if match is None:
        return None
    release = (int(match["major"]), int(match["minor"]), int(match["patch"] or 0))
    return TorchVersion(release, match["suffix"] or "", match["local"] or "")


def label_order(label: str) -> tuple[bool, tuple[int, ...], str]:
    """Sorts labels by release, oldest first; those that are no versions come last."""
    parsed = parse_version(label)
    return (parsed is None, () if parsed is None else parsed.release, label)
