"""The category of a kernel, and of operators that only their tags or kernels tell."""

from __future__ import annotations

import pytest

from opscope.provenance.categories import (
    OTHER,
    category_of,
    category_title,
    kernel_category,
)
from opscope.provenance.kernel_names.decoder import decode

GEMM = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, X>(int)"
UNKNOWN = "my_special_kernel(float*)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (GEMM, "matrix"),
        (ADD, "elementwise"),
        (UNKNOWN, OTHER),
        ("Memcpy HtoD (Pageable -> Device)", "copy_transfer"),
        ("Memcpy DtoD (Device -> Device)", "memory"),
        ("Memset (Device)", "memory"),
        ("at::cuda::(anonymous namespace)::spin_kernel(long)", "control"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("triton_per_fused_add_native_layer_norm_view_5", "normalization"),
        ("triton_per_fused__softmax_add_arange_exp_0", "activation"),
        ("triton_per_fused_add_arange_cat_cumsum_expand_1", "sort_scan"),
        ("triton_poi_fused_gelu_view_6", "activation"),
        ("triton_poi_fused_add_cos_sin_0", "elementwise"),
        ("triton_poi_fused_clone_transpose_view_1", "memory"),
        ("triton_poi_fused_mm_t_13", "memory"),
        ("triton_poi_fused_embedding_0", "embedding"),
        ("triton_poi_fused__scaled_dot_product_cudnn_attention_add_arange_index_le_where_10", "elementwise"),
        ("triton_red_fused_mul_sum_2", "reduction"),
        ("triton_poi_fused_0", "elementwise"),
    ],
)
def test_the_category_of_a_kernel(name: str, expected: str) -> None:
    assert kernel_category(decode(name)) == expected


def test_tags_tell_what_a_name_does_not() -> None:
    assert category_of("mine::special", ("core", "pointwise")) == "elementwise"
    assert category_of("mine::special", ("reduction",)) == "reduction"
    assert category_of("mine::special", ("core",)) == OTHER
    assert category_of("aten::gelu", ("pointwise",)) == "activation"


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("matrix", "aten::_cudnn_rnn"),
        ("matrix", "aten::_thnn_fused_lstm_cell"),
        ("matrix", "aten::linalg_inv_ex"),
        ("matrix", "aten::_sparse_semi_structured_linear"),
        ("matrix", "aten::stft"),
        ("elementwise", "aten::quantize_per_tensor"),
        ("elementwise", "aten::fake_quantize_per_channel_affine"),
        ("elementwise", "aten::arctan2"),
        ("elementwise", "aten::less_equal"),
        ("elementwise", "aten::signbit"),
        ("random", "aten::_masked_scale"),
        ("random", "aten::_standard_gamma"),
        ("activation", "aten::_safe_softmax"),
        ("memory", "aten::_to_dense"),
        ("memory", "aten::_coalesce"),
        ("memory", "aten::moveaxis"),
        ("reduction", "aten::native_norm"),
        ("sort_scan", "aten::_histogramdd_from_bin_cts"),
        ("pooling", "aten::channel_shuffle"),
        ("embedding", "aten::index_reduce"),
    ],
)
def test_rarer_operators(category: str, name: str) -> None:
    assert category_of(name) == category


def test_kernels_have_a_category_of_their_own() -> None:
    assert category_title("control") == "Control and waiting"
