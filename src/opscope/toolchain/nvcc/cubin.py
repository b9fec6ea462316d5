"""Constant memory of each kernel in a cubin, by bank: ptxas prints none for the newest targets.

A cubin is an ELF file of 64 bits whose section `.nv.constantB.KERNEL` holds the kernel's part of bank B: its
parameters and constants the compiler made.

Source: CUDA Binary Utilities 13.0, "cuobjdump"; System V ABI, "ELF Header" and "Sections".
"""

from __future__ import annotations

import re
import struct

__all__ = ["constant_bytes"]

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER = struct.Struct("<40xQ10xHHH")  # offset of the sections, their size, count, index of the names
_SECTION = struct.Struct("<I20xQQ24x")  # name, offset, size
_CONSTANT = re.compile(rb"\.nv\.constant(\d+)\.(.+)")


def constant_bytes(cubin: bytes) -> dict[str, dict[int, int]]:
    """Bytes by bank, by the kernel's symbol; empty if the content is no cubin."""
    if not cubin.startswith(_MAGIC):
        return {}
    try:
        return _constants(cubin)
    except (struct.error, ValueError, IndexError):
        return {}


def _constants(cubin: bytes) -> dict[str, dict[int, int]]:
    start, entry_bytes, count, names_index = _HEADER.unpack_from(cubin, 0)
    sections = [_SECTION.unpack_from(cubin, start + number * entry_bytes) for number in range(count)]
    _, names_start, _ = sections[names_index]
    found: dict[str, dict[int, int]] = {}
    for name_offset, _, size in sections:
        first = names_start + name_offset
        match = _CONSTANT.fullmatch(cubin[first : cubin.index(b"\0", first)])
        if match is not None:
            found.setdefault(match[2].decode(), {})[int(match[1])] = size
    return found
