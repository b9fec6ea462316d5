"""Whatever the bytes: an answer or an InputError that names a byte, in bounded time and memory."""

import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opscope.errors import InputError
from opscope.provenance.binaries.library import read_library

MEMORY_BYTES = 64 << 20
quickly = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def small(write):
    """A small library of everything there is: symbols, strings, linked and relocatable device code."""
    softmax, sort = "/build/pytorch/aten/src/ATen/native/cuda/SoftMax.cu", "/src/Sort.cu"
    units = [
        write.Unit("SoftMax", ["_Z7softmaxPf", "plain"], [write.internal(softmax)]),
        write.Unit("Sort", ["_Z4sortPi"], [write.internal(sort)]),
    ]
    cubin = write.cubin(["_Z7softmaxPf", "plain"], [write.internal(softmax)])
    text = write.ptx(["_Z4sortPi"], [write.internal(sort)])
    linked = write.container(write.Code(cubin), write.Code(cubin, 80, flags=write.LZ4))
    relocatable = write.container(write.Code(text, kind=write.PTX))

    def make(**options):
        return write.library(units, strings=[softmax], device_code=linked, relocatable=relocatable, **options)

    return {"symbols": make(), "stripped": make(stripped=True)}


def read(path, content):
    """Reads a library that may be anything."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        library = read_library(path)
        library.kernel_names()
    except InputError as error:
        assert error.source == str(path)
        assert error.byte_offset is not None or "no CUDA device code" in error.message
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEMORY_BYTES + 8 * len(content)


@given(content=st.binary(max_size=300))
@quickly
def test_any_bytes(tmp_path, content):
    read(tmp_path / "any.so", content)
    read(tmp_path / "any.so", b"\x7fELF\x02\x01" + content)


@pytest.mark.parametrize("kind", ["symbols", "stripped"])
def test_a_file_cut_off_anywhere(tmp_path, small, kind):
    content = small[kind]
    for size in [*range(0, len(content), max(64, len(content) // 400)), len(content) - 1]:
        read(tmp_path / "cut.so", content[:size])


def numbers():
    """Places in a table, and what is put there: limits, and small and large numbers."""
    limits = st.sampled_from(
        [0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]
    )
    return limits | st.integers(0, (1 << 64) - 1)


@pytest.mark.parametrize("kind", ["symbols", "stripped"])
@given(data=st.data())
@quickly
def test_a_file_with_changed_numbers(tmp_path, small, kind, data):
    content = bytearray(small[kind])
    table = struct.unpack_from("<Q", content, 40)[0]
    places = (
        st.integers(0, 60)
        | st.integers(table, len(content) - 8)
        | st.integers(0, len(content) // 8 - 1).map(lambda row: 8 * row)
    )
    for place, number in data.draw(st.lists(st.tuples(places, numbers()), min_size=1, max_size=4)):
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        content[place : place + size] = number.to_bytes(8, "little")[:size]
    read(tmp_path / "changed.so", bytes(content))


def test_device_code_that_explodes(tmp_path, write):
    zeros = bytes(48 << 20)
    for flags in (write.LZ4, write.ZSTANDARD):
        bombs = b"".join(write.container(write.Code(zeros, flags=flags)) for _ in range(8))
        content = write.library([], stripped=True, device_code=bombs)
        path = tmp_path / "bomb.so"
        path.write_bytes(content)
        with pytest.raises(InputError):
            read_library(path)


def test_a_name_that_many_symbols_share_the_end_of(tmp_path, write):
    names = b"\0" + b"a" * 30_000 + b"\0"
    symbols = b"".join(write.symbol(1 + number, 0x12, 0x10, 1) for number in range(20_000))
    cubin = write.elf(
        [write.Part(".strtab", names, write.STRTAB), write.Part(".symtab", symbols, write.SYMTAB, link=1)]
    )
    content = write.library([], stripped=True, device_code=write.container(write.Code(cubin)))
    path = tmp_path / "names.so"
    path.write_bytes(content)
    with pytest.raises(InputError, match="bytes of names"):
        read_library(path)


def test_a_large_hole_is_not_read(tmp_path, write):
    path = tmp_path / "hole.so"
    content = bytearray(write.library([], stripped=True, device_code=bytes(64)))
    row = content.rfind(struct.pack("<Q", 0xB00000))
    struct.pack_into("<Q", content, row + 16, 1 << 50)
    path.write_bytes(content)
    with path.open("r+b") as stream:
        stream.truncate(17 << 30)
    with pytest.raises(InputError, match="larger than any library"):
        read_library(path)
