"""Every accuracy figure, worked out by hand on one small trace, and what holds for all traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

import opscope
from opscope.analysis.provenance import Accuracy
from opscope.analysis.summary import Summary
from opscope.model.session import Session
from opscope.testing import TraceBuilder

Annotated = Callable[..., Session]
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64> >(Flash_fwd_params)"

# 200 us of device time: 100 + 40 + 20 of operators, 30 of another one's, 10 of none.
KERNELS: dict[str, dict[str, Any]] = {
    "a": {"library": "aten", "family": "elementwise", "grades": {"family": "name_pattern"}, "units": ["A.cu"],
          "unit_grade": "exact", "file": "A.cuh", "file_grade": "exact", "line": 3,
          "line_grade": "neighbor_version"},
    "gemm": {"library": "cublas", "family": "gemm", "grades": {"family": "inferred"}},
    "sort": {"library": "cub", "units": ["B.cu", "C.cu"], "unit_grade": "release_index"},
    FLASH: {"family": "attention_flash", "grades": {"family": "name_pattern"}},
    "leaked": {},
}  # fmt: skip
FUNCTIONS: dict[str, dict[str, Any]] = {
    "aten::add": {"yaml_line": 5, "overload": "Tensor", "overload_grade": "exact", "file": "Add.cpp",
                  "file_grade": "release_index", "line": 7, "line_grade": "neighbor_version"},
    "aten::mm": {"details": {"candidates": ["", "out"]}, "overload_grade": "release_index",
                 "file": "Mm.cpp", "file_grade": "release_index"},
    "aten::sort": {"yaml_line": 9, "overload_grade": "exact", "stub_file": "Sort.cu",
                   "stub_file_grade": "exact", "stub_line": 4, "stub_line_grade": "exact"},
    "my::attention": {"kind": "custom"},
}  # fmt: skip


@pytest.fixture
def accuracy(load: Callable[..., Session], annotated: Annotated) -> Accuracy:
    built = TraceBuilder()
    work = [("aten::add", "a", 100), ("aten::mm", "gemm", 40), ("aten::sort", "sort", 20)]
    for index, (operator, kernel, kernel_us) in enumerate([*work, ("my::attention", FLASH, 30)]):
        built.operator(operator, 100 * index, 50).launch(100 * index + 10)
        built.kernel(kernel, 1_000 + 200 * index, kernel_us)
    built.kernel("leaked", 5, 10, correlation=3)
    found = opscope.summarize(annotated(load(built), KERNELS, FUNCTIONS)).accuracy
    assert found is not None
    return found


def test_shares_of_all_device_time(accuracy: Accuracy) -> None:
    assert accuracy.attributed_fraction == 190 / 200
    assert accuracy.operator_entry_fraction == 160 / 200
    assert accuracy.family_fraction == 170 / 200


def test_shares_of_the_time_of_aten_operators(accuracy: Accuracy) -> None:
    assert accuracy.aten_operator_entry_fraction == 1.0
    assert accuracy.aten_operator_file_fraction == 1.0
    assert accuracy.aten_operator_line_fraction == 120 / 160


def test_shares_of_the_time_of_torchs_own_kernels(accuracy: Accuracy) -> None:
    """Those of `a`, `sort` and the attention kernel, whose name tells no library: not cuBLAS's."""
    assert accuracy.aten_kernel_unit_fraction == 120 / 150
    assert accuracy.aten_kernel_single_unit_fraction == 100 / 150


def test_shares_by_grade(accuracy: Accuracy) -> None:
    assert accuracy.by_grade == {
        "kernel_unit": {"exact": 100 / 150, "release_index": 20 / 150, "unknown": 30 / 150},
        "kernel_line": {"neighbor_version": 100 / 150, "unknown": 50 / 150},
        "kernel_family": {"name_pattern": 130 / 200, "inferred": 40 / 200, "unknown": 30 / 200},
        "operator_entry": {"exact": 120 / 190, "release_index": 40 / 190, "unknown": 30 / 190},
        "operator_file": {"exact": 20 / 190, "release_index": 140 / 190, "unknown": 30 / 190},
        "operator_line": {"exact": 20 / 190, "neighbor_version": 100 / 190, "unknown": 70 / 190},
    }


def assert_consistent(accuracy: Accuracy) -> None:
    for kind, shares in accuracy.by_grade.items():
        assert not shares or sum(shares.values()) == pytest.approx(1), kind
    for name, fraction in fractions(accuracy).items():
        assert fraction is None or 0 <= fraction <= 1, name


def fractions(accuracy: Accuracy) -> Mapping[str, float | None]:
    values = msgspec.structs.asdict(accuracy)
    return {name: value for name, value in values.items() if name.endswith("_fraction")}


def test_of_a_recording(example_summary: Summary) -> None:
    accuracy = example_summary.accuracy
    assert accuracy is not None
    assert_consistent(accuracy)
    assert accuracy.attributed_fraction == example_summary.attributed_fraction
    assert accuracy.aten_kernel_unit_fraction == 1.0
    assert accuracy.by_grade["kernel_unit"] == {"release_index": 1.0}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bert_train_bf16", "bert_compile_bf16", "misc_ops_fp32", "own_kernels"])
def test_of_real_traces(load: Callable[..., Session], shared: Any, name: str) -> None:
    accuracy = Summary(load(shared / "traces" / "h200" / f"{name}.json.gz")).accuracy
    assert accuracy is not None
    assert_consistent(accuracy)
    assert accuracy.family_fraction == 1.0


def test_without_device_time_nothing_is_claimed(load: Callable[..., Session]) -> None:
    accuracy = Summary(load(TraceBuilder().operator("aten::mm", 0, 5))).accuracy
    assert accuracy is not None
    assert set(fractions(accuracy).values()) == {None}
    assert set(map(len, accuracy.by_grade.values())) == {0}
