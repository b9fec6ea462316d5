"""Which peak and rate a call is held against, what binds it, and sums of many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from case_tables import cases
from opscope.analysis.launch_quality import TensorCoreUse
from opscope.analysis.roofline import (
    Bound,
    Roofline,
    bound_ns_of,
    combine,
    compute_limit,
    memory_limit,
    roofline_of,
)
from opscope.hardware.devices import DataType
from opscope.operators.effects import CallCost, FlopSource

from .conftest import PEAKS, cost, launches, limit, work

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


def test_together_fractions_are_of_what_is_held(model):
    parts = [
        roofline_of(work(cost(0, 400_000_000), launches(total_ns=200_000)), *model),
        roofline_of(work(cost(0, 8), launches(H2D, 40_000, quality=None)), *model),
        roofline_of(work(cost(None, None), launches(total_ns=50_000)), *model),
    ]
    whole = combine(parts)
    assert (whole.device_ns, whole.costed_ns, whole.held_ns) == (290_000, 240_000, 200_000)
    assert whole.fraction == pytest.approx(0.5)
    assert whole.bound is Bound.MEMORY  # known for 200 of 290 us
    assert combine([*parts, *parts[1:] * 2]).bound is None  # for 200 of 470 us
    assert combine([*parts, parts[1]]).fraction is None  # held: 200 of 280 us costed


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


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"blocks": 8}, Bound.LATENCY),
        ({"blocks": 9}, None),
        ({"blocks": 10_000}, None),
        ({"blocks": None}, None),
        ({"total_ns": 1_000}, Bound.LATENCY),
    ],
)
def test_of_unknown_cost_only_what_the_launch_alone_shows(known, expected):
    found = bound_ns_of(work(cost(None, None), launches(**known)), None)
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
TF32 = "cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4"
EFFICIENT = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"
GEMV = "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx<int> >(cublasGemvParamsEx<int>)"  # noqa: E501
GELU = "triton_poi_fused_gelu_view_6"
NVJET = "nvjet_sm90_tst_128x160_64x5_2x4_h_bz_NTT"
REGISTRY = FlopSource.REGISTRY


@pytest.mark.parametrize(
    ("kernel", "operands", "expected", "use"),
    [
        (FFMA, (DataType.FP32, REGISTRY), DataType.FP32, TensorCoreUse.ELIGIBLE),
        (TF32, (DataType.FP32, REGISTRY), DataType.TF32, TensorCoreUse.USED),
        (NVJET, (DataType.BF16, REGISTRY), DataType.BF16, TensorCoreUse.USED),
        (NVJET, (None, REGISTRY), DataType.BF16, TensorCoreUse.USED),
        ("volta_sgemm_128x64_tn", (DataType.FP16, REGISTRY), DataType.FP16, TensorCoreUse.ELIGIBLE),
        ("volta_dgemm_128x64_tn", (DataType.FP64, REGISTRY), DataType.FP64, TensorCoreUse.ELIGIBLE),
        ("cutlass_80_tensorop_d884gemm_64x32_16x4_nn_align1", (DataType.FP64, REGISTRY), DataType.FP64_TENSOR,
         TensorCoreUse.USED),
        (GEMV, (DataType.FP16, REGISTRY), DataType.FP32, TensorCoreUse.NOT_APPLICABLE),
        (GELU, (DataType.BF16, FlopSource.DEFINITION), DataType.FP32, TensorCoreUse.NOT_APPLICABLE),
        (GELU, (DataType.FP64, FlopSource.DEFINITION), DataType.FP64, TensorCoreUse.NOT_APPLICABLE),
        ("somebodys_product", (DataType.BF16, REGISTRY), DataType.BF16, None),
        ("somebodys_product", (DataType.FP32, REGISTRY), DataType.FP32, None),
        ("somebodys_sum", (DataType.BF16, FlopSource.DEFINITION), DataType.FP32, None),
    ],
)  # fmt: skip
def test_the_peak_is_that_of_what_computed(limits, kernel, operands, expected, use):
    found = compute_limit(cost(1_000, 1_000, *operands), [launches(kernel)], limits, "9.0")
    assert (found.data_type, found.flop_per_s, found.tensor_cores) == (expected, PEAKS[expected], use)


def test_the_kernel_that_multiplies_decides_and_split_products_have_a_third(limits):
    parts = [launches(GELU, 500_000), launches(TF32, 1_000)]
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
