"""Which releases there are tables of, and what adding to them takes and refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.provenance.binaries.translation_unit import TranslationUnit
from opscope.provenance.indexer import inventory
from opscope.provenance.indexer import units as additions
from opscope.provenance.indexer.inventory import (
    ReleaseInventory,
    add_library,
    add_operators,
    add_source,
    known_releases,
    label_of_library,
)
from opscope.provenance.operators import packaged_table, table_for
from opscope.provenance.releases import git_version, recognize, release
from opscope.provenance.releases.catalog import forget_tables
from opscope.provenance.sources import source_index

PACKAGED = ("2.6.0", "2.11.0", "2.13.0", "2.14.1")
ELF = b"\x7fELF\x02\x01\x01".ljust(64, b"\0")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NIGHTLY = "2.12.0.dev20260101+cu130"


class FakeLibrary:
    """A library with one kernel of one unit."""

    build_id = None

    def kernel_names(self) -> list[str]:
        return ["at::f()"]

    def units_of(self, _: str) -> tuple[TranslationUnit, ...]:
        return (TranslationUnit("F.cu", None, "aten/src/ATen/native/cuda/F.cu"),)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The empty cache folder; any library that is read is the fake one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(additions, "read_library", lambda path: FakeLibrary())
    packaged_table.cache_clear()
    yield tmp_path / "cache" / "opscope" / "releases"
    packaged_table.cache_clear()
    forget_tables()


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., Path]:
    """Writes an installation of torch without contents, and returns its library."""

    def make(
        version: str, commit: str = COMMIT, functions: str = "- func: mine(Tensor self) -> Tensor\n"
    ) -> Path:
        texts = {
            "torch/version.py": f"__version__ = '{version}'\ngit_version = '{commit}'\n",
            "torchgen/packaged/ATen/native/native_functions.yaml": functions,
            "torchgen/packaged/ATen/native/tags.yaml": "- tag: core\n  desc: x\n- tag: out\n  desc: x\n",
            "torchgen/packaged/autograd/derivatives.yaml": "[]",
        }
        for name, text in texts.items():
            path = tmp_path / "site-packages" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        library = tmp_path / "site-packages" / "torch" / "lib" / "libtorch_cuda.so"
        library.parent.mkdir(exist_ok=True)
        library.write_bytes(ELF)
        return library

    return make


def of(version: str) -> ReleaseInventory:
    return next(one for one in known_releases() if one.version == version)


class TestKnownReleases:
    def test_the_packaged_ones_oldest_first(self) -> None:
        releases = known_releases()
        assert tuple(one.version for one in releases) == PACKAGED
        assert not any(one.is_added for one in releases)
        for one in releases:
            assert one.kernels is not None
            assert one.units is not None
            assert one.native_functions is not None
            assert (one.kernels > 20_000, one.units > 400, one.native_functions > 3_000) == (True,) * 3

    def test_definitions_are_counted_not_files(self) -> None:
        index = source_index("2.6.0")
        assert index is not None
        found = of("2.6.0")
        assert found.definitions == len(index.source)
        assert found.definitions > 30_000 > len(index.source.files)

    def test_a_release_has_its_source_tree_or_its_headers(self) -> None:
        for one in known_releases():
            assert (one.definitions is None) is not (one.header_definitions is None)

    def test_added_versions_are_sorted_in_and_names_come_last(self, install: Callable[..., Path]) -> None:
        library = install(NIGHTLY)
        for label in ("ours", "2.9.0"):
            add_library(library, label)
        assert tuple(one.version for one in known_releases()) == (
            "2.6.0", "2.9.0", "2.11.0", "2.13.0", "2.14.1", "ours",
        )  # fmt: skip
        assert of("2.9.0") == ReleaseInventory("2.9.0", True, 1, 1, None, None, None)


class TestLabels:
    @pytest.mark.parametrize(
        ("version", "label"),
        [("2.12.0+cu130", "2.12.0"), ("2.12.0", "2.12.0"), (NIGHTLY, NIGHTLY),
         ("2.12.0a0+git01", "2.12.0a0+git01")],
    )  # fmt: skip
    def test_a_release_has_its_name_another_build_its_whole_label(
        self, install: Callable[..., Path], version: str, label: str
    ) -> None:
        assert label_of_library(install(version)) == label

    def test_a_library_elsewhere_has_none(self, tmp_path: Path) -> None:
        path = tmp_path / "libmine.so"
        path.write_bytes(ELF)
        with pytest.raises(InputError, match="in no torch installation") as caught:
            label_of_library(path)
        assert (caught.value.source, caught.value.hint) == (str(path), "Name it with --release")

    def test_what_is_no_library_is_said_first(self, tmp_path: Path) -> None:
        text = tmp_path / "notes.txt"
        text.write_text("no library")
        with pytest.raises(InputError, match="not an ELF file"):
            label_of_library(text)
        with pytest.raises(InputError, match="cannot be read"):
            label_of_library(tmp_path / "none.so")


class TestAddingABuild:
    def test_a_nightly_is_recognized_by_its_whole_label(self, install: Callable[..., Path]) -> None:
        library = install(NIGHTLY)
        label = label_of_library(library)
        add_library(library, label)
        add_operators(library, label)
        assert recognize([], torch_version=NIGHTLY).version == NIGHTLY
        assert release(NIGHTLY).units_of("at::f()") == ("aten/src/ATen/native/cuda/F.cu",)
        assert git_version(NIGHTLY) == COMMIT
        assert table_for(NIGHTLY).entry("aten::mine") is not None
        assert of(NIGHTLY).native_functions == 1

    def test_the_yaml_files_beside_a_library_are_read(
        self, install: Callable[..., Path], cache: Path
    ) -> None:
        library = install("2.12.0+cu130")
        assert packaged_table("2.12.0") is None
        assert add_operators(library, "2.12.0") == (cache / "2.12.0" / "operators.msgpack.zst",)
        found = packaged_table("2.12.0")  # not what was remembered before
        assert found is not None
        assert (found.version, found.git_version) == ("2.12.0", COMMIT)

    @pytest.mark.parametrize("path", ["/lib.so", "lib.so"])
    def test_a_library_of_no_installation_has_none(self, path: str) -> None:
        assert add_operators(Path(path), "2.12.0") == ()

    def test_an_installation_without_yaml_has_none(
        self, install: Callable[..., Path], tmp_path: Path
    ) -> None:
        library = install("2.12.0")
        (tmp_path / "site-packages" / "torchgen").rename(tmp_path / "elsewhere")
        assert add_operators(library, "2.12.0") == ()

    def test_damaged_yaml_is_named(self, install: Callable[..., Path]) -> None:
        library = install("2.12.0", functions="- func: [")
        with pytest.raises(InputError, match=r"native_functions\.yaml"):
            add_operators(library, "2.12.0")

    def test_a_commit_that_is_none_is_unknown(self, install: Callable[..., Path]) -> None:
        add_library(install("2.12.0", commit="Unknown"), "2.12.0")
        assert git_version("2.12.0") is None

    def test_a_cache_that_cannot_be_written_is_named(
        self, install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        library = install("2.12.0")
        for add in (add_library, add_operators):
            with pytest.raises(InputError, match="cannot be written"):
                add(library, "2.12.0")


class TestAddingSources:
    def test_a_label_that_is_no_version_is_refused_before_the_tree_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inventory, "build_index", None)
        with pytest.raises(InputError, match="'ours' is not a version"):
            add_source(tmp_path, "ours")

    def test_a_folder_that_is_no_checkout_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="not a PyTorch source tree"):
            add_source(tmp_path, None)

    def test_a_tree_is_kept_under_its_own_version_or_the_one_given(self, tmp_path: Path, cache: Path) -> None:
        file = tmp_path / "aten/src/ATen/native/cuda/F.cu"
        file.parent.mkdir(parents=True)
        file.write_text("namespace at::native {\nvoid f() {}\nvoid g() {}\n}\n")
        (tmp_path / "version.txt").write_text("2.12.0a0\n")
        assert add_source(tmp_path, None) == cache / "2.12.0" / "sources.msgpack.zst"
        assert add_source(tmp_path, "2.12.1+cu130") == cache / "2.12.1" / "sources.msgpack.zst"
        assert of("2.12.0") == ReleaseInventory("2.12.0", True, None, None, None, 2, None)


@pytest.mark.parametrize("table", ["units", "operators", "sources"])
def test_a_damaged_added_table_is_named(cache: Path, table: str) -> None:
    damaged = cache / "2.12.0" / f"{table}.msgpack.zst"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no table")
    with pytest.raises(InputError) as caught:
        known_releases()
    assert caught.value.source == str(damaged)
