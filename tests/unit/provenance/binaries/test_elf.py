import io
import os
import struct

import pytest

from opscope.errors import InputError
from opscope.provenance.binaries.elf import ElfFile, open_elf


def opened(content, source="small.so"):
    return ElfFile(io.BytesIO(content), source)


def test_sections_lie_where_their_headers_say_however_many_or_empty(write):
    file = opened(write.elf([write.Part(".text", b"code", address=0x1000), write.Part(".data", b"values")]))
    assert list(file.sections) == ["", ".text", ".data", ".shstrtab"]
    text = file.sections[".text"]
    assert (text.address, file.content(text)) == (0x1000, b"code")
    few = opened(write.elf([write.Part(".text", b"code")]))
    many = opened(write.elf([write.Part(".text", b"code")], many_sections=True))
    assert list(many.sections) == list(few.sections)
    assert many.sections[".text"] == few.sections[".text"]
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    assert opened(bytes(header)).sections == {}
    file = opened(write.elf([write.Part(".bss", b"", write.NOBITS, size=1 << 60)]))
    assert file.content(file.sections[".bss"]) == b""


@pytest.mark.parametrize("note", [b"", b"short", struct.pack("<III", 4, 20, 3) + b"GNU\0", bytes(5000)])
def test_a_damaged_note_is_no_build_id(write, note):
    assert opened(write.elf([write.Part(".note.gnu.build-id", note)])).build_id is None


@pytest.mark.parametrize(
    ("content", "message", "offset"),
    [
        (b"", "not an ELF file", 0),
        (b"MZ" * 100, "not an ELF file", 0),
        (b"\x7fELF\x01\x01" + bytes(100), "not a 64-bit", 4),
        (b"\x7fELF\x02\x02" + bytes(100), "not a 64-bit", 4),
        (b"\x7fELF\x02\x01" + bytes(20), "ends in its header", 26),
    ],
)
def test_what_is_no_elf_file_is_refused(content, message, offset):
    with pytest.raises(InputError, match=message) as caught:
        opened(content)
    assert (caught.value.source, caught.value.byte_offset) == ("small.so", offset)


@pytest.mark.parametrize(("offset", "size"), [(1 << 63, 8), (0, 1 << 63), (0, 1 << 30), (1 << 40, 1 << 20)])
def test_a_section_outside_the_file_is_refused(write, offset, size):
    content = bytearray(write.elf([write.Part(".symtab", bytes(48))]))
    row = struct.unpack_from("<Q", content, 40)[0] + 64
    struct.pack_into("<QQ", content, row + 24, offset, size)
    file = opened(bytes(content))
    with pytest.raises(InputError, match=r"section \.symtab") as caught:
        file.symbols(file.sections[".symtab"])
    assert caught.value.byte_offset == offset


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"), open_elf(tmp_path / "pipe"):
        pass
