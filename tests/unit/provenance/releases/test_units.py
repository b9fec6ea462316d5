from __future__ import annotations

import pytest

from opscope.errors import InputError
from opscope.model.origin import RecordedUnit
from opscope.provenance.releases.release_table import LooseKeys, ReleaseTable
from opscope.provenance.releases.table_file import Origin, Unit
from torch_tables.indexer import units as builder
from torch_tables.indexer.units import (
    PathEvidence,
    build_folders,
    build_table,
    locate_units,
    unit_at,
)

OWNED = "void at::launch<at::{}(at::Iterator&)::{{lambda()#1}}, {}>(int)"


def test_a_kernel_of_several_units_has_them_all_and_one_of_none_is_left_out(make_table):
    table = ReleaseTable(make_table({"at::f()": ["aten/F.cu", "G.cu"], "at::g()": ["G.cu"], "at::h()": []}))
    assert table.units_of("at::f()") == ("G.cu", "aten/F.cu")
    assert table.units_of("at::g()") == ("G.cu",)
    assert table.units_of("at::h()") == ()


def test_units_of_one_name_are_told_apart_by_their_paths(make_table):
    table = ReleaseTable(
        make_table({"at::f()": ["aten/cuda/SoftMax.cu"], "at::g()": ["aten/sparse/SoftMax.cu"]})
    )
    assert table.units_of("at::f()") == ("aten/cuda/SoftMax.cu",)
    assert table.units_of("at::g()") == ("aten/sparse/SoftMax.cu",)


def test_the_owner_of_the_lambda_names_the_file_whatever_launches_it(make_table):
    table = ReleaseTable(
        make_table({OWNED.format("gelu", "int"): ["Gelu.cu"], OWNED.format("silu", "int"): ["Silu.cu"]})
    )
    assert table.loose_units_of(OWNED.format("gelu", "float")) == ("Gelu.cu",)
    assert table.loose_units_of(OWNED.format("gelu", "float").replace("launch", "launch_anew")) == (
        "Gelu.cu",
    )


def test_an_owner_the_release_does_not_have_is_not_replaced_by_its_launcher(make_table):
    table = ReleaseTable(make_table({OWNED.format("gelu", "int"): ["Gelu.cu"]}))
    assert table.loose_units_of(OWNED.format("extension", "int")) == ()


def test_an_owner_in_several_files_leaves_it_to_the_launcher(make_table):
    table = ReleaseTable(
        make_table(
            {
                OWNED.format("helper", "at::F<int>"): ["A.cu"],
                OWNED.format("helper", "at::G<int>"): ["B.cu"],
            }
        )
    )
    assert table.loose_units_of(OWNED.format("helper", "at::F<float>")) == ("A.cu",)
    assert table.loose_units_of(OWNED.format("helper", "at::H<float>")) == ()


def test_a_launcher_in_several_files_answers_nothing(make_table):
    table = ReleaseTable(make_table({"void at::k<int>()": ["A.cu"], "void at::k<long>()": ["B.cu"]}))
    assert table.loose_units_of("void at::k<float>()") == ()


def test_names_that_share_a_hash_are_found_when_the_table_is_made(monkeypatch):
    monkeypatch.setattr(builder, "text_hash", lambda name: 7)
    with pytest.raises(InputError, match=r"share the hash 0x7: 'at::f\(\)' and 'at::g\(\)'"):
        build_table({"at::f()": [Unit("F.cu")], "at::g()": [Unit("F.cu")]}, "2.11.0")


def test_loose_keys_that_share_a_hash_are_found_too(monkeypatch):
    monkeypatch.setattr(LooseKeys, "hashes", lambda keys: {"launch": 7})
    with pytest.raises(InputError, match="share the hash"):
        build_table({"at::f()": [Unit("F.cu")], "at::g()": [Unit("F.cu")]}, "2.11.0")


@pytest.mark.parametrize(("limit", "message"), [("SEVERAL_UNITS", "3 units"), ("LARGEST_VALUE", "3 sets")])
def test_more_than_the_format_can_count_is_refused(monkeypatch, limit, message):
    monkeypatch.setattr(builder, limit, 2)
    kernels = {f"at::{name}()": [Unit(f"{name}.cu")] for name in "abc"}
    with pytest.raises(InputError, match=message):
        build_table(kernels, "2.11.0")


def test_a_mangled_name_is_found_by_what_a_trace_shows_for_it(make_table):
    table = ReleaseTable(make_table({"at::native::kernel()": ["K.cu"], "_ZN3odd": ["Odd.cu"]}))
    assert table.units_of("_ZN2at6native6kernelEv") == ("K.cu",)
    assert table.loose_units_of("_ZN2at6native6kernelEv") == ("K.cu",)
    assert table.units_of("_ZN3odd") == ("Odd.cu",)


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
