"""An explanation as a document and as JSON: what comes in which order, and what is said to be missing."""

import json
from functools import cache

import pytest
from msgspec.structs import replace

import opscope
from opscope.analysis import explanation as analysis
from opscope.analysis.provenance import NativeFunctionUse
from opscope.model.origin import Grade, SourceLocation
from opscope.report.explanation import explanation_document, operator_functions
from opscope.report.json_encoding import to_json
from opscope.report.markdown import render_markdown
from opscope.report.summary_json import explanation_json

from .conftest import cells, text_of

pytestmark = pytest.mark.usefixtures("releases_read_once")


explain = cache(analysis.explain)  # most tests look at the same few


def without_a_trace(name):
    return explain(name, torch_version="2.6.0")


TRACELESS = ("add", "add.Tensor", "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT", "Activation.cpp")
IN_A_TRACE = (
    "aten::silu", "vectorized_elementwise_kernel", "nvjet_sm90_tst_8x8_8x8_8x8_v_bz_NNT", "matrix", "pooling",
    "native/cuda/SoftMax.cu",
)  # fmt: skip


def test_explanations(example, expect):
    documents = {f"{name} without a trace": explanation_document(without_a_trace(name)) for name in TRACELESS}
    documents |= {name: explanation_document(explain(name, example)) for name in IN_A_TRACE}
    text = text_of(documents, 80, 100, 160)
    expect("explanation.txt", text.replace(str(opscope.example_trace()), "EXAMPLE"))


def test_all_functions_are_listed_in_full(example):
    short, full = (explanation_document(explain("matrix", example), is_full=one) for one in (False, True))
    lengths = [len(one.sections[-1].blocks[0].rows) for one in (short, full)]
    assert lengths[0] == 40 < lengths[1]


def test_lines_are_shown_where_they_are_at_hand():
    def read(location):
        return ["TORCH_IMPL_FUNC(gelu_out_cuda)"] if location.file.endswith("Activation.cpp") else None

    explanation = without_a_trace("aten::gelu.out")
    text = render_markdown(explanation_document(explanation, read))
    assert "```cpp\nTORCH_IMPL_FUNC(gelu_out_cuda)\n```" in text
    assert "Its source is not on this machine." in text
    sources = explanation_json(explanation, read)["sources"]
    assert [source["lines"] for source in sources] == [["TORCH_IMPL_FUNC(gelu_out_cuda)"], None]
    assert "sources" not in explanation_json(explanation)


def test_json_of_a_kernel_without_a_trace():
    explanation = without_a_trace("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT")
    document = json.loads(to_json(explanation_json(explanation)))
    assert (document["subject"], document["is_recorded"]) == ("kernel", None)
    (kernel,) = document["kernels"]
    assert (kernel["decoded"]["architecture"], kernel["source"]) == ("sm90", None)
    assert (kernel["launched_by"], kernel["parallelism"]) == ([], [])


def native(name, overload="", *, file=None, line=1, stub=None):
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


def test_of_overloads_one_with_a_place_that_writes_into_nothing_given_is_shown():
    one = without_a_trace("aten::addmm").functions[0]
    nowhere = replace(one, location=None, cuda_function="nowhere")
    out = replace(one, overload="out", tags=("out",), cuda_function="out")
    for several in ([out, nowhere, one], [nowhere, one, out]):
        (row,) = cells(operator_functions(several, [], 10)[0])
        assert row[1:4] == ["3", one.cuda_function, "cuda/Blas.cpp:589"]
