import io

import pytest

from opscope.provenance.binaries.elf import ElfFile
from opscope.provenance.binaries.embedded import embedded_kernels, holds_device_code
from opscope.provenance.binaries.translation_unit import TranslationUnit

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
    return lambda path: TranslationUnit(path.rpartition("/")[2], write.module_id(path))


def test_a_container_belongs_to_the_unit_its_internal_names_tell(read, container, unit):
    found = read([container(["_Z1av"], A), container(["_Z1bv", "_Z1cv"], B)])
    assert found == {unit(A): ["_Z1av"], unit(B): ["_Z1bv", "_Z1cv"]}


def test_a_kernel_in_two_units_belongs_to_both(read, container, unit):
    assert read([container(["_Z1av"], A), container(["_Z1av"], B)]) == {
        unit(A): ["_Z1av"],
        unit(B): ["_Z1av"],
    }


def test_a_container_without_internal_names_has_no_unit(read, container, unit):
    assert read([container(["_Z1av"]), container(["_Z1bv"], B)]) == {None: ["_Z1av"], unit(B): ["_Z1bv"]}


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


def test_text_alone_is_read(read, write, unit):
    text = write.ptx(["_Z1av"], [write.internal(A)])
    assert read([write.container(write.Code(text, kind=write.PTX))]) == {unit(A): ["_Z1av"]}


def test_whether_there_is_device_code(write):
    def holds(**code):
        return holds_device_code(ElfFile(io.BytesIO(write.library([], **code)), "libsmall.so"))

    assert (holds(), holds(device_code=b"x"), holds(relocatable=b"x")) == (False, True, True)
    symbols_only = write.elf([write.Part(".nv_fatbin", b"", write.NOBITS, size=1000)])
    assert not holds_device_code(ElfFile(io.BytesIO(symbols_only), "libsmall.debug"))
