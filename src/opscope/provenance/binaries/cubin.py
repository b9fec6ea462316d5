"""Names in one piece of device code: its kernels, and the units its internal names belong to.

Source: a cubin is an ELF file whose kernels are functions with flag 0x10 in `st_other`, as observed in the
cubins of CUDA 11.8 to 13.0 (`cuobjdump -elf` shows it as STO_CUDA_ENTRY); PTX ISA, `.entry`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from opscope.provenance.binaries.elf import ElfFile, SectionKind, SymbolKind
from opscope.provenance.binaries.translation_unit import InternalName, internal_names

__all__ = ["DeviceNames", "cubin_names", "ptx_names"]

_KERNEL_FLAG = 0x10
_PTX_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)", re.ASCII)


@dataclass(frozen=True)
class DeviceNames:
    """Mangled names of kernels, and the units named."""

    kernels: frozenset[str]
    units: frozenset[InternalName]


def cubin_names(elf: ElfFile) -> DeviceNames:
    """The names in a cubin.

    Raises:
        InputError: Its tables point outside of it.
    """
    kernels: set[str] = set()
    units: set[InternalName] = set()
    for index in np.flatnonzero(elf.section_table["kind"] == SectionKind.SYMBOLS).tolist():
        table = elf.section(index)
        symbols = elf.symbols(table)
        names = elf.content(elf.section(table.link))
        is_function = (symbols["info"] & 15) == SymbolKind.FUNCTION
        is_kernel = is_function & ((symbols["other"] & _KERNEL_FLAG) != 0)
        kernels.update(
            elf.string_in(names, name).decode("utf-8", "replace")
            for name in symbols["name"][is_kernel].tolist()
        )
        units |= internal_names(names)
    return DeviceNames(frozenset(kernels), frozenset(units))


def ptx_names(text: bytes) -> DeviceNames:
    """The names in PTX."""
    kernels = frozenset(name.decode() for name in _PTX_ENTRY.findall(text))
    return DeviceNames(kernels, frozenset(internal_names(text)))
