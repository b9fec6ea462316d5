"""A translation unit of a release: the source file whose compilation made a kernel."""

from __future__ import annotations

import msgspec

from opscope.text_enum import TextEnum

__all__ = ["Origin", "Unit"]


class Origin(TextEnum):
    """Where a unit's file lies. A closed set."""

    REPOSITORY = "repository"
    SUBMODULE = "submodule"
    GENERATED = "generated"
    OTHER_PROJECT = "other_project"
    UNKNOWN = "unknown"

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Origin.REPOSITORY: "a file of PyTorch's repository",
    Origin.SUBMODULE: "a file of a repository that PyTorch's holds as a submodule",
    Origin.GENERATED: "written during the build: in no repository",
    Origin.OTHER_PROJECT: "a file of another project that was linked in, such as MAGMA",
    Origin.UNKNOWN: "only the file name is known",
}


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """A unit of a release.

    Args:
        name: File name (`SoftMax.cu`).
        path: Path in the repository, None where it is not known or there is none.
        origin: Where the file lies.
    """

    name: str
    path: str | None = None
    origin: Origin = Origin.UNKNOWN

    @property
    def label(self) -> str:
        """The path where it is known, else the file name."""
        return self.path or self.name
