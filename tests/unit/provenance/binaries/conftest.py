"""Small libraries, cubins and containers of device code, written byte by byte."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import lz4.block
import pytest
import zstandard

SYMTAB, STRTAB, NOTE, NOBITS = 2, 3, 7, 8
FUNCTION, FILE, KERNEL_FLAG = 2, 4, 0x10
PTX, CUBIN = 1, 2
LZ4, ZSTANDARD = 0x2000, 0x8000


SECTION_ROW = struct.Struct("<IIQQQQIIQQ")


@dataclass
class Part:
    """A section to write."""

    name: str
    content: bytes
    kind: int = 1
    address: int = 0
    link: int = 0
    size: int | None = None


def elf_bytes(parts, machine=62, *, many_sections=False):
    """An ELF64 file of these sections; section numbers begin at 1."""
    names = b"\0" + b"".join(part.name.encode() + b"\0" for part in parts) + b".shstrtab\0"
    sections = [*parts, Part(".shstrtab", names, STRTAB)]
    content, rows, name_offset = bytearray(64), [bytes(64)], 1
    for part in sections:
        content += bytes(-len(content) % 8)
        size = len(part.content) if part.size is None else part.size
        place = part.address, len(content), size
        rows.append(SECTION_ROW.pack(name_offset, part.kind, 0, *place, part.link, 0, 1, 0))
        name_offset += len(part.name) + 1
        content += part.content
    content += bytes(-len(content) % 8)
    count, names_index = len(rows), len(rows) - 1
    if many_sections:
        rows[0] = SECTION_ROW.pack(0, 0, 0, 0, 0, count, names_index, 0, 0, 0)
        count, names_index = 0, 0xFFFF
    kind_and_machine, table, flags = (3, machine, 1, 0, 0), len(content), 0
    sizes = (64, 0, 0, 64, count, names_index)
    magic = b"\x7fELF\x02\x01\x01"
    content[:64] = struct.pack("<16sHHIQQQIHHHHHH", magic, *kind_and_machine, table, flags, *sizes)
    return bytes(content) + b"".join(rows)


@dataclass
class Names:
    """A string table under construction."""

    content: bytearray = field(default_factory=lambda: bytearray(1))
    offsets: dict[bytes, int] = field(default_factory=dict)

    def add(self, name):
        text = name if isinstance(name, bytes) else name.encode()
        if text not in self.offsets:
            self.offsets[text] = len(self.content)
            self.content += text + b"\0"
        return self.offsets[text]


def symbol(name, info=0, other=0, section=0, place=(0, 0)):
    """A row of a symbol table; `place` is value and size."""
    return struct.pack("<IBBHQQ", name, info, other, section, *place)


def cubin_bytes(kernels, others=(), *, many_sections=False):
    """A cubin with kernels and, as objects and device functions, other names."""
    names = Names()
    symbols = symbol(0)
    for name in others:
        symbols += symbol(names.add(name), FUNCTION, 0, 1, (0, 8))
    for name in kernels:
        symbols += symbol(names.add(name), 0x10 | FUNCTION, KERNEL_FLAG, 1, (0, 64))
    parts = [
        Part(".text", bytes(64)),
        Part(".strtab", bytes(names.content), STRTAB),
        Part(".symtab", symbols, SYMTAB, link=2),
    ]
    return elf_bytes(parts, machine=190, many_sections=many_sections)


def ptx_bytes(kernels, others=()):
    lines = [".version 8.8", ".target sm_90", *(f".global .u32 {name};" for name in others)]
    lines += [f".visible .entry {name}(\n\t.param .u64 p\n)\n{{\n\tret;\n}}" for name in kernels]
    return "\n".join(lines).encode() + b"\0"


@dataclass
class Code:
    """An entry of a container."""

    content: bytes
    architecture: int = 90
    kind: int = CUBIN
    flags: int = ZSTANDARD
    claimed_bytes: int | None = None

    def entry(self):
        stored = self.content
        if self.flags & ZSTANDARD:
            stored = zstandard.ZstdCompressor().compress(self.content)
        elif self.flags & LZ4:
            stored = lz4.block.compress(self.content, store_size=False)
        padded = stored + bytes(-len(stored) % 8)
        is_compressed = bool(self.flags & (ZSTANDARD | LZ4))
        claimed = len(self.content) if self.claimed_bytes is None else self.claimed_bytes
        sizes = len(padded), len(stored) if is_compressed else 0
        version, flags = (0, 0, 1, self.architecture, 0, 0), 0x11 | self.flags
        rest = flags, 0, claimed if is_compressed else 0
        return struct.pack("<HHIQIIHHIIIQQQ", self.kind, 0x101, 64, *sizes, *version, *rest) + padded


def container_bytes(*codes):
    entries = b"".join(code.entry() for code in codes)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


@dataclass
class Unit:
    """A translation unit: `stem` as nvcc names it, kernels and device variables."""

    stem: str
    kernels: Sequence[str]
    variables: Sequence[str] = ()

    @property
    def file_symbol(self):
        return f"tmpxft_00001b9c_00000000-6_{self.stem}.compute_90.cudafe1.cpp"


FATBIN = 0xB00000


def library_bytes(
    units,
    *,
    strings=(),
    device_code=b"",
    relocatable=b"",
    build_id=b"\x01\x23\x45\x67\x89\xab\xcd\xef",
    stripped=False,
):
    """A host library with the units' kernels.

    Args:
        units: Each has a container in `.nv_fatbin`.
        strings: Strings among the constants.
        device_code: What comes before these containers.
        relocatable: Content of `__nv_relfatbin`, if any.
        build_id: None for a library without one.
        stripped: Without symbols.
    """
    constants, local = Names(), Names()
    for text in strings:
        constants.add(text)
    code, symbols = bytearray(device_code), symbol(0)
    for unit in units:
        symbols += symbol(local.add(unit.file_symbol), FILE, 0, 0xFFF1)
        symbols += symbol(local.add("fatbinData"), 0, 0, 4, (FATBIN + len(code), 0))
        code += container_bytes(Code(cubin_bytes(unit.kernels, unit.variables)))
    parts = [
        Part(".text", bytes(64), address=0x1000),
        Part(".rodata", bytes(constants.content), address=0x400000),
        Part(".bss", b"", NOBITS, 0xA00000, size=1 << 40),
    ]
    if code:
        parts.append(Part(".nv_fatbin", bytes(code), address=FATBIN))
    if relocatable:
        parts.append(Part("__nv_relfatbin", relocatable, address=0xC00000))
    if build_id is not None:
        note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
        parts.append(Part(".note.gnu.build-id", note, NOTE, 0xD00000))
    if not stripped:
        parts.append(Part(".strtab", bytes(local.content), STRTAB))
        parts.append(Part(".symtab", symbols, SYMTAB, link=len(parts)))
    return elf_bytes(parts)


def module_id(path):
    """What nvcc writes into internal names of a file compiled from this path."""
    return f"{zlib.crc32(path.encode()):08x}"


def internal(path, name="4hidden"):
    """Mangled name of something internal to the unit of this path."""
    file = Path(path).name.replace(".", "_").replace("-", "_")
    scope = f"_GLOBAL__N__{module_id(path)}_{len(file)}_{file}_9f978f63"
    return f"_ZN{len(scope)}{scope}{name}E"


@pytest.fixture(scope="session")
def write():
    """Writers of binary formats."""
    return SimpleNamespace(
        Part=Part, Names=Names, Code=Code, Unit=Unit, PTX=PTX, CUBIN=CUBIN, LZ4=LZ4, ZSTANDARD=ZSTANDARD,
        SYMTAB=SYMTAB, STRTAB=STRTAB, NOBITS=NOBITS, elf=elf_bytes, cubin=cubin_bytes,
        container=container_bytes, library=library_bytes, symbol=symbol, module_id=module_id,
        internal=internal,
    )  # fmt: skip


@pytest.fixture
def save(tmp_path):
    """Writes bytes to a file and returns its path."""

    def save_file(content, name="libsmall.so"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return save_file
