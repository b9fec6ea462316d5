from __future__ import annotations

from opscope.analysis.provenance import NativeFunctionUse
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.report.document import Link, Table, plain
from opscope.report.explanation import file_functions, operator_functions

NATIVE = "aten/src/ATen/native"


def function(
    name: str,
    overload: str = "",
    *,
    file: str | None = None,
    line: int = 1,
    stub: SourceLocation | None = None,
) -> NativeFunctionUse:
    place = (
        None
        if file is None
        else SourceLocation(file, Grade.EXACT, line, line, Grade.RELEASE_INDEX, "https://x")
    )
    return NativeFunctionUse(
        name=name, overload=overload, kind="native", category="matrix", schema="", overload_grade=None,
        structured_delegate=None, dispatch_key="CUDA", cuda_function=f"{name[6:]}_cuda", stub=None,
        tags=("out",) if overload == "out" else (), yaml_line=1, details={}, location=place,
        stub_location=stub, calls=0, self_device_ns=0,
    )  # fmt: skip


def rows(table: Table) -> list[list[str]]:
    return [[plain(cell) for cell in row] for row in table.rows]


def test_operators_of_a_recording_come_first_and_internal_ones_last() -> None:
    functions = [
        function("aten::_int_mm"),
        function("aten::bmm", file=f"{NATIVE}/cuda/Blas.cpp", line=611),
        function("aten::addmm", "out"),
        function("aten::addmm", file="other/Addmm.cpp", line=7),
        function("aten::mm"),
    ]
    table, count = operator_functions(functions, ["aten::mm"], 10)
    assert count == 4
    assert rows(table) == [
        ["aten::mm", "1", "mm_cuda", "–", "–"],
        ["aten::addmm", "2", "addmm_cuda", "other/Addmm.cpp:7", "release_index"],
        ["aten::bmm", "1", "bmm_cuda", "cuda/Blas.cpp:611", "release_index"],
        ["aten::_int_mm", "1", "_int_mm_cuda", "–", "–"],
    ]
    assert table.rows[2][3] == Link("cuda/Blas.cpp:611", "https://x")


def test_rows_beyond_the_limit_are_counted() -> None:
    table, count = operator_functions([function(f"aten::f{index}") for index in range(9)], [], 4)
    assert (len(table.rows), count) == (4, 9)


def test_a_file_is_listed_by_line_with_all_that_is_served_there() -> None:
    kernel = SourceLocation(f"{NATIVE}/cuda/SoftMax.cu", Grade.EXACT, 5, 6, Grade.EXACT)
    functions = [
        function("aten::softmax", file=f"{NATIVE}/cuda/SoftMax.cu", line=90),
        function("aten::softmax", "out", file=f"{NATIVE}/cuda/SoftMax.cu", line=90),
        function("aten::gelu", file=f"{NATIVE}/Activation.cpp", stub=kernel),
        function("aten::log", file=f"{NATIVE}/cuda/SoftMax.cu", line=99),
        *(function(f"aten::f{index}", file="SoftMax.cu", line=3) for index in range(5)),
    ]
    table, count = file_functions(functions, "SoftMax.cu", ["aten::log"], 10)
    assert count == 4
    assert rows(table) == [
        ["cuda/SoftMax.cu:99", "release_index", "aten::log"],
        ["SoftMax.cu:3", "release_index", "aten::f0, aten::f1, aten::f2 and 2 more"],
        ["cuda/SoftMax.cu:5", "exact", "aten::gelu"],
        ["cuda/SoftMax.cu:90", "release_index", "aten::softmax, aten::softmax.out"],
    ]
