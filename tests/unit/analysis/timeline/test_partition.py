"""What a device did with its window."""

from __future__ import annotations

from collections.abc import Callable

from opscope.analysis.timeline.records import read_records
from opscope.analysis.timeline.values import DeviceStep, Timeline, TimePartition
from opscope.analysis.timeline.windows import device_steps
from opscope.model.session import Session
from opscope.testing import TraceBuilder

Measure = Callable[[TraceBuilder], Timeline]
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def parts(partition: TimePartition) -> tuple[int, ...]:
    """Compute, exposed communication, exposed copy, idle and window, in microseconds."""
    assert (
        partition.compute_ns
        + partition.exposed_communication_ns
        + partition.exposed_copy_ns
        + partition.idle_ns
        == partition.span_ns
    )
    assert sum(partition.idle_by_cause.values()) == partition.idle_ns
    return (
        partition.compute_ns // 1000,
        partition.exposed_communication_ns // 1000,
        partition.exposed_copy_ns // 1000,
        partition.idle_ns // 1000,
        partition.span_ns // 1000,
    )


def copy(trace: TraceBuilder, start: float, duration: float, *, stream: int = 8) -> TraceBuilder:
    return trace.kernel(
        "Memcpy HtoD (Pinned -> Device)", start, duration, stream=stream, category="gpu_memcpy"
    )


def test_kernels_that_overlap_on_one_stream_count_once(timeline: Measure) -> None:
    trace = TraceBuilder().launch(0).kernel("gemm", 10, 10).launch(1).kernel("gemm", 18, 12)
    assert parts(timeline(trace).partitions[0]) == (20, 0, 0, 10, 30)


def test_compute_comes_before_communication_and_communication_before_copies(timeline: Measure) -> None:
    trace = TraceBuilder().launch(0).kernel("gemm", 0, 10, stream=7).kernel(NCCL, 5, 10, stream=9)
    copy(copy(trace, 12, 6), 2, 1)
    partition = timeline(trace).partitions[0]
    assert parts(partition) == (10, 5, 3, 0, 18)
    assert (partition.copy_ns, partition.communication_ns) == (7_000, 10_000)


def test_a_memory_set_is_a_copy(timeline: Measure) -> None:
    trace = TraceBuilder().launch(0).kernel("gemm", 0, 4)
    trace.launch(5).kernel("Memset (Device)", 6, 2, category="gpu_memset").launch(9).kernel("gemm", 10, 1)
    assert parts(timeline(trace).partitions[0]) == (5, 0, 2, 4, 11)


def test_current_and_former_names_of_collectives_and_those_of_other_libraries(timeline: Measure) -> None:
    trace = TraceBuilder()
    for number, name in enumerate((NCCL, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
                                   "void nvshmem::barrier_kernel<int>(int)")):  # fmt: skip
        trace.launch(10 * number).kernel(name, 10 * number + 5, 2)
    assert timeline(trace).partitions[0].communication_ns >= 4_000


def test_each_device_of_each_trace_has_its_own(timeline: Measure) -> None:
    trace = TraceBuilder().launch(0).kernel("gemm", 0, 10, device=0).kernel("gemm", 5, 10, device=1)
    trace.launch(20).kernel("gemm", 30, 10, device=0)
    first, second = timeline(trace).partitions
    assert (first.device, parts(first)) == (0, (20, 0, 0, 20, 40))
    assert (second.device, parts(second)) == (1, (10, 0, 0, 30, 40))


def test_no_device_no_partition(timeline: Measure) -> None:
    found = timeline(TraceBuilder().operator("aten::mm", 0, 10).step(1, 0, 20))
    assert (found.partitions, found.waits, found.host, found.queues, found.latencies) == ((), (), (), (), ())
    assert [one.count for one in found.steps] == [1]


def test_an_activity_without_duration_bounds_the_span(timeline: Measure) -> None:
    trace = (
        TraceBuilder().launch(0).kernel("a", 0, 0).launch(1).kernel("b", 10, 5).launch(2).kernel("c", 20, 0)
    )
    assert parts(timeline(trace).partitions[0]) == (5, 0, 0, 15, 20)


def test_a_step_owns_what_it_launched(load: Callable[..., Session]) -> None:
    trace = TraceBuilder().step(1, 0, 20).step(2, 20, 20)
    trace.launch(1).kernel("gemm", 5, 10).launch(2).kernel("gemm", 16, 10).launch(3).kernel(
        NCCL, 20, 12, stream=9
    )
    trace.launch(21).kernel("gemm", 24, 10)
    (records,) = read_records(load(trace))
    assert device_steps(records.devices[0]) == (
        DeviceStep(0, 0, 1, 20_000, 0, 6_000),
        DeviceStep(0, 0, 2, 10_000, 0, 0),
    )
