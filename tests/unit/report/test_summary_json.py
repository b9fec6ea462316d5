"""The provenance in both JSON documents: the keys of the contract, filled where known and null elsewhere."""

import pytest

import opscope
from opscope.report.json_encoding import to_json
from opscope.report.summary_json import analysis_json, stats_document


@pytest.fixture(scope="module")
def example():
    with opscope.load(opscope.example_trace()) as session:
        yield opscope.summarize(session)


KERNELS = ("void at::native::vectorized_elementwise_kernel<4, at::native::Gelu", "sm80_xmma_gemm")


def test_what_both_documents_say_of_an_example(example, expect):
    analysis, stats = analysis_json(example), stats_document(example, {}, None, None)
    parts = {
        "kernels": [named(analysis["kernels"], name) for name in KERNELS],
        "operator": named(analysis["top_operators"], "aten::gelu"),
        "accuracy": analysis["accuracy"],
        "release": [analysis[f"torch_version{key}"] for key in ("", "_grade", "_reason")],
        "stats": [named(stats["top_aten_operators"], name) for name in ("aten::gelu", "aten::linear")],
    }
    expect("example.txt", to_json(parts))
    assert all(sum(one.values()) == pytest.approx(1) for one in analysis["accuracy"]["by_grade"].values())
    gelu = parts["stats"][0]
    assert stats["native_function_mapping"]["aten::gelu"] == gelu["native_function"]
    assert all(kernel["decoded"]["family"] for kernel in stats["cuda_kernels"])
    assert stats["summary"]["source_mapped_fraction"] == stats["summary"]["attributed_fraction"]


def named(records, name):
    return next(record for record in records if record["name"].startswith(name))
