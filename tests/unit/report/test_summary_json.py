"""The provenance in both JSON documents: the keys of the contract, filled where known and null elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import opscope
from opscope.analysis.summary import Summary
from opscope.report.json_encoding import to_json
from opscope.report.summary_json import analysis_json, stats_document


@pytest.fixture(scope="module")
def example() -> Iterator[Summary]:
    with opscope.load(opscope.example_trace()) as session:
        yield opscope.summarize(session)


KERNELS = ("void at::native::vectorized_elementwise_kernel<4, at::native::Gelu", "sm80_xmma_gemm")


def test_what_both_documents_say_of_an_example(example: Summary, expect: Callable[[str, str], None]) -> None:
    analysis, stats = analysis_json(example), stats_document(example, {}, None, None)
    parts: dict[str, Any] = {
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


def named(records: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(record for record in records if record["name"].startswith(name))


def test_what_is_not_known_is_null(summary: Summary) -> None:
    stats = json.loads(to_json(stats_document(summary, {}, None, None)))
    operator, kernel = stats["top_aten_operators"][0], stats["cuda_kernels"][0]
    assert operator["native_function"] is operator["potential_cuda_file"] is operator["source"] is None
    assert kernel["decoded"] is kernel["source"] is None
    assert set(stats["native_function_mapping"].values()) == {None}
    assert stats["accuracy"] is None
    analysis = json.loads(to_json(analysis_json(summary)))
    first = analysis["top_operators"][0]
    assert (first["native_function"], first["source"], first["called_operators"]) == (None, None, [])
    assert first["kernels"][0]["parallelism"] == []
    assert analysis["torch_version"] is analysis["accuracy"] is None
