"""Steps, the host's time in them, and what recording adds to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opscope.analysis.summary import Summary
from opscope.analysis.timeline.host import RECORDED_EVENT_NS
from opscope.analysis.timeline.measure import (
    estimate_recorder,
)
from opscope.analysis.timeline.values import StepStatistics, Timeline
from opscope.model.session import Session
from opscope.testing import TraceBuilder

NOTHING = dict.fromkeys(RECORDED_EVENT_NS, 0)
Measure = Callable[[TraceBuilder], Timeline]


class TestSteps:
    def test_statistics(self, timeline: Measure) -> None:
        trace = TraceBuilder().step(3, 0, 10).step(4, 10, 14).step(5, 24, 12)
        assert timeline(trace).steps == (StepStatistics(0, 3, 12_000, 12_000, 10_000, 14_000),)

    def test_an_outlier_lies_far_beyond_the_quartiles(self, timeline: Measure) -> None:
        trace = TraceBuilder()
        for number, duration in enumerate((10, 11, 10, 30, 11, 10, 2)):
            trace.step(number, 100 * number, duration)
        assert timeline(trace).steps[0].outliers == (3, 6)

    def test_of_three_steps_none_is_an_outlier(self, timeline: Measure) -> None:
        trace = TraceBuilder().step(1, 0, 10).step(2, 10, 10).step(3, 20, 1000)
        assert timeline(trace).steps[0].outliers == ()

    def test_equal_steps_have_no_outliers(self, timeline: Measure) -> None:
        trace = TraceBuilder()
        for number in range(6):
            trace.step(number, 100 * number, 50)
        assert timeline(trace).steps[0].outliers == ()


class TestHostTime:
    def test_waits_for_the_device_are_left_out(self, timeline: Measure) -> None:
        trace = TraceBuilder().step(1, 0, 100).step(2, 100, 60)
        trace.operator("aten::mm", 10, 10).launch(12, 2).kernel("gemm", 20, 70)
        trace.launch(30, 60, name="cudaStreamSynchronize")
        trace.operator("aten::mm", 110, 10).launch(112, 2).kernel("gemm", 120, 20)
        (host,) = timeline(trace).host
        assert (host.steps, host.step_ns, host.launches) == (2, 80_000, 1)
        assert host.launch_path_ns == (100_000 - 60_000 + 60_000) / 2
        assert host.device_busy_ns == (70_000 + 20_000) / 2

    def test_another_thread_at_work_meanwhile_does_not_wait(self, timeline: Measure) -> None:
        trace = TraceBuilder().step(1, 0, 100).launch(2).kernel("gemm", 5, 90)
        trace.launch(10, 80, name="cudaStreamSynchronize")
        trace.operator("MulBackward0", 50, 20, thread=2).launch(55, 2, thread=2).kernel("gemm", 95, 3)
        (host,) = timeline(trace).host
        assert host.launch_path_ns == 20_000 + 20_000

    def test_without_steps_the_whole_recording_is_one(self, timeline: Measure) -> None:
        trace = TraceBuilder().launch(10, 2).kernel("gemm", 20, 70).launch(40, 2).kernel("gemm", 95, 5)
        (host,) = timeline(trace).host
        assert (host.steps, host.step_ns, host.device_busy_ns, host.launches) == (1, 90_000, 75_000, 2)

    def test_a_replay_is_one_launch(self, timeline: Measure) -> None:
        trace = TraceBuilder().step(1, 0, 100).launch(10, 2, name="cudaGraphLaunch")
        trace.kernel("a", 20, 5).kernel("b", 30, 5)
        assert timeline(trace).host[0].launches == 1

    def test_launches_that_wait_for_a_place_in_the_queue(self, timeline: Measure) -> None:
        trace = TraceBuilder().step(1, 0, 10_000)
        for number in range(1010):
            duration = 2 if number < 1009 else 500
            trace.launch(5 * number, duration).kernel("k", 9_000 + number, 1)
        (host,) = timeline(trace).host
        assert host.launch_path_ns == 10_000_000 - 498_000


class TestTheRecordersPart:
    def test_is_events_times_their_costs(self) -> None:
        counts = (100, 10, 40, 60)
        events = dict(zip(RECORDED_EVENT_NS, counts, strict=True))
        ns, basis = estimate_recorder(events, 2, most_ns=1e9)
        assert ns == (100 * 2100 + 10 * 1200 + 40 * 740 + 60 * 500) / 2
        assert "50 operators with shapes" in str(basis)
        assert "30 Python frames" in str(basis)
        assert "bounded" not in str(basis)

    def test_is_no_more_than_the_step_leaves(self) -> None:
        ns, basis = estimate_recorder(NOTHING | {"operators": 100}, 1, most_ns=5_000.0)
        assert ns == 5_000
        assert "bounded" in str(basis)

    def test_is_unknown_where_nothing_was_recorded(self) -> None:
        assert estimate_recorder(NOTHING, 3, most_ns=1e9) == (None, None)

    def test_counts_the_launching_threads_within_the_steps(self, timeline: Measure) -> None:
        shapes: dict[str, Any] = {"Input Dims": [[4, 4]]}
        trace = TraceBuilder().step(1, 0, 20_000).operator("aten::mm", 10, 10, **shapes).launch(12, 2)
        trace.kernel("gemm", 20, 70).operator("aten::mm", 30_000, 10, **shapes)
        trace.operator("aten::mm", 30, 10, thread=9, **shapes).operator("aten::view", 40, 2)
        trace.event("python_function", "train.py(3): step", 5, 50, 1, {"Python id": 1})
        (host,) = timeline(trace).host
        assert host.recorder_ns == sum(RECORDED_EVENT_NS.values())

    @pytest.mark.parametrize(
        ("name", "bare_ms", "recorded_ms"),
        [("gpt2_generate_fp16", 84, 120), ("bert_bs8_seq128_infer", 3.12, 6.2)],
    )
    def test_bare_times_measured_without_a_recorder_are_met(
        self, load: Callable[..., Session], shared: Path, name: str, bare_ms: float, recorded_ms: float
    ) -> None:
        session = load(shared / f"traces/h200/{name}.json.gz")
        (host,) = Summary(session).timeline.host
        assert host.recorder_ns is not None
        assert host.launch_path_ns == pytest.approx(recorded_ms * 1e6, rel=0.02)
        assert host.launch_path_ns - host.recorder_ns == pytest.approx(bare_ms * 1e6, rel=0.25)
