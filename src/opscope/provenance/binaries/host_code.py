"""x86-64 machine code of many functions at once: which addresses it loads and what it calls.

No disassembler: the three instructions of interest have fixed encodings, and bytes that only look like one
lead to a random address, while the users of this module look for few.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CALL and LEA; a ModR/M byte
with mod 00 and r/m 101 is relative to the next instruction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opscope.provenance.binaries.elf import ElfFile, Section, SectionKind

__all__ = ["HostCode", "read_code"]

# No instruction is longer than 15 bytes: none is found across two functions.
_GAP = bytes(16)
# 1.6 MB in the largest library seen.
_LARGEST_CODE_BYTES = 32 << 20
_HIGHEST_ADDRESS = 1 << 62


@dataclass(frozen=True, eq=False)
class HostCode:
    """Functions end to end.

    Args:
        content: uint8, the code.
        starts: int64[n_functions], ascending: where each begins in `content`.
        addresses: int64[n_functions]: where each is loaded.
    """

    content: NDArray[np.uint8]
    starts: NDArray[np.int64]
    addresses: NDArray[np.int64]

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

    Raises:
        InputError: All of them are larger than in any sound file.
    """
    sections = [section for section in elf.sections.values() if _is_loaded(section)]
    parts: list[bytes] = []
    starts: list[int] = []
    addresses: list[int] = []
    position = 0
    for address, size in functions:
        section = next((section for section in sections if section.holds(address)), None)
        is_whole = section is not None and size <= section.address + section.size_bytes - address
        code_bytes = size if is_whole else 0
        if position + code_bytes > _LARGEST_CODE_BYTES:
            elf.fail(f"more than {_LARGEST_CODE_BYTES} bytes of code to look through", 0)
        starts.append(position)
        addresses.append(address if is_whole else 0)
        if section is not None and is_whole:
            parts.append(elf.read(section.offset + address - section.address, size, "a function"))
        parts.append(_GAP)
        position += code_bytes + len(_GAP)
    content = np.frombuffer(b"".join(parts) + _GAP, np.uint8)
    return HostCode(content, np.array(starts, np.int64), np.array(addresses, np.int64))


def _is_loaded(section: Section) -> bool:
    is_sound = 0 < section.address <= _HIGHEST_ADDRESS and section.size_bytes <= _HIGHEST_ADDRESS
    return is_sound and section.kind != SectionKind.NO_CONTENT
