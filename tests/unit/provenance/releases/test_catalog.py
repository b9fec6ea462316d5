"""The packaged tables of native functions and the files that may define them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zstandard

from opscope.errors import InputError
from opscope.provenance import packaged
from opscope.provenance.releases import catalog, git_version, release, release_versions
from opscope.provenance.releases.catalog import (
    FUNCTIONS_FILE,
    encode_functions,
    function_files,
)
from opscope.provenance.sources import source_index


def test_versions_are_in_order_of_age(packaged):
    for version in ("2.11.0", "2.6.0", "2.9.1"):
        packaged(version, {})
    assert release_versions() == ("2.6.0", "2.9.1", "2.11.0")


@pytest.mark.parametrize("label", ["2.11.0", "2.11.0+cu130", "v2.11", "2.11.0rc1"])
def test_a_build_of_a_release_is_answered_from_its_table(packaged, label):
    packaged("2.11.0", {}, git_version="a" * 40, cuda="13.0")
    table = release(label)
    assert (table.version, table.git_version, table.cuda) == ("2.11.0", "a" * 40, "13.0")
    assert release(label) is table
    assert git_version(label) == "a" * 40


@pytest.mark.parametrize("label", ["2.9.1", "nightly"])
def test_a_version_without_a_table_is_an_error_that_lists_what_there_is(packaged, label):
    packaged("2.11.0", {})
    with pytest.raises(InputError, match=rf"no kernel table of PyTorch {label}; there are: 2\.11\.0"):
        release(label)
    assert git_version(label) is None


def test_a_damaged_file_is_named(packaged):
    file = packaged("2.11.0", {})
    file.write_bytes(file.read_bytes()[:-3])
    catalog._table.cache_clear()
    with pytest.raises(InputError, match="damaged") as raised:
        release("2.11.0")
    assert raised.value.source == str(file)


NATIVE = "aten/src/ATen/native"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], Path]]:
    """Packages bytes as the table of release 1.2.3, in place of the real ones."""
    monkeypatch.setattr(packaged, "packaged_releases", lambda: tmp_path)
    catalog._functions.cache_clear()

    def write(content: bytes) -> Path:
        path = tmp_path / "1.2.3" / FUNCTIONS_FILE
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        return path

    yield write
    catalog._functions.cache_clear()


def stored(*values: object) -> bytes:
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(values))


def test_what_is_packaged_is_read_again(package: Callable[[bytes], Path]) -> None:
    package(encode_functions({"g": ("b.cu", "a.cu"), "f": ["a.cu"], "without": ()}))
    assert function_files("1.2.3", "f") == ("a.cu",)
    assert function_files("1.2.3", "g") == ("b.cu", "a.cu")
    assert function_files("1.2.3", "without") == function_files("1.2.3", "unknown") == ()


def test_the_order_of_functions_does_not_matter() -> None:
    one, other = {"f": ["a.cu"], "g": ["b.cu"]}, {"g": ["b.cu"], "f": ["a.cu"]}
    assert encode_functions(one) == encode_functions(other)


@pytest.mark.parametrize("version", ["9.9.9", "", "ours"])
def test_a_release_without_a_table_knows_nothing(version: str) -> None:
    assert function_files(version, "index_select_cuda") == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"no table", stored(1, []), stored(2, [], {}), stored(1, ["a.cu"], {"f": [1]}), stored(1, "a", {})],
)
def test_a_damaged_table_is_one_error_that_names_it(package: Callable[[bytes], Path], content: bytes) -> None:
    path = package(content)
    with pytest.raises(InputError, match="a table of functions") as caught:
        function_files("1.2.3", "f")
    assert caught.value.source == str(path)


class TestPackaged:
    @pytest.mark.parametrize("version", ["2.6.0", "2.11.0", "2.13.0", "2.14.1"])
    def test_spot_facts(self, version: str) -> None:
        assert function_files(version, "index_select_cuda") == (f"{NATIVE}/cuda/Indexing.cu",)
        assert function_files(version, "embedding_dense_backward_cuda") == (f"{NATIVE}/cuda/Embedding.cu",)

    def test_every_release_has_one_and_it_is_small(self) -> None:
        for version in release_versions():
            assert 0 < packaged.packaged_table(version, FUNCTIONS_FILE).stat().st_size <= 10_000
            assert len(catalog._functions(version)) >= 300

    def test_the_binary_agrees_with_the_source_tree(self) -> None:
        index = source_index("2.6.0")
        assert index is not None
        found = [
            (definition.file, files)
            for name, files in catalog._functions("2.6.0").items()
            if (definition := index.function(name)) is not None
        ]
        assert len(found) > 300
        # A function of a header lies in the unit that includes it.
        assert {
            file for file, files in found if file not in files and not file.endswith((".h", ".cuh"))
        } == set()
