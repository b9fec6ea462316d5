import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from case_tables import cases
from opscope.errors import InputError
from opscope.model.origin import RecordedKernel, RecordedUnit
from opscope.provenance.binaries import library as library_module
from opscope.provenance.binaries import library as process
from opscope.provenance.binaries.library import (
    cached_library,
    mapped_libraries,
    read_library,
    units_of_process,
    vendor_of_file,
)

SOFTMAX = "_ZN2at6native7softmaxIfEEvPT_"
SOFTMAX_TEXT = "void at::native::softmax<float>(float*)"


@pytest.fixture
def content(write):
    """A library that has symbols and device code."""
    return write.library(
        [
            write.Unit("SoftMax", [SOFTMAX, "plain"]),
            write.Unit("Sort", [SOFTMAX, "_Z4sortPi"], ["_Z5tablePi"]),
        ]
    )


@pytest.fixture
def stripped(write):
    """The same build, stripped."""
    cubin = write.cubin([SOFTMAX, "plain"], [write.internal("/src/SoftMax.cu")])
    others = write.cubin(["_Z4sortPi"])
    code = write.container(write.Code(cubin)) + write.container(write.Code(others))
    return write.library([], stripped=True, device_code=code)


@pytest.fixture
def folder(tmp_path):
    """Where read libraries are kept."""
    return tmp_path / "cache"


def facts(library):
    """All that can be asked of a library."""
    names = (SOFTMAX, SOFTMAX_TEXT, "plain", "sort(int*)", "_Z4sortPi", "other")
    return library.build_id, {name: library.units_of(name) for name in names if name in library}


def forbid_reading(monkeypatch):
    def fail(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(library_module, "embedded_kernels", fail)


def test_units_by_demangled_and_by_mangled_name(save, content):
    library = read_library(save(content))
    softmax, sort = RecordedUnit("SoftMax.cu"), RecordedUnit("Sort.cu")
    assert library.units_of(SOFTMAX_TEXT) == library.units_of(SOFTMAX) == (softmax, sort)
    assert library.units_of("plain") == (softmax,)
    assert library.units_of("sort(int*)") == (sort,)
    assert library.build_id == "0123456789abcdef"


def test_a_stripped_library_is_read_from_its_device_code(save, write, stripped):
    library = read_library(save(stripped))
    assert library.units_of(SOFTMAX_TEXT) == (RecordedUnit("SoftMax.cu", write.module_id("/src/SoftMax.cu")),)
    assert (library.units_of("sort(int*)"), "sort(int*)" in library) == ((), True)


def test_a_library_of_variables_only_has_no_kernels_and_one_without_device_code_is_refused(
    save, write, folder
):
    assert "table" not in read_library(save(write.library([write.Unit("Tables", [], ["table"])])))
    with pytest.raises(InputError, match="no CUDA device code"):
        read_library(save(write.library([])))
    with pytest.raises(InputError, match="holds HIP code"):
        read_library(save(write.elf([write.Part(".hip_fatbin", b"code")])))
    with pytest.raises(InputError):
        cached_library(save(write.library([])), folder)
    assert not folder.exists()


def test_a_library_is_read_once_and_a_copy_elsewhere_is_the_same_build(save, content, folder, monkeypatch):
    path = save(content)
    first = cached_library(path, folder)
    forbid_reading(monkeypatch)
    again = cached_library(path, folder)
    assert facts(again) == facts(first) == facts(first)
    assert again.path == os.fspath(path)
    cached_library(save(content), folder)
    forbid_reading(monkeypatch)
    assert cached_library(save(content, "libcopy.so"), folder).path.endswith("libcopy.so")


def test_a_stripped_copy_does_not_stand_for_the_whole_one(save, content, stripped, folder):
    for library, has_units in ((stripped, False), (content, True), (stripped, False)):
        assert bool(cached_library(save(library), folder).units_of("sort(int*)")) is has_units


def test_without_a_build_id_a_changed_file_is_read_again(save, write, folder):
    def library(kernel):
        return write.library([write.Unit("a", [kernel])], build_id=None)

    path = save(library("first"))
    assert all("first" in cached_library(path, folder) for _ in range(2))
    save(library("other"))
    os.utime(path, ns=(0, 1))
    assert "other" in cached_library(path, folder)


def damaged(whole):
    """Variants of a file's content that must not be believed."""
    yield from (b"", whole[:10], whole[:-1], whole + b"\0", whole[:1] + whole[2:])
    for position in range(0, len(whole), 7):
        yield whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :]


