from __future__ import annotations

import json

from msgspec.structs import replace

from opscope.analysis.summary import Summary
from opscope.report.analysis_json import analysis_document
from opscope.report.json_export import to_json


def test_the_document_of_analyze(summary: Summary) -> None:
    document = json.loads(to_json(analysis_document(summary)))
    assert document["schema_version"] == 1
    assert document["trace"] == "runs/bert.json"
    totals = document["summary"]
    assert totals["device_time_ns"] == 10_000_000
    assert totals["attributed_ns"] == 9_000_001
    assert totals["kernel_launches"] == 9
    assert totals["operators"] == 12
    assert totals["steps"] == 2
    device = totals["devices"][0]
    assert (device["device"], device["span_ns"], device["busy_ns"], device["idle_ns"]) == (
        0,
        12_000_000,
        9_500_000,
        2_500_000,
    )
    assert document["unattributed"] == {"before_window": 999_999}
    assert document["top_operators"][0]["self_device_ns"] == 6_000_000
    assert document["kernels"][1]["total_ns"] == 3_000_001
    assert document["kernels"][1]["name"].startswith("void at::native::vectorized_elementwise_kernel<4,")
    assert document["categories"][0]["category"] == "matrix"
    assert [finding["severity"] for finding in document["findings"]] == ["warning", "info"]


def test_self_times_and_unattributed_add_up(summary: Summary) -> None:
    document = analysis_document(summary, top=100)
    self_ns = sum(operator["self_device_ns"] for operator in document["top_operators"])
    assert self_ns + sum(document["unattributed"].values()) == document["summary"]["device_time_ns"]


def test_top_cuts_operators_and_nothing_else(summary: Summary) -> None:
    document = analysis_document(summary, top=1)
    assert len(document["top_operators"]) == 1
    assert len(document["kernels"]) == 3


def test_several_traces_are_all_named(cpu_summary: Summary) -> None:
    document = analysis_document(cpu_summary)
    assert document["trace"] == "cpu.json"
    assert document["traces"] == ["cpu.json", "cpu2.json"]
    assert document["ranks"] == [0, 1]
    assert document["ranked_by"] == "self_cpu_ns"


def test_shapes_that_are_no_json_stay_text(summary: Summary) -> None:
    operator = replace(summary.operators[0], input_shapes=(("[[1,", 1),))
    document = analysis_document(summary.having(operators=(operator,)))
    assert document["top_operators"][0]["input_shapes"] == [{"shapes": "[[1,", "calls": 1}]
