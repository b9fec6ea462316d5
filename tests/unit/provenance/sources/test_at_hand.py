from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.provenance import installation
from opscope.provenance.indexer.build import installed_headers
from opscope.provenance.sources import SourceIndex, indexed_versions, nearest_index, source_reader
from opscope.provenance.sources.index import store_index

IndexOf = Callable[..., SourceIndex]
HEADER = "aten/src/ATen/native/cuda/A.cuh"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    installed_headers.cache_clear()
    yield
    installed_headers.cache_clear()


def pretend_installed(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    spec = None if folder is None else ModuleSpec("torch", None, is_package=True)
    if spec is not None:
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(installation, "find_spec", lambda name: spec)


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    header = tmp_path / "torch/include/ATen/native/cuda/A.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("// of the installation\n__global__ void k() {}\n", encoding="utf-8")
    return tmp_path / "torch"


class TestInstalledHeaders:
    def test_of_the_torch_that_would_be_imported(self, monkeypatch: pytest.MonkeyPatch, torch: Path) -> None:
        pretend_installed(monkeypatch, torch)
        index = installed_headers()
        assert index is not None
        found = index.kernel("k")
        assert found is not None
        assert (found.file, found.line) == (HEADER, 2)

    def test_none_without_torch_or_without_headers(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        pretend_installed(monkeypatch, None)
        assert installed_headers() is None
        installed_headers.cache_clear()
        (tmp_path / "bare" / "include").mkdir(parents=True)
        pretend_installed(monkeypatch, tmp_path / "bare")
        assert installed_headers() is None


def test_the_nearest_release(index_of: IndexOf) -> None:
    for version in ("3.1.0", "3.5.0"):
        store_index(index_of({"a.cu": "void f() {}"}, version))
    assert indexed_versions()[-2:] == ("3.1.0", "3.5.0")
    nearest = {wanted: nearest_index(wanted) for wanted in ("3.2.0+cu130", "3.4.1", "9.0.0", None)}
    assert {wanted: found and found.version for wanted, found in nearest.items()} == {
        "3.2.0+cu130": "3.1.0",
        "3.4.1": "3.5.0",
        "9.0.0": "3.5.0",
        None: "3.5.0",
    }


def test_lines_from_a_checkout_or_the_installation(
    monkeypatch: pytest.MonkeyPatch, torch: Path, tmp_path: Path
) -> None:
    pretend_installed(monkeypatch, torch)
    checkout = tmp_path / "checkout"
    (checkout / HEADER).parent.mkdir(parents=True)
    (checkout / HEADER).write_text("// of the checkout\n", encoding="utf-8")
    (tmp_path / "own.py").write_text("def kernel(): ...\n", encoding="utf-8")
    location = SourceLocation(HEADER, Grade.EXACT, 1, 1, Grade.EXACT)
    assert source_reader()(location) == ["// of the installation"]
    assert source_reader(checkout)(location) == ["// of the checkout"]
    own = SourceLocation(str(tmp_path / "own.py"), Grade.EXACT, 1, None, Grade.EXACT)
    assert source_reader()(own) == ["def kernel(): ..."]
    assert source_reader()(SourceLocation(HEADER, Grade.EXACT)) is None
