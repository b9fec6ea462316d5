"""Launches of distinct calls against the limits: what binds each, sums of many, recordings."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.launch_quality import LaunchQuality, TensorCoreUse, common_device
from opscope.analysis.roofline import (
    Bound,
    Efficiency,
    Launches,
    Roofline,
    bound_ns_of,
    combine,
    compute_limit,
    efficiency_of,
    measure_efficiency,
    memory_limit,
    read_launches,
    roofline_of,
    work_of_call,
)
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit, LimitEvidence, match_limits
from opscope.launches.facts import DeviceFacts, LaunchGeometry
from opscope.operators.effects import CallCost, FlopSource
from opscope.operators.session_costs import CostedCall, fill_costs
from opscope.provenance.kernel_names.decoder import decode

DEVICE = DeviceFacts("NVIDIA H200", "9.0", 132)
PEAKS = {
    DataType.FP64: 34e12, DataType.FP64_TENSOR: 67e12, DataType.FP32: 50e12, DataType.TF32: 400e12,
    DataType.FP16: 800e12, DataType.BF16: 800e12,
}  # fmt: skip
MEMORY_BYTES_PER_S = 4e12
L2_BYTES = 50_000_000


def limit(per_s):
    return Limit(per_s, LimitEvidence.MEASURED, "by hand")


@pytest.fixture
def limits():
    return DeviceLimits(
        "NVIDIA H200",
        memory=limit(MEMORY_BYTES_PER_S),
        peaks={data_type: limit(per_s) for data_type, per_s in PEAKS.items()},
        l2_bytes=L2_BYTES,
    )


def launches(kernel="k", total_ns=100_000, *, count=1, blocks=10_000, registers=32, **known):
    """Launches of a kernel, all of them the only work of their calls unless told otherwise."""
    geometry = LaunchGeometry(
        None if blocks is None else (blocks, 1, 1), (128, 1, 1), registers, 0, None, count, total_ns
    )
    fields = {
        "kernel": kernel, "kind": "kernel", "is_helper": False, "count": count, "total_ns": total_ns,
        "launch_bound_ns": 0, "sole_count": count, "sole_ns": total_ns,
        "quality": LaunchQuality(decode(kernel), geometry, device=DEVICE),
    }  # fmt: skip
    return Launches(**{**fields, **known})


def cost(flop_count=0, min_bytes=0, data_type=DataType.FP32, source=FlopSource.DEFINITION):
    return CallCost(flop_count, source, min_bytes, None if min_bytes is None else 0, data_type)


def work(known, *parts, repeats=1):
    return work_of_call(parts, known, repeats)


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


def test_outside_operators_the_launch_call_is_the_host_s_time(load):
    built = TraceBuilder().launch(2, 4).kernel("k", 8, 3.9)
    assert only(read(load, built), 999).launch_bound_ns == 3_900
    assert only(read(load, TraceBuilder().launch(2, 4).kernel("k", 8, 4)), 999).launch_bound_ns == 0
    assert only(read(load, TraceBuilder().kernel("k", 8, 1)), 999).launch_bound_ns == 0  # no call recorded


H2D = "Memcpy HtoD (Pageable -> Device)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture
def model(limits):
    return limits, "9.0"


@cases("amounts", "total_ns", "fraction", "apart_ns")
def test_a_cache_may_spare_memory_a_part(model, amounts, total_ns, fraction, apart_ns):
    found = roofline_of(work(cost(*amounts), launches(total_ns=total_ns)), *model)
    assert found.fraction == (fraction and pytest.approx(fraction, rel=1e-4))
    assert (found.attainable_ns is None) == (fraction is None)
    assert [found.cache_resident_ns, found.excess_ns] == apart_ns
    assert (found.costed_ns, found.held_ns) == (total_ns, total_ns - found.excess_ns)
    assert found.bound is (Bound.COMPUTE if found.flop_count else Bound.MEMORY)


@pytest.mark.parametrize("kernel", [H2D, NCCL])
def test_what_goes_over_another_link_is_not_held_against_memory(model, kernel):
    found = roofline_of(work(cost(0, 400_000_000), launches(kernel, 900_000, quality=None)), *model)
    assert (found.min_bytes, found.costed_ns, found.held_ns) == (400_000_000, 900_000, 0)
    assert (found.fraction, found.bound) == (None, None)


def test_without_known_cost_time_and_without_limits_rates_remain(model):
    found = roofline_of(work(cost(None, 4), launches(total_ns=9_000)), *model)
    assert (found.device_ns, found.costed_ns, found.held_ns) == (9_000, 0, 0)
    assert (found.flop_count, found.min_bytes, found.fraction, found.bound) == (None, None, None, None)
    found = roofline_of(work(cost(1_000, 2_000), launches(total_ns=100_000)))
    assert (found.flop_count, found.attainable_ns, found.fraction, found.bound) == (1_000, None, None, None)
    assert found.achieved_flop_per_s == pytest.approx(1e7)


def test_the_type_and_tensor_cores_are_those_of_most_of_the_time_of_products():
    used = Roofline(5, 5, 1, 1, data_type=DataType.TF32, tensor_cores=TensorCoreUse.USED)
    eligible = Roofline(7, 7, 1, 1, data_type=DataType.FP32, tensor_cores=TensorCoreUse.ELIGIBLE)
    copy = Roofline(90, 90, 0, 1, tensor_cores=TensorCoreUse.NOT_APPLICABLE)
    unknown = Roofline(8, 0)
    assert combine([used, eligible, copy]).tensor_cores is TensorCoreUse.ELIGIBLE
    assert combine([used, eligible, copy]).data_type is DataType.FP32
    assert combine([used, eligible, unknown]).tensor_cores is None
    assert combine([copy, unknown]).tensor_cores is TensorCoreUse.NOT_APPLICABLE
    assert combine([]).tensor_cores is None


PARTS = st.lists(
    st.builds(
        lambda ns, costed, flops, size, bound, share: Roofline(
            device_ns=ns,
            costed_ns=ns if costed else 0,
            flop_count=flops if costed else None,
            min_bytes=size if costed else None,
            attainable_ns=ns * share if costed else None,
            bound_ns={} if bound is None else {bound: ns},
        ),
        st.integers(0, 10**12),
        st.booleans(),
        st.integers(0, 10**15),
        st.integers(0, 10**12),
        st.none() | st.sampled_from(list(Bound)),
        st.floats(0, 1),
    ),
    max_size=8,
)


@given(PARTS, st.randoms())
def test_sums_are_exact_and_know_no_order(parts, random):
    whole = combine(parts)
    assert whole.device_ns == sum(part.device_ns for part in parts)
    assert whole.costed_ns == sum(part.costed_ns for part in parts)
    assert sum(whole.bound_ns.values()) == sum(ns for part in parts for ns in part.bound_ns.values())
    assert whole.costed_ns <= whole.device_ns
    assert whole.fraction is None or whole.fraction <= 1 + 1e-9
    mirrored = combine(parts[::-1])
    assert (mirrored.device_ns, mirrored.flop_count, mirrored.bound_ns) == (
        whole.device_ns, whole.flop_count, whole.bound_ns,
    )  # fmt: skip


@given(PARTS, PARTS)
def test_sums_of_sums_are_sums(first, second):
    whole, nested = combine([*first, *second]), combine([combine(first), combine(second)])
    for name in ("device_ns", "costed_ns", "flop_count", "min_bytes", "bound_ns"):
        assert getattr(whole, name) == getattr(nested, name)
    assert (whole.attainable_ns or 0) == pytest.approx(nested.attainable_ns or 0)


HELPER = launches("memset", total_ns=10_000, blocks=1, is_helper=True)
# Of launches with so much time at the memory's and at the units' rates, what binds.


@cases("what", "known", "at_limits", "expected")
def test_what_binds(what, known, at_limits, expected):
    facts = {name: None if value == "unknown" else value for name, value in known.items() if name != "helper"}
    helpers = [HELPER] if "helper" in known else []
    found = bound_ns_of(work(cost(), launches(**facts), *helpers), at_limits)
    assert list(found) == ([] if expected is None else [expected]), what


@cases("known", "expected")
def test_of_unknown_cost_only_what_the_launch_alone_shows(known, expected):
    facts = {name: None if value == "unknown" else value for name, value in known.items()}
    found = bound_ns_of(work(cost(None, None), launches(**facts)), None)
    assert list(found) == ([] if expected is None else [expected])


def test_the_shortest_kernel_is_the_device_s_own_where_measured():
    found = bound_ns_of(
        work(cost(), launches(total_ns=30_000, count=10)), (1_000, 0), shortest_kernel_ns=3_100.0
    )
    assert found == {Bound.LATENCY: 30_000}


def test_time_in_which_the_device_waited_for_the_host_is_apart():
    part = launches(total_ns=100_000, launch_bound_ns=60_000)
    found = bound_ns_of(work(cost(), part), (90_000, 0))
    assert found == {Bound.LAUNCH: 60_000, Bound.MEMORY: 40_000}
    whole = launches(total_ns=100_000, launch_bound_ns=100_000)
    assert bound_ns_of(work(cost(None, None), whole), None) == {Bound.LAUNCH: 100_000}


FFMA = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"  # noqa: E501
EFFICIENT = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"

GELU = "triton_poi_fused_gelu_view_6"
REGISTRY = FlopSource.REGISTRY


@cases("kernel", "data_type", "source", "expected", "use")
def test_the_peak_is_that_of_what_computed(limits, kernel, data_type, source, *, expected, use):
    known = None if data_type == "unknown" else DataType(data_type)
    found = compute_limit(cost(1_000, 1_000, known, FlopSource(source)), [launches(kernel)], limits, "9.0")
    assert (found.data_type, found.flop_per_s) == (expected, PEAKS[DataType(expected)])
    assert found.tensor_cores == use


def test_the_kernel_that_multiplies_decides_and_split_products_have_a_third(limits):
    parts = [launches(GELU, 500_000), launches(GEMM, 1_000)]
    found = compute_limit(cost(1, 1, DataType.FP32, REGISTRY), parts, limits, "9.0")
    assert found.data_type is DataType.TF32
    found = compute_limit(cost(1, 1, DataType.FP32, REGISTRY), [launches(EFFICIENT)], limits, "9.0")
    assert (found.data_type, found.flop_per_s) == (DataType.TF32, PEAKS[DataType.TF32] / 3)


def test_where_nothing_is_computed_or_limits_are_unknown(limits):
    assert compute_limit(cost(0, 8), [launches(GELU)], limits, "9.0").data_type is None
    found = compute_limit(cost(1, 1, DataType.FP32, REGISTRY), [launches(FFMA)], None, "9.0")
    assert (found.flop_per_s, found.tensor_cores) == (None, TensorCoreUse.ELIGIBLE)
    assert compute_limit(cost(1, 1), [], None, None).tensor_cores is None


def test_sums_in_half_precision_have_their_own_peak_where_the_device_has_one(limits):
    call, part = cost(1, 1, DataType.FP16, REGISTRY), launches("turing_h1688gemm_128x128_ldg8_stages_32x1_tn")
    assert compute_limit(call, [part], limits, "9.0").flop_per_s == PEAKS[DataType.FP16]
    faster = replace(limits, peaks={**limits.peaks, DataType.FP16_FP16_ACCUMULATE: limit(9e14)})
    assert compute_limit(call, [part], faster, "9.0").flop_per_s == 9e14


@cases("read", "written", "rate")
def test_one_way_traffic_is_held_against_its_own_rate(limits, read, written, rate):
    faster = replace(limits, read=limit(4.5e12), write=limit(4.2e12))
    found = memory_limit(CallCost(read_bytes=read, written_bytes=written), faster)
    assert found.per_s == rate


def test_an_unknown_peak_or_cache_holds_what_needs_neither(limits):
    model = replace(limits, peaks={}), "9.0"
    assert roofline_of(work(cost(5, 400_000_000), launches()), *model).fraction is None
    assert roofline_of(work(cost(0, 400_000_000), launches()), *model).fraction == pytest.approx(1)
    model = replace(limits, l2_bytes=None), None
    assert roofline_of(work(cost(0, 100_000_000), launches(total_ns=20_000)), *model).cache_resident_ns
    assert roofline_of(work(cost(0, 270_000_000), launches(total_ns=20_000)), *model).excess_ns == 20_000


def test_a_one_way_rate_counts_only_if_it_is_more_and_bytes_are_known(limits):
    found = memory_limit(CallCost(read_bytes=9, written_bytes=0), replace(limits, read=limit(3e12)))
    assert found is limits.memory
    assert memory_limit(CallCost(read_bytes=9), limits) is None
    assert memory_limit(CallCost(read_bytes=9, written_bytes=0), None) is None
