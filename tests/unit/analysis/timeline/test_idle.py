"""Why devices wait: what of a recording says it. Rules of time alone: tests/property, by an oracle."""

import pytest

from fakes import TraceBuilder
from opscope.analysis.timeline.values import IdleCause

SYNC, HOST, QUEUED = IdleCause.SYNCHRONIZATION, IdleCause.HOST_LAUNCH, IdleCause.DEPENDENCY
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
DEVICE_SIDE = ("kernel", "gpu_memcpy", "gpu_memset")


def causes(found, device=0):
    """Idle microseconds by cause."""
    return {cause: ns / 1000 for cause, ns in found.partitions[device].idle_by_cause.items()}


@pytest.fixture
def timeline(timeline):
    """Devices that, after their last kernel, are busy to the end of the recording."""

    def measure(trace):
        end = max(event["ts"] + event["dur"] for event in trace.events)
        done = max(event["ts"] + event["dur"] for event in trace.events if event["cat"] in DEVICE_SIDE)
        return timeline(trace.kernel("after", done, end - done, correlation=9999))

    return measure


def busy(start=10, duration=10):
    """A device at work from the start of the recording, last with a kernel launched long before it runs."""
    return TraceBuilder().launch(0).kernel("before", 0, start).kernel("first", start, duration)


def overhead(trace, name, start, duration):
    return trace.event("overhead", name, start, duration, 999, {}, process=-1)


def second(trace, launch, start, duration=2):
    return trace.launch(launch, duration).kernel("second", start, 5)


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NOTHING, RECORDER, LOADING = IdleCause.NOTHING_SCHEDULED, IdleCause.PROFILER_OVERHEAD, IdleCause.DATA_LOADING
ALLOCATING, UNKNOWN = IdleCause.MEMORY_ALLOCATION, IdleCause.UNKNOWN
PREPARE, SLEEP = "train.py(5): prepare", "<built-in function sleep>"
SCENES = {
    "inside a replayed graph": (
        TraceBuilder().launch(0, 2, name="cudaGraphLaunch").kernel("node", 0, 15).kernel("node", 18, 5)
        .kernel("node", 30, 5), {QUEUED: 10}, None),
    # What the host did.
    "a long pause of the program's Python": (
        second(busy().frame(PREPARE, 0, 3000), 2035, 2037), {HOST: 2017}, PREPARE),
    "which sleeps": (
        second(busy().frame(PREPARE, 0, 3000).frame(SLEEP, 100, 1500, parent=1), 2035, 2037),
        {HOST: 517, NOTHING: 1500}, SLEEP),
    "a range that the program named": (
        second(busy().event("user_annotation", "Optimizer.step#Adam.step", 15, 3000, 1, {}), 2035, 2037),
        {HOST: 2017}, "Optimizer.step#Adam.step"),
    "a step is no such range": (
        second(busy().step(3, 0, 3000), 2035, 2037), {NOTHING: 2015, HOST: 2}, None),
    **{f"a data loader as {category}": (
        second(busy().event(category, LOADER, 25, 50, 1, {}).operator("aten::stack", 30, 20)
               .operator("aten::to", 78, 10), 80, 82), {HOST: 12, LOADING: 50}, LOADER)
       for category in ("cpu_op", "user_annotation")},
    "a data loader known by its frame": (
        second(busy().frame("torch/utils/data/dataloader.py(701): __next__", 25, 50), 80, 82),
        {HOST: 12, LOADING: 50}, None),
    "allocation": (
        second(busy().operator("aten::empty", 20, 60).launch(30, 40, name="cudaMalloc"), 82, 84),
        {HOST: 24, ALLOCATING: 40}, "cudaMalloc"),
    "freeing waits, and is blamed for what follows": (
        second(busy(10, 90).launch(50, 55, name="cudaFree").operator("aten::mm", 110, 30), 120, 122),
        {ALLOCATING: 22}, None),
    # The recorder.
    "holds the launching thread up": (
        overhead(second(busy().operator("aten::cat", 15, 100), 105, 108, 3), "Activity Buffer Request",
                 30, 60), {HOST: 28, RECORDER: 60}, "Activity Buffer Request"),
    "on a thread of its own harms nobody": (
        overhead(second(busy().operator("aten::cat", 15, 100).operator("aten::view", 40, 5), 105, 108,
                        3), "Buffer Flush", 30, 60), {HOST: 88}, None),
    "what the program needs too": (
        overhead(second(busy().operator("aten::mm", 15, 100), 25, 108, 83), "Lazy Function Loading",
                 30, 60),
        {HOST: 88}, None),
    # Between 2 and 4 lies a step that no one recorded: it is not in the window.
    "between one step and the next": (
        TraceBuilder().step(1, 0, 30).step(2, 70, 50).step(4, 180, 50).launch(0).kernel("a", 0, 20)
        .launch(80, 2).kernel("b", 82, 8).launch(190, 2).kernel("c", 192, 8),
        {RECORDER: 40, HOST: 22 + 30 + 12}, None),
}  # fmt: skip


