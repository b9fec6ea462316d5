"""Names of NVTX ranges that are dispatcher operators, and of operators whose recorded shapes mislead.

torch.autograd.profiler.emit_nvtx pushes a range for everything a profiler would record: operators, nodes of
autograd, and what users name with record_function. Patterns are of RE2.

Source: torch/csrc/autograd/profiler_nvtx and aten/src/ATen/record_function.h for scopes; inputSizes in
torch/csrc/profiler/util.cpp, which writes each tensor of a list as an argument of its own.
"""

from __future__ import annotations

__all__ = ["BARE_OPERATOR", "EMITTED_OPERATOR", "TAKES_TENSOR_LISTS"]

_ALTERNATIVES = (
    r"[A-Za-z_][\w.]*(?:::[\w.~]+)+",  # aten::mm, c10d::allreduce_
    r"autograd::engine::evaluate_function: .*",
    r"Torch-Compiled Region.*",
    r"triton_\w+",
    r"detach_?|record_param_comms",  # recorded in C++ without a namespace
)
EMITTED_OPERATOR = f"^(?:{'|'.join(_ALTERNATIVES)})$"
"""Of a range with the marks of emit_nvtx, but without a sequence number."""

BARE_OPERATOR = r"^(?:aten::\w+|autograd::engine::evaluate_function: .*|torch::(?:autograd|jit)::\w+)$"
"""Of a range without any marks: a user's own C++ may well push `Solver::step`."""

_LISTS = (
    r"_foreach_\w+", r"_amp_foreach_\w+", r"_fused_(?:adam|adamw|sgd|adagrad)_?", r"_?stack", r"[hvd]stack",
    r"(?:row|column)_stack", r"cat", r"concat(?:enate)?", r"_chunk_cat", r"block_diag", r"broadcast_tensors",
    r"cartesian_prod", r"chain_matmul", r"linalg_multi_dot", r"einsum", r"meshgrid", r"_to_cpu",
    r"atleast_[123]d",
    r"_?(?:unsafe_)?(?:masked_)?index", r"_?(?:unsafe_)?(?:masked_)?index_put\w*", r"_index_put_impl_?",
    r"gradient", r"_?histogramdd\w*", r"pad_sequence", r"(?:un)?flatten_dense_tensors", r"dequantize",
    r"quantize_per_tensor", r"(?:quantized_)?(?:lstm|gru|rnn_tanh|rnn_relu)(?:_cell)?", r"_lstm_mps",
    r"lstm_mps_backward", r"_cudnn_rnn\w*", r"miopen_rnn\w*", r"_backward",
    r"_nested_tensor_from_tensor_list", r"_jagged_to_padded_dense_forward",
    r"_padded_dense_to_jagged_forward", r"_scaled(?:_grouped)?_mm_v2",
    r"_thnn_\w+", r"_scaled_\w*mm_v2",
)  # fmt: skip
TAKES_TENSOR_LISTS = f"^aten::(?:{'|'.join(_LISTS)})$"
"""Of operators with a list of tensors among their arguments: which shape is whose cannot be told."""