def test_a_damaged_or_older_file_is_made_again(save, content, folder):
    path = save(content)
    expected = facts(cached_library(path, folder))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for variant in damaged(whole):
        file.write_bytes(variant)
        assert facts(cached_library(path, folder)) == expected


def test_a_folder_that_cannot_be_written_is_no_error(save, content, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    path = save(content)
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert facts(cached_library(path, folder)) == facts(read_library(path))


def read(path, content):
    """Reads a library that may be anything: an answer, or an error that names a byte of the file."""
    path.write_bytes(content)
    try:
        read_library(path)
    except InputError as error:
        assert error.source == str(path)
        assert error.byte_offset is not None or "no CUDA device code" in error.message


@pytest.mark.parametrize("kind", ["content", "stripped"])
def test_a_file_cut_off_anywhere(tmp_path, request, kind):
    whole = request.getfixturevalue(kind)
    for size in [*range(0, len(whole), max(64, len(whole) // 400)), len(whole) - 1]:
        read(tmp_path / "cut.so", whole[:size])


@pytest.mark.parametrize("kind", ["content", "stripped"])
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file(tmp_path, request, kind, data):
    whole = bytearray(request.getfixturevalue(kind))
    places = st.integers(0, 60) | st.integers(0, len(whole) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
        whole[place] = byte
    read(tmp_path / "damaged.so", bytes(whole))


MAPS = Path("/proc/self/maps")


@cases("file", "vendor")
def test_vendors_by_file_name(file, vendor):
    assert vendor_of_file(file) == vendor


@pytest.fixture
def maps(tmp_path):
    """A file as `/proc/self/maps` is, with these paths."""

    def write_maps(*paths):
        file = tmp_path / "maps"
        rows = [f"7f00000{number:02}000-7f00000{number:02}fff r-xp 00000000 08:01 42     {path}" for number, path in enumerate(paths)]  # fmt: skip  # noqa: E501
        file.write_text("\n".join([*rows, "7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0 ", "malformed"]))
        return file

    return write_maps


@pytest.fixture
def library(save, write):
    """Writes a library of one unit."""

    def write_library(file, stem, *kernels):
        return save(write.library([write.Unit(stem, kernels)], build_id=file.encode()), file)

    return write_library


def test_libraries_with_device_code_are_found_once_each(maps, library, save, write):
    with_code = library("lib with blank.so", "a", "_Z1av")
    without = save(write.library([]), "libhost.so")
    text = save(b"no library", "data.bin")
    assert mapped_libraries(
        maps(with_code, "[heap]", without, with_code, text, "/gone.so (deleted)", "/dev/null", "anon_inode:x")
    ) == (with_code,)


def test_what_cannot_be_read_or_has_no_list_of_mappings_is_passed_over(tmp_path, library, mapped):
    assert mapped_libraries(tmp_path / "absent") == ()
    mapped(Path("/gone.so"), library("libmine.so", "mine", "_Z1av"))
    assert list(units_of_process(["a()"], tmp_path / "cache", maps=MAPS)) == ["a()"]


@pytest.fixture
def mapped(monkeypatch):
    """Makes these libraries the mapped ones."""
    return lambda *paths: monkeypatch.setattr(process, "mapped_libraries", lambda _: paths)


def test_origins_of_kernels(library, mapped, tmp_path):
    mapped(library("libone.so", "one", "_Z1av", "_Z4bothv"), library("libtwo.so", "two", "_Z1bv", "_Z4bothv"))
    assert units_of_process(["a()", "_Z1bv", "both()", "other()"], tmp_path / "cache", maps=MAPS) == {
        "a()": RecordedKernel("a()", "libone.so", b"libone.so".hex(), (RecordedUnit("one.cu"),)),
        "_Z1bv": RecordedKernel("_Z1bv", "libtwo.so", b"libtwo.so".hex(), (RecordedUnit("two.cu"),)),
    }


def test_vendor_libraries_are_read_only_for_names_no_other_has(library, mapped, tmp_path):
    mapped(library("libcublas.so.13", "gemm", "_Z1av", "_Z4gemmv"), library("libmine.so", "mine", "_Z1av"))
    cache = tmp_path / "cache"
    assert units_of_process(["a()"], cache, maps=MAPS)["a()"].library == "libmine.so"
    assert [file.name.partition(".")[0] for file in cache.iterdir()] == [b"libmine.so".hex()]
    assert units_of_process(["gemm()", "a()"], cache, maps=MAPS)["gemm()"].library == "libcublas.so.13"
