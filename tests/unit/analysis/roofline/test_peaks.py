"""Which peak and which rate of memory a call is held against."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from opscope.analysis.roofline import compute_limit, memory_limit
from opscope.analysis.tensor_cores import TensorCoreUse
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits
from opscope.operators.call_cost import CallCost, FlopSource

from .conftest import PEAKS, cost, launches, limit

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
def test_the_peak_is_that_of_what_computed(
    limits: DeviceLimits,
    kernel: str,
    operands: tuple[DataType | None, FlopSource],
    expected: DataType,
    use: TensorCoreUse | None,
) -> None:
    found = compute_limit(cost(1_000, 1_000, *operands), [launches(kernel)], limits, "9.0")
    assert (found.data_type, found.flop_per_s, found.tensor_cores) == (expected, PEAKS[expected], use)


def test_split_products_have_a_third_of_the_peak(limits: DeviceLimits) -> None:
    found = compute_limit(cost(1, 1, DataType.FP32, REGISTRY), [launches(EFFICIENT)], limits, "9.0")
    assert (found.data_type, found.flop_per_s) == (DataType.TF32, PEAKS[DataType.TF32] / 3)


def test_the_kernel_that_multiplies_decides_whatever_else_runs(limits: DeviceLimits) -> None:
    parts = [launches(GELU, 500_000), launches(TF32, 1_000)]
    found = compute_limit(cost(1, 1, DataType.FP32, REGISTRY), parts, limits, "9.0")
    assert found.data_type is DataType.TF32


def test_nothing_computed_has_no_type(limits: DeviceLimits) -> None:
    assert compute_limit(cost(0, 8), [launches(GELU)], limits, "9.0").data_type is None


def test_sums_in_half_precision_have_their_own_peak_where_the_device_has_one(limits: DeviceLimits) -> None:
    call, part = cost(1, 1, DataType.FP16, REGISTRY), launches("turing_h1688gemm_128x128_ldg8_stages_32x1_tn")
    assert compute_limit(call, [part], limits, "9.0").flop_per_s == PEAKS[DataType.FP16]
    faster = replace(limits, peaks={**limits.peaks, DataType.FP16_FP16_ACCUMULATE: limit(9e14)})
    assert compute_limit(call, [part], faster, "9.0").flop_per_s == 9e14


def test_unknown_limits_keep_what_the_kernel_says() -> None:
    found = compute_limit(cost(1, 1, DataType.FP32, REGISTRY), [launches(FFMA)], None, "9.0")
    assert (found.flop_per_s, found.tensor_cores) == (None, TensorCoreUse.ELIGIBLE)
    assert compute_limit(cost(1, 1), [], None, None).tensor_cores is None


@pytest.mark.parametrize(
    ("read", "written", "rate"),
    [(50, 50, 4e12), (95, 5, 4.5e12), (89, 11, 4e12), (5, 95, 4.2e12), (0, 0, 4.5e12)],
)
def test_one_way_traffic_is_held_against_its_own_rate(
    limits: DeviceLimits, read: int, written: int, rate: float
) -> None:
    faster = replace(limits, read=limit(4.5e12), write=limit(4.2e12))
    found = memory_limit(CallCost(read_bytes=read, written_bytes=written), faster)
    assert found is not None
    assert found.per_s == rate


def test_a_one_way_rate_below_that_of_copies_does_not_count(limits: DeviceLimits) -> None:
    found = memory_limit(CallCost(read_bytes=9, written_bytes=0), replace(limits, read=limit(3e12)))
    assert found is limits.memory


def test_unknown_bytes_or_limits_have_no_rate(limits: DeviceLimits) -> None:
    assert memory_limit(CallCost(read_bytes=9), limits) is None
    assert memory_limit(CallCost(read_bytes=9, written_bytes=0), None) is None
