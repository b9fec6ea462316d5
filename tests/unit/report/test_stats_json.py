from __future__ import annotations

import json
from typing import Any

import pytest

from opscope.analysis.summary import Summary
from opscope.model.environment import Environment
from opscope.model.measurement import Latency
from opscope.report.json_encoding import to_json
from opscope.report.summary_json import stats_document

OPERATOR_WORDS = """
name overload cuda_time_total_ms self_cuda_time_ms cpu_time_total_ms self_cpu_time_ms calls cuda_time_fraction
category input_shapes native_function potential_cuda_file source kernels flop_count min_bytes
arithmetic_intensity achieved_flop_per_s achieved_bytes_per_s roofline_fraction bound
"""
KERNEL_WORDS = "name decoded calls cuda_time_ms grid block registers_per_thread shared_memory_bytes occupancy"
OPERATOR_KEYS, KERNEL_KEYS = set(OPERATOR_WORDS.split()), set(KERNEL_WORDS.split())


@pytest.fixture
def stats(
    summary: Summary, config: dict[str, object], environment: Environment, latency: Latency
) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_json(stats_document(summary, config, environment, latency)))
    return document


def test_every_key_of_the_contract_is_there(stats: dict[str, Any], config: dict[str, object]) -> None:
    assert list(stats) == [
        "schema_version",
        "opscope_version",
        "config",
        "environment",
        "summary",
        "top_aten_operators",
        "operator_categories",
        "native_function_mapping",
        "cuda_kernels",
        "unattributed",
        "limits",
        "cost_coverage",
        "time_partition",
        "accuracy",
        "benchmark",
        "findings",
    ]
    assert stats["schema_version"] == 1
    assert stats["config"] == config
    assert stats["environment"]["gpu"][0]["sm_count"] == 132
    for operator in stats["top_aten_operators"]:
        assert set(operator) >= OPERATOR_KEYS
        assert all(set(kernel) >= KERNEL_KEYS for kernel in operator["kernels"])
    assert all(set(kernel) >= KERNEL_KEYS for kernel in stats["cuda_kernels"])


def test_totals(stats: dict[str, Any]) -> None:
    totals = stats["summary"]
    assert totals["total_cuda_time_ms"] == 10.0
    assert totals["cuda_time_ms_per_step"] == 5.0
    assert totals["wall_time_ms_per_step"] == 9.5
    assert totals["gpu_busy_fraction"] == pytest.approx(9.5 / 12)
    assert totals["attributed_fraction"] == 0.9000001
    assert totals["source_mapped_fraction"] == 0.0
    assert stats["unattributed"] == {"before_window": 0.999999}


def test_operators_are_ranked_by_self_time_and_wrappers_follow(stats: dict[str, Any]) -> None:
    operators = stats["top_aten_operators"]
    assert [operator["name"] for operator in operators] == ["aten::addmm", "aten::_gelu_", "aten::linear"]
    assert operators[2]["cuda_time_total_ms"] == 6.0
    assert operators[2]["self_cuda_time_ms"] == 0.0
    assert operators[0]["input_shapes"][0] == {"shapes": [[768], [1024, 768], [768, 768]], "calls": 4}
    assert stats["native_function_mapping"] == {operator["name"]: None for operator in operators}


def test_a_kernel_shows_the_launch_it_spent_most_time_in_and_all_others(stats: dict[str, Any]) -> None:
    kernel = stats["top_aten_operators"][0]["kernels"][0]
    assert (kernel["grid"], kernel["block"], kernel["occupancy"]) == ([96, 1, 1], [128, 1, 1], 0.12)
    assert [launch["calls"] for launch in kernel["launches"]] == [4, 2]
    copy = stats["cuda_kernels"][2]
    assert (copy["grid"], copy["size_bytes"], copy["launches"]) == (None, 4_096, [])


def test_the_benchmark_keeps_every_sample(stats: dict[str, Any]) -> None:
    benchmark = stats["benchmark"]
    assert benchmark["latency_ms"]["samples"] == [4.0, 5.0, 6.0]
    assert benchmark["latency_ms"]["median"] == 5.0
    assert benchmark["throughput_sequences_per_s"] == 1_600.0
    assert benchmark["clock"] == "cuda_event"


def test_without_a_device_cuda_times_are_zero_and_cpu_time_ranks(cpu_summary: Summary) -> None:
    stats = json.loads(to_json(stats_document(cpu_summary, {"device": "cpu"}, None, None)))
    assert stats["summary"]["total_cuda_time_ms"] == 0.0
    assert stats["summary"]["gpu_busy_fraction"] is None
    assert [operator["name"] for operator in stats["top_aten_operators"]] == ["aten::mm", "aten::add"]
    assert {operator["cuda_time_total_ms"] for operator in stats["top_aten_operators"]} == {0.0}
    assert [finding["code"] for finding in stats["findings"]] == ["report.cpu_time"]
    assert stats["config"]["device"] == "cpu"
    assert stats["benchmark"] is None
    assert stats["environment"] is None


def test_a_measured_wall_time_replaces_the_traces_own(summary: Summary) -> None:
    stats = stats_document(summary, {}, None, None, wall_time_ns_per_step=7e6)
    assert stats["summary"]["wall_time_ms_per_step"] == 7.0


def test_throughput_without_a_batch_size_is_unknown(summary: Summary, latency: Latency) -> None:
    assert stats_document(summary, {}, None, latency)["benchmark"]["throughput_sequences_per_s"] is None
