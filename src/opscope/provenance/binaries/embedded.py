"""Kernel -> translation unit, from the device code that a library holds.

A container is what nvcc makes of one translation unit; its entries are cubins (ELF files) and PTX (text),
mostly compressed, for several architectures. Relocatable device code is the exception: the linker joins units
into one container, and the separate ones remain beside it. All architectures hold the same kernels, but for a
few that older ones lack, so one is enough: per container the one with the most entries, of several the one
most frequent in the library, then the newest.

Where the library has its symbols, each unit has a local one where its container begins, behind the symbol of
its file. Else internal names in a container tell its unit, as far as it has any.

Source: the format of containers is undocumented. Field order and flags as observed in the libraries of CUDA
11.8 to 13.0, and as described by the public readers n-eiling/cuda-fatbin-decompression and
jiegec/fatbinary. In cubins kernels are functions with flag 0x10 in `st_other`, as observed there
(`cuobjdump -elf` shows it as STO_CUDA_ENTRY). PTX ISA, `.entry`.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

import lz4.block
import numpy as np
import zstandard

from opscope.model.origin import RecordedUnit
from opscope.provenance.binaries.elf import (
    FILE,
    FUNCTION,
    LOCAL_OBJECT,
    NO_CONTENT,
    SYMBOLS,
    ElfFile,
    ElfSection,
)
from opscope.provenance.binaries.translation_unit import (
    InternalName,
    UnitKernels,
    host_stem,
    internal_names,
    named_unit,
    written_stem,
)
from opscope.provenance.packaged import lazy_pattern

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
    kept: list[list[DeviceCode]] = []
    for entries in found:
        cubins = [one for one in entries if one.kind == _CUBIN]
        if codes := cubins or [one for one in entries if one.kind == _PTX]:
            kept.append(codes)
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
    return any(_section(elf, name) is not None for name in _SECTIONS)


def embedded_kernels(elf: ElfFile) -> list[UnitKernels]:
    """The kernels of each unit; those whose unit is not named are together, without one."""
    units: list[UnitKernels] = []
    others: list[DeviceNames] = []
    separate: set[str] = set()
    for section in filter(None, (_section(elf, name) for name in _SECTIONS)):
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
    kernels: dict[RecordedUnit | None, set[str]] = {}
    for unit, kernel in _owners(others):
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
    internal = next((one for one in named if one.stem == written_stem(file)), None)
    return RecordedUnit(f"{stem}.cu") if internal is None else named_unit(internal, stem)


def _section(elf: ElfFile, name: str) -> ElfSection | None:
    section = elf.sections.get(name)
    return None if section is None or section.kind == NO_CONTENT else section


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


def _owners(found: Iterable[DeviceNames]) -> Iterator[tuple[RecordedUnit | None, str]]:
    """Each kernel with its unit: the only one its container names, else the one its own name has in it."""
    for kernels, units in found:
        only = named_unit(next(iter(units))) if len(units) == 1 else None
        for kernel in kernels:
            own = internal_names(kernel.encode()) if only is None else ()
            yield named_unit(next(iter(own))) if len(own) == 1 else only, kernel
