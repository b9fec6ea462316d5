from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.provenance.indexer.build import header_index
from opscope.provenance.sources.at_hand import read_lines

HEADER = "include/ATen/native/cuda/Loops.cuh"
KERNEL = "namespace at::native {\ntemplate <class T>\n__global__ void run(T f) {\n}\n}\n"
VERSION = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\ngit_version = '" + "e" * 40 + "'\n"


@pytest.fixture
def torch(checkout: Callable[[dict[str, str]], Path]) -> Path:
    return checkout(
        {
            HEADER: KERNEL,
            "include/ATen/ops/add.h": "void generated() {}",
            "include/ATen/cuda/CUDAConfig.h": "void generated() {}",
            "include/torch/csrc/utils.h": "void elsewhere() {}",
            "version.py": VERSION,
        }
    )


def test_headers_are_named_as_in_the_repository(torch: Path, tmp_path: Path) -> None:
    index = header_index(torch / "include", folder=tmp_path)
    assert (index.version, index.git_version) == ("2.13.0+cpu", "e" * 40)
    assert index.source.files == ("aten/src/ATen/native/cuda/Loops.cuh",)
    found = index.kernel("at::native::run", ["Any.cu"])
    assert found is not None
    assert (found.line, found.end_line, found.template_parameters) == (3, 4, ("T",))
    assert read_lines(found.file, 3, None, [torch / "include"]) == ["__global__ void run(T f) {"]


def test_the_second_time_it_comes_from_the_cache(torch: Path, tmp_path: Path) -> None:
    header_index(torch / "include", folder=tmp_path)
    (cached,) = (tmp_path / "headers").iterdir()
    written = cached.stat().st_mtime_ns
    assert header_index(torch / "include", folder=tmp_path).kernel("run") is not None
    assert [file.stat().st_mtime_ns for file in (tmp_path / "headers").iterdir()] == [written]


def test_a_changed_header_is_read_anew(torch: Path, tmp_path: Path) -> None:
    header_index(torch / "include", folder=tmp_path)
    (torch / HEADER).write_text("\n" + KERNEL, encoding="utf-8")
    os.utime(torch / HEADER, ns=(1, 1))
    found = header_index(torch / "include", folder=tmp_path).kernel("run")
    assert found is not None
    assert found.line == 4


def test_a_damaged_cache_is_read_anew(torch: Path, tmp_path: Path) -> None:
    header_index(torch / "include", folder=tmp_path)
    (cached,) = (tmp_path / "headers").iterdir()
    cached.write_bytes(b"nothing")
    assert header_index(torch / "include", folder=tmp_path).kernel("run") is not None


def test_a_folder_that_cannot_be_written(torch: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"")
    assert header_index(torch / "include", folder=blocked).kernel("run") is not None


def test_without_a_version(torch: Path, tmp_path: Path) -> None:
    (torch / "version.py").unlink()
    index = header_index(torch / "include", folder=tmp_path)
    assert (index.version, index.git_version) == ("", None)


def test_no_headers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ATen headers"):
        header_index(tmp_path)
