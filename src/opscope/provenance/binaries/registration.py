"""Kernel -> translation unit from the code by which a library registers its kernels with the CUDA runtime.

Each unit nvcc compiles has a start-up function that calls `__cudaRegisterFunction` with the name of each of
its kernels, and `__cudaRegisterVar` with those of its device variables. The name a call is given is the
string whose address is loaded after the call before it; the unit is that of the file symbol that precedes
the function in `.symtab`. x86-64 host code with a symbol table only: for everything else there is
`embedded`. The code is not disassembled: the three instructions of interest have fixed encodings, and bytes
that only look like one lead to a random address, while few addresses are looked for.

Source: crt/host_runtime.h of the CUDA toolkit (what is called); System V ABI for x86-64, chapter 5 (the
procedure linkage table); Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CALL and LEA
(a ModR/M byte with mod 00 and r/m 101 is relative to the next instruction).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from opscope.model.origin import RecordedUnit
from opscope.provenance.binaries.elf import (
    FILE,
    FUNCTION,
    NO_CONTENT,
    X86_64,
    ElfFile,
    ElfSection,
    LoadedBytes,
    Table,
)
from opscope.provenance.binaries.translation_unit import (
    UnitKernels,
    host_stem,
    internal_names,
    named_unit,
)
from opscope.provenance.packaged import lazy_pattern

# No instruction is longer than 15 bytes: none is found across two functions.
_GAP = bytes(16)
_HIGHEST_ADDRESS = 1 << 62


@dataclass(frozen=True, eq=False)
class HostCode:
    """Functions end to end."""

    content: NDArray[np.uint8]  # uint8, the code
    starts: NDArray[np.int64]  # int64[n_functions], ascending: where each begins in `content`
    addresses: NDArray[np.int64]  # int64[n_functions]: where each is loaded

    def function_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index of the function each position lies in."""
        return np.searchsorted(self.starts, positions, side="right") - 1

    def loaded_addresses(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of `lea register, [rip + n]` and the addresses they load."""
        code = self.content
        found = ((code[:-7] & 0xFB) == 0x48) & (code[1:-6] == 0x8D) & ((code[2:-5] & 0xC7) == 0x05)
        return self._targets(np.flatnonzero(found), 3)

    def called_addresses(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of `call n` and the addresses they call."""
        return self._targets(np.flatnonzero(self.content[:-7] == 0xE8), 1)

    def called_slots(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of `call [rip + n]` and the addresses of the pointers they call."""
        code = self.content
        return self._targets(np.flatnonzero((code[:-7] == 0xFF) & (code[1:-6] == 0x15)), 2)

    def _targets(
        self, positions: NDArray[np.int64], operand: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where instructions that end with a 32-bit displacement at byte `operand` point."""
        displacement = np.zeros(len(positions), np.uint32)
        for byte in range(4):
            displacement |= self.content[positions + operand + byte].astype(np.uint32) << np.uint32(8 * byte)
        function = self.function_of(positions)
        following = positions - self.starts[function] + self.addresses[function] + operand + 4
        return positions, following + displacement.view(np.int32)


def read_code(elf: ElfFile, functions: Iterable[tuple[int, int]]) -> HostCode:
    """The code of functions given as (address, size in bytes), in this order.

    A function that lies in no section has no code.
    """
    sections = [
        section
        for section in elf.sections.values()
        if 0 < section.address <= _HIGHEST_ADDRESS
        and section.size_bytes <= _HIGHEST_ADDRESS
        and section.kind != NO_CONTENT
    ]
    parts: list[bytes] = []
    starts: list[int] = []
    addresses: list[int] = []
    position = 0
    for address, size in functions:
        section = next((section for section in sections if section.holds(address)), None)
        is_whole = section is not None and size <= section.address + section.size_bytes - address
        code_bytes = size if is_whole else 0
        starts.append(position)
        addresses.append(address if is_whole else 0)
        if section is not None and is_whole:
            parts.append(elf.read(section.offset + address - section.address, size, "a function"))
        parts.append(_GAP)
        position += code_bytes + len(_GAP)
    content = np.frombuffer(b"".join(parts) + _GAP, np.uint8)
    return HostCode(content, np.array(starts, np.int64), np.array(addresses, np.int64))


# The first holds the calls; where the compiler inlined it, the second.
_REGISTRATION_FUNCTIONS = (b"__nv_cudaEntityRegisterCallback", b"__sti____cudaRegisterAll")
_RUNTIME_FUNCTIONS = b"__cudaRegister"
_REGISTERS_KERNEL = b"__cudaRegisterFunction"
_DEVICE_NAME = lazy_pattern(rb"[A-Za-z_$][\w$.]*", re.ASCII)
# jmp [rip + n] of a linkage stub, alone or after the landing pad of indirect branches.
_STUB = lazy_pattern(rb"(?:\xf3\x0f\x1e\xfa)?\xf2?\xff\x25(?P<displacement>.{4})", re.DOTALL)
_STUB_SECTIONS = (".plt", ".plt.sec", ".plt.got")
_SLOT_SECTIONS = (".rela.plt", ".rela.dyn")


class _Call(IntEnum):
    """What a call does. A closed set."""

    OTHER = 0
    KERNEL = 1
    VARIABLE = 2


@dataclass(frozen=True, eq=False)
class _Registrations:
    """Addresses of names in the order they are registered: by which function, and whether as kernels."""

    functions: NDArray[np.int64]
    name_addresses: NDArray[np.int64]
    are_kernels: NDArray[np.bool_]


def registered_kernels(elf: ElfFile) -> list[UnitKernels]:
    """Kernels of each unit; empty where the code does not tell (stripped, not x86-64, other compiler)."""
    table, names = elf.sections.get(".symtab"), elf.sections.get(".strtab")
    if elf.machine != X86_64 or table is None or names is None:
        return []
    symbols = elf.symbols(table)
    files = np.flatnonzero((symbols["info"] & 15) == FILE)
    *registering, runtime = (
        _named(symbols, places)
        for places in elf.names_containing(names, (*_REGISTRATION_FUNCTIONS, _RUNTIME_FUNCTIONS))
    )
    is_code = ((symbols["info"] & 15) == FUNCTION) & (symbols["section"] > 0) & (symbols["size"] > 0)
    functions = np.flatnonzero(np.logical_or.reduce(registering) & is_code)
    if len(functions) == 0 or len(files) == 0:
        return []
    rows = symbols[functions]
    code = read_code(elf, zip(rows["value"].tolist(), rows["size"].tolist(), strict=True))
    found = _registrations(code, _RuntimeCalls(elf, symbols[runtime & is_code], names), elf.rodata)
    # A function belongs to the last file symbol before it.
    file_ranks = np.searchsorted(files, functions, side="right") - 1
    units: dict[int, dict[bytes, bool]] = {int(rank): {} for rank in file_ranks}  # names, which are kernels
    ranks = file_ranks[found.functions].tolist()
    for rank, address, is_kernel in zip(
        ranks, found.name_addresses.tolist(), found.are_kernels.tolist(), strict=True
    ):
        name = elf.constant_string(address)
        if name is not None and _DEVICE_NAME.fullmatch(name):
            units[rank][name] = is_kernel
    registered = []
    for rank, own in units.items():
        if rank >= 0:
            file = elf.string_at(names, int(symbols["name"][files[rank]])).decode("utf-8", "replace")
            kernels = frozenset(
                name.decode("utf-8", "replace") for name, is_kernel in own.items() if is_kernel
            )
            registered.append(UnitKernels(_unit(file, own), kernels))
    return registered


def _named(symbols: Table, places: list[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which symbols have a name that `names_containing` found."""
    if not places:
        return np.zeros(len(symbols), bool)
    starts, words = np.array(places, np.int64).T
    offsets = symbols["name"].astype(np.int64)
    place = np.searchsorted(starts, offsets, side="right") - 1
    named: NDArray[np.bool_] = (place >= 0) & (offsets <= words[place])
    return named


class _RuntimeCalls:
    """Tells what an address that is called does: registers a kernel, registers something else, or neither."""

    def __init__(self, elf: ElfFile, own: Table, names: ElfSection) -> None:
        """Looks the runtime's functions up."""
        self._stubs = [
            elf.loaded(section) for name in _STUB_SECTIONS if (section := elf.sections.get(name)) is not None
        ]
        addresses: list[int] = own["value"].tolist()
        self._functions = dict(zip(addresses, _calls(elf, own, names), strict=True))
        self._slots: dict[int, _Call] = dict(_slots(elf))

    def of_address(self, address: int) -> _Call:
        """What `call address` does."""
        if address in self._functions:
            return self._functions[address]
        for stubs in self._stubs:
            start = address - stubs.address
            if 0 <= start < len(stubs.content) and (stub := _STUB.match(stubs.content, start)):
                displacement = int.from_bytes(stub["displacement"], "little", signed=True)
                return self.of_slot(stubs.address + stub.end() + displacement)
        return _Call.OTHER

    def of_slot(self, address: int) -> _Call:
        """What `call [address]` does."""
        return self._slots.get(address, _Call.OTHER)


def _calls(elf: ElfFile, functions: Table, names: ElfSection) -> list[_Call]:
    """What each function registers."""
    return [
        _Call.KERNEL if elf.string_at(names, name) == _REGISTERS_KERNEL else _Call.VARIABLE
        for name in functions["name"].tolist()
    ]


def _slots(elf: ElfFile) -> Iterator[tuple[int, _Call]]:
    """Address of each pointer the dynamic linker sets to a registering function, and what that registers."""
    table, names = elf.sections.get(".dynsym"), elf.sections.get(".dynstr")
    if table is None or names is None:
        return
    symbols = elf.symbols(table)
    rows = np.flatnonzero(_named(symbols, elf.names_containing(names, (_RUNTIME_FUNCTIONS,))[0]))
    calls = dict(zip(rows.tolist(), _calls(elf, symbols[rows], names), strict=True))
    for section in (elf.sections.get(name) for name in _SLOT_SECTIONS):
        if section is not None:
            relocations = elf.relocations(section)
            wanted = relocations[np.isin(relocations["symbol"], rows)]
            for address, symbol in zip(wanted["offset"].tolist(), wanted["symbol"].tolist(), strict=True):
                yield address, calls[symbol]


def _registrations(code: HostCode, runtime: _RuntimeCalls, strings: LoadedBytes) -> _Registrations:
    """Every string address loaded, with the call it is loaded for: the first one after it in its function."""
    positions, addresses = code.loaded_addresses()
    is_string = (addresses >= strings.address) & (addresses < strings.address + len(strings.content))
    positions, addresses = positions[is_string], addresses[is_string]
    functions = code.function_of(positions)
    # Calls that register something, ascending, and what.
    places: list[NDArray[np.int64]] = []
    registered: list[NDArray[np.int8]] = []
    for (at, targets), kind_of in (
        (code.called_addresses(), runtime.of_address),
        (code.called_slots(), runtime.of_slot),
    ):
        distinct, inverse = np.unique(targets, return_inverse=True)
        found = np.array([kind_of(target) for target in distinct.tolist()], np.int8)[inverse]
        places.append(at[found != _Call.OTHER])
        registered.append(found[found != _Call.OTHER])
    calls, kinds = np.concatenate(places), np.concatenate(registered)
    order = np.argsort(calls)
    calls, kinds = calls[order], kinds[order]
    following = np.searchsorted(calls, positions)
    is_followed = following < len(calls)
    is_followed[is_followed] = code.function_of(calls[following[is_followed]]) == functions[is_followed]
    # A call is given each name twice, as the device's and as the one to show.
    is_repeated = np.zeros(len(positions), bool)
    is_repeated[1:] = (addresses[1:] == addresses[:-1]) & (following[1:] == following[:-1])
    kept = is_followed & ~is_repeated
    return _Registrations(functions[kept], addresses[kept], kinds[following[kept]] == _Call.KERNEL)


def _unit(file_symbol: str, names: dict[bytes, bool]) -> RecordedUnit | None:
    stem = host_stem(file_symbol)
    if stem is None:
        # Code that a tool other than nvcc passed on keeps its own file's name.
        return RecordedUnit(file_symbol) if file_symbol.endswith(".cu") else None
    written = re.sub(r"\W", "_", stem, flags=re.ASCII)
    # Variables first: most headers have internal ones, few kernels are internal.
    for name in sorted(names, key=names.__getitem__):
        for internal in internal_names(name):
            if internal.file.rpartition("_")[0] == written:
                return named_unit(internal, stem)
    return RecordedUnit(f"{stem}.cu")
