"""The tool that makes the packaged tables, on a listing of kernels and a small installation."""

import importlib

import pytest

from opscope.errors import InputError
from opscope.provenance.sources import INDEX_FORMAT
from opscope.provenance.torch_releases import UNITS_FORMAT, Library
from torch_tables.libraries import unit_at


@pytest.fixture
def script():
    return importlib.import_module("torch_tables.__main__")


def read(folder, version):
    file = folder / version / "units.msgpack.zst"
    return UNITS_FORMAT.read(file)


def test_the_kernels_of_its_libraries_make_a_table(script, torch, tmp_path, monkeypatch):
    placed, bare = unit_at("F.cu", "aten/src/ATen/F.cu"), unit_at("zswap.cu", None)
    kernels = {"at::f()": (placed,), "at::g()": (placed, bare)}
    monkeypatch.setattr(script.libraries, "kernels_of_library", lambda path: (Library(path.name), kernels))
    arguments = ["2.9.0", "--torch", str(torch), "--table", "units"]
    script.main([*arguments, "--output", str(tmp_path)])
    table = read(tmp_path, "2.9.0")
    assert table.units_of("at::f()") == ("aten/src/ATen/F.cu",)
    assert table.units_of("at::g()") == ("aten/src/ATen/F.cu", "zswap.cu")
    assert (table.git_version, table.cuda) == ("a" * 40, "13.0")
    assert [file.name for file in (tmp_path / "2.9.0").iterdir()] == ["units.msgpack.zst"]


def test_what_cannot_be_built_is_said(script, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").touch()
    with pytest.raises(InputError, match="no kernels"):
        script.main(["2.9.0", "--torch", str(tmp_path / "torch"), "--output", str(tmp_path)])


@pytest.fixture
def torch(tmp_path):
    """A torch folder with one header and one library."""
    folder = tmp_path / "torch"
    header = folder / "include" / "ATen" / "native" / "cuda" / "Scale.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("namespace at::native {\n__global__ void scale_kernel(int n) {}\n}\n")
    (folder / "lib").mkdir()
    (folder / "lib" / "libtorch_cuda.so").touch()
    (folder / "version.py").write_text(f"git_version = '{'a' * 40}'\ncuda = '13.0'\n")
    return folder


def test_headers_make_a_table(script, torch, tmp_path):
    arguments = ["2.9.0", "--torch", str(torch), "--table", "headers", "--output", str(tmp_path / "data")]
    script.main(arguments)
    file = tmp_path / "data" / "2.9.0" / "headers.msgpack.zst"
    table = INDEX_FORMAT.read(file)
    assert [(row.name, row.file, row.line) for row in table] == [
        ("scale_kernel", "aten/src/ATen/native/cuda/Scale.cuh", 2)
    ]
    before = file.read_bytes()
    script.main(arguments)
    assert file.read_bytes() == before


def test_a_release_with_sources_needs_no_headers(script, torch, tmp_path):
    sources = tmp_path / "data" / "2.9.0" / "sources.msgpack.zst"
    sources.parent.mkdir(parents=True)
    sources.write_bytes((script.DATA / "2.6.0" / sources.name).read_bytes())
    for version in ("2.9.0", "2.6.0"):  # just built, and packaged
        arguments = [version, "--torch", str(torch), "--table", "headers", "--output", str(tmp_path / "data")]
        script.main(arguments)
        assert not (tmp_path / "data" / version / "headers.msgpack.zst").exists()


def test_lines_are_those_between_checks_of_both_releases(script, torch, tmp_path, monkeypatch):
    file = "aten/src/ATen/native/cuda/SoftMax.cu"
    before = script.CHECKS_FORMAT.decode((script.HERE / "checks_2.6.0.msgpack.zst").read_bytes(), None).files
    later = {(line + 10, name) for line, name in before[file]}
    monkeypatch.setattr(script.libraries, "sites_of", lambda path: {file: later})
    arguments = ["2.9.0", "--torch", str(torch), "--table", "lines", "--output", str(tmp_path / "data")]
    script.main(arguments)
    stored = tmp_path / "data" / "2.9.0" / script.sources.LINES_FORMAT.file
    table = script.sources.LINES_FORMAT.decode(stored.read_bytes(), stored)
    ((first, last, moved),) = table.files[file]
    assert (table.indexed, first < last, moved) == ("2.6.0", True, 10)
