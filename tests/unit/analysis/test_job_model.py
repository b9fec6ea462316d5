"""Ranks simulated together, on two ranks whose times are known by hand."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.execution_graph import simulate
from opscope.analysis.job_model import Job, choose_ranks
from opscope.analysis.step_model import HostSpeed, step_models
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.host import read_session

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FAST, SLOW = 0, 1


def rank(number, product, collectives, *, sequence,
         shift = 0, steps = 2):  # fmt: skip
    """Steps launched within 100 µs: a product and all-reduces, each 1 µs after the other, all times in µs."""
    builder = TraceBuilder(distributedInfo={"rank": number, "world_size": 2})
    end = shift + 20
    for step in range(steps):
        host = shift + 100 * step
        builder.step(step + 1, host, 100)
        builder.operator("aten::mm", host + 5, 10).launch(host + 6, 4).kernel("gemm", end, product)
        end += product + 1
        for place, (each, lasts) in enumerate(zip(sequence, collectives, strict=True)):
            at = host + 30 + 20 * place
            builder.operator("c10d::allreduce_", at, 10).launch(at + 2, 4)
            own = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
            builder.kernel(NCCL, end, lasts, Seq=10 * step + each, **own)
            end += lasts + 1
    return builder


def pair(shift=0):
    """The fast rank waits 500 of the 550 µs of its collective for the slow one."""
    return rank(0, 100, (550,), sequence=(1,)), rank(1, 600, (50,), sequence=(1,), shift=shift)


@pytest.fixture
def job_of(load_once):
    """The job of builders, its hosts as recorded."""

    def together(*builders):
        session = load_once(builders)
        models = step_models(session, read_session(session))
        for model in models:
            model.hosts = (HostSpeed(0.0),)
        return Job(models, Summary(session).collectives.activities)

    return together


def gain_us(job, kernel, *factors):
    """What a step gets shorter where kernels of each rank take that many times as long."""
    change = job.changed(lambda _: None)
    for one, factor in zip(change.changes, factors, strict=True):
        one.scale(one.model.is_named([kernel]), factor)
    return job.gain(change).ns / US


@pytest.mark.parametrize("shift", [0, 5_000_000, -3])
def test_the_recorded_job_simulates_as_itself(job_of, shift):
    job = job_of(*pair(shift))
    graph = job.graph
    times = simulate(graph, rounds=1).times[: graph.bounds[-1]]
    first = [low + one for low, model in zip(graph.bounds, job.ranks, strict=False)
             for one in range(model.graph.initial_count)]  # fmt: skip
    is_simulated = [node not in first for node in range(len(times))]
    assert (times == graph.time_ns[: len(times)])[is_simulated].all()
    assert job.step_ns == job.device_ns == 652 * US
    assert job.host_ns == 100 * US


@cases("factors", "gained_us")
def test_a_rank_that_others_wait_for_decides(job_of, factors, gained_us):
    assert gain_us(job_of(*pair()), "gemm", *factors) == pytest.approx(gained_us, abs=0.01)


@pytest.mark.exhaustive(few=False)
def test_several_collectives_each_wait_for_the_last(job_of):
    job = job_of(rank(0, 100, (450, 80), sequence=(1, 2)), rank(1, 500, (50, 80), sequence=(1, 2)))
    assert job.step_ns == (500 + 1 + 50 + 1 + 80 + 1) * US
    assert gain_us(job, "gemm", 1, 0.2) == pytest.approx(400, abs=0.01)


@pytest.mark.parametrize(
    "builders",
    [
        (rank(0, 100, (50, 50), sequence=(1, 2)), rank(1, 100, (50, 50), sequence=(2, 1))),  # a deadlock
        (rank(0, 100, (50,), sequence=(1,)), rank(1, 100, (50,), sequence=(5,))),  # not the same ones
        (rank(0, 100, (50,), sequence=(1,)), rank(1, 100, (50,), sequence=(1,), steps=3)),
    ],
)
def test_ranks_that_do_not_fit_are_told_by_the_middle_one(job_of, builders):
    job = job_of(*builders)
    assert job.graph is None
    assert job.models == (job.middle,)
    assert job.step_ns == job.middle.step_ns
    assert (
        job.gain_ns(job.changed(lambda change: change.scale(change.model.is_named(["gemm"]), 0.5))) == 50 * US
    )


def test_the_critical_path_and_what_collectives_gain(job_of):
    job = job_of(*pair())
    found = {(one.trace_id, one.kind, one.name): one.ns for one in job.path}
    assert found[SLOW, "kernel", "gemm"] == 600 * US
    assert sum(one.ns for one in job.path if one.kind == "communication") == 50 * US
    assert not any(one.kind == "kernel" and one.trace_id == FAST for one in job.path)
    assert sum(one.fraction for one in job.path) == pytest.approx(1)
    assert gain_us(job, NCCL, 0.5, 0.5) == pytest.approx(25, abs=0.01)
    both = job.changed(lambda change: change.scale(change.model.is_named([NCCL]), 0.5))
    both &= job.changed(lambda change: change.scale(change.model.is_named(["gemm"]), 0.5))
    assert job.gain_ns(both) == pytest.approx(325 * US, abs=10)
    ids = [{model.trace.trace_id: [activity for activity, node in model.node_of_activity.items()
                                   if model.is_communication[node]] for model in job.ranks}]  # fmt: skip
    assert job.gain_ns(job.overlapped(ids[0])) == pytest.approx(50 * US, abs=200)


@pytest.mark.exhaustive(few=False)
def test_a_rank_as_fast_as_the_median_of_the_others(job_of):
    job = job_of(*pair())
    change = job.as_fast_as_median(SLOW)
    assert change is not None
    assert job.gain_ns(change) == pytest.approx(500 * US, abs=20)
    fast = job.as_fast_as_median(FAST)
    assert fast is not None
    assert job.gain_ns(fast) == 0
    assert job.as_fast_as_median(7) is None


def test_of_too_many_ranks_those_are_simulated_that_others_wait_for():
    steps_ns = {rank: 100.0 + rank for rank in range(10)}
    few = choose_ranks(steps_ns, dict.fromkeys(steps_ns, 50_000), {3: 900, 4: 5})
    assert few == ({5, 3, 4, 9}, 5)
    every, _ = choose_ranks(steps_ns, dict.fromkeys(steps_ns, 10), {})
    assert every == set(steps_ns)
    assert choose_ranks({}, {}, {}) == (frozenset(), None)
