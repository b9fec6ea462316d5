from __future__ import annotations

import pytest

import torch_tables.libraries as builder
from case_tables import cases
from opscope.errors import InputError
from opscope.model.origin import RecordedUnit
from opscope.provenance.torch_releases import Origin, Unit
from torch_tables.libraries import (
    PathEvidence,
    build_folders,
    build_table,
    locate_units,
    unit_at,
)

OWNED = "void at::launch<at::{}(at::Iterator&)::{{lambda()#1}}, {}>(int)"


@cases("kernels", "answers")
def test_units_of_a_kernel(make_table, kernels, answers):
    table = make_table(kernels)
    assert {name: list(table.units_of(name)) for name in answers} == answers


GELU = OWNED.format("gelu", "float")


@pytest.mark.parametrize(
    ("kernels", "answers"),
    [
        # The owner of the lambda names the file, whatever launches it.
        (
            {OWNED.format("gelu", "int"): ["Gelu.cu"], OWNED.format("silu", "int"): ["Silu.cu"]},
            {GELU: ("Gelu.cu",), GELU.replace("launch", "launch_anew"): ("Gelu.cu",)},
        ),
        # One that the release does not have is not replaced by its launcher; several files leave it to that.
        ({OWNED.format("gelu", "int"): ["Gelu.cu"]}, {OWNED.format("extension", "int"): ()}),
        (
            {OWNED.format("helper", "at::F<int>"): ["A.cu"], OWNED.format("helper", "at::G<int>"): ["B.cu"]},
            {OWNED.format("helper", "at::F<float>"): ("A.cu",), OWNED.format("helper", "at::H<float>"): ()},
        ),
        # A launcher in several files answers nothing.
        ({"void at::k<int>()": ["A.cu"], "void at::k<long>()": ["B.cu"]}, {"void at::k<float>()": ()}),
        ({"at::native::kernel()": ["K.cu"]}, {"_ZN2at6native6kernelEv": ("K.cu",)}),
    ],
)
def test_the_unit_of_a_kernel_of_another_release(make_table, kernels, answers):
    table = make_table(kernels)
    assert {name: table.loose_units_of(name) for name in answers} == answers


@pytest.mark.parametrize("of", ["text_hash", "loose_hash"])
def test_names_that_share_a_hash_are_found_when_the_table_is_made(monkeypatch, of):
    monkeypatch.setattr(builder, of, lambda *_: 7)
    with pytest.raises(InputError, match="share a hash"):
        build_table({"at::f()": [Unit("F.cu")], "at::g()": [Unit("F.cu")]}, "2.11.0")


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
    units = [RecordedUnit("Copy.cu"), RecordedUnit("zswap.cu")]
    located = locate_units(units, PathEvidence(files=frozenset((COPY, "aten/Fill.cu"))))
    assert [located[unit].label for unit in units] == [COPY, "zswap.cu"]


def test_units_of_one_name_are_not_located_by_name():
    dense, sparse = "aten/cuda/SoftMax.cu", "aten/sparse/SoftMax.cu"
    evidence = PathEvidence(files=frozenset((dense, sparse)))
    one, other = RecordedUnit("SoftMax.cu", "1" * 8), RecordedUnit("SoftMax.cu", "2" * 8)
    assert {unit.label for unit in locate_units([one, other], evidence).values()} == {"SoftMax.cu"}
    named = RecordedUnit("SoftMax.cu", "3" * 8, dense)
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
    copy, fill = RecordedUnit("Copy.cu"), RecordedUnit("Fill.cu", source_path=moved)
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
