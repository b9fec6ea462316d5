"""Where the units of a release lie, from what its own build says and, where it is silent, other file lists.

A library names some of its source files; a release's wheel also shows, by its headers and by the paths of
headers in the library, which folders its repository had. A path of another release or of a submodule is taken
only if it lies in such a folder, if it is the only one of its name there, and if no file of that folder is
known to have moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opscope.provenance.binaries.translation_unit import TranslationUnit
from opscope.provenance.releases.unit import Origin, Unit

__all__ = ["PathEvidence", "build_folders", "locate_units", "unit_at"]

_GENERATED = "build/"
_SUBMODULES = "third_party/"
_LONGEST_PATH = 512
_REPOSITORY_FILE = re.compile(
    rb"(/[\w./@+-]{0,128}?/)((?:aten/src|torch/csrc|c10|third_party)/[\w./@+-]{1,256}\.(?:cuh?|h|hpp|cpp))\0"
)
# Where the wheel puts the repository's headers.
_SHIPPED_HEADERS = (("ATen", "aten/src/ATen"), ("torch/csrc", "torch/csrc"), ("c10", "c10"))


@dataclass(frozen=True)
class PathEvidence:
    """What is known of the repository a release was built from.

    Args:
        files: Every file of the release's repository, if they are known.
        other_files: Files of other releases and of submodules, by their paths in the repository.
        folders: Folders the release's repository is known to have had.
    """

    files: frozenset[str] = frozenset()
    other_files: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()


def locate_units(units: Iterable[TranslationUnit], evidence: PathEvidence) -> dict[TranslationUnit, Unit]:
    """Each unit with its path, if the evidence supports one."""
    compiled = set(units)
    located = {unit: unit_at(unit.name, unit.source_path) for unit in compiled}
    claimed = {unit.path for unit in located.values() if unit.path}
    moved = _moved_folders(located.values(), evidence.other_files)
    own = _by_name(evidence.files - claimed)
    other = _by_name(path for path in evidence.other_files if _folder(path) in evidence.folders - moved)
    for unit in compiled:
        if located[unit].origin is not Origin.UNKNOWN:
            continue
        paths = own.get(unit.name, []) if evidence.files else other.get(unit.name, [])
        if len(paths) == 1 and _count(compiled, unit.name) == 1:
            located[unit] = unit_at(unit.name, paths[0])
    return located


def unit_at(name: str, path: str | None) -> Unit:
    """The unit of a file the build names.

    Args:
        name: File name.
        path: Relative to PyTorch's repository, or absolute if it is not in it.
    """
    if path is None:
        return Unit(name)
    if path.startswith("/"):
        return Unit(name, None, Origin.OTHER_PROJECT)
    if path.startswith(_GENERATED):
        return Unit(name, None, Origin.GENERATED)
    return Unit(name, path, Origin.SUBMODULE if path.startswith(_SUBMODULES) else Origin.REPOSITORY)


def build_folders(torch_folder: Path, libraries: Iterable[Path]) -> frozenset[str]:
    """Folders of the repository that a release's wheel proves.

    Args:
        torch_folder: The wheel's `torch` folder.
        libraries: Libraries of it.
    """
    files = [path for library in libraries for path in _embedded_files(library.read_bytes())]
    include = torch_folder / "include"
    for shipped, original in _SHIPPED_HEADERS:
        files += [
            f"{original}/{header.relative_to(include / shipped).as_posix()}"
            for header in (include / shipped).rglob("*.*")
        ]
    return frozenset(map(_folder, files))


def _embedded_files(content: bytes) -> Iterator[str]:
    """Paths in the repository that a library's checks and asserts name."""
    found = [(root, path.decode()) for root, path in _REPOSITORY_FILE.findall(content)]
    roots = [root for root, _ in found]
    # Paths may begin in the middle of other text; the build's own folder is the one that nearly all begin
    # with.
    usual = max(set(roots), key=roots.count, default=None)
    return (path for root, path in found if root == usual)


def _moved_folders(units: Iterable[Unit], other_files: Iterable[str]) -> frozenset[str]:
    """Folders of the other lists whose files are known to lie elsewhere in this build."""
    paths = _by_name(other_files)
    return frozenset(
        _folder(path)
        for unit in units
        if unit.path is not None and unit.path not in paths.get(unit.name, ())
        for path in paths.get(unit.name, ())
    )


def _by_name(paths: Iterable[str]) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for path in sorted(paths):
        named.setdefault(path.rpartition("/")[2], []).append(path)
    return named


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _count(units: Iterable[TranslationUnit], name: str) -> int:
    return sum(unit.name == name for unit in units)
