from __future__ import annotations

import pytest

from opscope.provenance.sources import permalink
from opscope.provenance.sources.at_hand import include_path, repository_path

COMMIT = "2236df1770800ffea5697b11b0bb0d910b2e59e1"
BLOB = f"https://github.com/pytorch/pytorch/blob/{COMMIT}"
SOFTMAX = "aten/src/ATen/native/cuda/SoftMax.cu"


@pytest.mark.parametrize(
    ("line", "end_line", "anchor"),
    [
        (1091, 1099, "#L1091-L1099"),
        (7, 7, "#L7"),
        (7, None, "#L7"),
        (None, None, ""),
        (7, 3, "#L7"),
        (0, 0, ""),
    ],
)
def test_the_address_of_lines(line: int | None, end_line: int | None, anchor: str) -> None:
    assert permalink(COMMIT, SOFTMAX, line, end_line) == f"{BLOB}/{SOFTMAX}{anchor}"


@pytest.mark.parametrize(
    ("header", "file"),
    [
        ("ATen/native/cuda/CUDALoops.cuh", "aten/src/ATen/native/cuda/CUDALoops.cuh"),
        ("THC/THCAtomics.cuh", "aten/src/THC/THCAtomics.cuh"),
        ("c10/cuda/CUDAStream.h", "c10/cuda/CUDAStream.h"),
        ("torch/csrc/autograd/function.h", "torch/csrc/autograd/function.h"),
        ("ATen/TensorOperators.h", "aten/src/ATen/TensorOperators.h"),
    ],
)
def test_headers_lead_to_the_repository_and_back(header: str, file: str) -> None:
    assert repository_path(header) == file
    assert include_path(file) == header
    assert permalink(COMMIT, header, 3) == permalink(COMMIT, file, 3) == f"{BLOB}/{file}#L3"


@pytest.mark.parametrize(
    "header",
    [
        "ATen/ops/add.h",
        "ATen/Functions.h",
        "ATen/CUDAFunctions_inl.h",
        "ATen/core/TensorBody.h",
        "ATen/cuda/CUDAConfig.h",
        "c10/macros/cmake_macros.h",
        "torch/csrc/autograd/generated/Functions.h",
        "pybind11/cast.h",
        "fmt/core.h",
        "dnnl.h",
        "cutlass/gemm/device/gemm.h",
        "",
        "ATen",
    ],
)
def test_generated_and_foreign_headers_are_not_in_the_repository(header: str) -> None:
    assert repository_path(header) is None
    assert permalink(COMMIT, header, 3) is None


@pytest.mark.parametrize(
    "file",
    [
        "third_party/cutlass/include/cutlass/gemm/gemm.h",
        "third_party/flash-attention/csrc/flash_attn/src/flash_fwd_kernel.h",
        "/etc/passwd",
        "aten/../../x",
        "build/aten/src/ATen/RegisterCUDA.cpp",
        "aten/src/ATen/Functions.h",
    ],
)
def test_no_permalink_for_what_the_repository_does_not_hold(file: str) -> None:
    assert permalink(COMMIT, file, 1) is None


@pytest.mark.parametrize("commit", [None, "", "main", "v2.6.0", COMMIT[:12], COMMIT + "0", COMMIT.upper()])
def test_no_permalink_without_a_commit(commit: str | None) -> None:
    assert permalink(commit, SOFTMAX, 1) is None


def test_odd_characters_are_escaped() -> None:
    assert permalink(COMMIT, "aten/a b#c.cu", 1) == f"{BLOB}/aten/a%20b%23c.cu#L1"


def test_other_files_of_the_repository() -> None:
    assert include_path("tools/x.py") is None
    assert (
        permalink(COMMIT, "tools/autograd/derivatives.yaml", 5)
        == f"{BLOB}/tools/autograd/derivatives.yaml#L5"
    )
