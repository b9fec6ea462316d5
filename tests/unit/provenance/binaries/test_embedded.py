from __future__ import annotations

import io
import struct

import pytest

from opscope.errors import InputError
from opscope.model.origin import RecordedUnit
from opscope.provenance.binaries.elf import ElfFile
from opscope.provenance.binaries.embedded import (
    code_of,
    containers,
    cubin_names,
    embedded_kernels,
    holds_device_code,
    most_telling,
)
from opscope.provenance.binaries.translation_unit import InternalName


@pytest.mark.parametrize("many_sections", [False, True])
def test_kernels_are_the_functions_with_the_flag(write, many_sections):
    hidden = write.internal("/src/a.cu")
    image = write.cubin(["_Z1av", "plain"], ["_Z6devicev", hidden], many_sections=many_sections)
    names = cubin_names(ElfFile(io.BytesIO(image), "libsmall.so"))
    assert names.kernels == {"_Z1av", "plain"}
    assert names.units == {InternalName(write.module_id("/src/a.cu"), "a_cu")}


def test_a_symbol_table_without_its_strings_is_refused(write):
    image = write.elf([write.Part(".symtab", write.symbol(5, 0x12, 0x10), write.SYMTAB, link=77)])
    with pytest.raises(InputError, match="section 77"):
        cubin_names(ElfFile(io.BytesIO(image), "libsmall.so"))


def test_an_error_in_an_embedded_file_names_its_place_in_the_library(write):
    library = ElfFile(io.BytesIO(write.elf([])), "libsmall.so")
    with pytest.raises(InputError, match="not an ELF file") as caught:
        library.embedded(b"no cubin", 12345)
    assert (caught.value.source, caught.value.byte_offset) == ("libsmall.so", 12345)


@pytest.fixture
def opened(write):
    """Opens a library with this content of `.nv_fatbin`."""

    def open_library(content):
        file = ElfFile(io.BytesIO(write.elf([write.Part(".nv_fatbin", content)])), "libsmall.so")
        return file, file.sections[".nv_fatbin"]

    return open_library


def contents(file, section):
    """Every entry, uncompressed, by container."""
    return [[code_of(file, code) for code in codes] for codes in containers(file, section)]


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


@pytest.mark.parametrize("flags", [0x2000, 0x8000])
def test_damaged_code_is_refused(write, opened, flags):
    content = bytearray(write.container(write.Code(b"some code " * 50, flags=flags)))
    content[80:90] = b"\xff" * 10
    with pytest.raises(InputError, match="cannot be uncompressed") as caught:
        contents(*opened(bytes(content)))
    assert caught.value.byte_offset == 64 + 80


A, B = "/src/a.cu", "/src/b.cu"


@pytest.fixture
def read(write):
    """Kernels by unit of a stripped library with these containers."""

    def read_library(linked=(), relocatable=()):
        content = write.library(
            [], stripped=True, device_code=b"".join(linked), relocatable=b"".join(relocatable)
        )
        file = ElfFile(io.BytesIO(content), "libsmall.so")
        return {kernels.unit: sorted(kernels.kernels) for kernels in embedded_kernels(file)}

    return read_library


@pytest.fixture
def container(write):
    """A container with one cubin: kernels, and internal names of units."""

    def make(kernels, *paths):
        return write.container(write.Code(write.cubin(kernels, [write.internal(path) for path in paths])))

    return make


@pytest.fixture
def unit(write):
    return lambda path: RecordedUnit(path.rpartition("/")[2], write.module_id(path))


def test_a_container_belongs_to_the_unit_its_internal_names_tell(read, container, unit):
    found = read([container(["_Z1av"], A), container(["_Z1bv", "_Z1cv"], B)])
    assert found == {unit(A): ["_Z1av"], unit(B): ["_Z1bv", "_Z1cv"]}


def test_a_kernel_in_two_units_belongs_to_both(read, container, unit):
    assert read([container(["_Z1av"], A), container(["_Z1av"], B)]) == {
        unit(A): ["_Z1av"],
        unit(B): ["_Z1av"],
    }


def test_of_a_container_of_several_units_only_internal_kernels_have_one(read, write, container, unit):
    own = write.internal(A, "6kernelv")
    assert read([container(["_Z1av", own], A, B)]) == {None: ["_Z1av"], unit(A): [own]}


def test_linked_code_takes_the_units_of_its_relocatable_parts(read, container, unit):
    # The linked container has the names of one unit only, which is not that of both kernels.
    found = read([container(["_Z1av", "_Z1bv"], A)], [container(["_Z1av"], A), container(["_Z1bv"])])
    assert found == {unit(A): ["_Z1av"], None: ["_Z1bv"]}


def test_a_separate_unit_beside_linked_code_keeps_its_own(read, container, unit):
    found = read([container(["_Z1av"], A), container(["_Z1bv"], B)], [container(["_Z1av"], A)])
    assert found == {unit(A): ["_Z1av"], unit(B): ["_Z1bv"]}


def test_whether_there_is_device_code(write):
    def holds(**code):
        return holds_device_code(ElfFile(io.BytesIO(write.library([], **code)), "libsmall.so"))

    assert (holds(), holds(device_code=b"x"), holds(relocatable=b"x")) == (False, True, True)
    symbols_only = write.elf([write.Part(".nv_fatbin", b"", write.NOBITS, size=1000)])
    assert not holds_device_code(ElfFile(io.BytesIO(symbols_only), "libsmall.debug"))
