"""What ran on tensor cores, what could have, and what has no work for them: by names of real kernels."""

import gzip
import re

import pytest

from case_tables import cases
from opscope.analysis.launch_quality import (
    TensorCoreUse,
    is_product,
    operand_type,
    passes_of,
    tensor_core_use,
)
from opscope.hardware.devices import DataType
from opscope.provenance.kernel_names.decoder import decode

USED, ELIGIBLE = TensorCoreUse.USED, TensorCoreUse.ELIGIBLE

TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_execute_kernel_cublas"  # noqa: E501
NVJET = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_bias_TNT"
CUDNN = (
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0"
)
EFFICIENT = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"


@cases("name", "data_type", "use")
def test_evidence_of_a_name_on_an_h200(name, data_type, use):
    assert tensor_core_use(decode(name), data_type and DataType(data_type), "9.0") == use


def test_fp32_of_memory_efficient_attention_takes_three_products():
    assert [passes_of(decode(name), DataType.FP32) for name in (EFFICIENT, TF32)] == [3, 1]


@cases("name", "data_type", "capability", "use")
def test_what_could_run_follows_from_operands_and_device(name, data_type, capability, use):
    assert tensor_core_use(decode(name), data_type and DataType(data_type), capability) == use


def test_the_type_is_that_of_the_multiplication_where_the_name_tells_it():
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
def test_every_product_in_recorded_traces_is_told(recorded_names):
    products = [name for name in recorded_names if is_product(decode(name))]
    assert len(products) > 150
    untold = {
        name.partition("<")[0]
        for name in products
        if tensor_core_use(decode(name), None, "9.0") is None and not re.match("igemm_|_ZN2ck", name)
    }
    assert untold == _UNTOLD


@pytest.fixture(scope="module")
def recorded_names(shared):
    """Names of device activities, taken from the text: a tenth of the time of loading the traces."""
    found = set()
    for path in (shared / "traces").rglob("*.json*"):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
        found.update(re.findall(r'"cat": ?"[kK]ernel", ?"name": ?"([^"\\]+)"', text))
        found.update(re.findall(r'"name": ?"([^"\\]+)", ?"cat": ?"[kK]ernel"', text))
    return frozenset(found)
