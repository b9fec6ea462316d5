"""The sections on limits, waiting and advice, and their JSON, of a Summary that knows everything."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from msgspec.structs import replace

from opscope.analysis.cost.call_cost import CallCost, CostEvidence, FlopSource
from opscope.analysis.efficiency import (
    Bound,
    CallEfficiency,
    CostCoverage,
    Efficiency,
    Roofline,
    TensorCoreUse,
)
from opscope.analysis.improvement import Improvement, OperatorImprovement, Topic
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import (
    HostTime,
    IdleCause,
    IdleGap,
    LaunchLatency,
    QueueDepth,
    QueueSeries,
    StepStatistics,
    Timeline,
    TimePartition,
    WaitingCall,
)
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit, LimitEvidence
from opscope.model.environment import Environment
from opscope.model.finding import Finding, Severity
from opscope.model.measurement import Latency
from opscope.report.analysis_json import analysis_document
from opscope.report.compose import analysis_report, overview_document
from opscope.report.json_export import to_json
from opscope.report.markdown import render_markdown
from opscope.report.stats_json import stats_document

ADDMM = Roofline(
    device_ns=6_000_000, costed_ns=6_000_000, flop_count=240_000_000_000, min_bytes=60_000_000,
    attainable_ns=4_000_000.0, bound=Bound.COMPUTE,
    bound_ns={Bound.COMPUTE: 5_000_000, Bound.LATENCY: 1_000_000}, data_type=DataType.FP32,
    tensor_cores=TensorCoreUse.ELIGIBLE,
)  # fmt: skip
LIMITS = DeviceLimits(
    "NVIDIA H200",
    memory=Limit(4.28e12, LimitEvidence.MEASURED, "torch copy_ of 2 GiB"),
    peaks={DataType.FP32: Limit(67e12, LimitEvidence.DATASHEET, "H200 data sheet")},
)


@pytest.fixture
def full(summary: Summary) -> Summary:
    call = CallEfficiency(
        0, "aten::addmm", "", "[[768],[1024,768],[768,768]]", None, None, 6, ("gemm",),
        CallCost(
            40_000_000_000, FlopSource.REGISTRY, 8_000_000, 2_000_000, DataType.FP32, CostEvidence.REPLAYED
        ),
        ADDMM,
    )  # fmt: skip
    efficiency = Efficiency(
        LIMITS,
        CostCoverage(0.9, 0.6, (("aten::_unique2", 999_999, "its results depend on the data"),)),
        {"aten::addmm": ADDMM},
        {("aten::addmm", "gemm"): ADDMM},
        (call,),
    )
    gap = IdleGap(5, 900_000, IdleCause.SYNCHRONIZATION, 3, "aten::item", "train.py:7 step")
    partition = TimePartition(
        0, None, 0, 12_000_000, 8_500_000, 1_000_000, 0, 2_500_000,
        {IdleCause.SYNCHRONIZATION: 1_500_000, IdleCause.HOST_LAUNCH: 1_000_000}, (gap,),
    )  # fmt: skip
    timeline = Timeline(
        (partition,),
        (WaitingCall("cudaStreamSynchronize", "aten::item", "train.py:7 step", 2, 1_800_000, 1_500_000),),
        (LaunchLatency(0, 0, 9, 5_000, 9_000, 1),),
        (QueueDepth(0, 0, 2.5, 9, 0.25),),
        (StepStatistics(0, 2, 9_500_000, 9_500_000, 9_000_000, 10_000_000),),
        (HostTime(0, 2, 9_500_000, 4_750_000, 3_000_000, 4.5, 1_000_000, "counted"),),
    )
    advice = (
        Finding(
            "advice.tf32_off", Severity.WARNING, "60 % of device time is in fp32 products.",
            "Allow TF32.",
            evidence={"device_ns": 6_000_000, "share_fraction": 0.6, "operators": ["aten::addmm"]},
            estimated_gain_ns_per_step=2_000_000.0, gain_basis="products at their present share of the peak",
            change="torch.backends.cuda.matmul.allow_tf32 = True",
        ),
        Finding("advice.note", Severity.INFO, "A note without a gain."),
    )  # fmt: skip
    topics = (
        Improvement(Topic.OCCUPANCY, "12 % of the warps", needs_counters=True),
        Improvement(Topic.COALESCING, None, needs_counters=True),
        Improvement(Topic.FUSION, None, needs_counters=False),
    )
    improvements = {
        "aten::addmm": OperatorImprovement("gemm", topics, "ncu --kernel-name regex:gemm python s.py")
    }
    return summary.having(efficiency=efficiency, timeline=timeline, advice=advice, improvements=improvements)


def test_the_report_says_how_far_why_and_what_to_change(full: Summary) -> None:
    markdown = render_markdown(analysis_report(full))
    for heading in (
        "## 5. How far from the limit", "## 6. Where the GPU waits", "## 7. What to change",
        "### 7.1 advice.tf32_off", "## 8. Kernels",
    ):  # fmt: skip
        assert f"\n{heading}" in markdown
    assert "memory 4.28 TB/s (measured), fp32 67.0 TFLOP/s (data sheet)" in markdown
    assert (
        "| `aten::addmm` | 768, 1024×768, 768×768 | 6 | 6.00 ms | compute | 40.0 TFLOP/s | 66.7 % |"
        in markdown
    )
    assert "| `aten::_unique2` | 1.00 ms | 10.0 % | its results depend on the data |" in markdown


def test_an_operator_says_what_it_reached(full: Summary) -> None:
    detail = render_markdown(analysis_report(full)).split("### 4.1")[1].split("### 4.2")[0]
    assert "- Work: 60.0 MB at least, 240 GFLOP, 4e+03 FLOP/byte" in detail
    assert (
        "**66.7 %** of the attainable: the same work needs 4.00 ms at the limits (fp32 67.0 TFLOP/s" in detail
    )
    assert "- Bound: compute: its operations need longer than its bytes (compute 83.3 %" in detail
    assert "- Tensor cores: eligible: could run on tensor cores, and does not" in detail
    unknown = render_markdown(analysis_report(full)).split("### 4.2")[1].split("## 5.")[0]
    assert "- Distance from the limit: unknown" in unknown


def test_an_operator_says_what_could_be_better_and_what_would_tell(full: Summary) -> None:
    detail = render_markdown(analysis_report(full)).split("### 4.1")[1].split("### 4.2")[0]
    assert "**Research points**" in detail
    assert "- Occupancy: 12 % of the warps" in detail
    assert "- Coalescing: the recording does not tell; hardware counters would" in detail
    assert "Fusion" not in detail
    assert "```bash\nncu --kernel-name regex:gemm python s.py\n```" in detail
    operator = analysis_document(full)["top_operators"][0]
    assert operator["improvement"]["topics"]["coalescing"] == {"known": None, "needs_counters": True}
    assert analysis_document(full)["top_operators"][1]["improvement"] is None


def test_waiting_names_causes_calls_and_lines(full: Summary) -> None:
    section = render_markdown(analysis_report(full)).split("## 6. Where")[1].split("## 7.")[0]
    assert "| synchronization | 1.50 ms | 60.0 % |" in section
    assert "| `cudaStreamSynchronize` | `aten::item` | `train.py:7 step` | 2 | 1.80 ms | 1.50 ms |" in section
    assert "1 kernel begins before its launch, so clocks disagree" in section
    assert "3.00 ms of host work a step for 4 launches" in section
    assert "about 1.00 ms of it is the recorder's" in section


def test_an_advice_has_its_gain_its_basis_and_its_code(full: Summary) -> None:
    section = render_markdown(analysis_report(full)).split("## 7. What")[1].split("## 8.")[0]
    assert "```python\ntorch.backends.cuda.matmul.allow_tf32 = True\n```" in section
    assert "- Estimated gain: 2.00 ms per step" in section
    assert "- How it was estimated: products at their present share" in section
    assert "- Device time: 6.00 ms\n- Share: 60.0 %" in section
    short = render_markdown(overview_document(full))
    assert "- **−2.00 ms per step:** 60 % of device time" in short
    assert "- A note without a gain." in short


def test_no_advice_is_said_and_unasked_advice_is_not(summary: Summary) -> None:
    silent = render_markdown(overview_document(summary.having(advice=())))
    assert "Nothing: no rule found anything" in silent
    assert "What to change" not in render_markdown(overview_document(summary))


def test_json_has_every_field_and_findings_by_gain(
    full: Summary, config: dict[str, object], environment: Environment, latency: Latency
) -> None:
    document: dict[str, Any] = json.loads(to_json(analysis_document(full)))
    partition = document["time_partition"][0]
    parts = ("compute_ns", "exposed_copy_ns", "exposed_communication_ns", "idle_ns")
    assert sum(partition[part] for part in parts) == partition["span_ns"]
    assert partition["idle_by_cause"] == {"synchronization": 1_500_000, "host_launch": 1_000_000}
    assert document["cost_coverage"]["bytes_fraction"] == 0.9
    operator = document["top_operators"][0]
    assert operator["bound"] == "compute"
    assert operator["roofline_fraction"] == pytest.approx(2 / 3)
    assert document["top_operators"][1]["roofline_fraction"] is None
    codes = [finding["code"] for finding in document["findings"]]
    assert codes == ["advice.tf32_off", "advice.note", "trace.truncated", "trace.before_window"]
    assert document["findings"][0]["estimated_gain_ms_per_step"] == 2.0
    assert document["limits"]["memory_bytes_per_s"]["evidence"] == "measured"
    assert document["calls"][0]["cost_evidence"] == "replayed"
    assert document["timeline"]["waits"][0]["idle_ns"] == 1_500_000
    stats: dict[str, Any] = json.loads(to_json(stats_document(full, config, environment, latency)))
    assert stats["top_aten_operators"][0]["achieved_flop_per_s"] == pytest.approx(40e12)
    assert stats["findings"][0]["code"] == "advice.tf32_off"


def test_limits_of_one_kind_say_so_once(full: Summary) -> None:
    limits = dataclasses.replace(LIMITS, memory=Limit(4.8e12, LimitEvidence.DATASHEET, "H200 data sheet"))
    shown = full.having(efficiency=replace(full.efficiency, limits=limits))
    text = render_markdown(overview_document(shown))
    assert "Held against the data sheet limits of NVIDIA H200: memory 4.80 TB/s, fp32 67.0 TFLOP/s." in text


def test_without_limits_the_ranked_table_has_no_empty_columns(full: Summary) -> None:
    assert "| Of limit | Bound |" in render_markdown(overview_document(full))
    unknown = full.having(efficiency=replace(full.efficiency, limits=None))
    assert "Of limit" not in render_markdown(overview_document(unknown))


def test_unknown_costs_are_told_by_reason(full: Summary) -> None:
    uncosted = (
        ("aten::mm", 3_000_000, "no argument shapes were recorded"),
        ("my::op", 2_000_000, "my::op is no operator of torch"),
        ("aten::add", 1_000_000, "no argument shapes were recorded"),
        ("aten::mul", 1_000_000, "no argument shapes were recorded"),
    )
    efficiency = replace(full.efficiency, coverage=CostCoverage(0.1, 0.1, uncosted))
    text = render_markdown(overview_document(full.having(efficiency=efficiency)))
    assert "| `aten::mm` and 2 more | 5.00 ms | 50.0 % | no argument shapes were recorded |" in text
    assert "| `my::op` | 2.00 ms | 20.0 % | no operator of torch |" in text
    assert text.count("no argument shapes were recorded") == 1


@pytest.mark.parametrize(
    ("shapes", "shown"),
    [
        ("[[2,3],[2,3],[4]]", "2 of 2×3, 4"),
        ("[[[2],[3]],[[2],[3]],[[5]]]", "2 lists of 2 tensors, 1 tensor"),
        ("[[1],[2],[3],[4],[5],[5]]", "1, 2, 3, 4, 2 more"),
        (None, "10.0 MB moved"),
    ],
)
def test_shapes_of_a_call_are_short_and_tell_calls_apart(
    full: Summary, shapes: str | None, shown: str
) -> None:
    calls = tuple(replace(call, shapes=shapes) for call in full.efficiency.calls)
    text = render_markdown(overview_document(full.having(efficiency=replace(full.efficiency, calls=calls))))
    assert f"| `aten::addmm` | {shown} | 6 |" in text


def test_calls_of_no_recorded_operator_are_marked_and_explained(full: Summary) -> None:
    calls = tuple(replace(call, attribution="before_window") for call in full.efficiency.calls)
    text = render_markdown(overview_document(full.having(efficiency=replace(full.efficiency, calls=calls))))
    assert "| `aten::addmm` \\* |" in text
    assert "\\*: launched before the recording window opened" in text


def test_without_steps_nothing_is_said_of_a_step(full: Summary) -> None:
    timeline = replace(full.timeline, steps=())
    text = render_markdown(overview_document(full.having(steps=(), timeline=timeline)))
    assert "- **−2.00 ms of the recording:** 60 %" in text
    assert "3.00 ms of host work in all for 4 launches" in text
    assert " a step" not in text
    assert "per step" not in text


def test_several_gains_do_not_add_up(full: Summary) -> None:
    assert "do not add up" not in render_markdown(overview_document(full))
    advice = full.advice or ()
    for document in (overview_document, analysis_report):
        assert "do not add up" in render_markdown(document(full.having(advice=(advice[0], *advice))))


def test_several_devices_are_rows_of_a_table_not_facts(full: Summary) -> None:
    timeline = full.timeline
    second = replace(timeline.partitions[0], trace_id=1, rank=1, device=1)
    both = replace(
        timeline,
        partitions=(replace(timeline.partitions[0], rank=0), second),
        latencies=(*timeline.latencies, LaunchLatency(1, 1, 9, 7_000, 8_000, 0)),
        queues=(*timeline.queues, QueueDepth(1, 1, 1.5, 4, 0.5)),
        steps=(*timeline.steps, StepStatistics(1, 5, 9_000_000, 9_000_000, 8_000_000, 99_000_000, (4,))),
        host=(*timeline.host, HostTime(1, 5, 9_000_000, 4_000_000, 2_000_000, 7.0)),
        series=tuple(QueueSeries(one, one, 0, 10.0, (1.0, 2.0), (5.0, None)) for one in (0, 1)),
    )
    shown = full.having(traces=("a.json", "b.json"), ranks=(0, 1), timeline=both)
    section = render_markdown(analysis_report(shown)).split("Where the GPU waits")[1].split("\n## ")[0]
    assert (
        "| rank 1, device 1 | 7.00 µs | 8.00 µs | 1.5 | 4 | 50.0 % | 9.00 ms | 2.00 ms | 7 | – |" in section
    )
    assert "| rank 0, device 0 | ▄█ | 2.0 |" in section
    assert "- Clocks of rank 0, device 0: 1 kernel begins before its launch, so clocks disagree" in section
    assert "- Outlier steps of rank 1: 4" in section
    assert "- Host" not in section


def test_columns_of_which_nothing_is_known_are_left_out(full: Summary) -> None:
    (partition,) = full.timeline.partitions
    gap = replace(partition.longest_gaps[0], line=None, step=None)
    waits = tuple(
        replace(wait, line=None, copy="Memcpy DtoH (Device -> Pageable)") for wait in full.timeline.waits
    )
    timeline = replace(full.timeline, partitions=(replace(partition, longest_gaps=(gap,)),), waits=waits)
    text = render_markdown(overview_document(full.having(timeline=timeline)))
    assert "| Longest gaps | Cause | Host was in |" in text
    assert "| `cudaStreamSynchronize`, Memcpy DtoH (Device -\\> Pageable) | `aten::item` | 2 |" in text
