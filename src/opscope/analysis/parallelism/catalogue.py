"""Which rule accounts for which kernel: by function name where the source is known, else by decoded family.

A kernel no rule knows gets None: of it only the geometry is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from opscope.analysis.parallelism import (
    attention,
    batch_norm,
    communication,
    convolution,
    copying,
    device_algorithms,
    elementwise,
    embedding,
    fourier,
    generated,
    image_windows,
    indexing,
    layer_norm,
    matrix_product,
    multi_tensor,
    random_numbers,
    reduction,
    scanning,
    softmax,
    sorting,
    special_reductions,
)
from opscope.analysis.parallelism.account import Rule
from opscope.analysis.parallelism.facts import LaunchFacts

__all__ = ["CatalogueEntry", "families", "rule_for"]


@dataclass(frozen=True)
class CatalogueEntry:
    """A family of kernels that are parallel alike, and its rule."""

    family: str
    rule: Rule


# Family, rule, names of `__global__` functions without namespaces (a regular expression on the whole name).
_BY_FUNCTION: tuple[tuple[str, Rule, str], ...] = (
    ("vectorized elementwise", elementwise.vectorized_elementwise, r"vectorized_elementwise_kernel"),
    ("unrolled elementwise", elementwise.unrolled_elementwise, r"unrolled_elementwise_kernel"),
    ("strided elementwise", elementwise.legacy_elementwise, r"elementwise_kernel|_elementwise_kernel"),
    ("several-output elementwise", elementwise.several_outputs,
     r"unrolled_elementwise_kernel_for_multi_outputs"),
    ("indexed elementwise", elementwise.indexed_elementwise, r"elementwise_kernel_with_index"),
    ("reduction", reduction.reduction, r"reduce_kernel"),
    ("warp softmax", softmax.warp_softmax, r"softmax_warp_(?:forward|backward)"),
    ("block softmax", softmax.block_softmax, r"cunn_SoftMax(?:Forward(?:Reg|Smem)?|Backward(?:Smem)?)"),
    ("spatial softmax", softmax.spatial_softmax, r"cunn_SpatialSoftMax(?:Forward|Backward)"),
    ("layer norm", layer_norm.vectorized_forward, r"vectorized_layer_norm_kernel"),
    ("layer norm", layer_norm.row_normalization, r"LayerNormForwardCUDAKernel"),
    ("layer norm backward", layer_norm.input_gradient, r"layer_norm_grad_input_kernel(?:_vectorized)?"),
    ("layer norm weight gradient", layer_norm.gamma_beta_backward, r"GammaBetaBackwardCUDAKernelTemplate"),
    ("layer norm weight gradient", layer_norm.gamma_beta_backward_old,
     r"GammaBetaBackward(?:Simple)?CUDAKernel(?:_32x32)?"),
    ("batch norm", batch_norm.channel_statistics,
     r"batch_norm_(?:collect_statistics|backward|backward_reduce)_kernel"),
    ("batch norm", batch_norm.transform, r"batch_norm_(?:transform_input|backward_elemt)_kernel"),
    ("batch norm channels last", batch_norm.channels_last, r"batch_norm_\w+_channels_last_kernel"),
    ("cuDNN batch norm", batch_norm.cudnn_batch_norm, r"bn_[fb]w_\w+"),
    ("group norm", batch_norm.group_parameters, r"ComputeFusedParamsCUDAKernel"),
    ("split-K reduction", matrix_product.split_k_reduction, r"splitKreduce_kernel"),
    ("matrix-vector product", matrix_product.few_columns, r"gemv2T_kernel_val|gemmSN_\w+_kernel"),
    ("dot product", matrix_product.dot_product, r"dot_kernel|reduce_1Block_kernel"),
    ("flash attention combination", attention.flash_combine, r"flash_fwd_splitkv_combine_kernel"),
    ("flash attention", attention.flash_forward, r"flash_fwd(?:_splitkv)?_kernel"),
    ("flash attention backward", attention.flash_backward,
     r"flash_bwd_(?:dq_dk_dv_loop_seqk_parallel|dot_do_o|convert_dq)_kernel"),
    ("memory-efficient attention", attention.memory_efficient_forward, r"fmha_cutlassF_\w+"),
    ("memory-efficient attention backward", attention.memory_efficient_backward, r"fmha_cutlassB_\w+"),
    ("cuDNN attention", attention.cudnn_attention, r"cudnn_generated_\w*sdpa\w+"),
    ("cuDNN attention backward", attention.cudnn_attention_rows,
     r"compute_dot_do_o(?:_specialized)?|convert_dq_to_16bits"),
    ("concatenation", copying.concatenation, r"CatArrayBatchedCopy\w*"),
    ("triangle", copying.triangle, r"triu_tril_kernel"),
    ("index", indexing.index_elements, r"index_elementwise_kernel"),
    ("gather and scatter", indexing.scatter_gather, r"_scatter_gather_elementwise_kernel"),
    ("row gather", indexing.vectorized_gather, r"vectorized_gather_kernel"),
    ("index select", indexing.select_rows, r"index(?:Select|Func)(?:Small|Large)Index"),
    ("index put", indexing.index_put_rows, r"indexing_backward_kernel"),
    ("embedding gradient", embedding.feature_gradient, r"embedding_backward_feature_kernel"),
    ("embedding gradient", embedding.segment_gradient, r"compute_grad_weight(?:_atomic_accumulate)?"),
    ("embedding gradient", embedding.segment_scatter, r"sum_and_scatter"),
    ("embedding gradient", embedding.segment_bookkeeping,
     r"krn_partial(?:s_per_segment|_segment_offset|_to_segment_idx)"),
    ("embedding gradient", embedding.segment_total, r"compute_num_of_partial_segments"),
    ("dropout", random_numbers.dropout, r"fused_dropout_kernel(?:_vec)?"),
    ("random distribution", random_numbers.distribution, r"distribution_elementwise_grid_stride_kernel"),
    ("slice sort", sorting.slice_sort, r"radixSortKVInPlace"),
    ("small slice sort", sorting.small_slice_sort, r"bitonicSortKVInPlace|warpMergeSortKVInPlace"),
    ("scan", scanning.outer_scan, r"tensor_kernel_scan_outer_dim(?:_with_indices)?"),
    ("scan", scanning.inner_scan, r"tensor_kernel_scan_innermost_dim(?:_with_indices)?"),
    ("multi-tensor apply", multi_tensor.multi_tensor_apply, r"multi_tensor_apply_kernel"),
    ("foreach norm", multi_tensor.norm_cleanup, r"lp(?:norm|max)_cleanup"),
    ("pooling", image_windows.pool, r"max_pool_forward_nchw|avg_pool2d_\w*out_cuda_frame\w*"),
    ("pooling", image_windows.pool_channels_last, r"max_pool_(?:for|back)ward_nhwc"),
    ("pooling", image_windows.pool_gradient, r"max_pool_backward_nchw"),
    ("im2col", image_windows.im2col, r"im2col_kernel"),
    ("adaptive pooling", image_windows.adaptive_average_pool, r"adaptive_average_pool"),
    ("nearest upsampling", image_windows.nearest_upsample, r"upsample_nearest2d_out_frame"),
    ("interpolation", image_windows.resize,
     r"upsample_(?:bilinear|bicubic)2d_(?:nhwc_)?out_frame|upsample_nearest2d_nhwc_out_frame"),
    ("depthwise convolution", image_windows.depthwise_convolution,
     r"conv_depthwise2d_(?:forward|backward)_kernel(?:_generic)?"),
    ("depthwise convolution", image_windows.depthwise_weight_gradient,
     r"conv_depthwise2d_grad_weight_kernel"),
    ("grid sampling", image_windows.grid_sample, r"grid_sampler_[23]d_(?:backward_)?kernel"),
    ("implicit GEMM convolution", convolution.implicit_sgemm, r"implicit_convolve_sgemm"),
    ("negative log likelihood", special_reductions.nll_loss_sum,
     r"nll_loss_forward_reduce_cuda_kernel_[12]d"),
    ("negative log likelihood", special_reductions.nll_loss_sum_gradient,
     r"nll_loss_backward_reduce_cuda_kernel_[12]d"),
    ("negative log likelihood", special_reductions.nll_loss_each,
     r"nll_loss_(?:for|back)ward_no_reduce_cuda_kernel"),
    ("negative log likelihood", special_reductions.nll_loss_image, r"nll_loss2d_(?:for|back)ward_kernel"),
    ("distances", special_reductions.distances, r"[cp]dist_kernel_cuda_impl"),
    ("histogram", special_reductions.histogram, r"kernelHistogram1D"),
    ("Fourier transform", fourier.fourier, r"(?:vector|regular)_fft\w*"),
    ("Triton kernel", generated.triton_kernel, r"triton_(?:poi|red|per)_\w+"),
    ("collective", communication.collective, r"nccl(?:Dev|SymDev|SymkDev)?Kernel\w*"),
    ("device algorithm", device_algorithms.device_algorithm, r"Device[A-Z]\w+Kernel|_kernel_agent"),
)  # fmt: skip
_PATTERNS = tuple(
    (re.compile(pattern), CatalogueEntry(family, rule)) for family, rule, pattern in _BY_FUNCTION
)
# Where the function's name does not settle it: the decoded family.
_BY_FAMILY = {
    "gemm": CatalogueEntry("tiled matrix product", matrix_product.tiled_product),
    "convolution": CatalogueEntry("convolution", convolution.convolution),
    "memcpy": CatalogueEntry("driver copy", copying.driver_copy),
    "memset": CatalogueEntry("driver set", copying.driver_set),
}
_GROUP_MOMENTS = CatalogueEntry("group norm", batch_norm.group_moments)
_ROW_MOMENTS = CatalogueEntry("layer norm", layer_norm.row_moments)
_MULTI_BLOCK_SELECT = CatalogueEntry("multi-block selection", sorting.multi_block_select)
_BLOCK_SELECT = CatalogueEntry("selection", sorting.single_block_select)


def rule_for(launch: LaunchFacts) -> CatalogueEntry | None:
    """The entry of a launch's kernel; None if there is none."""
    name = launch.function_name
    shared = _SHARED_NAMES.get(name)
    if shared is not None:
        return shared(launch)
    if "::mbtopk::" in (launch.kernel.function or ""):
        return _MULTI_BLOCK_SELECT
    for pattern, entry in _PATTERNS:
        if pattern.fullmatch(name):
            return entry
    return _BY_FAMILY.get(launch.kernel.family or "")


def families() -> tuple[str, ...]:
    """All families that have a rule, sorted."""
    entries = [entry for _, entry in _PATTERNS] + list(_BY_FAMILY.values())
    entries += [_MULTI_BLOCK_SELECT, _BLOCK_SELECT]
    return tuple(sorted({entry.family for entry in entries}))


def _moments(launch: LaunchFacts) -> CatalogueEntry:
    """One function name of two files: layer norm's rows and group norm's groups."""
    is_group = launch.call is not None and "group_norm" in launch.call.name
    return _GROUP_MOMENTS if is_group else _ROW_MOMENTS


def _selection(launch: LaunchFacts) -> CatalogueEntry:
    return _MULTI_BLOCK_SELECT if "::mbtopk::" in (launch.kernel.function or "") else _BLOCK_SELECT


_SHARED_NAMES: dict[str, Callable[[LaunchFacts], CatalogueEntry]] = {
    "RowwiseMomentsCUDAKernel": _moments,
    "gatherTopK": _selection,
    "gatherKthValue": _selection,
    "gatherMedian": _selection,
}
