from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.provenance.sources.at_hand import read_lines
from torch_tables.indexer.build import header_table

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


def test_headers_are_named_as_in_the_repository(torch: Path) -> None:
    index = header_table(torch / "include")
    assert (index.version, index.git_version) == ("2.13.0+cpu", "e" * 40)
    assert index.files == ("aten/src/ATen/native/cuda/Loops.cuh",)
    found = index.kernel("at::native::run", ["Any.cu"])
    assert found is not None
    assert (found.line, found.end_line, found.template_parameters) == (3, 4, ("T",))
    assert read_lines(found.file, 3, None, [torch / "include"]) == ["__global__ void run(T f) {"]


def test_lines_are_those_of_the_repository_where_the_wheel_adds_one(torch: Path) -> None:
    guard = "#if !defined(TORCH_STABLE_ONLY) && !defined(TORCH_TARGET_VERSION)"
    (torch / HEADER).write_text(f'{guard}\n{KERNEL}#else\n#error "no"\n#endif\n', encoding="utf-8")
    found = header_table(torch / "include").kernel("at::native::run", ["Any.cu"])
    assert found is not None
    assert (found.line, found.end_line) == (3, 4)
    assert read_lines(found.file, 3, None, [torch / "include"]) == ["__global__ void run(T f) {"]


def test_no_headers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ATen headers"):
        header_table(tmp_path)
