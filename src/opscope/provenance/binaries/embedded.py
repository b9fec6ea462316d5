"""Kernel -> translation unit from the device code alone: for libraries without symbols or not for x86-64.

A container holds the kernels of one unit, and the internal names in it tell which. Relocatable device code
is the exception: the linker joins units into one container, and the separate ones remain beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opscope.provenance.binaries.cubin import DeviceNames, cubin_names, ptx_names
from opscope.provenance.binaries.elf import ElfFile, Section, SectionKind
from opscope.provenance.binaries.fatbin import (
    DeviceCode,
    DeviceCodeReader,
    EntryKind,
    containers,
    most_telling,
)
from opscope.provenance.binaries.translation_unit import (
    InternalName,
    TranslationUnit,
    UnitKernels,
    internal_names,
    named_unit,
)

__all__ = ["embedded_kernels", "holds_device_code"]

# Code whose units are apart, and code as it is loaded.
_SECTIONS = ("__nv_relfatbin", ".nv_fatbin")


def holds_device_code(elf: ElfFile) -> bool:
    """Whether the file has code of CUDA devices; one of symbols only has not."""
    return any(_section(elf, name) is not None for name in _SECTIONS)


def embedded_kernels(elf: ElfFile) -> list[UnitKernels]:
    """The kernels of each unit; those whose unit is not named are together, without one.

    Raises:
        InputError: The device code is damaged.
    """
    sections = [_section(elf, name) for name in _SECTIONS]
    reader = DeviceCodeReader(elf, [section for section in sections if section is not None])
    relocatable, linked = (
        [_names(elf, reader, codes) for codes in most_telling(containers(elf, section) if section else ())]
        for section in sections
    )
    separate = frozenset[str]().union(*(names.kernels for names in relocatable))
    kernels: dict[TranslationUnit | None, set[str]] = {}
    for unit, kernel in _owners([*relocatable, *(_without(names, separate) for names in linked)]):
        kernels.setdefault(unit, set()).add(kernel)
    return [UnitKernels(unit, frozenset(names), is_name_exact=False) for unit, names in kernels.items()]


def _section(elf: ElfFile, name: str) -> Section | None:
    section = elf.sections.get(name)
    return None if section is None or section.kind == SectionKind.NO_CONTENT else section


def _names(elf: ElfFile, reader: DeviceCodeReader, codes: Iterable[DeviceCode]) -> DeviceNames:
    """The names in one container."""
    kernels: set[str] = set()
    units: set[InternalName] = set()
    for code in codes:
        content = reader.read(code)
        if code.kind == EntryKind.CUBIN:
            names = cubin_names(elf.embedded(content, code.offset))
        else:
            names = ptx_names(content)
            elf.ration_names(sum(map(len, names.kernels)))
        kernels |= names.kernels
        units |= names.units
    return DeviceNames(frozenset(kernels), frozenset(units))


def _without(linked: DeviceNames, separate: frozenset[str]) -> DeviceNames:
    """A container less the kernels that separate ones hold; if there are any, it joins several units."""
    if linked.kernels.isdisjoint(separate):
        return linked
    return DeviceNames(linked.kernels - separate, frozenset())


def _owners(found: Iterable[DeviceNames]) -> Iterator[tuple[TranslationUnit | None, str]]:
    """Each kernel with its unit: the only one its container names, else the one its own name has in it."""
    for names in found:
        only = named_unit(next(iter(names.units))) if len(names.units) == 1 else None
        for kernel in names.kernels:
            yield only or _own_unit(kernel), kernel


def _own_unit(kernel: str) -> TranslationUnit | None:
    named = internal_names(kernel.encode())
    return named_unit(named.pop()) if len(named) == 1 else None
