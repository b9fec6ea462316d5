"""A slow host, the recorder's part in it, and what else keeps the device waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.timeline.values import IdleCause, IdleGap, WaitingCall
from opscope.model.finding import Finding, Severity
from opscope.testing import TraceBuilder

from .conftest import codes, host, only, partition, trace

Program = Callable[..., tuple[Finding, ...]]
MS = 1_000_000


def step_of(milliseconds: float, kernel_us: float = 10) -> TraceBuilder:
    """One step with one kernel."""
    builder = trace().step(1, 0, 1000 * milliseconds).operator("aten::gelu", 10, 20)
    return builder.launch(15).kernel("kernel", 50, kernel_us)


def waiting(cause: IdleCause = IdleCause.HOST_LAUNCH, idle_ns: int = 5 * MS) -> dict[str, Any]:
    return {"partitions": [partition(10 * MS, {cause: idle_ns})]}


def test_a_slow_host_is_told_with_what_a_graph_would_save(advise_on: Program) -> None:
    found = advise_on(step_of(10), hosts=[host(2 * MS, 10 * MS, launches=1000)], **waiting())
    finding = only(found, "launch_bound")
    assert finding.severity is Severity.WARNING
    assert "1,000 launches of 2.00 µs" in finding.message
    # 2 ms of work and a gap of 1 µs before each of 1000 kernels stay.
    assert finding.estimated_gain_ns_per_step == pytest.approx(10 * MS - 3 * MS)
    assert "CUDAGraph" in (finding.change or "")


def without_steps() -> TraceBuilder:
    return trace().operator("aten::gelu", 10, 20).launch(15).kernel("kernel", 50, 10)


def test_without_steps_a_slow_host_is_told_of_the_recording(advise_on: Program) -> None:
    recorded = host(2 * MS, 10 * MS, launches=1000, recorder_ns=4 * MS)
    found = advise_on(without_steps(), hosts=[recorded], **waiting())
    assert codes(found) == ["launch_bound", "recording_inflates_host"]
    assert "to launch what was recorded" in found[0].message
    assert "that the host needs in all as recorded" in found[1].message
    assert not any("per step" in f"{finding.message} {finding.gain_basis}" for finding in found)


def test_without_steps_waits_are_counted_in_all(advise_on: Program) -> None:
    found = advise_on(
        without_steps(),
        hosts=[host(8 * MS, 2 * MS, step_ns=10 * MS)],
        partitions=[partition(10 * MS, {IdleCause.SYNCHRONIZATION: 2 * MS})],
        waits=(wait(2 * MS, calls=4),),
    )
    message = only(found, "host_sync").message
    assert "waits for the device 4 times in all and leaves it idle for 2.00 ms in all." in message


def test_the_recorders_part_is_not_the_hosts(advise_on: Program) -> None:
    """As recorded the host needs 10 ms; without the recorder 2, and the device 8."""
    recorded = host(8 * MS, 10 * MS, launches=100, recorder_ns=8 * MS)
    found = advise_on(step_of(10), hosts=[recorded], **waiting())
    assert codes(found) == ["recording_inflates_host"]
    assert "80.0 %" in found[0].message
    assert found[0].estimated_gain_ns_per_step is None
    assert found[0].evidence["how_estimated"] == "in a test"


def test_a_host_that_may_be_the_slower_side_is_told_with_its_doubt(advise_on: Program) -> None:
    """Bare, the host needs 12 ± 7 ms beside 12 of the device: worth the mean of 0, 0 and 7."""
    recorded = host(12 * MS, 33 * MS, launches=200, recorder_ns=21 * MS, step_ns=33 * MS)
    found = advise_on(step_of(33), hosts=[recorded], **waiting(idle_ns=4 * MS))
    finding = only(found, "launch_bound")
    assert "± 7.00 ms" in finding.message
    assert finding.estimated_gain_ns_per_step == pytest.approx((7 - 0.2) / 3 * MS, rel=0.02)
    assert codes(found) == ["launch_bound", "recording_inflates_host"]


def test_a_device_that_does_not_wait_is_not_launch_bound(advise_on: Program) -> None:
    found = advise_on(step_of(10), hosts=[host(8 * MS, 10 * MS)], **waiting(idle_ns=MS // 2))
    assert codes(found) == []


def test_a_host_busy_with_something_else_is_not_launch_bound(advise_on: Program) -> None:
    found = advise_on(step_of(10), hosts=[host(2 * MS, 10 * MS, launches=50)], **waiting())
    assert codes(found) == []


def test_a_device_that_waits_for_something_else_is_not_launch_bound(advise_on: Program) -> None:
    found = advise_on(
        step_of(10), hosts=[host(2 * MS, 10 * MS, launches=500)], **waiting(IdleCause.NOTHING_SCHEDULED)
    )
    assert codes(found) == []


def test_a_busy_device_hides_the_recorder(advise_on: Program) -> None:
    recorded = host(10 * MS, 6 * MS, recorder_ns=3 * MS)
    assert codes(advise_on(step_of(10), hosts=[recorded], **waiting(idle_ns=0))) == []


def test_a_recorder_of_unknown_cost_is_said_to_be_in_the_figure(advise_on: Program) -> None:
    found = advise_on(step_of(10), hosts=[host(2 * MS, 10 * MS, launches=500, recorder_ns=None)], **waiting())
    assert "as recorded" in only(found, "launch_bound").message


def wait(idle_ns: int, **facts: Any) -> WaitingCall:
    return WaitingCall(
        "cudaStreamSynchronize", "aten::item", facts.pop("line", None), facts.pop("calls", 1), 2 * MS, idle_ns
    )


def test_a_wait_within_a_step_is_told_with_its_line(advise_on: Program) -> None:
    found = advise_on(
        step_of(10),
        hosts=[host(8 * MS, 2 * MS, step_ns=10 * MS)],
        waits=(wait(MS, line="train.py:12 step", calls=3),),
        **waiting(IdleCause.SYNCHRONIZATION, MS),
    )
    finding = only(found, "host_sync")
    assert (
        "aten::item (cudaStreamSynchronize) at train.py:12 step waits for the device 3 times"
        in finding.message
    )
    assert finding.estimated_gain_ns_per_step == pytest.approx(MS)


def test_a_wait_that_costs_the_device_nothing_is_left_alone(advise_on: Program) -> None:
    found = advise_on(
        step_of(10),
        hosts=[host(9.9 * MS, 2 * MS, step_ns=10 * MS)],
        waits=(wait(50_000, calls=100),),
        **waiting(IdleCause.SYNCHRONIZATION, 50_000),
    )
    assert codes(found) == []


def test_a_wait_in_a_host_bound_step_gains_only_what_the_step_waits(advise_on: Program) -> None:
    found = advise_on(
        step_of(10),
        hosts=[host(2 * MS, 9.5 * MS, step_ns=10 * MS)],
        waits=(wait(4 * MS),),
        **waiting(IdleCause.SYNCHRONIZATION, 4 * MS),
    )
    assert only(found, "host_sync").estimated_gain_ns_per_step == pytest.approx(0.5 * MS)


def test_waiting_for_data_is_told_with_where(advise_on: Program) -> None:
    gap = IdleGap(0, 3 * MS, IdleCause.DATA_LOADING, host="enumerate(DataLoader)")
    slow = partition(10 * MS, {IdleCause.DATA_LOADING: 3 * MS}, longest_gaps=(gap,))
    found = advise_on(step_of(10), hosts=[host(7 * MS, 10 * MS)], partitions=[slow])
    finding = only(found, "data_loading")
    assert "30.0 %" in finding.message
    assert finding.evidence["waits_in"] == ["enumerate(DataLoader)"]
    assert finding.estimated_gain_ns_per_step == pytest.approx(10 * MS - 7.01 * MS)


def test_data_that_is_there_in_time_is_no_finding(advise_on: Program) -> None:
    slow = partition(10 * MS, {IdleCause.DATA_LOADING: 100_000})
    assert codes(advise_on(step_of(10), hosts=[host(9.8 * MS, 3 * MS)], partitions=[slow])) == []


def allocating(steps: int, calls: int = 2, name: str = "cudaMalloc") -> TraceBuilder:
    builder = trace()
    for number in range(3):
        at = 1000 * number
        builder.step(number, at, 990).operator("aten::empty", at + 1, 400)
        builder.launch(at + 420).kernel("kernel", at + 450, 10)
        for place in range(calls if number < steps else 0):
            builder.launch(at + 10 + 100 * place, 90, name=name)
    return builder


def test_allocating_in_every_step_is_told(advise_on: Program) -> None:
    found = advise_on(allocating(3), hosts=[host(100_000, 990_000, steps=3)])
    finding = only(found, "cuda_malloc")
    assert "cudaMalloc run 2 times per step" in finding.message
    assert finding.estimated_gain_ns_per_step == pytest.approx(180_000)
    assert finding.evidence["steps_with_calls"] == 3


@pytest.mark.parametrize(
    "content",
    [allocating(1), allocating(3, name="cudaMallocAsync"), allocating(0)],
    ids=["once", "async", "never"],
)
def test_a_warm_allocator_is_left_alone(advise_on: Program, content: TraceBuilder) -> None:
    assert "cuda_malloc" not in codes(advise_on(content, hosts=[host(100_000, 990_000, steps=3)]))