@pytest.mark.parametrize(("trace", "expected", "host"), SCENES.values(), ids=SCENES)
def test_why_a_device_waits(timeline, trace, expected, host):
    found = timeline(trace)
    assert causes(found) == expected
    if host is not None:
        assert found.partitions[0].longest_gaps[0].host == (host or None)


class TestWaits:
    def test_two_waits_for_the_same_work_are_one(self, timeline):
        """`.item()` on a pageable buffer: the copy waits, and leaves nothing to the wait for its stream."""
        trace = busy(10, 100).operator("aten::item", 40, 80).operator("aten::_local_scalar_dense", 41, 78)
        trace.launch(45, 70, name="cudaMemcpyAsync")
        trace.kernel("Memcpy DtoH (Device -> Pageable)", 110, 2, category="gpu_memcpy", bytes=4)
        trace.launch(116, 2, name="cudaStreamSynchronize")
        trace.operator("aten::add", 122, 100).launch(138, 2).kernel("second", 142, 5)
        found = timeline(trace)
        assert causes(found) == {SYNC: 28, QUEUED: 2}
        copy, sync = found.waits
        assert (copy.name, copy.operator) == ("cudaMemcpyAsync", "aten::item")
        assert copy.copy == "Memcpy DtoH (Device -> Pageable)"
        assert (copy.idle_ns, copy.size_bytes, sync.idle_ns) == (26_000, 4, 2_000)

    def test_a_pageable_copy_holds_the_host_while_it_stages(self, timeline):
        trace = busy().operator("aten::to", 15, 200)
        trace.launch(30, 100, name="cudaMemcpyAsync")
        trace.kernel(PAGEABLE, 90, 35, category="gpu_memcpy", bytes=1 << 20)
        found = timeline(trace)
        assert causes(found) == {HOST: 10, SYNC: 60}
        assert [(one.copy, one.size_bytes) for one in found.waits] == [(PAGEABLE, 1 << 20)]

    def test_a_pinned_or_a_synchronous_copy_within_the_device_does_not(self, timeline):
        trace = busy().operator("aten::to", 15, 200).launch(30, 100, name="cudaMemcpyAsync")
        found = timeline(trace.kernel("Memcpy HtoD (Pinned -> Device)", 90, 35, category="gpu_memcpy"))
        assert (causes(found), found.waits) == ({HOST: 70}, ())
        trace = busy().launch(30, 10, name="cudaMemcpy")
        trace.kernel("Memcpy DtoD (Device -> Device)", 90, 35, category="gpu_memcpy")
        assert timeline(trace).waits == ()

    def test_waits_are_told_apart_by_place(self, timeline):
        trace = busy().frame("train.py(5): train", 0, 500).frame("metrics.py(9): accuracy", 100, 50, parent=1)
        for at in (30, 110):
            trace.operator("aten::item", at, 20).launch(at + 10, 5, name="cudaStreamSynchronize")
        trace.event("user_annotation", "validate", 200, 50, 1, {})
        trace.launch(210, 7, name="cudaDeviceSynchronize").launch(280).kernel("last", 290, 5)
        places = {(one.name, one.operator, one.line, one.calls) for one in timeline(trace).waits}
        assert places == {
            ("cudaStreamSynchronize", "aten::item", "train.py:5 train", 1),
            ("cudaStreamSynchronize", "aten::item", "metrics.py:9 accuracy", 1),
            ("cudaDeviceSynchronize", "validate", "train.py:5 train", 1),
        }

    def test_a_thread_that_launches_nothing_makes_nobody_wait(self, timeline):
        trace = busy().launch(15, 100, name="cudaEventSynchronize", thread=5)
        trace.operator("aten::mm", 40, 30).launch(60, 2).kernel("second", 62, 5)
        found = timeline(trace)
        assert causes(found) == {HOST: 42}
        assert found.waits == ()


class TestLongestGaps:
    def test_name_the_step_the_host_and_what_ended_them(self, timeline):
        trace = busy().step(7, 0, 500).operator("aten::linear", 20, 100).operator("aten::addmm", 30, 80)
        trace.launch(105, 3).kernel("gemm", 110, 5).launch(112, 1).kernel("tail", 117, 1)
        first, second = timeline(trace).partitions[0].longest_gaps
        assert (first.start_ns, first.duration_ns, first.cause, first.step) == (20_000, 90_000, HOST, 7)
        assert (first.host, first.ended_by) == ("aten::addmm", "gemm")
        assert (second.duration_ns, second.cause, second.ended_by) == (2_000, QUEUED, "tail")
        assert second.host is None

    def test_of_many_operators_the_one_open_longest(self, timeline):
        trace = busy()
        for start, name, duration in ((21, "aten::a", 5), (30, "aten::b", 9), (42, "aten::c", 4)):
            trace.operator(name, start, duration)
        trace.operator("aten::mm", 50, 20).launch(52, 1).kernel("second", 53, 5)
        assert timeline(trace).partitions[0].longest_gaps[0].host == "aten::b"
