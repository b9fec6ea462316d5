import io

import pytest

from case_tables import cases
from opscope.provenance.binaries import device_code
from opscope.provenance.binaries.device_code import RecordedUnit, UnitKernels, with_source_paths
from opscope.provenance.binaries.elf import ElfFile

ATEN = "/build/pytorch/aten/src/ATen"


@pytest.fixture
def locate(write):
    """Name and path of units, located in a library with these strings."""

    def locate_units(*units, strings=(), source="/usr/lib/libsmall.so", is_name_exact=True):
        file = ElfFile(io.BytesIO(write.library([], strings=strings)), source)
        found = with_source_paths(file, [UnitKernels(unit, frozenset(), is_name_exact) for unit in units])
        return [kernels.unit and (kernels.unit.name, kernels.unit.source_path) for kernels in found]

    return locate_units


@pytest.fixture
def unit(write):
    """The unit of a path, named as the host side names it, or otherwise."""
    return lambda path, name=None: RecordedUnit(name or path.rpartition("/")[2], write.module_id(path))


def test_a_unit_lies_in_the_folder_that_gives_its_module_id(locate, unit):
    strings = [f"{ATEN}/native/cuda/Copy.cu", f"{ATEN}/native/sparse/cuda/Sum.cu", "/usr/include/vector.h"]
    units = [unit(f"{ATEN}/native/sparse/cuda/SoftMax.cu"), unit(f"{ATEN}/native/cuda/SoftMax.cu")]
    assert locate(*units, strings=strings) == [
        ("SoftMax.cu", "aten/src/ATen/native/sparse/cuda/SoftMax.cu"),
        ("SoftMax.cu", "aten/src/ATen/native/cuda/SoftMax.cu"),
    ]


@cases("path", "shown", "strings")
def test_folders_that_are_tried(locate, unit, path, shown, strings):
    found = locate(unit(path), strings=strings, source="/home/me/ext/build/lib/ext.so")
    assert found == [(path.rpartition("/")[2], shown)]


@pytest.mark.parametrize("name", ["cub-RadixSortPairs-f16-8.cu", "my_kernels-fast.cu", "a-b-c-d-e-f-g-h.cu"])
def test_hyphens_that_device_code_hides_are_restored(locate, unit, name):
    path = f"{ATEN}/cuda/{name}"
    found = locate(unit(path, name.replace("-", "_")), strings=[f"{ATEN}/cuda/Sum.cu"], is_name_exact=False)
    assert found == [(name, f"aten/src/ATen/cuda/{name}")]


def test_without_a_module_id_the_only_path_of_that_name_is_taken(locate):
    strings = ["/magma/chemv.cu", "csrc/relative.cu", "/a/twice.cu", "/b/twice.cu"]
    expected = {
        "chemv.cu": "/magma/chemv.cu",
        "relative.cu": "csrc/relative.cu",
        "twice.cu": None,
        "absent.cu": None,
    }
    assert locate(*map(RecordedUnit, expected), strings=strings) == list(expected.items())


def test_units_of_one_name_do_not_share_a_path(locate):
    units = [RecordedUnit("a.cu", "00000001"), RecordedUnit("a.cu", "00000002")]
    assert locate(*units, strings=["/src/a.cu"]) == [("a.cu", None)] * 2


@pytest.mark.parametrize("string", ["a.cu", "my folder/a.cu", "text: src/a.cu", "/" + "x" * 2000 + "/a.cu"])
def test_a_string_that_is_no_certain_path_is_none(locate, string):
    assert locate(RecordedUnit("a.cu"), strings=[string]) == [("a.cu", None)]


def test_attempts_are_bounded(locate, unit, monkeypatch):
    monkeypatch.setattr(device_code, "_MOST_ATTEMPTS", 5)
    strings = [f"/folder{number}/x.cu" for number in range(50)]
    assert locate(unit("/folder20/a.cu"), strings=strings) == [("a.cu", None)]
