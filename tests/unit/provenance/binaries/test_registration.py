import io
import struct

import pytest

from opscope.model.origin import RecordedUnit
from opscope.provenance.binaries.elf import ElfFile
from opscope.provenance.binaries.registration import registered_kernels


def read(content):
    return {
        kernels.unit: sorted(kernels.kernels)
        for kernels in registered_kernels(ElfFile(io.BytesIO(content), "libsmall.so"))
    }


@pytest.fixture
def units(write):
    """Two units with kernels and variables, one with variables only."""
    return [
        write.Unit("SoftMax", ["_Z7softmaxPf", "plain"], ["_ZN4cuda3stdE"]),
        write.Unit("Sort", ["_Z4sortPi"]),
        write.Unit("Tables", [], ["_Z5tablePi", "constants"]),
    ]


@pytest.mark.parametrize("style", ["stub", "landing", "slot", "own"])
def test_kernels_are_found_by_unit_and_variables_dropped(write, units, style):
    assert read(write.library(units, style=style)) == {
        RecordedUnit("SoftMax.cu"): ["_Z7softmaxPf", "plain"],
        RecordedUnit("Sort.cu"): ["_Z4sortPi"],
        RecordedUnit("Tables.cu"): [],
    }


def test_units_of_one_name_are_told_apart_by_their_module_ids(write):
    dense, sparse = "/pytorch/cuda/SoftMax.cu", "/pytorch/sparse/SoftMax.cu"
    found = read(
        write.library(
            [
                write.Unit("SoftMax", ["_Z1av"], [write.internal(dense)]),
                write.Unit("SoftMax", [write.internal(sparse, "1bv")]),
            ]
        )
    )
    assert found == {
        RecordedUnit("SoftMax.cu", write.module_id(dense)): ["_Z1av"],
        RecordedUnit("SoftMax.cu", write.module_id(sparse)): [write.internal(sparse, "1bv")],
    }


def test_a_kernel_registered_by_two_units_belongs_to_both(write):
    # The linker keeps one copy of the name, so the last address one loads is the first the next does.
    found = read(write.library([write.Unit("first", ["_Z5emptyv"]), write.Unit("second", ["_Z5emptyv"])]))
    assert found == {RecordedUnit("first.cu"): ["_Z5emptyv"], RecordedUnit("second.cu"): ["_Z5emptyv"]}


def test_the_extension_is_the_one_internal_names_tell(write):
    path = "/home/me/my-kernels.cpp"
    found = read(write.library([write.Unit("my-kernels", ["_Z1av"], [write.internal(path)])]))
    assert list(found) == [RecordedUnit("my-kernels.cpp", write.module_id(path))]


def test_an_internal_name_of_another_file_says_nothing(write):
    found = read(write.library([write.Unit("mine", ["_Z1av"], [write.internal("/other.cu")])]))
    assert list(found) == [RecordedUnit("mine.cu")]


@pytest.mark.parametrize(
    ("file_symbol", "name"),
    [
        ("tmpxft_00005e13_00000000-6_a.b.compute_103f.cudafe1.cpp", "a.b.cu"),
        ("kernel.cudafe1.stub.c", "kernel.cu"),
        ("kernel.cu", "kernel.cu"),
        ("main.cpp", None),
    ],
)
def test_file_symbols(write, monkeypatch, file_symbol, name):
    monkeypatch.setattr(write.Unit, "file_symbol", file_symbol)
    (unit,) = read(write.library([write.Unit("any", ["_Z1av"])]))
    assert (unit.name if unit else None) == name


@pytest.mark.parametrize("options", [{"stripped": True}, {"machine": 183}])
def test_without_symbols_or_for_another_machine_nothing_is_found(write, units, options):
    assert read(write.library(units, **options)) == {}


def test_a_library_without_units_registers_nothing(write):
    assert read(write.library([])) == {}


def test_a_string_that_is_no_identifier_is_no_kernel(write):
    assert read(write.library([write.Unit("odd", ["two words", "", "_Z1av"])])) == {
        RecordedUnit("odd.cu"): ["_Z1av"]
    }


def test_functions_outside_of_all_sections_have_no_code(write, units):
    content = bytearray(write.library(units))
    first_function = content.find(struct.pack("<HQ", 1, 0x1000))
    struct.pack_into("<Q", content, first_function + 2, 1 << 63)
    found = read(bytes(content))
    assert found[RecordedUnit("SoftMax.cu")] == []
    assert found[RecordedUnit("Sort.cu")] == ["_Z4sortPi"]
