"""An ELF64 little-endian file: its sections, symbols, strings and build id.

The file is read piece by piece and nothing is mapped: the pages of a 500 MB library stay out of this
process, and a file that shrinks while it is read is an error instead of a signal. Offsets and sizes are
checked against the file, so a damaged one is an `InputError` that names the byte. Libraries are this
machine's own: nothing is guarded against one that is made to do harm. A cubin inside is such a file too.

Source: System V ABI, chapters 4 and 5.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from opscope.errors import InputError

# A structured array: one row per symbol or section, columns as in the file.
Table = NDArray[Any]

_HEADER_BYTES = 64
_SECTIONS = np.dtype(
    [("name", "<u4"), ("kind", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"),
     ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("alignment", "<u8"), ("row_size", "<u8")]
)  # fmt: skip
_SYMBOLS = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)

_LONGEST_NAME = 1 << 15
_BUILD_ID_BYTES = range(4, 65)
_NOTE_BUILD_ID = 3


# `sh_type` of what has no content and of symbol tables; low bits of `st_info` of functions and files;
# `st_info` of a local object, the least but for a symbol of no kind.
NO_CONTENT, SYMBOLS = 8, 2
FUNCTION, FILE, LOCAL_OBJECT = 2, 4, 1


@dataclass(frozen=True)
class ElfSection:
    """One section header. `size_bytes` lie at `offset` in the file and are loaded at `address`."""

    name: str
    kind: int
    address: int
    offset: int
    size_bytes: int
    link: int


@contextmanager
def open_elf(path: str | os.PathLike[str]) -> Iterator[ElfFile]:
    source = os.fspath(path)
    try:
        if not stat.S_ISREG(Path(source).stat().st_mode):
            raise InputError("not a regular file", source=source)
        stream = Path(source).open("rb", buffering=0)  # noqa: SIM115 - closed below, errors of opening apart
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", source=source) from None
    with stream:
        yield ElfFile(stream, source)


class ElfFile:
    """An open ELF64 little-endian file.

    `image_offset` is where in `source` a compressed image begins whose content `stream` is; errors then name
    this byte, as no other exists in the file. The stream stays the caller's.
    """

    def __init__(
        self, stream: BinaryIO | io.RawIOBase, source: str, *, image_offset: int | None = None
    ) -> None:
        self._stream = stream
        self.source = source
        self._image_offset = image_offset
        self._size = stream.seek(0, os.SEEK_END)
        header = self.read(0, min(self._size, _HEADER_BYTES), "the header")
        if header[:4] != b"\x7fELF":
            self.fail("not an ELF file", 0)
        if header[4:6] != b"\x02\x01":
            self.fail("not a 64-bit little-endian ELF file", 4)
        if len(header) < _HEADER_BYTES:
            self.fail("the file ends in its header", len(header))
        self._section_table_offset: int = struct.unpack_from("<Q", header, 40)[0]
        self._section_row_bytes, self._section_count, self._names_index = struct.unpack_from(
            "<3H", header, 58
        )

    def fail(self, message: str, offset: int) -> NoReturn:
        place = offset if self._image_offset is None else self._image_offset
        raise InputError(message, source=self.source, byte_offset=place)

    def read(self, offset: int, size: int, what: str = "a section") -> bytes:
        """`size` bytes at `offset`."""
        if offset + size > self._size:
            self.fail(f"{what} ends at byte {offset + size}, the file at {self._size}", offset)
        try:
            self._stream.seek(offset)
            content = self._stream.read(size) or b""
            while len(content) < size and (more := self._stream.read(size - len(content))):
                content += more
        except OSError as error:
            self.fail(f"{what} cannot be read ({error})", offset)
        if len(content) < size:
            self.fail("the file became shorter while it was read", offset + len(content))
        return content

    @cached_property
    def section_table(self) -> Table:
        offset, count = self._section_table_offset, self._section_count
        if offset == 0:
            return np.empty(0, _SECTIONS)
        if self._section_row_bytes != _SECTIONS.itemsize:
            self.fail(f"section headers of {self._section_row_bytes} bytes", 58)
        if count == 0:
            # More sections than 16 bits can count, as in cubins of many kernels: the first header knows.
            first = np.frombuffer(self.read(offset, _SECTIONS.itemsize, "the section table"), _SECTIONS)[0]
            count = int(first["size"])
        return np.frombuffer(self.read(offset, count * _SECTIONS.itemsize, "the section table"), _SECTIONS)

    @cached_property
    def sections(self) -> dict[str, ElfSection]:
        """Sections by name; of several with one name, the first."""
        rows = self.section_table
        # Too large an index for the header: it is in the first row.
        index = int(rows["link"][0]) if self._names_index == 0xFFFF and len(rows) else self._names_index
        if index >= len(rows):
            return {}
        names = self.content(self.section(index))
        sections: dict[str, ElfSection] = {}
        for position in range(len(rows)):
            name = self.string_in(names, int(rows["name"][position])).decode("utf-8", "replace")
            sections.setdefault(name, self.section(position, name))
        return sections

    def section(self, index: int, name: str = "") -> ElfSection:
        if index >= len(self.section_table):
            self.fail(f"refers to section {index} of {len(self.section_table)}", self._section_table_offset)
        row = self.section_table[index]
        return ElfSection(name, *(int(row[one]) for one in ("kind", "address", "offset", "size", "link")))

    def content(self, section: ElfSection) -> bytes:
        if section.kind == NO_CONTENT:
            return b""
        what = f"section {section.name}" if section.name else "a table"
        return self.read(section.offset, section.size_bytes, what)

    @cached_property
    def rodata(self) -> bytes:
        """Constants of the host code, strings among them; empty without such a section."""
        section = self.sections.get(".rodata")
        return b"" if section is None else self.content(section)

    def symbols(self, section: ElfSection) -> Table:
        """Rows of a symbol table: name, info, other, section, value, size."""
        content = self.content(section)
        return np.frombuffer(content, _SYMBOLS, count=len(content) // _SYMBOLS.itemsize)

    def string_in(self, table: bytes, offset: int) -> bytes:
        end = table.find(b"\0", offset, offset + _LONGEST_NAME)
        if not 0 <= offset < len(table) or end < 0:
            self.fail(
                f"refers to string {offset} of a table of {len(table)} bytes", self._section_table_offset
            )
        return table[offset:end]

    def string_at(self, table: ElfSection, offset: int) -> bytes:
        """The string at an offset of a string table that is not in memory, its first 4,096 bytes at most."""
        size = min(4096, table.size_bytes - offset)
        if size <= 0:
            self.fail(f"refers to string {offset} of a table of {table.size_bytes} bytes", table.offset)
        return self.read(table.offset + offset, size, "a string").partition(b"\0")[0]

    def embedded(self, image: bytes, offset: int) -> ElfFile:
        return ElfFile(io.BytesIO(image), self.source, image_offset=offset)

    @cached_property
    def build_id(self) -> str | None:
        """The linker's identification of this build, in hexadecimal; None if there is none."""
        section = self.sections.get(".note.gnu.build-id")
        if section is None or section.size_bytes > 4096:
            return None
        note = self.content(section)
        if len(note) < 16:
            return None
        name_bytes, size, kind = struct.unpack_from("<3I", note)
        build_id = note[16 : 16 + size]
        if (name_bytes, kind, note[12:16]) != (4, _NOTE_BUILD_ID, b"GNU\0") or len(build_id) != size:
            return None
        return build_id.hex() if size in _BUILD_ID_BYTES else None
