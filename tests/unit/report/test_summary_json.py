"""The provenance in both JSON documents: the keys of the contract, filled where known and null elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import opscope
from opscope.analysis.summary import Summary
from opscope.report.json_encoding import to_json
from opscope.report.summary_json import analysis_document, stats_document

DECODED = {"library", "family", "tensor_core", "architecture", "template_arguments", "grades"}
SOURCE = {"unit", "units", "file", "line", "end_line", "url", "grade", "file_grade", "line_grade"}
FUNCTION = {
    "name", "overload", "schema", "dispatch_key", "cuda_function", "structured_delegate", "file", "line",
    "url", "grade", "stub", "stub_implementation", "others",
}  # fmt: skip
ACCURACY = {
    "attributed_fraction", "operator_entry_fraction", "aten_kernel_unit_fraction",
    "aten_kernel_single_unit_fraction", "family_fraction", "by_grade",
}  # fmt: skip
NATIVE = "aten/src/ATen/native"
COMMIT = "https://github.com/pytorch/pytorch/blob/2236df1770800ffea5697b11b0bb0d910b2e59e1"  # of the lines


@pytest.fixture(scope="module")
def example() -> Iterator[Summary]:
    with opscope.load(opscope.example_trace()) as session:
        yield opscope.summarize(session)


@pytest.fixture(scope="module")
def analysis(example: Summary) -> Any:
    return json.loads(to_json(analysis_document(example)))


@pytest.fixture(scope="module")
def stats(example: Summary) -> Any:
    return json.loads(to_json(stats_document(example, {}, None, None)))


def named(records: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(record for record in records if record["name"].startswith(name))


class TestAnalysis:
    def test_a_kernel(self, analysis: Any) -> None:
        kernel = named(
            analysis["kernels"], "void at::native::vectorized_elementwise_kernel<4, at::native::Gelu"
        )
        assert set(kernel["decoded"]) >= DECODED
        assert set(kernel["source"]) >= SOURCE
        decoded, source = kernel["decoded"], kernel["source"]
        assert (decoded["library"], decoded["family"], decoded["tensor_core"]) == ("aten", "activation", None)
        assert decoded["template_arguments"][0] == {"parameter": "vec_size", "argument": "4"}
        assert decoded["grades"]["family"] == "name_pattern"
        assert (source["unit"], source["unit_grade"]) == (
            f"{NATIVE}/cuda/ActivationGeluKernel.cu", "release_index",
        )  # fmt: skip
        assert (source["file"], source["line"]) == (f"{NATIVE}/cuda/ActivationGeluKernel.cu", 21)
        assert source["url"].startswith(f"{COMMIT}/{NATIVE}/cuda/ActivationGeluKernel.cu#L21")
        assert (source["grade"], source["file_grade"]) == ("neighbor_version", "release_index")
        assert source["template"]["file"] == f"{NATIVE}/cuda/CUDALoops.cuh"

    def test_a_librarys_kernel(self, analysis: Any) -> None:
        gemm = named(analysis["kernels"], "sm80_xmma_gemm")
        decoded = gemm["decoded"]
        assert (decoded["library"], decoded["family"]) == ("cublas", "gemm")
        assert (decoded["architecture"], decoded["tensor_core"]) == ("sm80", False)
        assert gemm["source"] is None

    def test_a_native_function(self, analysis: Any) -> None:
        function = named(analysis["top_operators"], "aten::gelu")["native_function"]
        assert set(function) >= FUNCTION
        assert (function["name"], function["overload"]) == ("aten::gelu", "")
        assert function["schema"].startswith("gelu(Tensor self")
        assert (function["dispatch_key"], function["cuda_function"]) == ("CUDA", "gelu_out_cuda")
        assert (function["file"], function["line"]) == (f"{NATIVE}/cuda/Activation.cpp", 96)
        assert function["stub_implementation"]["line"] == 21
        assert function["grade"] == "neighbor_version"

    def test_accuracy(self, analysis: Any) -> None:
        accuracy = analysis["accuracy"]
        assert set(accuracy) >= ACCURACY
        for shares in accuracy["by_grade"].values():
            assert sum(shares.values()) == pytest.approx(1)

    def test_the_release_and_how_it_is_known(self, analysis: Any) -> None:
        assert (analysis["torch_version"], analysis["torch_version_grade"]) == ("2.11.0", "release_index")
        assert "alone knows" in analysis["torch_version_reason"]

    def test_how_an_operators_kernels_parallelize(self, analysis: Any) -> None:
        gelu = named(analysis["top_operators"], "aten::gelu")
        (account,) = gelu["kernels"][0]["parallelism"]
        assert account["kernel"] == gelu["kernels"][0]["name"]
        assert account["shapes"] == [[8, 128, 3072], []]
        assert account["grid"] == gelu["kernels"][0]["launches"][0]["grid"]
        assert account["launch_explained"] is True
        assert account["waves"]["blocks"] == account["grid"][0]
        assert {"about", "text", "grade"} == set(account["statements"][0])
        assert account["statements"][0]["about"] == "parallel_over"

    def test_every_operator_is_there_for_all(self, example: Summary) -> None:
        everything = analysis_document(example, top=None)["top_operators"]
        assert [one["name"] for one in everything] == [one.name for one in example.operators]
        assert len(everything) > len(analysis_document(example, top=1_000)["top_operators"])


class TestStats:
    def test_an_operator(self, stats: Any) -> None:
        gelu = named(stats["top_aten_operators"], "aten::gelu")
        assert gelu["native_function"]["cuda_function"] == "gelu_out_cuda"
        assert gelu["potential_cuda_file"] == f"{NATIVE}/cuda/ActivationGeluKernel.cu"
        source = gelu["source"]
        assert (source["file"], source["line"]) == (gelu["potential_cuda_file"], 21)
        assert source["url"].startswith(COMMIT)
        assert source["evidence"] == "neighbor_version"
        assert gelu["kernels"][0]["decoded"]["operation"] == "gelu"
        assert stats["native_function_mapping"]["aten::gelu"] == gelu["native_function"]

    def test_every_kernel_is_decoded(self, stats: Any) -> None:
        assert all(kernel["decoded"]["family"] for kernel in stats["cuda_kernels"])
        assert stats["summary"]["source_mapped_fraction"] == stats["summary"]["attributed_fraction"]

    def test_what_launches_nothing_has_no_cuda_file(self, stats: Any) -> None:
        linear = named(stats["top_aten_operators"], "aten::linear")
        assert linear["source"]["file"] == f"{NATIVE}/Linear.cpp"
        assert linear["potential_cuda_file"] is None


def test_what_is_not_known_is_null(summary: Summary) -> None:
    stats = json.loads(to_json(stats_document(summary, {}, None, None)))
    operator, kernel = stats["top_aten_operators"][0], stats["cuda_kernels"][0]
    assert operator["native_function"] is operator["potential_cuda_file"] is operator["source"] is None
    assert kernel["decoded"] is kernel["source"] is None
    assert set(stats["native_function_mapping"].values()) == {None}
    assert stats["accuracy"] is None
    analysis = json.loads(to_json(analysis_document(summary)))
    first = analysis["top_operators"][0]
    assert (first["native_function"], first["source"], first["called_operators"]) == (None, None, [])
    assert first["kernels"][0]["parallelism"] == []
    assert analysis["torch_version"] is analysis["accuracy"] is None
