from __future__ import annotations

import pytest

from opscope.provenance.binaries.translation_unit import TranslationUnit
from opscope.provenance.indexer.units import PathEvidence, build_folders, locate_units, unit_at
from opscope.provenance.releases.table_file import Origin

COPY = "aten/src/ATen/native/cuda/Copy.cu"
NATIVE_CUDA = "aten/src/ATen/native/cuda"


@pytest.mark.parametrize(
    ("path", "origin", "label"),
    [
        (None, Origin.UNKNOWN, "U.cu"),
        ("aten/src/ATen/U.cu", Origin.REPOSITORY, "aten/src/ATen/U.cu"),
        ("third_party/gloo/gloo/U.cu", Origin.SUBMODULE, "third_party/gloo/gloo/U.cu"),
        ("build/aten/src/ATen/U.cu", Origin.GENERATED, "U.cu"),
        ("/builder/magma-2.6.1/magmablas/U.cu", Origin.OTHER_PROJECT, "U.cu"),
    ],
)
def test_what_a_builds_own_path_says(path, origin, label):
    unit = unit_at("U.cu", path)
    assert (unit.origin, unit.label) == (origin, label)


def test_the_releases_own_files_locate_what_the_build_does_not_name():
    units = [TranslationUnit("Copy.cu"), TranslationUnit("zswap.cu")]
    located = locate_units(units, PathEvidence(files=frozenset((COPY, "aten/Fill.cu"))))
    assert [located[unit].label for unit in units] == [COPY, "zswap.cu"]


def test_units_of_one_name_are_not_located_by_name():
    dense, sparse = "aten/cuda/SoftMax.cu", "aten/sparse/SoftMax.cu"
    evidence = PathEvidence(files=frozenset((dense, sparse)))
    one, other = TranslationUnit("SoftMax.cu", "1" * 8), TranslationUnit("SoftMax.cu", "2" * 8)
    assert {unit.label for unit in locate_units([one, other], evidence).values()} == {"SoftMax.cu"}
    named = TranslationUnit("SoftMax.cu", "3" * 8, dense)
    located = locate_units([named, other], evidence)
    assert [located[named].label, located[other].label] == [dense, "SoftMax.cu"]


@pytest.mark.parametrize(
    ("other_files", "folders", "moved", "label"),
    [
        ([COPY], [NATIVE_CUDA], None, COPY),
        ([COPY], [], None, "Copy.cu"),
        ([COPY, "old/Copy.cu"], [NATIVE_CUDA], None, COPY),
        ([COPY, "old/Copy.cu"], [NATIVE_CUDA, "old"], None, "Copy.cu"),
        ([COPY, f"{NATIVE_CUDA}/Fill.cu"], [NATIVE_CUDA], "new/Fill.cu", "Copy.cu"),
        ([COPY, f"{NATIVE_CUDA}/Fill.cu"], [NATIVE_CUDA], f"{NATIVE_CUDA}/Fill.cu", COPY),
        ([], [NATIVE_CUDA], None, "Copy.cu"),
    ],
    ids=[
        "proven folder",
        "no proof",
        "one proven",
        "two proven",
        "a file moved",
        "a file stayed",
        "not listed",
    ],
)
def test_another_releases_file_counts_only_in_a_folder_this_build_had(other_files, folders, moved, label):
    copy, fill = TranslationUnit("Copy.cu"), TranslationUnit("Fill.cu", source_path=moved)
    evidence = PathEvidence(other_files=frozenset(other_files), folders=frozenset(folders))
    assert locate_units([copy, fill], evidence)[copy].label == label


def test_folders_are_proven_by_shipped_headers_and_by_paths_in_a_library(tmp_path):
    for header in (
        "ATen/native/cuda/Loops.cuh",
        "c10/cuda/CUDAStream.h",
        "torch/csrc/Export.h",
        "pybind11/x.h",
    ):
        file = tmp_path / "include" / header
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    library = tmp_path / "libtorch_cuda.so"
    library.write_bytes(
        b"\x7fELF\0/build/pytorch/third_party/gloo/gloo/cuda.cu\0/build/pytorch/aten/src/ATen/cuda/cub.cuh\0"
        b"text/build/pytorch/c10/macros/Macros.h\0/elsewhere/aten/src/ATen/wrong/x.h\0c10/relative/x.h\0"
    )
    assert build_folders(tmp_path, [library]) == {
        "aten/src/ATen/native/cuda",
        "c10/cuda",
        "torch/csrc",
        "third_party/gloo/gloo",
        "aten/src/ATen/cuda",
        "c10/macros",
    }
