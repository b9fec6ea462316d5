"""What nvcc compiles at once, how a binary names it, and where its source lies.

The symbol table names the host side (`tmpxft_00005e13_00000000-6_SoftMax.compute_120.cudafe1.cpp`); names
of internal things, in device code too, contain the module (`_GLOBAL__N__f71e7945_10_SoftMax_cu_9f978f63`): a
checksum of the absolute path it was compiled from, so that it tells units of one name apart. Where only
device code names a unit and its path is unknown, `_` may stand for what is no letter or digit.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from dataclasses import replace as replaced
from itertools import product
from pathlib import Path

import lz4.block
import numpy as np
import zstandard
from msgspec.structs import replace

from opscope.model.origin import RecordedUnit
from opscope.model.queries import grouped
from opscope.provenance.binaries.elf import (
    FILE,
    FUNCTION,
    LOCAL_OBJECT,
    NO_CONTENT,
    SYMBOLS,
    ElfFile,
    ElfSection,
)
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
    paths = set(path_strings(elf.rodata))
    root = repository_root(paths)
    checksums = {folder: zlib.crc32(folder.encode()) for folder in _folders(paths, root, Path(elf.source))}
    attempts_left = _MOST_ATTEMPTS

    def found(unit: RecordedUnit, *, is_name_exact: bool) -> str | None:
        """The path in the folder in which a unit's name gives its module id; None if it lies in none."""
        nonlocal attempts_left
        for name in (unit.name,) if is_name_exact else _spellings(unit.name):
            attempts_left -= len(checksums)
            if unit.module_id is None or attempts_left < 0:
                return None
            wanted, written = int(unit.module_id, 16), name.encode()
            for folder, checksum in checksums.items():
                if zlib.crc32(written, checksum) == wanted:
                    return folder + name
        return None

    # Paths of names that only one unit has and only one path ends in.
    counts = Counter(kernels.unit.name for kernels in units if kernels.unit is not None)
    by_name = paths_by_name(path for path in paths if path.rfind("/") > 0)
    only = {name: of.pop() for name, of in by_name.items() if len(of) == counts[name] == 1}
    located: dict[RecordedUnit, RecordedUnit] = {}
    for kernels in units:
        unit = kernels.unit
        if unit is not None and unit not in located:
            path = found(unit, is_name_exact=kernels.is_name_exact) or only.get(unit.name)
            located[unit] = unit
            if path is not None:
                name = path.rpartition("/")[2]
                located[unit] = replace(unit, name=name, source_path=path.removeprefix(root))
    return [
        kernels if kernels.unit is None else replaced(kernels, unit=located[kernels.unit])
        for kernels in units
    ]


def path_strings(strings: bytes) -> Iterator[str]:
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


def repository_root(paths: Iterable[str]) -> str:
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
    by_name = grouped((path.rpartition("/")[2], path) for path in paths)
    return {name: set(same) for name, same in by_name.items()}


# Kernel -> translation unit, from the device code that a library holds.
#
# A container is what nvcc makes of one translation unit; its entries are cubins (ELF files) and PTX (text),
# mostly compressed, for several architectures. Relocatable device code is the exception: the linker joins
# units into one container, and the separate ones remain beside it. All architectures hold the same kernels,
# but for a few that older ones lack, so one is enough: per container the one with the most entries, of
# several the one most frequent in the library, then the newest.
#
# Where the library has its symbols, each unit has a local one where its container begins, behind the symbol
# of its file. Else internal names in a container tell its unit, as far as it has any.
#
# Source: the format of containers is undocumented. Field order and flags as observed in the libraries of CUDA
# 11.8 to 13.0, and as described by the public readers n-eiling/cuda-fatbin-decompression and
# jiegec/fatbinary. In cubins kernels are functions with flag 0x10 in `st_other`, as observed there
# (`cuobjdump -elf` shows it as STO_CUDA_ENTRY). PTX ISA, `.entry`.

_KERNEL_FLAG = 0x10
_PTX_ENTRY = lazy_pattern(rb"\.entry\s+([A-Za-z_$%][\w$]*)", re.ASCII)


# Mangled names of kernels, and the units named.
DeviceNames = tuple[set[str], set[InternalName]]


