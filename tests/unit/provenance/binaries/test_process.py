from pathlib import Path

import pytest

from case_tables import cases
from opscope.model.origin import RecordedKernel, RecordedUnit
from opscope.provenance.binaries import library as process
from opscope.provenance.binaries.library import (
    mapped_libraries,
    units_of_process,
    vendor_of_file,
)

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
