from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.provenance.sources import SourceIndex, source_index
from opscope.provenance.sources.index import load_index, store_index

IndexOf = Callable[..., SourceIndex]
FILES = {"aten/src/ATen/native/cuda/A.cu": "namespace at::native { void f() {} }"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "opscope"


def test_an_index_is_found_again_by_its_version(index_of: IndexOf, cache: Path) -> None:
    assert source_index("99.1.0") is None
    path = store_index(index_of(FILES, "99.1.0", "f" * 40))
    assert path.is_relative_to(cache)
    for version in ("99.1.0", "99.1.0+cu130", "99.1.0a0"):
        found = source_index(version)
        assert found is not None
        assert (found.version, found.git_version) == ("99.1.0", "f" * 40)
        assert found.function("f") is not None


def test_the_users_own_comes_before_the_packaged_one(index_of: IndexOf) -> None:
    store_index(index_of(FILES, "2.6.0"))
    found = source_index("2.6.0")
    assert found is not None
    assert found.source.files == tuple(FILES)


@pytest.mark.parametrize("version", [None, "", "main", "../2.6.0", "2.6"])
def test_what_is_no_version_has_no_index(version: str | None) -> None:
    assert source_index(version) is None


def test_only_indexes_of_releases_are_stored(index_of: IndexOf, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be stored"):
        store_index(index_of(FILES, "../../x"))


def test_a_folder_that_cannot_be_written(index_of: IndexOf, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"")
    with pytest.raises(InputError, match="cannot be written"):
        store_index(index_of(FILES, "99.1.0"), blocked)


def test_a_damaged_file_says_so(cache: Path) -> None:
    path = cache / "releases" / "99.2.0" / "sources.msgpack.zst"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a source index") as raised:
        source_index("99.2.0")
    assert raised.value.source == str(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_index(tmp_path / "none")
