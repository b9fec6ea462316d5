"""Constant memory of kernels, from the sections of a cubin."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from opscope.toolchain.nvcc.compile import constant_bytes


def cubin(sections: dict[str, int]) -> bytes:
    """An ELF file of 64 bits that has these sections, without contents."""
    names = b"\0.shstrtab\0" + b"".join(name.encode() + b"\0" for name in sections)
    entries = [(1, 64, len(names))]
    entries += [(names.index(name.encode()), 0, size) for name, size in sections.items()]
    table = b"".join(struct.pack("<I20xQQ24x", *entry) for entry in entries)
    header = struct.pack("<6s34xQ10xHHH", b"\x7fELF\x02\x01", 64 + len(names), 64, len(entries), 0)
    return header + names + table


def test_banks_by_kernel():
    content = cubin(
        {
            ".text._Z3addPf": 512,
            ".nv.constant0._Z3addPf": 552,
            ".nv.constant2._Z3addPf": 8,
            ".nv.constant3": 1024,
        }
    )
    assert constant_bytes(content) == {"_Z3addPf": {0: 552, 2: 8}}


@given(st.integers(0, 400))
def test_a_file_that_is_cut_off_is_no_error(length):
    content = cubin({".nv.constant0._Z3addPf": 552})
    assert constant_bytes(content[:length]) in ({}, {"_Z3addPf": {0: 552}})


@given(st.binary(max_size=200))
def test_anything_else_has_none(content):
    assert constant_bytes(content) == {}
    assert constant_bytes(b"\x7fELF\x02\x01" + content) == {}
