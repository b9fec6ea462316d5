"""The script that makes the packaged tables, on a listing of kernels."""

from __future__ import annotations

import importlib.util
import json
import lzma
from pathlib import Path

import pytest

from opscope.provenance.releases.table import ReleaseTable
from opscope.provenance.releases.table_file import decode_table

SCRIPT = Path(__file__).resolve().parents[4] / "scripts" / "build_release_tables.py"
KERNELS = {"at::f()": ["F.cu"], "at::g()": ["F.cu", "zswap.cu"]}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("build_release_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(folder: Path, version: str) -> ReleaseTable:
    file = folder / version / "units.msgpack.zst"
    return ReleaseTable(decode_table(file.read_bytes(), str(file)))


@pytest.mark.parametrize("suffix", ["json", "json.xz"])
def test_a_listing_and_a_list_of_files_make_a_table(script, tmp_path, capsys, suffix):
    listing, files = tmp_path / f"kernels.{suffix}", tmp_path / "files.txt"
    content = json.dumps(KERNELS).encode()
    listing.write_bytes(lzma.compress(content) if suffix.endswith("xz") else content)
    files.write_text("aten/src/ATen/F.cu\naten/src/ATen/F.cpp\n")
    arguments = ["2.9.0", "--kernels", str(listing), "--checkout", str(files), "--output", str(tmp_path)]
    assert script.main(arguments) == 0
    table = read(tmp_path, "2.9.0")
    assert table.units_of("at::f()") == ("aten/src/ATen/F.cu",)
    assert table.units_of("at::g()") == ("aten/src/ATen/F.cu", "zswap.cu")
    assert "2 units: 1 repository, 1 unknown" in capsys.readouterr().out
    assert [file.name for file in (tmp_path / "2.9.0").iterdir()] == ["units.msgpack.zst"]


def test_the_wheel_tells_commit_and_cuda_version(script, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    (tmp_path / "version.py").write_text(
        f"cuda: Optional[str] = '13.0'\ngit_version = '{commit}'\nhip = None\n"
    )
    assert script.release_facts(tmp_path) == (commit, "13.0")
    (tmp_path / "version.py").write_text("cuda = None\ngit_version = 'Unknown'\n")
    assert script.release_facts(tmp_path) == (None, None)


def test_what_cannot_be_built_is_said(script, tmp_path, capsys):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("")
    assert script.main(["2.9.0", "--torch", str(tmp_path / "torch"), "--output", str(tmp_path)]) == 1
    assert "error: no kernels" in capsys.readouterr().err
