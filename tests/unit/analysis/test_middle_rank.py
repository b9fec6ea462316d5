"""Gains of a job: from its middle rank, and none where that waits for others."""

import pytest

from fakes import TraceBuilder
from opscope.advice import assess
from opscope.analysis.step_model import MOST_UNEXPLAINED

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy HtoD (Pageable -> Device)"
GROUP = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]"}


def rank(number, compute, collective, *, step=2000):
    """Steps of a copy that the host waits for, a product and an all-reduce; all times in µs."""
    builder = TraceBuilder(distributedInfo={"rank": number, "world_size": 3})
    for place in range(3):
        at = 10 + step * place
        builder.step(place + 1, at - 10, step)
        builder.operator("aten::copy_", at, 505).launch(at + 2, 500, name="cudaMemcpyAsync")
        builder.kernel(COPY, at + 8, 490, category="gpu_memcpy", bytes=1 << 20)
        builder.operator("aten::mm", at + 510, 20).launch(at + 512, 4).kernel("gemm", at + 520, compute)
        builder.operator("c10d::allreduce_", at + 540, 20).launch(at + 542, 4)
        builder.kernel(NCCL, at + 521 + compute, collective, Seq=place, **GROUP)
    return builder


@pytest.mark.parametrize(
    ("steps", "middle"), [((2000, 2200, 2100), 2), ((2000, 2200), 1), ((2200, 2000, 2000, 2100), 3)]
)
def test_a_step_is_that_of_the_middle_rank_the_slower_of_two(job, steps, middle):
    summary = job(*(rank(number, 900, 100, step=step) for number, step in enumerate(steps)))
    assert summary.step_model.trace.trace_id == summary.typical_step.trace_id == middle


@pytest.mark.exhaustive(few=False)
def test_a_rank_that_launched_nothing_is_passed_over(job):
    silent = TraceBuilder(distributedInfo={"rank": 1, "world_size": 3}).step(1, 0, 2050)
    summary = job(rank(0, 900, 100), silent, rank(2, 900, 100, step=2100))
    assert summary.step_model.trace.trace_id == 2


def test_gains_of_ranks_in_time_are_told_with_the_rank_they_are_of(load):
    summary = assess(load([rank(number, 900 + number, 102 - number) for number in range(3)]))
    assert summary.step_model.missing is None
    (copies,) = [one for one in summary.advice if one.code == "advice.host_copies"]
    assert copies.estimated_gain_ns_per_step > 0
    assert "; of rank 1, as if others changed alike" in copies.gain_basis


def test_of_a_rank_that_waits_for_others_no_step_and_no_gain_is_told(load):
    """A copy that every rank does without gains what the late one gains, not what a waiting one does."""
    summary = assess(load([rank(0, 400, 600), rank(1, 400, 600), rank(2, 900, 100)]))
    model = summary.step_model
    assert model.waiting_ns == 500_000 > MOST_UNEXPLAINED * model.recorded_ns
    reason = "the rank waits for others for 25.0 % of the recorded step"
    assert reason in model.waits and model.missing_for(model.change()) == model.waits
    assert summary.typical_step is None and summary.best_set is None
    (copies,) = [one for one in summary.advice if one.code == "advice.host_copies"]
    assert copies.estimated_gain_ns_per_step is None and copies.is_to_try
    assert reason in copies.gain_basis
    first = summary.advice[0]
    assert (first.code, first.evidence["rank"], first.estimated_gain_ns_per_step) == (
        "advice.straggler_rank", 2, None,
    )  # fmt: skip
