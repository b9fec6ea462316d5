"""Why devices wait: one scene for each cause, and for each rule that decides between causes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.timeline.values import IdleCause, Timeline
from opscope.testing import TraceBuilder

Measure = Callable[[TraceBuilder], Timeline]
SYNC, HOST, QUEUED = IdleCause.SYNCHRONIZATION, IdleCause.HOST_LAUNCH, IdleCause.DEPENDENCY
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
DEVICE_SIDE = ("kernel", "gpu_memcpy", "gpu_memset")


def causes(found: Timeline, device: int = 0) -> dict[IdleCause, float]:
    """Idle microseconds by cause."""
    return {cause: ns / 1000 for cause, ns in found.partitions[device].idle_by_cause.items()}


@pytest.fixture
def timeline(timeline: Measure) -> Measure:
    """Devices that, after their last kernel, are busy to the end of the recording."""

    def measure(trace: TraceBuilder) -> Timeline:
        end = max(event["ts"] + event["dur"] for event in trace.events)
        done = max(event["ts"] + event["dur"] for event in trace.events if event["cat"] in DEVICE_SIDE)
        return timeline(trace.kernel("after", done, end - done, correlation=9999))

    return measure


def busy_from(start: float, duration: float) -> TraceBuilder:
    """A device at work from the start of the recording, last with a kernel launched long before it runs."""
    return TraceBuilder().launch(0).kernel("before", 0, start).kernel("first", start, duration)


def call(trace: TraceBuilder, name: str, start: float, duration: float, thread: int = 1) -> TraceBuilder:
    return trace.launch(start, duration, name=name, thread=thread)


def frame(trace: TraceBuilder, name: str, start: float, duration: float, **ids: Any) -> TraceBuilder:
    args = {"Python id": ids.get("id", 1), "Python parent id": ids.get("parent")}
    return trace.event("python_function", name, start, duration, ids.get("thread", 1), args)


class TestTheLaunchThatEndsAGap:
    def test_what_was_launched_before_the_gap_was_queued(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).launch(5).kernel("second", 23, 5)
        assert causes(timeline(trace)) == {QUEUED: 3}

    def test_until_the_launch_returns_it_is_the_host(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::add", 15, 30).launch(30, 4).kernel("second", 40, 5)
        assert causes(timeline(trace)) == {HOST: 14, QUEUED: 6}

    def test_a_kernel_may_begin_before_its_launch_returns(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::add", 15, 30).launch(30, 4).kernel("second", 32, 5)
        assert causes(timeline(trace)) == {HOST: 12}

    def test_without_a_launch_record_nobody_knows(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::add", 15, 30).kernel("second", 40, 5, correlation=999)
        assert causes(timeline(trace)) == {IdleCause.UNKNOWN: 20}

    def test_what_was_launched_before_the_window_was_queued_once_it_is_open(self, timeline: Measure) -> None:
        trace = TraceBuilder().kernel("early", 0, 5, correlation=1).kernel("early", 20, 5, correlation=2)
        trace.launch(10).kernel("late", 30, 5).kernel("early", 50, 5, correlation=3)
        assert causes(timeline(trace)) == {IdleCause.UNKNOWN: 15, QUEUED: 5 + 15}

    def test_no_host_events_at_all(self, timeline: Measure) -> None:
        trace = TraceBuilder().kernel("a", 0, 5, correlation=7).kernel("b", 20, 5, correlation=8)
        assert causes(timeline(trace)) == {IdleCause.UNKNOWN: 15}

    def test_of_activities_that_start_together_the_first_launched_counts(self, timeline: Measure) -> None:
        trace = (
            busy_from(10, 10)
            .launch(38, 1)
            .kernel("later", 40, 5)
            .launch(5, 1)
            .kernel("queued", 40, 5, stream=9)
        )
        assert causes(timeline(trace)) == {QUEUED: 20}

    def test_inside_a_replayed_graph_the_device_waits_for_itself(self, timeline: Measure) -> None:
        trace = TraceBuilder().launch(0, 2, name="cudaGraphLaunch")
        trace.kernel("node", 0, 15).kernel("node", 18, 5).kernel("node", 30, 5)
        assert causes(timeline(trace)) == {QUEUED: 10}


class TestWhatTheHostDid:
    def test_operators_and_short_pauses_between_them_are_launching(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::a", 22, 8).operator("aten::b", 40, 8).launch(45, 2)
        assert causes(timeline(trace.kernel("second", 47, 5))) == {HOST: 27}

    def test_a_long_pause_is_nothing_scheduled(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::a", 22, 8).operator("aten::b", 2030, 8).launch(2035, 2)
        found = timeline(trace.kernel("second", 2040, 5))
        assert causes(found) == {HOST: 2 + 8 + 7, IdleCause.NOTHING_SCHEDULED: 2000, QUEUED: 3}
        assert found.partitions[0].longest_gaps[0].host is None

    def test_with_stacks_a_long_pause_is_the_programs_python(self, timeline: Measure) -> None:
        trace = frame(busy_from(10, 10), "train.py(5): prepare", 0, 3000)
        found = timeline(trace.launch(2035, 2).kernel("second", 2037, 5))
        assert causes(found) == {HOST: 2017}
        (gap,) = found.partitions[0].longest_gaps
        assert (gap.host, gap.line) == ("train.py(5): prepare", "train.py:5 prepare")

    def test_but_not_while_it_sleeps(self, timeline: Measure) -> None:
        trace = frame(busy_from(10, 10), "train.py(5): prepare", 0, 3000)
        frame(trace, "<built-in function sleep>", 100, 1500, id=2, parent=1)
        found = timeline(trace.launch(2035, 2).kernel("second", 2037, 5))
        assert causes(found) == {HOST: 517, IdleCause.NOTHING_SCHEDULED: 1500}
        assert found.partitions[0].longest_gaps[0].host == "<built-in function sleep>"

    def test_a_range_that_the_program_named_is_the_host_at_work(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).event("user_annotation", "Optimizer.step#Adam.step", 15, 3000, 1, {})
        found = timeline(trace.launch(2035, 2).kernel("second", 2037, 5))
        assert causes(found) == {HOST: 2017}
        assert found.partitions[0].longest_gaps[0].host == "Optimizer.step#Adam.step"

    def test_a_step_is_no_such_range(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).step(3, 0, 3000).launch(2035, 2).kernel("second", 2037, 5)
        assert causes(timeline(trace)) == {IdleCause.NOTHING_SCHEDULED: 2015, HOST: 2}

    @pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])
    def test_a_data_loader(self, timeline: Measure, category: str) -> None:
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        trace = busy_from(10, 10).event(category, name, 25, 50, 1, {})
        trace.operator("aten::stack", 30, 20).operator("aten::to", 78, 10).launch(80, 2).kernel("copy", 82, 5)
        found = timeline(trace)
        assert causes(found) == {HOST: 12, IdleCause.DATA_LOADING: 50}
        assert found.partitions[0].longest_gaps[0].host == name

    def test_a_data_loader_known_by_its_frame_only(self, timeline: Measure) -> None:
        trace = frame(busy_from(10, 10), "torch/utils/data/dataloader.py(701): __next__", 25, 50)
        trace.launch(80, 2).kernel("copy", 82, 5)
        assert causes(timeline(trace)) == {HOST: 12, IdleCause.DATA_LOADING: 50}

    def test_allocation(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::empty", 20, 60)
        call(trace, "cudaMalloc", 30, 40).launch(82, 2).kernel("second", 84, 5)
        found = timeline(trace)
        assert causes(found) == {HOST: 24, IdleCause.MEMORY_ALLOCATION: 40}
        assert found.partitions[0].longest_gaps[0].host == "cudaMalloc"

    def test_freeing_waits_for_the_device_and_is_blamed_for_what_follows(self, timeline: Measure) -> None:
        trace = call(busy_from(10, 90), "cudaFree", 50, 55)
        trace.operator("aten::mm", 110, 30).launch(120, 2).kernel("second", 122, 5)
        assert causes(timeline(trace)) == {IdleCause.MEMORY_ALLOCATION: 22}


class TestTheRecorder:
    def overhead(self, trace: TraceBuilder, name: str, start: float, duration: float) -> TraceBuilder:
        return trace.event("overhead", name, start, duration, 999, {}, process=-1)

    def test_that_holds_the_launching_thread_up(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::cat", 15, 100).launch(105, 3).kernel("second", 108, 5)
        self.overhead(trace, "Activity Buffer Request", 30, 60)
        found = timeline(trace)
        assert causes(found) == {HOST: 28, IdleCause.PROFILER_OVERHEAD: 60}
        assert found.partitions[0].longest_gaps[0].host == "Activity Buffer Request"

    def test_on_a_thread_of_its_own_harms_nobody(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::cat", 15, 100).operator("aten::view", 40, 5)
        self.overhead(trace.launch(105, 3).kernel("second", 108, 5), "Buffer Flush", 30, 60)
        assert causes(timeline(trace)) == {HOST: 88}

    def test_what_the_program_needs_too_is_not_the_recorders(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::mm", 15, 100).launch(25, 83).kernel("second", 108, 5)
        self.overhead(trace, "Lazy Function Loading", 30, 60)
        assert causes(timeline(trace)) == {HOST: 88}

    def test_works_between_one_step_and_the_next(self, timeline: Measure) -> None:
        trace = TraceBuilder().step(1, 0, 30).step(2, 70, 50).step(4, 180, 50)
        trace.launch(0).kernel("a", 0, 20).launch(80, 2).kernel("b", 82, 8).launch(190, 2).kernel("c", 192, 8)
        # Between 2 and 4 lies a step that no one recorded: it is not in the window.
        assert causes(timeline(trace)) == {IdleCause.PROFILER_OVERHEAD: 40, HOST: 22 + 30 + 12}


class TestWaits:
    def waiting(self, wait_us: float, gap_us: float) -> TraceBuilder:
        """A wait that ends 5 us after the device did, an operator, and the next launch after `gap_us`."""
        trace = call(busy_from(10, 100), "cudaStreamSynchronize", 115 - wait_us, wait_us)
        trace.operator("aten::mm", 116, gap_us - 6 + 100).launch(110 + gap_us - 2, 2)
        return trace.kernel("second", 110 + gap_us, 5)

    def test_what_follows_a_long_wait_is_its_fault(self, timeline: Measure) -> None:
        found = timeline(self.waiting(80, 40))
        assert causes(found) == {SYNC: 40}
        (wait,) = found.waits
        assert (wait.calls, wait.host_ns, wait.idle_ns) == (1, 80_000, 40_000)
        assert found.partitions[0].longest_gaps[0].host == "cudaStreamSynchronize"

    def test_but_no_more_than_the_host_lost_in_it(self, timeline: Measure) -> None:
        assert causes(timeline(self.waiting(15, 40))) == {SYNC: 15, HOST: 25}

    def test_a_wait_for_nothing_costs_what_it_takes(self, timeline: Measure) -> None:
        trace = call(busy_from(10, 10).operator("aten::item", 25, 20), "cudaStreamSynchronize", 30, 6)
        trace.operator("aten::add", 50, 20).launch(58, 2).kernel("second", 60, 5)
        assert causes(timeline(trace)) == {SYNC: 6, HOST: 34}

    def test_the_debt_is_paid_by_later_gaps_too(self, timeline: Measure) -> None:
        trace = self.waiting(80, 40).operator("aten::add", 160, 80).launch(178, 2).kernel("third", 180, 5)
        trace.launch(228, 2).kernel("fourth", 230, 5)
        # 75 us were lost beside the 5 inside: 35 by the first gap, 25 by the second, 15 of 45 by the third.
        assert causes(timeline(trace)) == {SYNC: 40 + 25 + 15, HOST: 30}

    def test_until_the_host_waits_again(self, timeline: Measure) -> None:
        trace = self.waiting(80, 40).operator("aten::add", 160, 80)
        call(trace, "cudaStreamSynchronize", 157, 2).launch(178, 2).kernel("third", 180, 5)
        assert causes(timeline(trace)) == {SYNC: 40 + 2 + 2, HOST: 21}

    def test_two_waits_for_the_same_work_are_one(self, timeline: Measure) -> None:
        """`.item()` on a pageable buffer: the copy waits, and leaves nothing to the wait for its stream."""
        trace = (
            busy_from(10, 100).operator("aten::item", 40, 80).operator("aten::_local_scalar_dense", 41, 78)
        )
        call(trace, "cudaMemcpyAsync", 45, 70)
        trace.kernel("Memcpy DtoH (Device -> Pageable)", 110, 2, category="gpu_memcpy", bytes=4)
        call(trace, "cudaStreamSynchronize", 116, 2)
        trace.operator("aten::add", 122, 100).launch(138, 2).kernel("second", 142, 5)
        found = timeline(trace)
        assert causes(found) == {SYNC: 28, QUEUED: 2}
        copy, sync = found.waits
        assert (copy.name, copy.operator, copy.copy) == (
            "cudaMemcpyAsync",
            "aten::item",
            "Memcpy DtoH (Device -> Pageable)",
        )
        assert (copy.idle_ns, copy.size_bytes, sync.idle_ns) == (26_000, 4, 2_000)

    def test_a_pageable_copy_holds_the_host_while_it_stages(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::to", 15, 200)
        call(trace, "cudaMemcpyAsync", 30, 100).kernel(PAGEABLE, 90, 35, category="gpu_memcpy", bytes=1 << 20)
        found = timeline(trace)
        assert causes(found) == {HOST: 10, SYNC: 60}
        assert [(one.copy, one.size_bytes) for one in found.waits] == [(PAGEABLE, 1 << 20)]

    def test_a_pinned_copy_does_not(self, timeline: Measure) -> None:
        trace = busy_from(10, 10).operator("aten::to", 15, 200)
        call(trace, "cudaMemcpyAsync", 30, 100)
        trace.kernel("Memcpy HtoD (Pinned -> Device)", 90, 35, category="gpu_memcpy")
        found = timeline(trace)
        assert causes(found) == {HOST: 70}
        assert found.waits == ()

    def test_a_synchronous_copy_within_the_device_does_not(self, timeline: Measure) -> None:
        trace = call(busy_from(10, 10), "cudaMemcpy", 30, 10)
        trace.kernel("Memcpy DtoD (Device -> Device)", 90, 35, category="gpu_memcpy")
        assert timeline(trace).waits == ()

    def test_waits_are_told_apart_by_place(self, timeline: Measure) -> None:
        trace = frame(busy_from(10, 10), "train.py(5): train", 0, 500)
        frame(trace, "metrics.py(9): accuracy", 100, 50, id=2, parent=1)
        trace.operator("aten::item", 30, 20)
        call(trace, "cudaStreamSynchronize", 40, 5)
        trace.operator("aten::item", 110, 20)
        call(trace, "cudaStreamSynchronize", 120, 5)
        trace.event("user_annotation", "validate", 200, 50, 1, {})
        call(trace, "cudaDeviceSynchronize", 210, 7)
        trace.launch(280).kernel("last", 290, 5)
        places = {(one.name, one.operator, one.line, one.calls) for one in timeline(trace).waits}
        assert places == {
            ("cudaStreamSynchronize", "aten::item", "train.py:5 train", 1),
            ("cudaStreamSynchronize", "aten::item", "metrics.py:9 accuracy", 1),
            ("cudaDeviceSynchronize", "validate", "train.py:5 train", 1),
        }

    def test_the_same_place_is_one_row(self, timeline: Measure) -> None:
        trace = busy_from(10, 10)
        for start in (30, 60, 90):
            call(trace.operator("aten::is_nonzero", start, 20).operator("aten::item", start + 1, 18),
                 "cudaStreamSynchronize", start + 5, 4)  # fmt: skip
        (wait,) = timeline(trace.launch(120).kernel("last", 130, 5)).waits
        assert (wait.operator, wait.calls, wait.host_ns) == ("aten::is_nonzero", 3, 12_000)


class TestThreads:
    def test_the_launching_thread_counts_before_others(self, timeline: Measure) -> None:
        trace = busy_from(10, 10)
        call(trace, "cudaStreamSynchronize", 15, 100)  # on thread 1, which also launches
        trace.operator("MulBackward0", 15, 100, thread=2).launch(60, 2, thread=2).kernel("second", 62, 5)
        assert causes(timeline(trace)) == {HOST: 42}

    def test_where_it_had_nothing_open_the_others_count(self, timeline: Measure) -> None:
        trace = busy_from(10, 10)
        call(trace, "cudaStreamSynchronize", 15, 30)
        trace.operator("MulBackward0", 50, 100, thread=2).launch(60, 2, thread=2).kernel("second", 62, 5)
        # 25 us inside the wait; the 17 after it are its debt.
        assert causes(timeline(trace)) == {SYNC: 25 + 5, HOST: 12}

    def test_a_thread_that_launches_nothing_makes_nobody_wait(self, timeline: Measure) -> None:
        trace = busy_from(10, 10)
        call(trace, "cudaEventSynchronize", 15, 100, thread=5)
        trace.operator("aten::mm", 40, 30).launch(60, 2).kernel("second", 62, 5)
        found = timeline(trace)
        assert causes(found) == {HOST: 42}
        assert found.waits == ()

    def test_threads_that_wait_together_lose_no_more_than_passes(self, timeline: Measure) -> None:
        trace = busy_from(10, 100).launch(1, thread=2).kernel("other", 12, 90, stream=9)
        call(trace, "cudaStreamSynchronize", 95, 15, thread=1)
        call(trace, "cudaStreamSynchronize", 95, 15, thread=2)
        trace.operator("aten::mm", 111, 60).launch(158, 2).kernel("second", 160, 5)
        assert causes(timeline(trace)) == {SYNC: 15, HOST: 35}


class TestLongestGaps:
    def test_name_the_step_the_host_and_what_ended_them(self, timeline: Measure) -> None:
        trace = (
            busy_from(10, 10)
            .step(7, 0, 500)
            .operator("aten::linear", 20, 100)
            .operator("aten::addmm", 30, 80)
        )
        trace.launch(105, 3).kernel("gemm", 110, 5).launch(112, 1).kernel("tail", 117, 1)
        first, second = timeline(trace).partitions[0].longest_gaps
        assert (first.start_ns, first.duration_ns, first.cause, first.step) == (20_000, 90_000, HOST, 7)
        assert (first.host, first.ended_by) == ("aten::addmm", "gemm")
        assert (second.duration_ns, second.cause, second.ended_by) == (2_000, QUEUED, "tail")
        assert second.host is None

    def test_of_many_operators_the_one_open_longest(self, timeline: Measure) -> None:
        trace = busy_from(10, 10)
        for start, name, duration in ((21, "aten::a", 5), (30, "aten::b", 9), (42, "aten::c", 4)):
            trace.operator(name, start, duration)
        trace.operator("aten::mm", 50, 20).launch(52, 1).kernel("second", 53, 5)
        assert timeline(trace).partitions[0].longest_gaps[0].host == "aten::b"

    def test_there_are_ten_at_most_the_longest_first(self, timeline: Measure) -> None:
        trace = TraceBuilder()
        for number in range(15):
            trace.launch(100 * number).kernel("k", 100 * number + 10, 80 - number)
        gaps = timeline(trace).partitions[0].longest_gaps
        assert len(gaps) == 10
        assert [gap.duration_ns for gap in gaps] == sorted((gap.duration_ns for gap in gaps), reverse=True)


def test_causes_have_a_meaning() -> None:
    assert all(cause.meaning for cause in IdleCause)
