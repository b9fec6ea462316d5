from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.provenance.binaries.translation_unit import TranslationUnit
from opscope.provenance.indexer import units as additions
from opscope.provenance.indexer.units import add_library_table
from opscope.provenance.releases import release, release_versions
from opscope.provenance.releases.catalog import added_table

OWN = TranslationUnit("Own.cu", "0" * 8, "aten/src/ATen/native/cuda/Own.cu")


@dataclass
class FakeLibrary:
    kernels: dict[str, tuple[TranslationUnit, ...]] = field(default_factory=dict)
    build_id: str = "b" * 40

    def kernel_names(self):
        return list(self.kernels)

    def units_of(self, name):
        return self.kernels.get(name, ())


@pytest.fixture
def library(monkeypatch, packaged):
    """What reading any library gives; the catalog is empty."""
    fake = FakeLibrary({"at::f()": (OWN,), "at::g()": (OWN, TranslationUnit("Two.cu")), "at::h()": ()})
    monkeypatch.setattr(additions, "read_library", lambda path: fake)
    return fake


def test_the_kernels_of_an_added_library_are_known_from_then_on(library):
    assert release_versions() == ()
    written = add_library_table("lib/libtorch_cuda.so", "2.12.0.dev20260101+cu130")
    assert written == added_table("2.12.0.dev20260101+cu130")
    table = release("2.12.0.dev20260101+cu130")
    assert table.units_of("at::f()") == ("aten/src/ATen/native/cuda/Own.cu",)
    assert table.units_of("at::g()") == ("Two.cu", "aten/src/ATen/native/cuda/Own.cu")
    assert table.units_of("at::h()") == ()
    assert [(of.name, of.build_id, of.kernel_count) for of in table.libraries] == [
        ("libtorch_cuda.so", "b" * 40, 3)
    ]


def test_libraries_of_one_label_make_one_table(library):
    add_library_table("libtorch_cuda.so", "ours")
    library.kernels = {"at::f()": (TranslationUnit("New.cu"),), "at::i()": (TranslationUnit("Own.cu"),)}
    add_library_table("libtorch_cuda_linalg.so", "ours")
    table = release("ours")
    assert table.units_of("at::f()") == ("New.cu",)
    assert table.units_of("at::g()") == ("Two.cu", "aten/src/ATen/native/cuda/Own.cu")
    assert table.units_of("at::i()") == ("aten/src/ATen/native/cuda/Own.cu",)
    assert [of.name for of in table.libraries] == ["libtorch_cuda.so", "libtorch_cuda_linalg.so"]


def test_another_cache_folder_is_left_to_the_caller(library, tmp_path):
    written = add_library_table("libtorch_cuda.so", "ours", tmp_path / "other")
    assert written == tmp_path / "other" / "releases" / "ours" / "units.msgpack.zst"
    assert release_versions() == ()


@pytest.mark.parametrize("label", ["", "..", "../escape", "a/b", ".hidden", "with space", "nul\0"])
def test_a_label_that_could_leave_the_folder_is_refused(library, label):
    with pytest.raises(InputError, match="cannot name a table"):
        add_library_table("libtorch_cuda.so", label)


def test_a_library_that_tells_no_units_is_refused(library):
    library.kernels = {"at::h()": ()}
    with pytest.raises(InputError, match=r"libtorch_cuda\.so: no kernel of it"):
        add_library_table("libtorch_cuda.so", "ours")


def test_a_damaged_table_is_named_when_it_is_added_to(library):
    written = add_library_table("libtorch_cuda.so", "ours")
    written.write_bytes(b"not a table")
    with pytest.raises(InputError, match="damaged") as raised:
        add_library_table("libtorch_cuda.so", "ours")
    assert raised.value.source == str(written)


def test_a_folder_that_cannot_be_written_is_named(library, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        add_library_table(Path("libtorch_cuda.so"), "ours", tmp_path / "file")
