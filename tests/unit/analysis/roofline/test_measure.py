"""Launches of distinct calls, and how far those of recordings are from the limits."""

from functools import cache

import pytest
from msgspec.structs import replace

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.launch_quality import TensorCoreUse, common_device
from opscope.analysis.roofline import (
    Efficiency,
    efficiency_of,
    measure_efficiency,
    read_launches,
    work_by_kernel,
    work_of_call,
)
from opscope.hardware.devices import DataType
from opscope.hardware.limits import match_limits
from opscope.operators.session_costs import CostedCall, fill_costs

from .conftest import cost, launches, limit

GEMM = "cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4"
H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}


def costed(call_id, name="op", flop_count=0, **known):
    known_cost = cost(flop_count, 400_000_000)
    return CostedCall(call_id, name, attribution=known.get("attribution"), calls=1, cost=known_cost)


def mm(built, start, rows, kernel_us):
    arguments = {
        "Input Dims": [[rows, 1024], [1024, 512]],
        "Input type": ["float", "float"],
        "Input Strides": [[1024, 1], [512, 1]],
    }
    built.operator("aten::mm", start, 10, **arguments).launch(start + 1)
    built.kernel(GEMM, 1_000 + start, kernel_us)


def test_calls_operators_and_kernels_of_a_small_trace(load, limits):
    built = TraceBuilder(deviceProperties=[H200])
    mm(built, 0, 2048, 20)
    mm(built, 100, 2048, 30)
    mm(built, 200, 64, 5)
    found = measure_efficiency(load(built), limits)
    assert [(call.operator, call.calls, call.roofline.device_ns) for call in found.calls] == [
        ("aten::mm", 2, 50_000), ("aten::mm", 1, 5_000),
    ]  # fmt: skip
    first = found.calls[0]
    flop_count, min_bytes = 2 * 2048 * 1024 * 512, 4 * (2048 * 1024 + 1024 * 512 + 2048 * 512)
    assert (first.roofline.flop_count, first.roofline.min_bytes) == (2 * flop_count, 2 * min_bytes)
    assert first.roofline.data_type is DataType.TF32
    assert first.roofline.attainable_ns == pytest.approx(2 * flop_count / 400e12 * 1e9)
    assert first.gap_ns == pytest.approx(50_000 - 2 * flop_count / 400e12 * 1e9)
    assert first.kernels == (GEMM,)
    whole = found.operators["aten::mm"]
    assert (whole.device_ns, whole.costed_ns, whole.tensor_cores) == (55_000, 55_000, TensorCoreUse.USED)
    assert found.kernels["aten::mm", GEMM] == found.kernels[None, GEMM] == whole
    assert (found.coverage.bytes_fraction, found.coverage.flop_fraction) == (1.0, 1.0)
    assert found.coverage.uncosted == ()


def test_without_device_work_nothing_and_without_limits_costs_are_known(load, limits):
    found = measure_efficiency(load(TraceBuilder().operator("aten::mm", 0, 10)), limits)
    assert found == Efficiency(limits=limits)
    built = TraceBuilder(deviceProperties=[H200])
    mm(built, 0, 2048, 20)
    (call,) = measure_efficiency(load(built), None).calls
    assert (call.roofline.flop_count, call.roofline.fraction, call.gap_ns) == (2**31, None, None)
    assert call.roofline.tensor_cores is TensorCoreUse.USED


def test_launches_of_no_operator_belong_to_kernels_alone(limits):
    calls = [costed(0), costed(1, "k", attribution="graph"), costed(2, "unseen")]
    launched = {0: (launches("k"),), 1: (launches("k"),)}
    found = efficiency_of(calls, launched, limits, "9.0")
    assert [(call.operator, call.attribution) for call in found.calls] == [("k", "graph"), ("op", None)]
    assert (found.operators["op"].device_ns, found.kernels[None, "k"].device_ns) == (100_000, 200_000)
    assert ("k", "k") not in found.kernels


# Measured on the H200 of the recordings: a copy, and products of 8,192 x 8,192 matrices.
MEASURED = {
    DataType.FP32: 51e12, DataType.TF32: 409e12, DataType.BF16: 810e12, DataType.FP16: 780e12,
}  # fmt: skip
MEASURED_COPY = 4.28e12
TRACES = [
    "bert_bs8_seq128_infer", "bert_eager_attn", "bert_train_bf16", "bert_compile_bf16", "gpt2_generate_fp16",
    "gpt2_compile_cudagraph_bf16", "misc_ops_fp32", "own_kernels", "ddp_w4/rank0",
]  # fmt: skip


