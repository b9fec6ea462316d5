"""Launch latency and queue depth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opscope.analysis.arrays import Spans
from opscope.analysis.timeline.measure import queue_over_time
from opscope.analysis.timeline.records import read_records
from opscope.analysis.timeline.values import LaunchLatency, QueueDepth, Timeline
from opscope.model.session import Session
from opscope.testing import TraceBuilder

Measure = Callable[[TraceBuilder], Timeline]


def three_kernels() -> TraceBuilder:
    """Queued or running: one until 12 µs, two until 20, one until 30, none until 38, one until 50."""
    trace = TraceBuilder().launch(0).kernel("a", 10, 10).launch(12).kernel("b", 20, 10)
    return trace.launch(38).kernel("c", 40, 10)


def test_latency_is_from_the_launch_calls_start_to_the_kernels(timeline: Measure) -> None:
    trace = TraceBuilder()
    for number, latency in enumerate((5, 7, 6, 100, -2)):
        trace.launch(1000 * number).kernel("k", 1000 * number + latency, 10)
    trace.launch(9000).kernel("Memset (Device)", 9900, 1, category="gpu_memset")
    assert timeline(trace).latencies == (LaunchLatency(0, 0, 5, 6_000, 100_000, 1),)


def test_a_replay_counts_once_by_its_first_kernel(timeline: Measure) -> None:
    trace = TraceBuilder().launch(0, name="cudaGraphLaunch")
    trace.kernel("b", 30, 5).kernel("a", 12, 5).kernel("c", 50, 5)
    assert timeline(trace).latencies == (LaunchLatency(0, 0, 1, 12_000, 12_000, 0),)


def test_the_95th_percentile_is_one_of_the_values(timeline: Measure) -> None:
    trace = TraceBuilder()
    for number in range(1, 21):
        trace.launch(1000 * number).kernel("k", 1000 * number + number, 10)
    (latency,) = timeline(trace).latencies
    assert (latency.median_ns, latency.p95_ns) == (10_000, 19_000)


def test_depth_is_weighted_by_time(timeline: Measure) -> None:
    assert timeline(three_kernels()).queues == (QueueDepth(0, 0, (12 + 16 + 10 + 12) / 50, 2, 8 / 50),)


def test_what_was_launched_before_the_window_is_queued_from_the_start(timeline: Measure) -> None:
    trace = TraceBuilder().kernel("a", 0, 5, correlation=1).kernel("b", 15, 5, correlation=2)
    trace.launch(5).kernel("c", 30, 10)
    assert timeline(trace).queues == (QueueDepth(0, 0, (10 + 30 + 20) / 40, 2, 0.0),)


def test_without_any_launch_there_is_no_queue(timeline: Measure) -> None:
    assert timeline(TraceBuilder().kernel("a", 0, 5, correlation=1)).queues == ()


def test_the_series_of_a_recording_has_its_mean_depth(shared: Path, load: Callable[..., Session]) -> None:
    from opscope.analysis.summary import Summary

    session = load(shared / "traces/h200/bert_bs8_seq128_infer.json.gz")
    found = Summary(session).timeline
    (series,), (queue,) = found.series, found.queues
    assert sum(series.mean) / len(series.mean) == pytest.approx(queue.mean)
    assert max(series.mean) <= queue.maximum


def test_the_series_has_the_mean_of_every_interval(load: Callable[..., Session]) -> None:
    (records,) = read_records(load(three_kernels()))
    window = Spans(np.array([10_000]), np.array([50_000]))
    series = queue_over_time(records.devices[0], records.calls, window, 4)
    assert (series.start_ns, series.interval_ns) == (10_000, 10_000.0)
    assert series.mean == pytest.approx((1.8, 1.0, 0.2, 1.0))