def cubin_names(elf: ElfFile) -> DeviceNames:
    kernels: set[str] = set()
    units: set[InternalName] = set()
    for index in np.flatnonzero(elf.section_table["kind"] == SYMBOLS).tolist():
        table = elf.section(index)
        symbols = elf.symbols(table)
        names = elf.content(elf.section(table.link))
        is_function = (symbols["info"] & 15) == FUNCTION
        is_kernel = is_function & ((symbols["other"] & _KERNEL_FLAG) != 0)
        kernels.update(
            elf.string_in(names, name).decode("utf-8", "replace")
            for name in symbols["name"][is_kernel].tolist()
        )
        units |= internal_names(names)
    return kernels, units


_MAGIC = 0xBA55ED50
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
# magic, version, header size, size of the entries
_CONTAINER = struct.Struct("<IHHQ")
# kind, version, header size, padded payload size, compressed size, options, minor, major, architecture, name,
# name size, flags, unused, uncompressed size
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_FLAG_LZ4 = 0x2000
_FLAG_ZSTANDARD = 0x8000

_FIRST_WINDOW_BYTES, _WINDOW_BYTES = 64, 1 << 20


_PTX, _CUBIN = 1, 2  # kinds of entries


@dataclass(frozen=True)
class DeviceCode:
    container: int  # byte at which its container begins; its identity within the file
    kind: int  # `_PTX` or `_CUBIN`
    architecture: int  # compute capability times ten, 90 for sm_90 and sm_90a
    flags: int  # as in the file
    offset: int  # byte at which the stored code begins
    stored_bytes: int
    code_bytes: int  # its size uncompressed


def containers(elf: ElfFile, section: ElfSection) -> Iterator[list[DeviceCode]]:
    """The entries of each container of a section, in file order."""
    position, end = section.offset, section.offset + section.size_bytes
    while (position := _next_container(elf, position, end)) < end:
        _, _, header_bytes, size = _CONTAINER.unpack(elf.read(position, _CONTAINER.size, "a container"))
        start = position + header_bytes
        if header_bytes < _CONTAINER.size or start + size > end:
            elf.fail("a container of device code reaches beyond its section", position)
        yield list(_entries(elf, position, start, start + size))
        position = start + size


def _next_container(elf: ElfFile, position: int, end: int) -> int:
    """Where the next container begins; `end` if none does. Between containers lies padding of any size."""
    window_bytes = _FIRST_WINDOW_BYTES
    while position + _CONTAINER.size <= end:
        window = elf.read(position, min(window_bytes, end - position), "device code")
        found = window.find(_MAGIC_BYTES)
        if found >= 0:
            return position + found if position + found + _CONTAINER.size <= end else end
        position += max(len(window) - len(_MAGIC_BYTES) + 1, 1)
        window_bytes = _WINDOW_BYTES
    return end


def _entries(elf: ElfFile, container: int, position: int, end: int) -> Iterator[DeviceCode]:
    while position + _ENTRY.size <= end:
        header = _ENTRY.unpack(elf.read(position, _ENTRY.size, "device code"))
        kind, _, header_bytes, padded_bytes, compressed_bytes = header[:5]
        architecture, flags, code_bytes = header[8], header[11], header[13]
        stored_bytes = compressed_bytes if flags & (_FLAG_LZ4 | _FLAG_ZSTANDARD) else padded_bytes
        is_within = position + header_bytes + padded_bytes <= end and stored_bytes <= padded_bytes
        if header_bytes < _ENTRY.size or not is_within:
            elf.fail("device code reaches beyond its container", position)
        yield DeviceCode(
            container, kind, architecture, flags, position + header_bytes, stored_bytes,
            code_bytes if flags & (_FLAG_LZ4 | _FLAG_ZSTANDARD) else stored_bytes,
        )  # fmt: skip
        position += header_bytes + padded_bytes


def most_telling(found: Iterable[Sequence[DeviceCode]]) -> Iterator[list[DeviceCode]]:
    """Of each container the entries of one architecture: cubins where there are any, else PTX."""
    of_kind = (
        [one for one in entries if one.kind == _CUBIN] or [one for one in entries if one.kind == _PTX]
        for entries in found
    )
    kept = list(filter(None, of_kind))
    frequency = Counter(code.architecture for entries in kept for code in entries)
    for entries in kept:
        here = Counter(code.architecture for code in entries)
        chosen = max(
            here, key=lambda architecture: (here[architecture], frequency[architecture], architecture)
        )
        yield [code for code in entries if code.architecture == chosen]


