"""An explanation as a document and as JSON: what comes in which order, and what is said to be missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import opscope
from opscope.analysis import explanation as analysis
from opscope.analysis.explanation import Explanation
from opscope.analysis.provenance import NativeFunctionUse
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.model.session import Session
from opscope.report.document import Document, FactList, Link, Section, Table, plain
from opscope.report.explanation import explanation_document, file_functions, operator_functions
from opscope.report.json_encoding import to_json
from opscope.report.markdown import render_markdown
from opscope.report.summary_json import explanation_json

from .conftest import cells, rendered, said

pytestmark = pytest.mark.usefixtures("releases_read_once")


@pytest.fixture(scope="module")
def example() -> Iterator[Session]:
    with opscope.load(opscope.example_trace()) as session:
        yield session


explain = cache(analysis.explain)  # most tests look at the same few


def without_a_trace(name: str) -> Explanation:
    return explain(name, torch_version="2.6.0")


def walk(sections: tuple[Section, ...]) -> Iterator[Section]:
    for section in sections:
        yield section
        yield from walk(section.sections)


def titles(document: Document) -> list[str]:
    return [section.title for section in walk(document.sections)]


def section(document: Document, title: str) -> Section:
    return next(found for found in walk(document.sections) if found.title == title)


def facts(section: Section | Document) -> dict[str, str]:
    """The first list of facts."""
    found = next(block for block in section.blocks if isinstance(block, FactList))
    return said(found.facts)


def table(section: Section) -> list[list[str]]:
    return cells(next(block for block in section.blocks if isinstance(block, Table)))


def record(explanation: Explanation) -> Any:
    return json.loads(to_json(explanation_json(explanation)))


class TestOperator:
    def test_overloads_that_are_implemented_alike_stand_together(self) -> None:
        document = explanation_document(without_a_trace("add"))
        found = titles(document)
        assert found[0] == "From the operator to its source"
        assert set(found[1:-3]) == {
            "aten::add.Tensor, aten::add.out",
            "aten::add.Scalar",
            "aten::add.Scalar_out",
        }
        assert found[-3:] == ["Backward", "AddBackward0", "AddBackward1"]
        one = explanation_document(without_a_trace("add.Tensor"))
        assert one.title == "aten::add.Tensor"
        assert "aten::add.out" not in " ".join(titles(one))

    def test_one_that_was_not_recorded_says_so_and_shows_its_chain(self, example: Session) -> None:
        document = explanation_document(explain("aten::silu", example))
        assert facts(document)["In this trace"] == "not recorded"
        assert "Launches through" in facts(section(document, "From the operator to its source"))
        text = plain(section(document, "In this trace").blocks[0].text)  # type: ignore[union-attr]
        assert text == "This trace holds no call of it. The above is how PyTorch 2.11.0 implements it."


class TestKernel:
    def test_without_a_trace(self) -> None:
        document = explanation_document(without_a_trace("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT"))
        assert facts(document)["What"].startswith("kernel: Multiplies matrices")
        assert "tensor cores" in facts(section(document, "On the GPU"))["By its name"]

    def test_several_of_one_function(self, example: Session) -> None:
        document = explanation_document(explain("vectorized_elementwise_kernel", example))
        count = len(explain("vectorized_elementwise_kernel", example).kernels)
        assert facts(document)["What"] == f"{count} kernels of one function"
        assert len(titles(document)) == 1 + min(count, 6)

    def test_one_that_was_not_recorded(self, example: Session) -> None:
        document = explanation_document(explain("nvjet_sm90_tst_8x8_8x8_8x8_v_bz_NNT", example))
        assert facts(document)["In this trace"] == "not recorded"
        assert titles(document) == ["In this trace", "On the GPU"]


def test_a_category_lists_the_traces_own_operators_first(example: Session) -> None:
    document = explanation_document(explain("matrix", example))
    assert titles(document) == ["In this trace", "On the GPU", "Native functions"]
    recorded = [row[0] for row in table(section(document, "In this trace"))]
    functions = section(document, "Native functions")
    assert [row[0] for row in table(functions)][: len(recorded)] == recorded
    assert len(table(functions)) == 40
    assert plain(functions.blocks[-2].text).endswith("more; --full lists all.")
    everything = explanation_document(explain("matrix", example), is_full=True)
    assert len(table(section(everything, "Native functions"))) > 40  # type: ignore[union-attr]
    assert table(section(document, "On the GPU"))[0][-1] == "cublas"


def test_a_file_lists_what_is_served_from_it(example: Session) -> None:
    document = explanation_document(explain("native/cuda/SoftMax.cu", example))
    what = facts(document)["What"]
    assert what == "source file aten/src/ATen/native/cuda/SoftMax.cu with 10 native functions"
    rows = table(section(document, "Native functions"))
    assert rows[0][:2] == ["cuda/SoftMax.cu:1420–1447", "bracket"]
    assert rows[0][2].startswith("aten::_softmax, aten::_softmax.out, ")
    assert rows[1] == ["cuda/SoftMax.cu:1403", "compiled", "aten::_log_softmax, aten::_log_softmax.out"]
    assert facts(explanation_document(without_a_trace("Activation.cpp")))["What"].startswith(
        "2 source files of that name"
    )


def test_a_category_that_was_not_recorded(example: Session) -> None:
    document = explanation_document(explain("pooling", example))
    assert facts(document)["In this trace"] == "not recorded"
    assert titles(document) == ["In this trace", "Native functions"]


def test_lines_are_shown_where_they_are_at_hand() -> None:
    def read(location: SourceLocation) -> list[str] | None:
        return ["TORCH_IMPL_FUNC(gelu_out_cuda)"] if location.file.endswith("Activation.cpp") else None

    explanation = without_a_trace("aten::gelu.out")
    text = render_markdown(explanation_document(explanation, read))
    assert "```cpp\nTORCH_IMPL_FUNC(gelu_out_cuda)\n```" in text
    assert "Its source is not on this machine." in text
    sources = explanation_json(explanation, read)["sources"]
    assert [source["lines"] for source in sources] == [["TORCH_IMPL_FUNC(gelu_out_cuda)"], None]
    assert "sources" not in explanation_json(explanation)


class TestJson:
    def test_a_kernel_without_a_trace(self) -> None:
        document = record(without_a_trace("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT"))
        assert (document["subject"], document["is_recorded"]) == ("kernel", None)
        (kernel,) = document["kernels"]
        assert (kernel["decoded"]["architecture"], kernel["source"]) == ("sm90", None)
        assert (kernel["launched_by"], kernel["parallelism"]) == ([], [])


@pytest.mark.parametrize(
    "name", ["aten::addmm", "gelu", "matrix", "SoftMax.cu", "vectorized_elementwise_kernel", "aten::silu"]
)
def test_it_fits_any_terminal(example: Session, name: str) -> None:
    document = explanation_document(explain(name, example))
    for width in (80, 100, 160):
        assert max(map(len, rendered(document, width).splitlines())) <= width


NATIVE = "aten/src/ATen/native"


def native(
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


def test_operators_of_a_recording_come_first_and_internal_ones_last() -> None:
    functions = [
        native("aten::_int_mm"),
        native("aten::bmm", file=f"{NATIVE}/cuda/Blas.cpp", line=611),
        native("aten::addmm", "out"),
        native("aten::addmm", file="other/Addmm.cpp", line=7),
        native("aten::mm"),
    ]
    table, count = operator_functions(functions, ["aten::mm"], 10)
    assert count == 4
    assert cells(table) == [
        ["aten::mm", "1", "mm_cuda", "–", "–"],
        ["aten::addmm", "2", "addmm_cuda", "other/Addmm.cpp:7", "release_index"],
        ["aten::bmm", "1", "bmm_cuda", "cuda/Blas.cpp:611", "release_index"],
        ["aten::_int_mm", "1", "_int_mm_cuda", "–", "–"],
    ]
    assert table.rows[2][3] == Link("cuda/Blas.cpp:611", "https://x")


def test_rows_beyond_the_limit_are_counted() -> None:
    table, count = operator_functions([native(f"aten::f{index}") for index in range(9)], [], 4)
    assert (len(table.rows), count) == (4, 9)


def test_a_file_is_listed_by_line_with_all_that_is_served_there() -> None:
    kernel = SourceLocation(f"{NATIVE}/cuda/SoftMax.cu", Grade.EXACT, 5, 6, Grade.EXACT)
    functions = [
        native("aten::softmax", file=f"{NATIVE}/cuda/SoftMax.cu", line=90),
        native("aten::softmax", "out", file=f"{NATIVE}/cuda/SoftMax.cu", line=90),
        native("aten::gelu", file=f"{NATIVE}/Activation.cpp", stub=kernel),
        native("aten::log", file=f"{NATIVE}/cuda/SoftMax.cu", line=99),
        *(native(f"aten::f{index}", file="SoftMax.cu", line=3) for index in range(5)),
    ]
    table, count = file_functions(functions, "SoftMax.cu", ["aten::log"], 10)
    assert count == 4
    assert cells(table) == [
        ["cuda/SoftMax.cu:99", "release_index", "aten::log"],
        ["SoftMax.cu:3", "release_index", "aten::f0, aten::f1, aten::f2 and 2 more"],
        ["cuda/SoftMax.cu:5", "exact", "aten::gelu"],
        ["cuda/SoftMax.cu:90", "release_index", "aten::softmax, aten::softmax.out"],
    ]