@cache
def published():
    limits, _ = match_limits("NVIDIA H200", compute_capability="9.0", sm_count=132)
    assert limits is not None
    return limits


def measured():
    peaks = {data_type: limit(per_s) for data_type, per_s in MEASURED.items()}
    return replace(published(), memory=limit(MEASURED_COPY), peaks={**published().peaks, **peaks})


@pytest.fixture
def recorded(shared, load):
    """Recorded Sessions by name, their costs filled."""

    def open_session(name):
        session = load(shared / "traces" / "h200" / f"{name}.json.gz")
        fill_costs(session)
        return session

    return open_session


@pytest.mark.parametrize("name", TRACES)
def test_every_nanosecond_is_in_one_call_and_costed_or_named(recorded, name):
    session = recorded(name)
    found = measure_efficiency(session, measured())
    device_ns = session.scalar("SELECT sum(duration_ns)::BIGINT FROM device_activities")
    assert sum(call.roofline.device_ns for call in found.calls) == device_ns
    costed_ns = sum(call.roofline.costed_ns for call in found.calls)
    assert costed_ns + sum(ns for _, ns, _ in found.coverage.uncosted) == device_ns
    kernels = [roofline for (owner, _), roofline in found.kernels.items() if owner is None]
    assert sum(roofline.device_ns for roofline in kernels) == device_ns
    of_calls = sum(call.roofline.device_ns for call in found.calls if call.attribution is None)
    assert sum(roofline.device_ns for roofline in found.operators.values()) == of_calls
    for roofline in [*(call.roofline for call in found.calls), *found.operators.values(), *kernels]:
        assert sum(roofline.bound_ns.values()) <= roofline.device_ns
        assert roofline.costed_ns <= roofline.device_ns
        assert (roofline.held_ns or 0) + roofline.excess_ns <= roofline.costed_ns


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("limits_of", [published, measured])
def test_nothing_that_the_cache_cannot_hold_beats_the_limits(recorded, name, limits_of):
    limits = limits_of()
    found = measure_efficiency(recorded(name), limits)
    for call in found.calls:
        roofline = call.roofline
        if roofline.fraction is not None and roofline.fraction > 1.05:
            assert call.cost.min_bytes is not None
            assert limits.l2_bytes is None or call.cost.min_bytes < 2 * limits.l2_bytes, call
    # What is withheld as excess is one tensor multiplied with itself, not a cost that is wrong at large.
    excess_ns = sum(call.roofline.excess_ns for call in found.calls)
    assert excess_ns <= 0.01 * sum(call.roofline.device_ns for call in found.calls)


REDUCE = "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(cublasSplitKParams<float>)"  # noqa: E501


def read(load, built):
    """Launches by call; each operator name, and all that has none (999), is one call."""
    session = load(built)
    session.replace_rows(
        "activity_costs",
        [
            {"activity_id": activity_id, "call_id": 999 if name is None else int(name[-1])}
            for activity_id, name in session.query(
                "SELECT activity_id, o.name FROM device_activities LEFT JOIN operators o USING (operator_id)"
            )
        ],
    )
    return read_launches(session, common_device(session))


def only(found, call_id):
    (one,) = found[call_id]
    return one


@cases("kernel_start", "duration", "expected")
def test_launch_bound_is_held_to_the_host_time_and_the_start(load, kernel_start, duration, expected):
    built = TraceBuilder().operator("op0", 0, 20).launch(2, 4).kernel("k", kernel_start, duration)
    assert only(read(load, built), 0).launch_bound_ns == expected


def test_a_stream_that_was_busy_when_the_launch_returned_hides_it_others_do_not_matter(load):
    built = TraceBuilder().operator("op0", 0, 20).launch(2, 4).kernel("k", 8, 19)
    built.operator("op1", 20, 20).launch(21, 4).kernel("k", 27, 3)  # behind op0's until 27, launched by 25
    built.operator("op2", 40, 20).launch(41, 4).kernel("k", 47, 3, stream=9)
    found = read(load, built)
    assert [only(found, call).launch_bound_ns for call in (0, 1, 2)] == [19_000, 0, 3_000]
    built = TraceBuilder().kernel("long", 0, 1_000, stream=9)
    built.operator("op0", 0, 20).launch(2, 4).kernel("k", 8, 5)
    assert only(read(load, built), 0).launch_bound_ns == 5_000