def code_of(elf: ElfFile, code: DeviceCode) -> bytes:
    """The code of an entry, uncompressed."""
    stored = elf.read(code.offset, code.stored_bytes, "device code")
    try:
        if code.flags & _FLAG_ZSTANDARD:
            stored = bytes(zstandard.ZstdDecompressor().decompress(stored, max_output_size=code.code_bytes))
        elif code.flags & _FLAG_LZ4:
            stored = bytes(lz4.block.decompress(stored, uncompressed_size=code.code_bytes))
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, OverflowError, MemoryError) as error:
        elf.fail(f"device code cannot be uncompressed ({error})", code.offset)
    return stored


# Code whose units are apart, and code as it is loaded.
_SECTIONS = _RELOCATABLE, _LINKED = "__nv_relfatbin", ".nv_fatbin"


def holds_device_code(elf: ElfFile) -> bool:
    """Whether the file has code of CUDA devices; one of symbols only has not."""
    return bool(_code_sections(elf))


def _code_sections(elf: ElfFile) -> list[ElfSection]:
    found = map(elf.sections.get, _SECTIONS)
    return [section for section in found if section is not None and section.kind != NO_CONTENT]


def embedded_kernels(elf: ElfFile) -> list[UnitKernels]:
    """The kernels of each unit; those whose unit is not named are together, without one."""
    units: list[UnitKernels] = []
    others: list[DeviceNames] = []
    separate: set[str] = set()
    for section in _code_sections(elf):
        files = _unit_files(elf, section)
        for codes in most_telling(containers(elf, section)):
            (names, named), file = _names(elf, codes), files.get(codes[0].container)
            if section.name == _RELOCATABLE:
                separate |= names
            if file is not None:
                units.append(UnitKernels(_unit_of(file, named), frozenset(names)))
            elif section.name == _LINKED and not names.isdisjoint(separate):
                others.append((names - separate, set()))  # it joins several units
            else:
                others.append((names, named))
    # Each kernel's unit: the only one its container names, else the one its own name has in it.
    kernels: dict[RecordedUnit | None, set[str]] = {}
    for names, named in others:
        for kernel in names:
            telling = named if len(named) == 1 else internal_names(kernel.encode())
            unit = named_unit(next(iter(telling))) if len(telling) == 1 else None
            kernels.setdefault(unit, set()).add(kernel)
    return units + [UnitKernels(unit, frozenset(of), is_name_exact=False) for unit, of in kernels.items()]


def _unit_files(elf: ElfFile, section: ElfSection) -> dict[int, str]:
    """The file symbol of the unit of each container, by the byte at which that begins; none if stripped."""
    table, names = elf.sections.get(".symtab"), elf.sections.get(".strtab")
    if table is None or names is None:
        return {}
    symbols = elf.symbols(table)
    files = np.flatnonzero((symbols["info"] & 15) == FILE)
    offsets = symbols["value"] - np.uint64(section.address)  # those below it are the largest
    rows = np.flatnonzero((symbols["info"] <= LOCAL_OBJECT) & (offsets < section.size_bytes))
    before = np.searchsorted(files, rows)
    found = {}
    for row, file in zip(rows[before > 0].tolist(), files[before[before > 0] - 1].tolist(), strict=True):
        name = elf.string_at(names, int(symbols["name"][file])).decode("utf-8", "replace")
        # Those of tools other than nvcc have the name of the source; nvcc's link stub is no unit.
        if host_stem(name) is not None or name.endswith(".cu"):
            found[int(offsets[row]) + section.offset] = name
    return found


def _unit_of(file: str, named: Set[InternalName]) -> RecordedUnit:
    stem = host_stem(file)
    if stem is None:
        return RecordedUnit(file)
    written = re.sub(r"\W", "_", stem, flags=re.ASCII)  # as internal names have it
    internal = next((one for one in named if one.stem == written), None)
    return RecordedUnit(f"{stem}.cu") if internal is None else named_unit(internal, stem)


def _names(elf: ElfFile, codes: Iterable[DeviceCode]) -> DeviceNames:
    kernels: set[str] = set()
    units: set[InternalName] = set()
    for code in codes:
        content = code_of(elf, code)
        if code.kind == _CUBIN:
            names, named = cubin_names(elf.embedded(content, code.offset))
        else:
            names = {name.decode() for name in _PTX_ENTRY.findall(content)}
            named = internal_names(content)
        kernels |= names
        units |= named
    return kernels, units
