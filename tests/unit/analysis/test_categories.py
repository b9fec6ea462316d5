"""The category of operators people meet."""

from __future__ import annotations

import pytest

from opscope.provenance.categories import OTHER, categories, category_of, category_title

EXPECTED = {
    "matrix": [
        "aten::mm", "MmBackward0", "aten::bmm", "aten::baddbmm", "aten::matmul", "aten::linear",
        "aten::_addmm_activation", "aten::_scaled_mm", "aten::einsum", "aten::cdist", "aten::_fft_r2c",
        "aten::linalg_solve", "aten::mv", "aten::addmm", "AddmmBackward0",
        "autograd::engine::evaluate_function: MmBackward0",
    ],
    "attention": [
        "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention",
        "aten::_efficient_attention_forward", "aten::_flash_attention_backward",
    ],
    "convolution": [
        "aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution",
        "aten::convolution_backward", "aten::miopen_convolution",
    ],
    "normalization": [
        "aten::layer_norm", "aten::native_layer_norm", "aten::native_layer_norm_backward",
        "aten::cudnn_batch_norm", "aten::batch_norm", "aten::group_norm", "aten::_fused_rms_norm",
    ],
    "activation": [
        "aten::gelu", "aten::gelu_backward", "aten::relu_", "aten::silu", "aten::softmax", "aten::_softmax",
        "aten::_log_softmax", "aten::_softmax_backward_data", "aten::tanh", "aten::sigmoid",
    ],
    "embedding": ["aten::embedding", "aten::embedding_dense_backward", "aten::index_select", "aten::gather",
                  "aten::_embedding_bag", "aten::index"],
    "elementwise": ["aten::add", "aten::add_", "aten::mul", "aten::div", "aten::sub", "aten::pow",
                    "aten::where", "aten::clamp", "aten::eq", "aten::bitwise_not", "aten::__and__"],
    "memory": ["aten::copy_", "aten::clone", "aten::cat", "aten::transpose", "aten::t", "aten::view",
               "aten::fill_", "aten::zero_", "aten::empty", "aten::contiguous", "aten::as_strided"],
    "copy_transfer": ["aten::to", "aten::_to_copy", "aten::item", "aten::_local_scalar_dense",
                      "aten::pin_memory"],
    "reduction": ["aten::sum", "aten::mean", "aten::max", "aten::argmax", "aten::var_mean", "aten::norm",
                  "aten::any"],
    "optimizer": ["aten::_foreach_add_", "aten::_fused_adamw_", "Optimizer.step#AdamW.step",
                  "aten::_amp_foreach_non_finite_check_and_unscale_"],
    "communication": ["c10d::allreduce_", "nccl:all_reduce", "record_param_comms", "c10d::_allgather_base_",
                      "_c10d_functional::wait_tensor", "_c10d_functional::all_gather_into_tensor"],
    "random": ["aten::randn", "aten::dropout", "aten::native_dropout", "aten::bernoulli_", "aten::normal_"],
    "sort_scan": ["aten::sort", "aten::topk", "aten::cumsum", "aten::nonzero", "aten::_unique2"],
    "loss": ["aten::nll_loss_forward", "aten::cross_entropy_loss", "aten::mse_loss"],
    "pooling": ["aten::max_pool2d_with_indices", "aten::_adaptive_avg_pool2d", "aten::upsample_nearest2d"],
    OTHER: ["CompiledFunction", "triton_poi_fused_0", "", "enumerate(DataLoader)"],
}  # fmt: skip


@pytest.mark.parametrize(("category", "operators"), EXPECTED.items())
def test_the_categories_of_operators(category: str, operators: list[str]) -> None:
    assert {name: category_of(name) for name in operators} == dict.fromkeys(operators, category)


def test_every_category_is_tested_and_titled() -> None:
    assert {category.name for category in categories()} | {OTHER} == EXPECTED.keys()
    assert category_title("matrix") == "Matrix operations"
    assert category_title("none such") == "Other"
    assert len({category.title for category in categories()}) == len(categories())
