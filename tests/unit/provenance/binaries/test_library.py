from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.errors import InputError
from opscope.provenance.binaries import library as library_module
from opscope.provenance.binaries.library import (
    KernelIndex,
    Route,
    TranslationUnit,
    cached_library,
    read_library,
)

NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=30)


@given(st.dictionaries(NAMES, st.frozensets(st.integers(0, 9), max_size=4), max_size=20), st.lists(NAMES))
def test_every_name_is_found_with_its_units_and_no_other_is(kernels, others):
    index = KernelIndex.of(kernels, kernels)
    assert {name: index.find(name) for name in kernels} == {
        name: tuple(sorted(units)) for name, units in kernels.items()
    }
    assert all(index.find(name) is None for name in others if name not in kernels)
    assert index.list_names() == list(kernels)


SOFTMAX = "_ZN2at6native7softmaxIfEEvPT_"
SOFTMAX_TEXT = "void at::native::softmax<float>(float*)"


@pytest.fixture
def content(write):
    """A library that has symbols and device code."""
    units = [
        write.Unit("SoftMax", [SOFTMAX, "plain"]),
        write.Unit("Sort", [SOFTMAX, "_Z4sortPi"], ["_Z5tablePi"]),
    ]
    cubin = write.cubin([SOFTMAX, "plain"], [write.internal("/src/SoftMax.cu")])
    return write.library(units, device_code=write.container(write.Code(cubin)))


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
    names = library.kernel_names()
    return library.build_id, library.route, library.units, {name: library.units_of(name) for name in names}


def forbid_reading(monkeypatch):
    def fail(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(library_module, "registered_kernels", fail)


def test_units_by_demangled_and_by_mangled_name(save, content):
    library = read_library(save(content))
    softmax, sort = TranslationUnit("SoftMax.cu"), TranslationUnit("Sort.cu")
    assert library.units == (softmax, sort)
    assert library.units_of(SOFTMAX_TEXT) == library.units_of(SOFTMAX) == (softmax, sort)
    assert library.units_of("plain") == (softmax,)
    assert library.units_of("sort(int*)") == (sort,)
    assert (library.route, library.build_id) == (Route.REGISTRATION, "0123456789abcdef")
    assert library.kernel_names() == ["sort(int*)", SOFTMAX_TEXT, "plain"]


@pytest.mark.parametrize("name", ["", "sort", "_Z5tablePi", "table", "sort(int*) ", "\ud800", "_Z4sortPi\0"])
def test_what_is_no_kernel_has_no_units(save, content, name):
    library = read_library(save(content))
    assert (library.units_of(name), name in library) == ((), False)


def test_a_stripped_library_is_read_from_its_device_code(save, write, stripped):
    library = read_library(save(stripped))
    assert library.route is Route.FATBIN
    assert library.units_of(SOFTMAX_TEXT) == (
        TranslationUnit("SoftMax.cu", write.module_id("/src/SoftMax.cu")),
    )
    assert (library.units_of("sort(int*)"), "sort(int*)" in library) == ((), True)
    assert None not in library


def test_host_code_of_another_machine_is_read_from_its_device_code(save, write):
    code = write.container(write.Code(write.cubin(["_Z4sortPi"])))
    library = read_library(
        save(write.library([write.Unit("Sort", ["_Z4sortPi"])], device_code=code, machine=183))
    )
    assert (library.route, library.kernel_names()) == (Route.FATBIN, ["sort(int*)"])


def test_a_library_of_variables_only_has_no_kernels(save, write):
    content = write.library([write.Unit("Tables", [], ["table"])], device_code=write.container())
    assert read_library(save(content)).kernel_names() == []


def test_a_library_without_device_code_is_refused(save, write):
    with pytest.raises(InputError, match="no CUDA device code"):
        read_library(save(write.library([])))
    with pytest.raises(InputError, match="holds HIP code"):
        read_library(save(write.elf([write.Part(".hip_fatbin", b"code")])))


def test_a_library_is_read_once(save, content, folder, monkeypatch):
    path = save(content)
    first = cached_library(path, folder)
    forbid_reading(monkeypatch)
    again = cached_library(path, folder)
    assert facts(again) == facts(first) == facts(first)
    assert again.path == os.fspath(path)


def test_a_copy_elsewhere_is_the_same_build(save, content, folder, monkeypatch):
    cached_library(save(content), folder)
    forbid_reading(monkeypatch)
    assert cached_library(save(content, "libcopy.so"), folder).path.endswith("libcopy.so")


def test_a_stripped_copy_does_not_stand_for_the_whole_one(save, content, stripped, folder):
    assert cached_library(save(stripped), folder).route is Route.FATBIN
    assert cached_library(save(content), folder).route is Route.REGISTRATION
    assert cached_library(save(stripped), folder).route is Route.FATBIN


def test_without_a_build_id_a_changed_file_is_read_again(save, write, folder):
    def library(kernel):
        return write.library([write.Unit("a", [kernel])], device_code=write.container(), build_id=None)

    path = save(library("first"))
    assert cached_library(path, folder).kernel_names() == ["first"]
    assert cached_library(path, folder).kernel_names() == ["first"]
    save(library("other"))
    os.utime(path, ns=(0, 1))
    assert cached_library(path, folder).kernel_names() == ["other"]


def damaged(whole):
    """Variants of a file's content that must not be believed."""
    yield from (b"", whole[:10], whole[:-1], whole + b"\0", b"opscope kernels 0\n" + whole[18:])
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
        assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_no_error(save, content, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    path = save(content)
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert facts(cached_library(path, folder)) == facts(read_library(path))


def test_the_folder_is_in_the_users_cache_by_default(save, content, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached_library(save(content))
    assert [file.name for file in (tmp_path / "opscope" / "libraries").iterdir()] == [
        "0123456789abcdef.symbols.kernels"
    ]


def test_several_writers_leave_one_whole_file(save, content, folder):
    path = save(content)
    expected, seen = facts(read_library(path)), []
    threads = [
        threading.Thread(target=lambda: seen.append(facts(cached_library(path, folder)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [expected] * 8
    assert len(list(folder.iterdir())) == 1


def test_a_refused_library_leaves_nothing_behind(save, write, folder):
    with pytest.raises(InputError):
        cached_library(save(write.library([])), folder)
    assert not folder.exists()
