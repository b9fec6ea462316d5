"""Kernel tables of PyTorch builds: the kernels that libraries register, with the paths of their units."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opscope.errors import InputError
from opscope.model.origin import RecordedUnit
from opscope.provenance.binaries.elf import open_elf
from opscope.provenance.binaries.library import by_shown_name, units_by_kernel
from opscope.provenance.binaries.translation_unit import paths_by_name
from opscope.provenance.releases.release_table import (
    LARGEST_VALUE,
    SEVERAL_UNITS,
    Library,
    Origin,
    Unit,
    UnitTableFile,
    hash_map,
    loose_hash,
    loose_keys,
    numbered_sets,
    text_hash,
)


def build_table(
    kernels: Mapping[str, Iterable[Unit]],
    version: str,
    *,
    git_version: str | None = None,
    cuda: str | None = None,
    libraries: tuple[Library, ...] = (),
) -> UnitTableFile:
    """The table of kernels and the units that register them; the order of either does not matter."""
    known = {name: frozenset(units) for name, units in sorted(kernels.items())}
    known = {name: units for name, units in known.items() if units}
    units, sets, numbers = numbered_sets(known, lambda unit: (unit.label, unit.origin.value))
    if len(units) >= SEVERAL_UNITS:
        raise InputError(f"{len(units):,} units in {version}; a table holds {SEVERAL_UNITS - 1:,}")
    if len(sets) > LARGEST_VALUE:
        raise InputError(f"{len(sets):,} sets of units in {version}; a table holds {LARGEST_VALUE:,}")
    members = {name: sets[number] for name, number in numbers.items()}
    exact = _hashed({name: text_hash(name) for name in members}, version)
    return UnitTableFile(
        version=version,
        units=units,
        unit_sets=sets,
        exact=hash_map({exact[name]: number for name, number in numbers.items()}).packed(),
        loose=hash_map(_loose_entries(members, version)).packed(),
        git_version=git_version,
        cuda=cuda,
        libraries=libraries,
    )


def _hashed(hashes: Mapping[str, int], version: str) -> Mapping[str, int]:
    seen: dict[int, str] = {}
    for text, number in hashes.items():
        other = seen.setdefault(number, text)
        if other != text:
            raise InputError(f"two names of {version} share the hash {number:#x}: {other!r} and {text!r}")
    return hashes


def _loose_entries(members: Mapping[str, Sequence[int]], version: str) -> dict[int, int]:
    units_of_key: dict[str, set[int]] = {}
    hashes: dict[str, int] = {}
    for name, unit_set in members.items():
        for kind, key in loose_keys(name).items():
            text = f"{kind} {key}"
            hashes[text] = loose_hash(kind, key)
            units_of_key.setdefault(text, set()).update(unit_set)
    return {
        number: next(iter(units_of_key[text])) if len(units_of_key[text]) == 1 else SEVERAL_UNITS
        for text, number in _hashed(hashes, version).items()
    }


# Where the units of a release lie. A library names some of its source files; a release's wheel also shows, by
# its headers and by the paths of headers in the library, which folders its repository had. A path of another
# release or of a submodule is taken only if it lies in such a folder, if it is the only one of its name
# there, and if no file of that folder is known to have moved.
_GENERATED = "build/"
_SUBMODULES = "third_party/"
_REPOSITORY_FILE = re.compile(
    rb"(/[\w./@+-]{0,128}?/)((?:aten/src|torch/csrc|c10|third_party)/[\w./@+-]{1,256}\.(?:cuh?|h|hpp|cpp))\0"
)
# Where the wheel puts the repository's headers.
_SHIPPED_HEADERS = (("ATen", "aten/src/ATen"), ("torch/csrc", "torch/csrc"), ("c10", "c10"))


@dataclass(frozen=True)
class PathEvidence:
    files: frozenset[str] = frozenset()  # every file of the release's repository, if they are known
    # Files of other releases and of submodules, by their paths in the repository
    other_files: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()  # folders the release's repository is known to have had


def locate_units(units: Iterable[RecordedUnit], evidence: PathEvidence) -> dict[RecordedUnit, Unit]:
    compiled = set(units)
    located = {unit: unit_at(unit.name, unit.source_path) for unit in compiled}
    claimed = {unit.path for unit in located.values() if unit.path}
    elsewhere = paths_by_name(evidence.other_files)
    moved = {  # folders of the other lists whose files are known to lie elsewhere in this build
        _folder(path)
        for unit in located.values()
        if unit.path is not None and unit.path not in elsewhere.get(unit.name, ())
        for path in elsewhere.get(unit.name, ())
    }
    own = paths_by_name(evidence.files - claimed)
    other = paths_by_name(path for path in evidence.other_files if _folder(path) in evidence.folders - moved)
    names = Counter(unit.name for unit in compiled)
    for unit in compiled:
        if located[unit].origin is not Origin.UNKNOWN:
            continue
        paths = (own if evidence.files else other).get(unit.name, set())
        if len(paths) == 1 and names[unit.name] == 1:
            located[unit] = unit_at(unit.name, next(iter(paths)))
    return located


def unit_at(name: str, path: str | None) -> Unit:
    """The unit of a file the build names; its path is relative to PyTorch's repository, or absolute."""
    if path is None:
        return Unit(name)
    if path.startswith("/"):
        return Unit(name, None, Origin.OTHER_PROJECT)
    if path.startswith(_GENERATED):
        return Unit(name, None, Origin.GENERATED)
    return Unit(name, path, Origin.SUBMODULE if path.startswith(_SUBMODULES) else Origin.REPOSITORY)


def build_folders(torch_folder: Path, libraries: Iterable[Path]) -> frozenset[str]:
    """Folders of the repository that a release's wheel proves."""
    files: list[str] = []
    for library in libraries:
        # Paths that checks and asserts name. They may begin in the middle of other text; the build's own
        # folder is the one that nearly all begin with.
        found = _REPOSITORY_FILE.findall(library.read_bytes())
        roots = [root for root, _ in found]
        usual = max(set(roots), key=roots.count, default=None)
        files += [path.decode() for root, path in found if root == usual]
    include = torch_folder / "include"
    for shipped, original in _SHIPPED_HEADERS:
        files += [
            f"{original}/{header.relative_to(include / shipped).as_posix()}"
            for header in (include / shipped).rglob("*.*")
        ]
    return frozenset(map(_folder, files))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def kernels_of_library(path: Path) -> tuple[Library, dict[str, frozenset[RecordedUnit]]]:
    """What a library is, and the units of each of its kernels by the name a trace shows."""
    with open_elf(path) as elf:
        kernels = by_shown_name(units_by_kernel(elf))
        return Library(path.name, elf.build_id, len(kernels)), kernels