@pytest.mark.parametrize("waiting", ["cudaStreamSynchronize", "cudaMemcpyAsync", "cudaMalloc"])
def test_time_in_which_the_host_waits_is_not_launching(load, waiting):
    built = TraceBuilder().operator("op0", 0, 100).launch(2, 4).kernel("k", 8, 30)
    built.event("cuda_runtime", waiting, 10, 80, 1, {"correlation": 7, "External id": 1})
    assert only(read(load, built), 0).launch_bound_ns == 0
    built.events[-1]["dur"] = 60
    assert only(read(load, built), 0).launch_bound_ns == 30_000


def test_host_time_is_that_of_the_operator_alone_for_all_its_kernels(load):
    built = TraceBuilder().operator("op1", 0, 100).operator("op0", 10, 20).launch(12, 4).kernel("k", 18, 30)
    assert only(read(load, built), 0).launch_bound_ns == 0
    built = TraceBuilder().operator("op0", 0, 20)
    built.launch(2, 4).kernel("a", 8, 8).launch(8, 4).kernel("b", 17, 9)
    found = read(load, built)[0]
    assert [(one.kernel, one.launch_bound_ns) for one in found] == [("b", 9_000), ("a", 8_000)]
    built.launch(14, 4).kernel("c", 27, 4)
    assert {one.launch_bound_ns for one in read(load, built)[0]} == {0}  # 21 us of device time


def test_a_graph_launch_is_shared_by_its_kernels(load):
    built = TraceBuilder().operator("op0", 0, 500).launch(2, 10, name="cudaGraphLaunch")
    for index in range(5):
        built.kernel("k", 14 + index, 1, **{"graph id": 1, "graph node id": index})
    found = read(load, built)[0]
    assert only({0: found}, 0).count == 5
    assert only({0: found}, 0).launch_bound_ns == 1_000  # the first; the others stand behind it


def test_work_is_the_main_kernel_s_alone_where_the_rest_helps(load):
    built = TraceBuilder().operator("op0", 0, 30)
    built.launch(1, 1, name="cudaMemsetAsync").kernel("Memset (Device)", 5, 1, category="gpu_memset")
    built.launch(3).kernel(GEMM, 10, 8).launch(5).kernel(REDUCE, 20, 2)
    built.operator("op0", 40, 30).launch(41).kernel(GEMM, 50, 6).launch(45).kernel("other", 60, 2)
    found = {one.kernel: one for one in read(load, built)[0]}
    assert [found[name].is_helper for name in ("Memset (Device)", GEMM, REDUCE, "other")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert (found[GEMM].count, found[GEMM].sole_count, found[GEMM].sole_ns) == (2, 1, 8_000)
    assert (found[REDUCE].sole_count, found["other"].sole_count) == (0, 0)


def test_a_kernel_has_its_call_s_cost_as_often_as_it_did_it_alone():
    alone, shared = (
        launches("a", 80, count=4, sole_count=3, sole_ns=50),
        launches("b", 20, sole_count=0, sole_ns=0),
    )
    call = work_of_call((alone, shared), cost(10, 20), 4)
    assert (call.device_ns, call.costed_ns, call.repeats) == (100, 100, 4)
    by_kernel = dict(work_by_kernel(call))
    assert (by_kernel["a"].device_ns, by_kernel["a"].costed_ns, by_kernel["a"].repeats) == (80, 50, 3)
    assert (by_kernel["b"].device_ns, by_kernel["b"].costed_ns, by_kernel["b"].repeats) == (20, 0, 0)


def test_outside_operators_the_launch_call_is_the_host_s_time(load):
    built = TraceBuilder().launch(2, 4).kernel("k", 8, 3.9)
    assert only(read(load, built), 999).launch_bound_ns == 3_900
    assert only(read(load, TraceBuilder().launch(2, 4).kernel("k", 8, 4)), 999).launch_bound_ns == 0
    assert only(read(load, TraceBuilder().kernel("k", 8, 1)), 999).launch_bound_ns == 0  # no call recorded


def test_work_that_is_shared_or_unknown_costs_no_time_and_helpers_alone_are_the_work():
    call = work_of_call((launches("a", 80, count=4), launches("b", 20, count=4)), cost(10, 20), 4)
    assert [(part.costed_ns, part.repeats) for _, part in work_by_kernel(call)] == [(0, 0), (0, 0)]
    call = work_of_call((launches(),), cost(None, 20), 1)
    assert call.costed_ns == 0
    assert [part.costed_ns for _, part in work_by_kernel(call)] == [0]
    helper = launches("Memset (Device)", is_helper=True)
    assert work_of_call((helper,), cost(), 1).main == (helper,)
