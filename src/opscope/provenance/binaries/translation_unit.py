"""What nvcc compiles at once, how a binary names it, and where its source lies.

The symbol table names the host side (`tmpxft_00005e13_00000000-6_SoftMax.compute_120.cudafe1.cpp`); names
of internal things, in device code too, contain the module (`_GLOBAL__N__f71e7945_10_SoftMax_cu_9f978f63`): a
checksum of the absolute path it was compiled from, so that it tells units of one name apart. Where only
device code names a unit and its path is unknown, `_` may stand for what is no letter or digit.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from opscope.model.origin import RecordedUnit
from opscope.provenance.binaries.elf import ElfFile
from opscope.provenance.packaged import lazy_pattern


@dataclass(frozen=True)
class UnitKernels:
    unit: RecordedUnit | None  # None where the library holds the kernels but does not tell whose they are
    kernels: frozenset[str]  # mangled names
    # False where only device code names the unit, which writes `-` and others as `_`
    is_name_exact: bool = True


@dataclass(frozen=True)
class InternalName:
    """The part of an internal name that identifies its unit: module id and `SoftMax_cu`."""

    module_id: str
    file: str

    @property
    def stem(self) -> str:
        return self.file.rpartition("_")[0]


_HOST_FILE = lazy_pattern(
    r"(?:tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_)?(?P<stem>.+?)(?:\.compute_\w+)?\.cudafe1\.(?:stub\.c|cpp|gpu)"
)
_INTERNAL = lazy_pattern(
    rb"_(?:GLOBAL__N_|INTERNAL|nv_static_\d+_)_(?P<module>[0-9a-f]{8})_(?P<length>[1-9]\d{0,2})_"
)
_EXTENSIONS = ("cu", "cpp", "cc", "cxx", "c")


def host_stem(file_symbol: str) -> str | None:
    """`SoftMax` of the file symbol of a unit's host code; None if nvcc did not write it."""
    match = _HOST_FILE.fullmatch(file_symbol)
    return match["stem"] if match else None


def written_stem(file_symbol: str) -> str | None:
    """The same as internal names have it, which write `-` and others as `_`."""
    stem = host_stem(file_symbol)
    return None if stem is None else re.sub(r"\W", "_", stem, flags=re.ASCII)


def internal_names(names: bytes) -> set[InternalName]:
    """Every unit that internal names in a text belong to."""
    ends = {(match["module"], int(match["length"])): match.end() for match in _INTERNAL.finditer(names)}
    return {
        InternalName(module.decode(), names[end : end + length].decode("utf-8", "replace"))
        for (module, length), end in ends.items()
        if end + length <= len(names)
    }


def named_unit(internal: InternalName, stem: str | None = None) -> RecordedUnit:
    """The unit of an internal name, which writes `my-kernel.cu` as `my_kernel_cu`.

    `stem` is the file's name without extension as the host side has it; without it `_` is taken for itself.
    """
    written, _, extension = internal.file.rpartition("_")
    if extension not in _EXTENSIONS:
        written, extension = internal.file, "cu"
    return RecordedUnit(f"{stem or written}.{extension}", internal.module_id)


# Paths of units, told by the library itself. nvcc's module id of a unit is the CRC-32 of the absolute path it
# compiled. Folders are known from the `__FILE__` strings that checks and asserts leave behind, so the path of
# nearly every unit follows: the folder in which the unit's name gives its id. A unit without an id has the
# path of the only such string that ends in its name, if no other unit has that name. Source: the id is
# undocumented. It equals the CRC-32 of the path nvcc passes on as `--orig_src_path_name` for all 970 units of
# PyTorch 2.6.0 to 2.14.1 that leave their own path behind (CUDA 12.4 and 13.0), and in own compilations.

_SUFFIXES = (b".cu\0", b".cuh\0", b".cpp\0", b".cc\0", b".h\0", b".hpp\0", b".inl\0")
# Paths in PyTorch's repository are relative to the folder that holds this one.
_REPOSITORY_FOLDER = "/aten/src/ATen/"
# Folders of it whose files leave no string behind.
_SILENT_FOLDERS = (
    "aten/src/ATen/native/transformers/cuda/flash_attn/kernels",
    "aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels",
)
_PATH_CHARACTERS = b"/.-+_~@0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LONGEST_PATH = 1024
# An id is 32 bits: this many attempts per library find a wrong path by chance in one library of 1,000.
_MOST_ATTEMPTS = 1 << 22
_MOST_DOUBTFUL_CHARACTERS = 5


