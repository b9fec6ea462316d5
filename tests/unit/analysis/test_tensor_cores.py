"""What ran on tensor cores, what could have, and what has no work for them: by names of real kernels."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from opscope.analysis.tensor_cores import (
    TensorCoreUse,
    has_tensor_cores_for,
    is_product,
    operand_type,
    tensor_core_evidence,
)
from opscope.hardware.devices import DataType
from opscope.model.evidence import Grade
from opscope.provenance.kernel_names.decoder import decode

USED, ELIGIBLE, NOT_APPLICABLE = TensorCoreUse.USED, TensorCoreUse.ELIGIBLE, TensorCoreUse.NOT_APPLICABLE

FFMA = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"  # noqa: E501
TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_execute_kernel_cublas"  # noqa: E501
NVJET = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_bias_TNT"
CUDNN = (
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0"
)
EFFICIENT = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"
SKINNY = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align1>(cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align1::Params)"  # noqa: E501
GEMV = "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx<int> >(cublasGemvParamsEx<int>)"  # noqa: E501
NARROW = "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const> >(cublasGemmSmallNParams<float>)"  # noqa: E501
DIRECT = "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int, int, int, float const*)"  # noqa: E501
SPLIT = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half, false, float, __half, __half, true, true, false, false>(cublasLt::cublasSplitKParams<float>)"  # noqa: E501
MATRIX_TEMPLATE = "triton_tem_fused_addmm_3"
POINTWISE = "triton_poi_fused_gelu_view_6"
FLASH_PART = "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::half_t> >(pytorch_flash::Flash_bwd_params)"  # noqa: E501


@pytest.mark.parametrize(
    ("name", "data_type", "use", "grade"),
    [
        (FFMA, DataType.FP32, ELIGIBLE, Grade.INFERRED),
        (TF32, DataType.FP32, USED, Grade.INFERRED),
        (NVJET, DataType.BF16, USED, Grade.INFERRED),
        (CUDNN, DataType.FP16, USED, Grade.INFERRED),
        (EFFICIENT, DataType.FP32, USED, Grade.NAME_PATTERN),
        (EFFICIENT.replace("sm80", "sm70"), DataType.FP32, ELIGIBLE, Grade.NAME_PATTERN),
        (EFFICIENT.replace("f32", "f16"), DataType.FP16, USED, Grade.NAME_PATTERN),
        (
            EFFICIENT.replace("f32", "f16").replace("sm80", "sm50"),
            DataType.FP16,
            ELIGIBLE,
            Grade.NAME_PATTERN,
        ),
        (SKINNY, DataType.FP32, USED, Grade.NAME_PATTERN),
        ("volta_sgemm_128x64_tn", DataType.FP32, ELIGIBLE, Grade.INFERRED),
        ("volta_dgemm_128x64_tn", DataType.FP64, ELIGIBLE, Grade.INFERRED),
        ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", None, USED, Grade.INFERRED),
        (DIRECT, DataType.FP32, ELIGIBLE, Grade.INFERRED),
        (GEMV, DataType.FP16, NOT_APPLICABLE, Grade.INFERRED),
        (NARROW, DataType.FP32, NOT_APPLICABLE, Grade.INFERRED),
        (SPLIT, DataType.FP16, NOT_APPLICABLE, Grade.INFERRED),
        (POINTWISE, DataType.BF16, NOT_APPLICABLE, Grade.NAME_PATTERN),
        (MATRIX_TEMPLATE, DataType.BF16, USED, Grade.INFERRED),
        (MATRIX_TEMPLATE, DataType.FP32, None, None),
        (FLASH_PART, DataType.FP16, NOT_APPLICABLE, Grade.NAME_PATTERN),
        ("somebodys_kernel", DataType.FP16, None, None),
    ],
)
def test_evidence_of_a_name_on_an_h200(
    name: str, data_type: DataType | None, use: TensorCoreUse | None, grade: Grade | None
) -> None:
    found = tensor_core_evidence(decode(name), data_type, "9.0")
    assert (found.use, found.grade) == (use, grade), found.reason
    assert found.reason


def test_fp32_attention_on_tensor_cores_multiplies_three_times() -> None:
    assert tensor_core_evidence(decode(EFFICIENT), DataType.FP32, "9.0").passes == 3
    assert tensor_core_evidence(decode(TF32), DataType.FP32, "9.0").passes == 1


def test_loads_of_single_elements_are_named() -> None:
    assert "aligned to 1 element" in tensor_core_evidence(decode(SKINNY)).reason


@pytest.mark.parametrize(
    ("name", "data_type", "capability", "use"),
    [
        (FFMA, DataType.FP32, "8.0", ELIGIBLE),
        (FFMA, DataType.FP32, "7.5", NOT_APPLICABLE),
        (FFMA, DataType.FP32, None, None),
        (FFMA, None, "8.0", ELIGIBLE),  # the name says f32
        ("volta_sgemm_128x64_tn", DataType.FP16, "7.0", ELIGIBLE),
        ("volta_sgemm_128x64_tn", DataType.BF16, "7.0", NOT_APPLICABLE),
        ("volta_dgemm_128x64_tn", DataType.FP64, "8.6", NOT_APPLICABLE),
        ("void sgemm_largek_lds64<true, true, 6, 3, 4, 5, 2, 66>(float*)", None, "8.0", None),
        ("void sgemm_largek_lds64<true, true, 6, 3, 4, 5, 2, 66>(float*)", DataType.FP32, "8.0", ELIGIBLE),
    ],
)
def test_what_could_run_follows_from_operands_and_device(
    name: str, data_type: DataType | None, capability: str | None, use: TensorCoreUse | None
) -> None:
    assert tensor_core_evidence(decode(name), data_type, capability).use is use


@pytest.mark.parametrize("capability", [None, "", "9", "x.y", "sm_90"])
def test_an_unknown_device_has_unknown_tensor_cores(capability: str | None) -> None:
    assert has_tensor_cores_for(DataType.FP16, capability) is None


@pytest.mark.parametrize("data_type", list(DataType))
def test_every_type_has_a_first_capability(data_type: DataType) -> None:
    assert has_tensor_cores_for(data_type, "6.1") is False


def test_the_type_is_that_of_the_multiplication_where_the_name_tells_it() -> None:
    assert operand_type(decode(TF32)) is DataType.TF32
    assert operand_type(decode(NVJET)) is DataType.BF16
    assert operand_type(decode(CUDNN)) is None


# Kernels of recorded traces whose names do not say what they computed on. MIOpen's implicit GEMMs
# (igemm_fwd_gtcx3_…) and those of Composable Kernel are AMD's, whose matrix cores are not told yet.
_UNTOLD = {
    "void sgemm_largek_lds64",
    "kernel_unified_attention_2d",
    "kernel_unified_attention_3d",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
}


@pytest.mark.exhaustive(few=False)
def test_every_product_in_recorded_traces_is_told(recorded_names: frozenset[str]) -> None:
    products = [name for name in recorded_names if is_product(decode(name))]
    assert len(products) > 150
    untold = {
        name.partition("<")[0]
        for name in products
        if tensor_core_evidence(decode(name), None, "9.0").use is None and not re.match("igemm_|_ZN2ck", name)
    }
    assert untold == _UNTOLD


@pytest.mark.exhaustive(few=False)
def test_words_of_a_name_agree_with_the_evidence(recorded_names: frozenset[str]) -> None:
    for name in recorded_names:
        use = tensor_core_evidence(decode(name), DataType.FP16, "9.0").use
        if re.search(r"ffma|_simt_|scudnn|(?:volta|ampere|maxwell)_[sd]gemm", name):
            assert use is ELIGIBLE, name
        elif re.search(r"nvjet|tensorop|_tensor\d|wgmma|_s\d{4,5}gemm|MmaTensorOp", name) and is_product(
            decode(name)
        ):
            assert use is USED, name


@pytest.fixture(scope="module")
def recorded_names(shared: Path) -> frozenset[str]:
    """Names of device activities, taken from the text: a tenth of the time of loading the traces."""
    found: set[str] = set()
    for path in (shared / "traces").rglob("*.json*"):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
        found.update(re.findall(r'"cat": ?"[kK]ernel", ?"name": ?"([^"\\]+)"', text))
        found.update(re.findall(r'"name": ?"([^"\\]+)", ?"cat": ?"[kK]ernel"', text))
    return frozenset(found)
