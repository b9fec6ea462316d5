import io
import struct

import pytest

from opscope.errors import InputError
from opscope.provenance.binaries import embedded as fatbin
from opscope.provenance.binaries.elf import ElfFile
from opscope.provenance.binaries.embedded import DeviceCodeReader, containers, most_telling


@pytest.fixture
def opened(write):
    """Opens a library with this content of `.nv_fatbin`."""

    def open_library(content):
        file = ElfFile(io.BytesIO(write.elf([write.Part(".nv_fatbin", content)])), "libsmall.so")
        return file, file.sections[".nv_fatbin"]

    return open_library


def contents(file, section):
    """Every entry, uncompressed, by container."""
    reader = DeviceCodeReader(file, [section])
    return [[reader.read(code) for code in codes] for codes in containers(file, section)]


def test_entries_are_uncompressed_whatever_their_form(write, opened):
    texts = [bytes([number]) * 5000 for number in range(3)]
    codes = [
        write.Code(text, flags=flags)
        for text, flags in zip(texts, (0, write.LZ4, write.ZSTANDARD), strict=True)
    ]
    assert contents(*opened(write.container(*codes))) == [texts]


@pytest.mark.parametrize("padding", [0, 8, 61, 5 << 20])
def test_containers_follow_each_other_at_any_distance(write, opened, padding):
    gap = bytes(padding)
    parts = [write.container(write.Code(b"first")), write.container(write.Code(b"second"))]
    content = gap + parts[0] + gap + parts[1] + gap
    assert [[text[:6] for text in texts] for texts in contents(*opened(content))] == [[b"first"], [b"second"]]


def test_a_section_without_containers_has_none(opened):
    for content in (b"", b"\x50\xed\x55\xba", bytes(100), b"\x50\xed\x55\xba" + bytes(11)):
        assert contents(*opened(content)) == []


def test_the_architecture_with_most_entries_is_read_then_the_most_frequent_then_the_newest(write, opened):
    def architectures(*rows):
        codes = [write.container(*(write.Code(b"x", architecture) for architecture in row)) for row in rows]
        return [
            [code.architecture for code in kept]
            for kept in most_telling(containers(*opened(b"".join(codes))))
        ]

    assert architectures([80, 90, 90]) == [[90, 90]]
    assert architectures([80, 90], [80]) == [[80], [80]]
    assert architectures([80, 90]) == [[90]]


def test_text_is_read_only_where_there_is_no_binary(write, opened):
    both = write.container(
        write.Code(b"x", 80), write.Code(b"y", 90, write.PTX), write.Code(b"z", 90, write.PTX)
    )
    only = write.container(write.Code(b"y", 90, write.PTX), write.Code(b"?", 90, kind=8))
    none = write.container(write.Code(b"?", 90, kind=8))
    kept = list(most_telling(containers(*opened(both + only + none))))
    assert [[(code.kind, code.architecture) for code in codes] for codes in kept] == [
        [(write.CUBIN, 80)], [(write.PTX, 90)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (8, struct.pack("<Q", 1 << 63)),  # size of the container
        (6, struct.pack("<H", 0xFFFF)),  # where its entries begin
        (6, struct.pack("<H", 0)),
        (16 + 4, struct.pack("<I", 0)),  # where the entry's code begins
        (16 + 4, struct.pack("<I", 1 << 31)),
        (16 + 8, struct.pack("<Q", (1 << 64) - 1)),  # its size with padding
        (16 + 16, struct.pack("<I", 1 << 31)),  # its size compressed
    ],
)
def test_sizes_beyond_what_holds_them_are_refused(write, opened, position, value):
    content = bytearray(write.container(write.Code(b"code" * 100)))
    content[position : position + len(value)] = value
    with pytest.raises(InputError, match="beyond its") as caught:
        contents(*opened(bytes(content)))
    assert caught.value.byte_offset is not None


@pytest.mark.parametrize("flags", ["LZ4", "ZSTANDARD"])
@pytest.mark.parametrize("claimed_bytes", [0, 100, 1 << 40])
def test_code_is_never_larger_than_its_header_says_nor_than_anything_sound(
    write, opened, flags, claimed_bytes
):
    bomb = write.Code(bytes(1 << 20), flags=getattr(write, flags), claimed_bytes=claimed_bytes)
    with pytest.raises(InputError, match="device code"):
        contents(*opened(write.container(bomb)))


def test_the_sum_of_all_code_is_bounded(write, opened, monkeypatch):
    monkeypatch.setattr(fatbin, "_LEAST_TOTAL_BYTES", 3 << 20)
    content = write.container(*[write.Code(bytes(1 << 20))] * 4)
    with pytest.raises(InputError, match="claims 1048576 bytes"):
        contents(*opened(content))


@pytest.mark.parametrize("flags", [0x2000, 0x8000])
def test_damaged_code_is_refused(write, opened, flags):
    content = bytearray(write.container(write.Code(b"some code " * 50, flags=flags)))
    content[80:90] = b"\xff" * 10
    with pytest.raises(InputError, match="cannot be uncompressed") as caught:
        contents(*opened(bytes(content)))
    assert caught.value.byte_offset == 64 + 80


def test_too_many_entries_are_refused(write, opened, monkeypatch):
    monkeypatch.setattr(fatbin, "_MOST_ENTRIES", 3)
    with pytest.raises(InputError, match="more than 3 pieces"):
        contents(*opened(write.container(write.Code(b"x")) * 2))