def with_source_paths(elf: ElfFile, units: Sequence[UnitKernels]) -> list[UnitKernels]:
    """The same units, with the paths of those where the library tells them."""
    paths = set(_path_strings(elf.rodata))
    root = _repository_root(paths)
    finder = _PathFinder(_folders(paths, root, Path(elf.source)))
    # Paths of names that only one unit has and only one path ends in.
    counts = Counter(kernels.unit.name for kernels in units if kernels.unit is not None)
    by_name = paths_by_name(path for path in paths if path.rfind("/") > 0)
    only = {name: found.pop() for name, found in by_name.items() if len(found) == counts[name] == 1}
    located: dict[RecordedUnit, RecordedUnit] = {}
    for kernels in units:
        unit = kernels.unit
        if unit is not None and unit not in located:
            path = finder.find(unit, is_name_exact=kernels.is_name_exact) or only.get(unit.name)
            if path is not None:
                name, path = path.rpartition("/")[2], path.removeprefix(root)
                located[unit] = replace(unit, name=name, source_path=path)
            else:
                located[unit] = unit
    return [
        kernels if kernels.unit is None else replaced(kernels, unit=located[kernels.unit])
        for kernels in units
    ]


def repository_paths(elf: ElfFile) -> list[str]:
    """Paths of PyTorch's own source files that a library's strings name, relative to the repository."""
    paths = set(_path_strings(elf.rodata))
    root = _repository_root(paths)
    return sorted(path.removeprefix(root) for path in paths if root and path.startswith(root))


def _path_strings(strings: bytes) -> Iterator[str]:
    """Paths of source files among the strings of a library; none with unusual characters.

    Strings may follow other data without a NUL between: then only an absolute path has a certain beginning.
    """
    for suffix in _SUFFIXES:
        position = strings.find(suffix)
        while position >= 0:
            end = position + len(suffix) - 1
            earliest = max(0, end - _LONGEST_PATH)
            start = strings.rfind(b"\0", earliest, end) + 1
            text = b"" if start == 0 < earliest else strings[start:end]
            before = text.rstrip(_PATH_CHARACTERS)
            path = text[len(before) :]
            if path and (not before or path.startswith(b"/")):
                yield path.decode()
            position = strings.find(suffix, position + len(suffix))


def _repository_root(paths: Iterable[str]) -> str:
    """What precedes repository paths in this build (`/pytorch/`); empty if nothing tells."""
    roots = {root for path in paths for root, folder, _ in [path.partition(_REPOSITORY_FOLDER)] if folder}
    # Files that the build generates lie in a folder of the repository that mirrors it: the shortest is meant.
    return min((f"{root}/" for root in roots if root), key=len, default="")


def _folders(paths: Iterable[str], root: str, library: Path) -> list[str]:
    """Absolute folders that units may lie in, each with its final slash."""
    folders = {path.rpartition("/")[0] for path in paths if path.startswith("/")}
    for folder in [folder for folder in folders if root and folder.startswith(root)]:
        folders.update(str(parent) for parent in Path(folder).parents if str(parent).startswith(root))
    if root:
        folders.update(root + folder for folder in _SILENT_FOLDERS)
    # An extension built in place lies beside or below its sources.
    folders.update(str(parent) for parent in library.absolute().parents)
    return [f"{folder.rstrip('/')}/" for folder in sorted(folders)]


class _PathFinder:
    """Finds the folder in which a unit's name gives its module id."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._checksums = {folder: zlib.crc32(folder.encode()) for folder in folders}
        self._attempts_left = _MOST_ATTEMPTS

    def find(self, unit: RecordedUnit, *, is_name_exact: bool) -> str | None:
        """Path of a unit with a module id; None if it lies in none of the folders."""
        if unit.module_id is None:
            return None
        wanted = int(unit.module_id, 16)
        for name in (unit.name,) if is_name_exact else _spellings(unit.name):
            self._attempts_left -= len(self._checksums)
            if self._attempts_left < 0:
                return None
            written = name.encode()
            for folder, checksum in self._checksums.items():
                if zlib.crc32(written, checksum) == wanted:
                    return folder + name
        return None


def _spellings(name: str) -> Iterator[str]:
    """Names that device code writes as this one, where `-` is `_`; the likely ones first."""
    yield name
    parts = name.split("_")
    if len(parts) - 1 > _MOST_DOUBTFUL_CHARACTERS:
        yield "-".join(parts)
        return
    for separators in sorted(product("-_", repeat=len(parts) - 1)):
        if "-" in separators:
            yield "".join(part for pair in zip(parts, (*separators, ""), strict=True) for part in pair)


def paths_by_name(paths: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in paths:
        found.setdefault(path.rpartition("/")[2], set()).add(path)
    return found
